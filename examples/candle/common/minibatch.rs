//! Frames for candle.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use windrow::TensorDict;
use windrow_candle::to_candle;

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
            let rows = to_candle(tensor, &Device::Cpu)?.to_dtype(DType::F32)?;
            // A discrete action is a single number without a dimension of its own.
            anyhow::Ok(rows.reshape((frames.numel(), ()))?)
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
