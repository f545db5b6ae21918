//! Weights, seeds and pauses, between two batches or while a collector runs in the background.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensordict::TensorDict;
use windrow_policy::Weights;
use windrow_sync::atomic::Ordering;

use super::Collector;
use crate::config::hooks::Hooks;
use crate::deliver::background::Background;
use crate::deliver::handle::Handle;
use crate::deliver::stage::LastStage;
use crate::error::{ControlError, WorkerError};
use crate::shared::commands::Restart;

impl<S: LastStage> Collector<S> {
    /// Publishes new weights and returns their version. Each worker takes them up with the next
    /// part that it begins: with the next batch where batches are collected after they were asked
    /// for. The tensors are copied.
    ///
    /// # Errors
    /// [`ControlError::Weights`] with the names of tensors that are missing, unknown or misshapen,
    /// or when the weights could not be brought to the workers; the old weights then stay.
    /// [`ControlError::Next`] when the collector is over.
    pub fn update_policy_weights(&mut self, weights: &Weights) -> Result<i64, ControlError> {
        self.check_running()?;
        self.core.publisher.update(None)?.publish(weights)
    }

    /// As [`update_policy_weights`](Self::update_policy_weights), for worker `worker` alone.
    ///
    /// # Errors
    /// Those of [`update_policy_weights`](Self::update_policy_weights);
    /// [`ControlError::NoSuchWorker`] when there is no such worker; [`ControlError::Argument`]
    /// where a server evaluates one policy for all.
    pub fn update_worker_weights(
        &mut self,
        worker: usize,
        weights: &Weights,
    ) -> Result<i64, ControlError> {
        self.check_running()?;
        self.core.publisher.update(Some(worker))?.publish(weights)
    }

    /// As [`update_policy_weights`](Self::update_policy_weights), with weights from the
    /// [source](crate::CollectorBuilder::weight_source) that the collector was built with.
    ///
    /// # Errors
    /// Those of [`update_policy_weights`](Self::update_policy_weights), and
    /// [`ControlError::NoWeightSource`] without a source.
    pub fn update_policy_weights_from_source(&mut self) -> Result<i64, ControlError> {
        self.check_running()?;
        let published = self.core.publisher.publish_from_source()?;
        published.ok_or(ControlError::NoWeightSource)
    }

    /// A copy of the weights that were published last.
    #[must_use]
    pub fn policy_weights(&self) -> Weights {
        self.core.publisher.newest()
    }

    /// Seeds environment `i` with `seed + i` (or all with `seed`, when `static_seed`) and the
    /// policy's noise with `seed`; each worker begins its episodes anew with its next part. Returns
    /// the seed of the last environment.
    ///
    /// The frames that follow are those that would follow this seed at any other time, with the
    /// same weights, except for their trajectory ids. Where workers run ahead, batches that they
    /// have begun before come first.
    pub fn set_seed(&mut self, seed: u64, static_seed: bool) -> u64 {
        self.forget();
        self.core.set_seed(seed, static_seed)
    }

    /// Begins new episodes in all environments, with each worker's next part.
    pub fn reset(&mut self) {
        self.forget();
        self.core.restart(Restart::Unseeded);
    }

    /// Drops unfinished trajectories.
    fn forget(&mut self) {
        match &mut self.driver {
            Some(driver) => driver.batches.drop_trajectories(),
            None => self.core.forget.store(true, Ordering::Relaxed),
        }
    }

    /// The errors of workers that were replaced or retired since the last call; see
    /// [`CollectorBuilder::on_loss`](crate::CollectorBuilder::on_loss).
    #[must_use]
    pub fn take_losses(&self) -> Vec<WorkerError> {
        self.core.shared.reports.take_losses()
    }

    /// Lets workers finish their present part and start no other, until the returned value is
    /// dropped. No frame is lost. A [started](Self::start) collector finishes and writes its
    /// present batch before, and writes nothing during the pause.
    ///
    /// # Errors
    /// [`ControlError::Next`] with an error of the background; [`ControlError::SinkWaits`] when the
    /// replay buffer keeps a write waiting for longer than five seconds;
    /// [`ControlError::WaitInterrupted`], and workers go on.
    pub fn pause(&mut self) -> Result<Paused<'_, S>, ControlError> {
        self.hold(Self::PATIENCE)?;
        Ok(Paused { collector: self })
    }

    /// Begins a pause that lasts until [`release`](Self::release), for callers that cannot hold a
    /// [`Paused`]. Waits up to `patience` for a write that waits in the replay buffer.
    ///
    /// # Errors
    /// As [`pause`](Self::pause); [`ControlError::WaitsForItself`] in the collector's own thread.
    pub fn hold(&mut self, patience: Duration) -> Result<(), ControlError> {
        let held = self.wait_until_held(patience);
        if held.is_err() {
            self.release();
        }
        held
    }

    /// Ends a pause.
    pub fn release(&mut self) {
        self.core.ring.resume();
        if let Some(background) = &self.background {
            background.release();
        }
    }

    pub(super) fn wait_until_held(&self, patience: Duration) -> Result<(), ControlError> {
        self.check_background()?;
        let background = self.background.as_ref();
        if background.is_some_and(Background::is_here) {
            return Err(ControlError::WaitsForItself);
        }
        let asked = Instant::now();
        self.core.interrupt.wait(|slice| {
            let slice = slice.min(patience);
            // Its batch needs workers, which are therefore held later.
            let between = background.is_none_or(|background| background.hold_within(slice));
            if between && self.core.ring.hold_within(slice) {
                return Some(Ok(()));
            }
            let writer = self.core.writer.as_ref()?;
            let waited = writer.waited()?.min(asked.elapsed());
            (waited >= patience).then_some(Err(ControlError::SinkWaits { waited }))
        })??;
        // It may have failed with its last batch.
        Ok(self.check_background()?)
    }

    /// Ends collection and updates weights from other threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.core))
    }
}

/// While this is held, workers start no part and nothing is written.
#[derive(Debug)]
pub struct Paused<'a, S: LastStage = Hooks> {
    collector: &'a mut Collector<S>,
}

impl<S: LastStage> Paused<'_, S> {
    /// As [`Collector::state_dict`], within the pause.
    ///
    /// # Errors
    /// Those of [`Collector::state_dict`].
    pub fn state_dict(&mut self) -> Result<TensorDict, ControlError> {
        self.collector.state_dict()
    }

    /// The collector, to read from; its workers are paused.
    #[must_use]
    pub fn collector(&self) -> &Collector<S> {
        self.collector
    }
}

impl<S: LastStage> Drop for Paused<'_, S> {
    fn drop(&mut self) {
        self.collector.release();
    }
}
