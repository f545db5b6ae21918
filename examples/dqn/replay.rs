//! The frames that are learned from: the newest ones, drawn at random.

use anyhow::Result;
use candle_core::{Device, Tensor};
use rand::RngExt;
use windrow::{DType, TensorDict};

/// The newest frames, as many as there is room for; the oldest ones make way.
pub(crate) struct Replay {
    observation: Column,
    action: Column,
    reward: Column,
    next_observation: Column,
    terminated: Column,
}

/// Frames drawn from a [`Replay`], `[frames, elements]` each.
pub(crate) struct Minibatch {
    pub(crate) observation: Tensor,
    pub(crate) action: Tensor,
    pub(crate) reward: Tensor,
    pub(crate) next_observation: Tensor,
    pub(crate) terminated: Tensor,
}

impl Replay {
    /// An empty one with room for `capacity` frames.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            observation: Column::new(capacity, 4),
            action: Column::new(capacity, 1),
            reward: Column::new(capacity, 1),
            next_observation: Column::new(capacity, 4),
            terminated: Column::new(capacity, 1),
        }
    }

    /// Frames in it.
    pub(crate) fn len(&self) -> usize {
        self.reward.values.len()
    }

    /// Takes in all frames of a batch.
    pub(crate) fn extend(&mut self, batch: &TensorDict) -> Result<()> {
        self.observation.extend(batch.get("observation")?)?;
        self.action.extend(batch.get("action")?)?;
        self.reward.extend(batch.get(("next", "reward"))?)?;
        let next_observation = batch.get(("next", "observation"))?;
        self.next_observation.extend(next_observation)?;
        self.terminated.extend(batch.get(("next", "terminated"))?)
    }

    /// So many frames, each as likely as any other.
    pub(crate) fn sample(&self, frames: usize, rng: &mut impl RngExt) -> Result<Minibatch> {
        let rows: Vec<usize> = (0..frames)
            .map(|_| rng.random_range(0..self.len()))
            .collect();
        Ok(Minibatch {
            observation: self.observation.rows(&rows)?,
            action: self.action.rows(&rows)?,
            reward: self.reward.rows(&rows)?,
            next_observation: self.next_observation.rows(&rows)?,
            terminated: self.terminated.rows(&rows)?,
        })
    }
}

/// One value a frame, of `elements` numbers: a ring once it is full.
struct Column {
    values: Vec<f32>,
    elements: usize,
    /// Numbers that there is room for.
    capacity: usize,
    /// Where the next number goes.
    next: usize,
}

impl Column {
    fn new(capacity: usize, elements: usize) -> Self {
        Self {
            values: Vec::with_capacity(capacity * elements),
            elements,
            capacity: capacity * elements,
            next: 0,
        }
    }

    fn extend(&mut self, tensor: &windrow::Tensor) -> Result<()> {
        for value in tensor.cast(DType::F32)?.to_vec::<f32>()? {
            match self.values.get_mut(self.next) {
                Some(oldest) => *oldest = value,
                None => self.values.push(value),
            }
            self.next = (self.next + 1) % self.capacity;
        }
        Ok(())
    }

    fn rows(&self, rows: &[usize]) -> Result<Tensor> {
        let values: Vec<f32> = rows
            .iter()
            .flat_map(|row| &self.values[row * self.elements..][..self.elements])
            .copied()
            .collect();
        let shape = (rows.len(), self.elements);
        Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
    }
}
