//! Soft actor-critic: an actor that looks for rewards and stays as random as it can afford to.
//!
//! Sources: Haarnoja et al., "Soft actor-critic algorithms and applications", 2018; Fujimoto et
//! al., "Addressing function approximation error in actor-critic methods", 2018, for the two
//! critics.

use anyhow::Result;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, loss::mse};
use rand::SeedableRng;
use rand_pcg::Pcg64;
use windrow::{TensorDict, Weights, nn::Sequential};

use super::actor::{self, Sample};
use crate::common::{minibatch::Minibatch, network::Network};

const GAMMA: f64 = 0.98;
const LEARNING_RATE: f64 = 1e-3;
/// Share of the way that the targets go with each update.
const FOLLOW: f64 = 0.01;
/// Entropy that the actions shall have: minus their number, which is 1.
const ENTROPY: f64 = -1.0;

/// An actor, two critics, and what they learn with.
pub(crate) struct Learner {
    actor: Network,
    /// Two, since the lesser of their values is less likely to be too large.
    critics: [Network; 2],
    /// Follow the critics slowly, so that values do not chase themselves.
    targets: [Network; 2],
    temperature: Temperature,
    rng: Pcg64,
}

impl Learner {
    pub(crate) fn new(actor: &Sequential, critics: &[Sequential; 2], seed: u64) -> Result<Self> {
        let twins = || anyhow::Ok([Network::new(&critics[0])?, Network::new(&critics[1])?]);
        Ok(Self {
            actor: Network::new(actor)?,
            critics: twins()?,
            targets: twins()?,
            temperature: Temperature::new()?,
            rng: Pcg64::seed_from_u64(seed),
        })
    }

    /// The actor's parameters, for the policy that collects.
    pub(crate) fn weights(&self) -> Result<Weights> {
        self.actor.weights()
    }

    /// Learns from frames sampled from a replay buffer, `[frames]`, at a rate that falls with
    /// `remaining`, the share of training still to come.
    pub(crate) fn learn(&mut self, frames: &TensorDict, remaining: f64) -> Result<()> {
        let minibatch = Minibatch::of(frames)?;
        let rate = LEARNING_RATE * remaining;
        self.learn_values(&minibatch, rate)?;
        self.learn_actions(&minibatch.observation, rate)?;
        for (target, critic) in self.targets.iter().zip(&self.critics) {
            target.follow(critic, FOLLOW)?;
        }
        Ok(())
    }

    fn learn_values(&mut self, minibatch: &Minibatch, rate: f64) -> Result<()> {
        let goal = self.goal(minibatch)?;
        for critic in &mut self.critics {
            let value = value(critic, &minibatch.observation, &minibatch.action)?;
            critic.descend(&mse(&value, &goal)?, rate)?;
        }
        Ok(())
    }

    /// The reward, and what the next frame is worth, the randomness of its action included.
    fn goal(&mut self, minibatch: &Minibatch) -> Result<Tensor> {
        let next = &minibatch.next_observation;
        let Sample { action, log_prob } = actor::sample(&self.actor, next, &mut self.rng)?;
        let entropy = (log_prob * -self.temperature.value()?)?;
        let next_value = (least_value(&self.targets, next, &action)? + entropy)?;
        let discount = (&minibatch.goes_on * GAMMA)?;
        Ok((&minibatch.reward + discount * next_value)?.detach())
    }

    /// Makes actions likelier that are worth more, but none likelier than it needs to be.
    fn learn_actions(&mut self, observation: &Tensor, rate: f64) -> Result<()> {
        let Sample { action, log_prob } = actor::sample(&self.actor, observation, &mut self.rng)?;
        let value = least_value(&self.critics, observation, &action)?;
        let loss = ((&log_prob * self.temperature.value()?)? - value)?.mean_all()?;
        self.actor.descend(&loss, rate)?;
        self.temperature.adapt(&log_prob.detach(), rate)
    }
}

/// What a unit of entropy is worth, in units of reward.
struct Temperature {
    log: Var,
    adam: AdamW,
}

impl Temperature {
    /// One that is 1.
    fn new() -> Result<Self> {
        let log = Var::zeros((), DType::F32, &Device::Cpu)?;
        let options = ParamsAdamW {
            weight_decay: 0.0,
            ..ParamsAdamW::default()
        };
        let adam = AdamW::new(vec![log.clone()], options)?;
        Ok(Self { log, adam })
    }

    fn value(&self) -> Result<f64> {
        Ok(f64::from(self.log.to_scalar::<f32>()?).exp())
    }

    /// Rises where actions have less than the wanted entropy, and falls where they have more.
    fn adapt(&mut self, log_prob: &Tensor, rate: f64) -> Result<()> {
        let excess = (log_prob.mean_all()?.neg()? - ENTROPY)?;
        self.adam.set_learning_rate(rate);
        Ok(self.adam.backward_step(&(self.log.as_tensor() * excess)?)?)
    }
}

/// What the critics agree on that actions are worth, `[frames, 1]`.
fn least_value(critics: &[Network; 2], observation: &Tensor, action: &Tensor) -> Result<Tensor> {
    let [one, other] = critics;
    let value_of_other = value(other, observation, action)?;
    Ok(value(one, observation, action)?.minimum(&value_of_other)?)
}

/// What a critic thinks that actions are worth, `[frames, 1]`.
fn value(critic: &Network, observation: &Tensor, action: &Tensor) -> Result<Tensor> {
    critic.forward(&Tensor::cat(&[observation, action], 1)?)
}
