//! Proximal policy optimisation: an actor and a critic that learn from batches.
//!
//! Source: Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 7.

use std::f64::consts::TAU;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_nn::loss::mse;
use windrow::postproc::Gae;
use windrow::replay::Minibatches;
use windrow::tensordict::AsKey;
use windrow::{NetworkPolicy, Policy, TensorDict, Weights, nn::Sequential};
use windrow_candle::{from_candle, to_candle};

use crate::common::network::Network;

const GAMMA: f64 = 0.99;
const LAMBDA: f64 = 0.95;
const CLIP: f64 = 0.2;
const EPOCHS: usize = 10;
const MINIBATCH: usize = 128;
const LEARNING_RATE: f64 = 5e-4;
/// Values of rewards times this are numbers that a network learns soon.
const REWARD_SCALE: f64 = 0.1;

/// An actor and a critic, and what they learn with.
pub(crate) struct Learner {
    actor: Network,
    critic: Network,
    gae: Gae,
    minibatches: Minibatches,
}

impl Learner {
    /// `policy` has a parameter `log_std`.
    pub(crate) fn new(policy: &NetworkPolicy, critic: &Sequential, seed: u64) -> Result<Self> {
        Ok(Self {
            actor: Network::with(policy.network(), &policy.weights())?,
            critic: Network::new(critic)?,
            gae: Gae::new(GAMMA, LAMBDA)?,
            minibatches: Minibatches::new(MINIBATCH)?.epochs(EPOCHS).seed(seed),
        })
    }

    /// The actor's parameters, for the policy that collects.
    pub(crate) fn weights(&self) -> Result<Weights> {
        self.actor.weights()
    }

    /// Learns from a batch `[env, time]`, at a rate that falls with `remaining`, the share of
    /// training still to come.
    pub(crate) fn learn(&mut self, batch: &TensorDict, remaining: f64) -> Result<()> {
        let mut frames = batch.clone();
        let reward = to_candle(batch.get(("next", "reward"))?, &Device::Cpu)?;
        frames.set(("next", "reward"), from_candle(&(reward * REWARD_SCALE)?)?)?;
        frames.set("state_value", self.values(batch, "observation")?)?;
        let next_value = self.values(batch, ("next", "observation"))?;
        frames.set(("next", "state_value"), next_value)?;
        self.gae.estimate(&mut frames)?;

        let rate = LEARNING_RATE * remaining;
        for minibatch in self.minibatches.of(&frames.select(&READ)?) {
            let minibatch = minibatch?;
            let observation = column(&minibatch, "observation")?;
            let loss = policy_loss(&self.actor, &observation, &minibatch)?;
            self.actor.descend(&loss, rate)?;

            let values = self.critic.forward(&observation)?;
            let loss = mse(&values, &column(&minibatch, "value_target")?)?;
            self.critic.descend(&loss, rate)?;
        }
        Ok(())
    }

    /// What the critic expects from the observations `key` on: `[env, time, 1]`.
    fn values(&self, batch: &TensorDict, key: impl AsKey) -> Result<windrow::Tensor> {
        let shape = [batch.batch_size(), &[1]].concat();
        let values = self.critic.forward(&column(batch, key)?)?;
        Ok(from_candle(&values.reshape(shape)?)?)
    }
}

/// The columns that a learner reads.
const READ: [&str; 5] = [
    "observation",
    "action",
    "action_log_prob",
    "advantage",
    "value_target",
];

/// An entry of a batch, `[frames, elements]`.
fn column(batch: &TensorDict, key: impl AsKey) -> Result<Tensor> {
    let rows = to_candle(batch.get(key)?, &Device::Cpu)?.to_dtype(DType::F32)?;
    Ok(rows.reshape((batch.numel(), ()))?)
}

/// Minus the mean of `min(ratio · advantage, clamp(ratio) · advantage)`: actions that turned out
/// better than expected shall become likelier, the others less likely, but neither by much.
fn policy_loss(actor: &Network, observation: &Tensor, minibatch: &TensorDict) -> Result<Tensor> {
    let advantage = standardized(&column(minibatch, "advantage")?)?;
    let action = column(minibatch, "action")?;
    let change = (log_prob(actor, observation, &action)? - column(minibatch, "action_log_prob")?)?;
    let ratio = change.exp()?;
    let clamped = ratio.clamp(1.0 - CLIP, 1.0 + CLIP)?;
    let objective = (&ratio * &advantage)?.minimum(&(clamped * &advantage)?)?;
    Ok(objective.mean_all()?.neg()?)
}

/// The logarithm of the density of each action, `[frames, 1]`.
fn log_prob(actor: &Network, observation: &Tensor, action: &Tensor) -> Result<Tensor> {
    let log_std = actor.parameter("log_std")?;
    let distance = (action - actor.forward(observation)?)?.broadcast_div(&log_std.exp()?)?;
    let density = distance.sqr()?.affine(-0.5, -0.5 * TAU.ln())?;
    Ok(density.broadcast_sub(&log_std)?.sum_keepdim(1)?)
}

/// The numbers with mean 0 and standard deviation 1.
fn standardized(values: &Tensor) -> Result<Tensor> {
    let centred = values.broadcast_sub(&values.mean_all()?)?;
    let deviation = (centred.sqr()?.mean_all()?.sqrt()? + 1e-8)?;
    Ok(centred.broadcast_div(&deviation)?)
}

#[cfg(test)]
mod tests {
    use windrow::{Head, policy::Scale};

    use super::*;

    #[test]
    fn densities_are_those_of_a_normal_distribution() {
        let net = Sequential::new().linear(2, 1).seed(3);
        let policy = NetworkPolicy::new(net.clone(), Head::Normal(Scale::log_std()));
        let actor = Network::with(&net, &policy.weights()).unwrap();
        let observation = Tensor::new(&[[0.5_f32, -1.0], [2.0, 0.25]], &Device::Cpu).unwrap();
        let mean = actor.forward(&observation).unwrap();
        let action = (&mean + 1.5).unwrap();
        let density = log_prob(&actor, &observation, &action).unwrap();
        let exact = -0.5 * 1.5_f64.powi(2) - 0.5 * TAU.ln();
        for density in density.flatten_all().unwrap().to_vec1::<f32>().unwrap() {
            assert!((f64::from(density) - exact).abs() < 1e-6, "{density}");
        }
    }

    #[test]
    fn standardized_numbers_have_mean_0_and_deviation_1() {
        let values = Tensor::new(&[[1.0_f32], [3.0], [5.0], [7.0]], &Device::Cpu).unwrap();
        let values = standardized(&values).unwrap().flatten_all().unwrap();
        let values = values.to_vec1::<f32>().unwrap();
        let sum: f32 = values.iter().sum();
        let squares: f32 = values.iter().map(|x| x * x).sum();
        assert!(
            sum.abs() < 1e-6 && (squares - 4.0).abs() < 1e-5,
            "{values:?}"
        );
    }
}
