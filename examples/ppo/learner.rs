//! Proximal policy optimisation with a clipped objective.
//!
//! Source: Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 7.

use anyhow::Result;
use candle_core::{D, Device, Tensor};
use candle_nn::ops::log_softmax;
use rand::{SeedableRng, seq::SliceRandom};
use rand_pcg::Pcg64;
use windrow::{
    postproc::Gae,
    tensordict::{self, TensorDict},
};

use super::network::{Network, floats, indices};

const OBSERVATION: usize = 4;
const ACTIONS: usize = 2;
const HIDDEN: usize = 64;

const GAMMA: f32 = 0.99;
const LAMBDA: f32 = 0.95;
const CLIP: f64 = 0.2;
const EPOCHS: usize = 10;
const MINIBATCH: usize = 128;
const LEARNING_RATE: f64 = 1e-3;

/// An actor, a critic, and how they learn from a batch.
pub(crate) struct Learner {
    actor: Network,
    critic: Network,
    gae: Gae,
    rng: Pcg64,
}

/// What is learned from, one row a frame: `observation` is `[frames, 4]`, all else `[frames, 1]`.
struct Frames {
    observation: Tensor,
    action: Tensor,
    log_prob: Tensor,
    advantage: Tensor,
    value_target: Tensor,
}

impl Learner {
    pub(crate) fn new(seed: u64) -> Result<Self> {
        let mut rng = Pcg64::seed_from_u64(seed);
        Ok(Self {
            actor: Network::new(&[OBSERVATION, HIDDEN, HIDDEN, ACTIONS], 0.01, &mut rng)?,
            critic: Network::new(&[OBSERVATION, HIDDEN, HIDDEN, 1], 1.0, &mut rng)?,
            gae: Gae::new(GAMMA, LAMBDA)?,
            rng,
        })
    }

    /// The actor's parameters, for the policy that collects.
    pub(crate) fn weights(&self) -> Result<TensorDict> {
        self.actor.weights()
    }

    /// Learns from one batch, and leaves in it what it computed on the way. `remaining`: the share of training still to
    /// come, from 1 to 0; the learning rate goes down with it.
    pub(crate) fn learn(&mut self, batch: &mut TensorDict, remaining: f64) -> Result<()> {
        let value = self.values(batch.get("observation")?)?;
        batch.set("state_value", value)?;
        let value = self.values(batch.get(("next", "observation"))?)?;
        batch.set(("next", "state_value"), value)?;
        self.gae.estimate(batch)?;

        let frames = Frames::read(batch)?;
        let learning_rate = LEARNING_RATE * remaining;
        let mut order: Vec<u32> = (0..batch.numel() as u32).collect();
        for _ in 0..EPOCHS {
            order.shuffle(&mut self.rng);
            for rows in order.chunks(MINIBATCH) {
                let frames = frames.select(rows)?;
                self.actor
                    .descend(&policy_loss(&self.actor, &frames)?, learning_rate)?;
                self.critic
                    .descend(&value_loss(&self.critic, &frames)?, learning_rate)?;
            }
        }
        Ok(())
    }

    /// The critic's opinion of observations `[…, 4]`, as a column `[…, 1]`.
    fn values(&self, observation: &tensordict::Tensor) -> Result<tensordict::Tensor> {
        let values = self.critic.forward(&floats(observation, OBSERVATION)?)?;
        let values = values.flatten_all()?.to_vec1::<f32>()?;
        let mut shape = observation.shape().to_vec();
        shape.pop();
        shape.push(1);
        Ok(tensordict::Tensor::from_vec(values, shape)?)
    }
}

impl Frames {
    fn read(batch: &TensorDict) -> Result<Self> {
        Ok(Self {
            observation: floats(batch.get("observation")?, OBSERVATION)?,
            action: indices(batch.get("action")?)?,
            log_prob: floats(batch.get("action_log_prob")?, 1)?,
            advantage: floats(batch.get("advantage")?, 1)?,
            value_target: floats(batch.get("value_target")?, 1)?,
        })
    }

    fn select(&self, rows: &[u32]) -> Result<Self> {
        let rows = Tensor::new(rows, &Device::Cpu)?;
        Ok(Self {
            observation: self.observation.index_select(&rows, 0)?,
            action: self.action.index_select(&rows, 0)?,
            log_prob: self.log_prob.index_select(&rows, 0)?,
            advantage: self.advantage.index_select(&rows, 0)?,
            value_target: self.value_target.index_select(&rows, 0)?,
        })
    }
}

/// The clipped objective, negated: actions that went better than expected shall become likelier, but not by much.
fn policy_loss(actor: &Network, frames: &Frames) -> Result<Tensor> {
    let log_probs = log_softmax(&actor.forward(&frames.observation)?, D::Minus1)?;
    let log_prob = log_probs.gather(&frames.action, 1)?;
    let ratio = (log_prob - &frames.log_prob)?.exp()?;
    let advantage = standardized(&frames.advantage)?;
    let clipped = (ratio.clamp(1.0 - CLIP, 1.0 + CLIP)? * &advantage)?;
    let objective = (ratio * advantage)?.minimum(&clipped)?;
    Ok(objective.mean_all()?.neg()?)
}

/// Mean squared distance of the values from their targets.
fn value_loss(critic: &Network, frames: &Frames) -> Result<Tensor> {
    let error = (critic.forward(&frames.observation)? - &frames.value_target)?;
    Ok(error.sqr()?.mean_all()?)
}

/// `column` with mean 0 and standard deviation 1.
fn standardized(column: &Tensor) -> Result<Tensor> {
    let centered = column.broadcast_sub(&column.mean_all()?)?;
    let deviation = (centered.sqr()?.mean_all()?.sqrt()? + 1e-8)?;
    Ok(centered.broadcast_div(&deviation)?)
}
