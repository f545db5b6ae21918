//! Deep Q-learning: a network that learns what actions are worth.
//!
//! Sources: Mnih et al., "Human-level control through deep reinforcement learning", 2015; van
//! Hasselt et al., "Deep reinforcement learning with double Q-learning", 2016.

use anyhow::Result;
use candle_core::{D, DType, Tensor};
use candle_nn::loss::mse;
use windrow::{
    LazyTensorStorage, RandomSampler, ReplayBuffer, TensorDict, Weights, nn::Sequential,
};

use crate::common::{minibatch::Minibatch, network::Network};

const GAMMA: f64 = 0.99;
/// Frames that are remembered.
const CAPACITY: usize = 51_200;
/// Frames to be seen before learning begins.
const WARM_UP: usize = 1024;
const UPDATES_PER_BATCH: usize = 128;
const MINIBATCH: usize = 64;
const LEARNING_RATE: f64 = 1e-3;
/// Share of the way that the target network goes with each update.
const FOLLOW: f64 = 0.01;

/// The values of actions, and what they are learned with.
pub(crate) struct Learner {
    online: Network,
    /// Follows `online` slowly, so that values do not chase themselves.
    target: Network,
    replay: ReplayBuffer,
}

impl Learner {
    pub(crate) fn new(network: &Sequential, seed: u64) -> Result<Self> {
        Ok(Self {
            online: Network::new(network)?,
            target: Network::new(network)?,
            replay: ReplayBuffer::builder()
                .storage(LazyTensorStorage::new(CAPACITY))
                .sampler(RandomSampler::new())
                .batch_size(MINIBATCH)
                .seed(seed)
                .build()?,
        })
    }

    /// The network's parameters, for the policy that collects.
    pub(crate) fn weights(&self) -> Result<Weights> {
        self.online.weights()
    }

    /// Takes a batch in, and learns from frames of this one and of those before.
    pub(crate) fn learn(&mut self, batch: &TensorDict) -> Result<()> {
        self.replay.extend(batch)?;
        if self.replay.len() < WARM_UP {
            return Ok(());
        }
        for _ in 0..UPDATES_PER_BATCH {
            let frames = self.replay.sample(None)?;
            let loss = self.loss(&Minibatch::of(&frames)?)?;
            self.online.descend(&loss, LEARNING_RATE)?;
            self.target.follow(&self.online, FOLLOW)?;
        }
        Ok(())
    }

    /// Mean squared distance of values from the reward and the value that came after them.
    fn loss(&self, minibatch: &Minibatch) -> Result<Tensor> {
        let next = &minibatch.next_observation;
        // One network chooses the next action, the other one says what it is worth.
        let choice = values(&self.online, next)?.argmax_keepdim(D::Minus1)?;
        let next_value = values(&self.target, next)?.gather(&choice, 1)?;
        let discount = (&minibatch.goes_on * GAMMA)?;
        let reward = (&minibatch.reward * (1.0 - GAMMA))?;
        let goal = (reward + discount * next_value)?.detach();

        let action = minibatch.action.to_dtype(DType::U32)?;
        let value = values(&self.online, &minibatch.observation)?.gather(&action, 1)?;
        Ok(mse(&value, &goal)?)
    }
}

/// What each action is worth, `[frames, actions]`: a mean of the rewards to come, later ones
/// counting less.
///
/// It is 1 where an episode never ends, and that is what a network which knows nothing expects. To
/// learn where episodes do end takes far less time than to count up, frame by frame, how long they
/// last.
fn values(network: &Network, observation: &Tensor) -> Result<Tensor> {
    Ok((network.forward(observation)? + 1.0)?)
}
