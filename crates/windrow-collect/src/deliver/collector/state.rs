//! Saving a collector, and going on from what was saved.

use std::sync::Arc;

use tensordict::{NestedKey, Tensor, TensorDict, TensorError};
use tracing::warn;
use windrow_sync::lock;

use super::Collector;
use crate::TARGET;
use crate::deliver::core::Core;
use crate::deliver::driver::Driver;
use crate::deliver::simulators::Simulators;
use crate::deliver::stage::LastStage;
use crate::error::ControlError;
use crate::shared::commands::Resume;

/// Where a state has simulators, in a form of windrow's own, as bytes.
const SIMULATORS: &str = "simulators";

impl<S: LastStage> Collector<S> {
    /// The state from which another collector goes on: `frames`, `iter`, `seed`, `next_frame`,
    /// `policy_version`, `("traj_pool", "traj_id")`, `policy_state_dict`, and `simulators` where
    /// the states of all environments and of the policy can be saved. Workers finish their present
    /// parts, and a [started](Self::start) collector its present batch, before.
    ///
    /// A collector over the same environments, with as many workers, goes on bit for bit from
    /// `simulators`: with the same observations, actions, ids and counts, and with the frames that
    /// workers have collected ahead. Of batches that come in the order of arrival, each
    /// environment's frames go on so.
    ///
    /// An [environment](windrow_env::Env::visit_state), transform or policy whose state cannot be
    /// saved leaves `simulators` out: a run that is resumed begins new episodes then, with seeds
    /// and trajectory ids that were not used before, and collects frames again that workers have
    /// collected ahead. A warning says so, once, and [`not_held`](Self::not_held) says why.
    ///
    /// # Errors
    /// [`ControlError::Next`] with an error of the background, and where workers fail;
    /// [`ControlError::WaitInterrupted`]; [`ControlError::Simulators`] where an environment fails
    /// to save its state; [`ControlError::Tensor`] where the policy's weights cannot stand in a
    /// state, which a well-made policy does not cause.
    pub fn state_dict(&mut self) -> Result<TensorDict, ControlError> {
        self.state_dict_with(false)
    }

    /// As [`state_dict`](Self::state_dict), and environments of Python whose state cannot be saved
    /// otherwise may be pickled, where `pickle`.
    ///
    /// # Errors
    /// Those of [`state_dict`](Self::state_dict).
    #[doc(hidden)]
    pub fn state_dict_with(&mut self, pickle: bool) -> Result<TensorDict, ControlError> {
        self.check_background()?;
        let was_held = self.core.ring.is_held();
        let saved = self.saved_simulators(pickle);
        // Once it is released, the background goes on, and counts.
        let state = saved.and_then(|saved| self.state_with(saved));
        if !was_held {
            self.release();
        }
        state
    }

    /// The state with `simulators`, or without for a reason.
    fn state_with(
        &mut self,
        simulators: Result<Simulators, String>,
    ) -> Result<TensorDict, ControlError> {
        let mut state = self.core.state_dict()?;
        match simulators {
            Ok(saved) => {
                let frames = self.core.counters().frames - saved.batches.counted;
                let bytes = saved.to_bytes()?;
                let len = bytes.len();
                state.set("frames", Tensor::scalar(frames as i64))?;
                state.set(SIMULATORS, Tensor::from_vec(bytes, [len])?)?;
                *lock(&self.core.not_held) = None;
            }
            Err(reason) => self.note_not_held(reason),
        }
        Ok(state)
    }

    /// Why the state that was [saved](Self::state_dict) last has no simulators, if it has none.
    #[must_use]
    pub fn not_held(&self) -> Option<String> {
        lock(&self.core.not_held).clone()
    }

    fn note_not_held(&self, reason: String) {
        let is_first = lock(&self.core.not_held).is_none();
        if is_first {
            warn!(target: TARGET, reason, "simulators are not saved: a run that is resumed begins new episodes");
        }
        *lock(&self.core.not_held) = Some(reason);
    }

    /// Simulators, or the reason why they cannot be saved.
    fn saved_simulators(
        &mut self,
        pickle: bool,
    ) -> Result<Result<Simulators, String>, ControlError> {
        if self.core.lifecycle.is_over() {
            return Ok(Err("the collector has ended".to_owned()));
        }
        match self.wait_until_held(Self::PATIENCE / 10) {
            Ok(()) => {}
            Err(ControlError::SinkWaits { .. }) => {
                let reason =
                    "a batch waits to be written to the replay buffer: draw samples before";
                return Ok(Err(reason.to_owned()));
            }
            Err(ControlError::WaitsForItself) => {
                let reason = "a function that the collector calls has asked for the state";
                return Ok(Err(reason.to_owned()));
            }
            Err(error) => return Err(error),
        }
        match &self.background {
            Some(background) if background.is_running() => {
                let saved = background.run(move |driver| {
                    let interrupt = driver.core.interrupt.only_reports();
                    driver.save(pickle, &interrupt)
                });
                saved.unwrap_or_else(|| Ok(Err("the collector has ended".to_owned())))
            }
            _ => {
                let interrupt = self.core.interrupt.clone();
                self.driver()?.save(pickle, &interrupt)
            }
        }
    }

