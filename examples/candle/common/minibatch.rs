//! Frames for candle.

use anyhow::Result;
use candle_core::Tensor;
use windrow::{DType, TensorDict};

use super::network::to_candle;

/// Frames sampled from a replay buffer, `[frames, elements]` each.
pub(crate) struct Minibatch {
    pub(crate) observation: Tensor,
    pub(crate) action: Tensor,
    pub(crate) reward: Tensor,
    pub(crate) next_observation: Tensor,
    /// 0 where the episode ended by itself, 1 elsewhere: one that was truncated would have gone on.
    pub(crate) goes_on: Tensor,
}

impl Minibatch {
    /// Copies `frames`, `[frames]`.
    pub(crate) fn of(frames: &TensorDict) -> Result<Self> {
        let column = |tensor: &windrow::Tensor| {
            let rows = to_candle::<f32>(&tensor.cast(DType::F32)?)?;
            // A discrete action is a single number without a dimension of its own.
            let elements = tensor.numel() / frames.numel().max(1);
            Ok::<_, anyhow::Error>(rows.reshape((frames.numel(), elements))?)
        };
        let terminated = column(frames.get(("next", "terminated"))?)?;
        Ok(Self {
            observation: column(frames.get("observation")?)?,
            action: column(frames.get("action")?)?,
            reward: column(frames.get(("next", "reward"))?)?,
            next_observation: column(frames.get(("next", "observation"))?)?,
            goes_on: terminated.affine(-1.0, 1.0)?,
        })
    }
}
