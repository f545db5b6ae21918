//! Proximal policy optimisation: an actor and a critic that learn from batches.
//!
//! Source: Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 7.

use anyhow::Result;
use candle_core::{D, Tensor};
use candle_nn::ops::log_softmax;
use rand::{SeedableRng, seq::SliceRandom};
use rand_pcg::Pcg64;
use windrow::postproc::Gae;
use windrow::{TensorDict, Weights};

use crate::common::network::{Network, to_candle, to_windrow};

const GAMMA: f32 = 0.99;
const LAMBDA: f32 = 0.95;
const CLIP: f64 = 0.2;
const EPOCHS: usize = 10;
const MINIBATCH: usize = 128;
const LEARNING_RATE: f64 = 1e-3;

/// What the losses read.
const COLUMNS: [&str; 5] = [
    "observation",
    "action",
    "action_log_prob",
    "advantage",
    "value_target",
];

/// An actor and a critic, and what they learn with.
pub(crate) struct Learner {
    actor: Network,
    critic: Network,
    gae: Gae,
    rng: Pcg64,
}

impl Learner {
    pub(crate) fn new(actor: &Weights, critic: &Weights, seed: u64) -> Result<Self> {
        Ok(Self {
            actor: Network::new(actor, Tensor::tanh)?,
            critic: Network::new(critic, Tensor::tanh)?,
            gae: Gae::new(GAMMA, LAMBDA)?,
            rng: Pcg64::seed_from_u64(seed),
        })
    }

    /// The actor's parameters, for the policy that collects.
    pub(crate) fn weights(&self) -> Result<Weights> {
        self.actor.weights()
    }

    /// Learns from a batch `[env, time]`, at a rate that falls with `remaining`, the share of training still to come.
    /// Values and advantages are left in the batch.
    pub(crate) fn learn(&mut self, batch: &mut TensorDict, remaining: f64) -> Result<()> {
        let value = self.values(batch.get("observation")?)?;
        let next_value = self.values(batch.get(("next", "observation"))?)?;
        batch.set("state_value", value)?;
        batch.set(("next", "state_value"), next_value)?;
        self.gae.estimate(batch)?;

        let frames = batch.select(&COLUMNS)?.flatten()?;
        let mut order: Vec<usize> = (0..frames.numel()).collect();
        let rate = LEARNING_RATE * remaining;
        for _ in 0..EPOCHS {
            order.shuffle(&mut self.rng);
            for rows in order.chunks(MINIBATCH) {
                let minibatch = frames.index_select(0, rows)?;
                let loss = policy_loss(&self.actor, &minibatch)?;
                self.actor.descend(&loss, rate)?;
                let loss = value_loss(&self.critic, &minibatch)?;
                self.critic.descend(&loss, rate)?;
            }
        }
        Ok(())
    }

    /// What the critic expects from observations `[env, time, 4]` on: `[env, time, 1]`.
    fn values(&self, observation: &windrow::Tensor) -> Result<windrow::Tensor> {
        let observation = to_candle::<f32>(observation)?;
        let (envs, steps, _) = observation.dims3()?;
        let values = self.critic.forward(&observation.flatten_to(1)?)?;
        to_windrow(&values.reshape((envs, steps, 1))?)
    }
}

/// Actions that turned out better than expected shall become likelier, the others less likely, but neither by much.
fn policy_loss(actor: &Network, minibatch: &TensorDict) -> Result<Tensor> {
    let column = |name: &str| to_candle::<f32>(minibatch.get(name)?);
    let action = to_candle::<i64>(minibatch.get("action")?)?.unsqueeze(1)?;
    let log_probs = log_softmax(&actor.forward(&column("observation")?)?, D::Minus1)?;
    let log_prob = log_probs.gather(&action, 1)?.squeeze(1)?;
    let ratio = (log_prob - column("action_log_prob")?)?.exp()?;
    let advantage = standardized(&column("advantage")?.squeeze(1)?)?;
    let clipped = (ratio.clamp(1.0 - CLIP, 1.0 + CLIP)? * &advantage)?;
    let objective = (ratio * advantage)?.minimum(&clipped)?;
    Ok(objective.mean_all()?.neg()?)
}

/// Mean squared distance of values from their targets.
fn value_loss(critic: &Network, minibatch: &TensorDict) -> Result<Tensor> {
    let column = |name: &str| to_candle::<f32>(minibatch.get(name)?);
    let error = (critic.forward(&column("observation")?)? - column("value_target")?)?;
    Ok(error.sqr()?.mean_all()?)
}

/// The same numbers with mean 0 and standard deviation 1.
fn standardized(values: &Tensor) -> Result<Tensor> {
    let centered = values.broadcast_sub(&values.mean_all()?)?;
    let deviation = (centered.sqr()?.mean_all()?.sqrt()? + 1e-8)?;
    Ok(centered.broadcast_div(&deviation)?)
}
