//! What can be done to a collector between two batches, or while it runs in the background.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windrow_policy::Weights;

use super::Collector;
use crate::config::hooks::Hooks;
use crate::deliver::handle::Handle;
use crate::deliver::stage::LastStage;
use crate::shared::orders::Restart;
use crate::sync::Ordering;
use crate::sync::SLICE;
use crate::{CollectError, WorkerError};

impl<S: LastStage> Collector<S> {
    /// Publishes new weights and returns their version. Each worker takes them up with the next part that it begins: with the
    /// next batch where batches are collected after they were asked for. The tensors are copied.
    ///
    /// # Errors
    /// [`CollectError::Policy`] naming a tensor that is missing, unknown or misshapen; the old weights then stay.
    pub fn update_policy_weights(&mut self, weights: &Weights) -> Result<i64, CollectError> {
        self.check_running()?;
        self.core.publisher.publish(weights)
    }

    /// As [`update_policy_weights`](Self::update_policy_weights), for worker `worker` alone.
    ///
    /// # Errors
    /// As there, and [`CollectError::NoSuchWorker`] when there is no such worker.
    pub fn update_worker_weights(
        &mut self,
        worker: usize,
        weights: &Weights,
    ) -> Result<i64, CollectError> {
        self.check_running()?;
        self.core.publisher.publish_to(worker, weights)
    }

    /// As [`update_policy_weights`](Self::update_policy_weights), with weights from the
    /// [source](crate::CollectorBuilder::weight_source) that the collector was built with.
    ///
    /// # Errors
    /// As there, and [`CollectError::NoWeightSource`] without a source.
    pub fn update_policy_weights_from_source(&mut self) -> Result<i64, CollectError> {
        self.check_running()?;
        self.core.publisher.publish_from_source()
    }

    /// A copy of the weights that were published last.
    #[must_use]
    pub fn policy_weights(&self) -> Weights {
        self.core.publisher.newest()
    }

    /// Seeds environment `i` with `seed + i` (or all with `seed`, when `static_seed`) and the policy's noise with `seed`;
    /// each worker begins its episodes anew with its next part. Returns the seed of the last environment.
    ///
    /// The frames that follow are those that would follow this seed at any other time, with the same weights, except for
    /// their trajectory ids. Where workers run ahead, batches that they have begun before come first.
    pub fn set_seed(&mut self, seed: u64, static_seed: bool) -> u64 {
        self.forget();
        self.core.set_seed(seed, static_seed)
    }

    /// Begins new episodes in all environments, with each worker's next part.
    pub fn reset(&mut self) {
        self.forget();
        self.core.restart(Restart::Unseeded);
    }

    /// Trajectories that are begun will not be ended.
    fn forget(&mut self) {
        match &mut self.driver {
            Some(driver) => driver.drop_trajectories(),
            None => self.core.forget.store(true, Ordering::Relaxed),
        }
    }

    /// What happened to workers that were lost and replaced, or are gone, since this was last asked; see
    /// [`CollectorBuilder::on_loss`](crate::CollectorBuilder::on_loss).
    #[must_use]
    pub fn take_losses(&self) -> Vec<WorkerError> {
        self.core.shared.reports.take_losses()
    }

    /// Lets workers finish the part that they are at and start no other, until what is returned is dropped. Nothing that was
    /// collected is lost. Where the collector was [started](Self::start), the batch that it is at is finished and written
    /// before, and nothing is written while the pause lasts.
    ///
    /// # Errors
    /// What went wrong in the background; [`CollectError::SinkWaits`] when the replay buffer keeps a write waiting for longer
    /// than five seconds.
    pub fn pause(&mut self) -> Result<Paused<'_, S>, CollectError> {
        self.pause_unless(|| false)
    }

    /// As [`pause`](Self::pause), but gives up once `given_up` says so, which is asked ten times a second while a worker is
    /// still at something.
    ///
    /// # Errors
    /// As there; [`CollectError::PauseGivenUp`] then, and workers go on.
    pub fn pause_unless(
        &mut self,
        given_up: impl FnMut() -> bool,
    ) -> Result<Paused<'_, S>, CollectError> {
        self.hold_unless(Self::PATIENCE, given_up)?;
        Ok(Paused { collector: self })
    }

    /// Begins a pause that lasts until [`release`](Self::release), for callers that cannot hold what [`pause`](Self::pause)
    /// returns. A write that waits in the replay buffer is waited for up to `patience`.
    ///
    /// # Errors
    /// As [`pause_unless`](Self::pause_unless); [`CollectError::WaitsForItself`] in the collector's own thread.
    pub fn hold_unless(
        &mut self,
        patience: Duration,
        mut given_up: impl FnMut() -> bool,
    ) -> Result<(), CollectError> {
        let held = self.hold(patience, &mut given_up);
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

    fn hold(
        &self,
        patience: Duration,
        given_up: &mut dyn FnMut() -> bool,
    ) -> Result<(), CollectError> {
        let background = self.background.as_ref();
        if let Some(background) = background {
            background.check()?;
            if background.is_here() {
                return Err(CollectError::WaitsForItself);
            }
        }
        let asked = Instant::now();
        loop {
            let slice = SLICE.min(patience);
            // Its batch needs workers that are not held yet.
            let between = background.is_none_or(|background| background.hold_within(slice));
            if between && self.core.ring.hold_within(slice) {
                break;
            }
            let waits = self.core.writer.as_ref().and_then(|writer| writer.waited());
            if let Some(waited) = waits.map(|waited| waited.min(asked.elapsed()))
                && waited >= patience
            {
                return Err(CollectError::SinkWaits {
                    seconds: waited.as_secs_f64(),
                });
            }
            if given_up() {
                return Err(CollectError::PauseGivenUp);
            }
        }
        // It may have failed at what it was at.
        background.map_or(Ok(()), |background| background.check())
    }

    /// A way to stop collection, and to update weights, from another thread.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.core))
    }
}

/// Workers of the collector start no part while this is held, and nothing is written.
#[derive(Debug)]
pub struct Paused<'a, S: LastStage = Hooks> {
    collector: &'a mut Collector<S>,
}

impl<S: LastStage> Paused<'_, S> {
    /// The collector, to be looked at. Asking it for a batch would wait for workers that are paused.
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
