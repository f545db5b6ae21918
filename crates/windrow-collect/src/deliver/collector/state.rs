//! Saving a collector, and going on from what was saved.

use std::sync::Arc;

use tensordict::{NestedKey, Tensor, TensorDict, TensorError};

use super::Collector;
use crate::deliver::core::Core;
use crate::deliver::stage::LastStage;
use crate::error::ControlError;
use crate::shared::commands::Resume;

impl<S: LastStage> Collector<S> {
    /// The state from which another collector goes on: `frames`, `iter`, `seed`, `next_frame`, `policy_version`,
    /// `("traj_pool", "traj_id")` and `policy_state_dict`. [Pause](Self::pause) a [started](Self::start) collector before, so
    /// that all frames that are counted are also written.
    ///
    /// Simulators are not saved: after [`load_state_dict`](Self::load_state_dict) every environment begins a new
    /// episode, with seeds and trajectory ids that were not used before. Batches that workers have collected ahead are not
    /// counted and will be collected again.
    ///
    /// # Errors
    /// [`ControlError::Next`] with an error of the background; [`ControlError::Tensor`] where the policy's weights cannot stand in a
    /// state, which a well-made policy does not cause.
    pub fn state_dict(&self) -> Result<TensorDict, ControlError> {
        self.check_background()?;
        Ok(self.core.state_dict()?)
    }

    /// Goes on from a [saved state](Self::state_dict). Nothing is changed when that fails.
    ///
    /// # Errors
    /// [`ControlError::State`] or [`ControlError::Tensor`] when an entry is missing or has a value that cannot be used,
    /// [`ControlError::Weights`] when the weights are another policy's, or when there is no memory to bring them to worker processes;
    /// [`ControlError::Next`] while the collector runs in the background, and when it is over.
    pub fn load_state_dict(&mut self, state: &TensorDict) -> Result<(), ControlError> {
        self.check_running()?;
        self.driver()?;
        let frames = count(state, "frames")?;
        let batches = count(state, "iter")?;
        let seed = state.get("seed")?.item::<i64>()? as u64;
        let next_frame = count(state, "next_frame")?;
        let version = count(state, "policy_version")? as i64;
        // Ids tell environments apart: the first id is a multiple of their number.
        let envs = self.core.stats().num_envs as u64;
        let traj_id = count(state, ("traj_pool", "traj_id"))?;
        let traj_id = traj_id.next_multiple_of(envs) as i64;
        let weights = state.get_dict("policy_state_dict")?;
        let core = Arc::clone(&self.core);
        core.publisher.check(weights)?;
        self.driver()?.settle()?;
        core.ring.pause();
        // Frames that were collected ahead belong to the state before.
        while core.ring.try_next().is_some() {}
        self.driver()?.clear();
        if let Some(writer) = &core.writer {
            // An earlier state uses ids again.
            writer.renumber();
        }
        if let Err(error) = core.publisher.restore(version, weights) {
            core.ring.resume();
            return Err(error.into());
        }
        core.counters().go_on_from(frames, batches);
        core.shared.resume(Resume {
            frame: next_frame,
            traj_id,
            seed,
        });
        core.count_on(core.ring.begun());
        core.ring.resume();
        Ok(())
    }
}

impl Core {
    /// See [`Collector::state_dict`].
    pub(crate) fn state_dict(&self) -> Result<TensorDict, TensorError> {
        let mut state = TensorDict::new([]);
        let shared = &self.shared;
        let (frames, batches) = {
            let counters = self.counters();
            (counters.frames as i64, counters.batches as i64)
        };
        let next_traj_id = shared.reports.next_traj_id();
        let next_frame = shared.reports.next_frame() as i64;
        state.set("policy_state_dict", self.publisher.newest())?;
        state.set("env_state_dict", TensorDict::new([]))?;
        state.set("frames", Tensor::scalar(frames))?;
        state.set("iter", Tensor::scalar(batches))?;
        let seed = shared.seed() as i64;
        state.set("seed", Tensor::scalar(seed))?;
        state.set("next_frame", Tensor::scalar(next_frame))?;
        state.set("policy_version", Tensor::scalar(shared.weights.version()))?;
        state.set(("traj_pool", "traj_id"), Tensor::scalar(next_traj_id))?;
        Ok(state)
    }
}

/// No collector counts so far, and sums of counts stay in range.
const MOST: u64 = 1 << 62;

fn count(state: &TensorDict, key: impl Into<NestedKey>) -> Result<u64, ControlError> {
    let key = key.into();
    let got = state.get(&key)?.item::<i64>()?;
    match u64::try_from(got) {
        Ok(count) if count <= MOST => Ok(count),
        _ => Err(ControlError::State { key, got }),
    }
}