    /// Goes on from a [saved state](Self::state_dict): bit for bit from one with `simulators`, with
    /// new episodes from one without. Nothing is changed when that fails.
    ///
    /// # Errors
    /// [`ControlError::State`] or [`ControlError::Tensor`] when an entry is missing or has a value
    /// that cannot be used, [`ControlError::Simulators`] when simulators are those of other
    /// environments, of another number of them, or in the form of another version;
    /// [`ControlError::Weights`] when the weights are another policy's, or when there is no memory
    /// to bring them to worker processes; [`ControlError::Next`] while the collector runs in the
    /// background, and when it is over.
    pub fn load_state_dict(&mut self, state: &TensorDict) -> Result<(), ControlError> {
        self.check_running()?;
        self.driver()?;
        let numbers = Numbers::of(state)?;
        let weights = state.get_dict("policy_state_dict")?;
        let simulators = match state.contains_key(SIMULATORS) {
            true => Some(Simulators::from_bytes(&state.get(SIMULATORS)?.to_vec()?)?),
            false => None,
        };
        let core = Arc::clone(&self.core);
        core.publisher.check(weights)?;
        self.driver()?.settle()?;
        let was_held = core.ring.is_held();
        core.ring.pause();
        let driver = self.driver()?;
        let loaded = match simulators {
            Some(saved) => driver.go_on(saved, weights, numbers),
            None => driver.begin_anew(weights, numbers),
        };
        if !was_held {
            core.ring.resume();
        }
        loaded
    }
}

/// The numbers of a state.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    frames: u64,
    batches: u64,
    version: i64,
    resume: Resume,
}

impl Numbers {
    fn of(state: &TensorDict) -> Result<Self, ControlError> {
        Ok(Self {
            frames: count(state, "frames")?,
            batches: count(state, "iter")?,
            resume: Resume {
                seed: state.get("seed")?.item::<i64>()? as u64,
                frame: count(state, "next_frame")?,
                traj_id: count(state, ("traj_pool", "traj_id"))? as i64,
            },
            version: count(state, "policy_version")? as i64,
        })
    }
}

impl<S: LastStage> Driver<S> {
    /// Goes on from simulators, while the ring is held.
    fn go_on(
        &mut self,
        saved: Simulators,
        weights: &TensorDict,
        numbers: Numbers,
    ) -> Result<(), ControlError> {
        let loaded = self.load(saved)?;
        if let Err(error) = self.core.publisher.restore(numbers.version, weights) {
            self.unload(loaded);
            return Err(error.into());
        }
        self.go_on_from(loaded, numbers.resume);
        self.count_from(numbers);
        Ok(())
    }

    /// Goes on with new episodes, while the ring is held.
    fn begin_anew(&mut self, weights: &TensorDict, numbers: Numbers) -> Result<(), ControlError> {
        let core = Arc::clone(&self.core);
        // Frames that were collected ahead belong to the state before.
        while core.ring.try_next().is_some() {}
        self.clear();
        core.publisher.restore(numbers.version, weights)?;
        // Ids tell environments apart: the first id is a multiple of their number.
        let envs = core.stats().num_envs as u64;
        let traj_id = numbers.resume.traj_id.cast_unsigned();
        core.shared.resume(Resume {
            traj_id: traj_id.next_multiple_of(envs).cast_signed(),
            ..numbers.resume
        });
        self.count_from(numbers);
        Ok(())
    }

    fn count_from(&self, numbers: Numbers) {
        let core = &self.core;
        if let Some(writer) = &core.writer {
            // An earlier state uses ids again.
            writer.renumber();
        }
        let (frames, batches) = (numbers.frames, numbers.batches);
        core.counters().go_on_from(frames, batches);
        core.count_on(core.ring.begun());
    }
}

impl Core {
    /// See [`Collector::state_dict`]. Without simulators.
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use windrow_slab::{Sink, SinkError, WriterId};

    use super::*;
    use crate::Collector;

    #[derive(Debug)]
    struct Nowhere;

    impl Sink for Nowhere {
        fn attach(&self) -> WriterId {
            WriterId(0)
        }

        fn extend(&self, _: WriterId, _: &TensorDict) -> Result<(), SinkError> {
            Ok(())
        }

        fn detach(&self, _: WriterId, _: Option<SinkError>) {}
    }

    #[test]
    fn a_thread_that_has_ended_keeps_nobody_waiting() {
        let builder = Collector::builder("CartPole-v1").frames_per_batch(10);
        let builder = builder.total_frames(10).replay_buffer(Arc::new(Nowhere));
        let mut collector = builder.build().unwrap();
        collector.start().unwrap();
        let background = collector.background.as_ref().unwrap();
        while background.is_running() {
            std::thread::yield_now();
        }
        // As between a look whether it runs and a job for it.
        assert!(background.run(|_| ()).is_none());
    }
}
