//! What can be done to a collector between two batches, or while it runs in the background.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use windrow_policy::Weights;

use super::{Collector, PATIENCE};
use crate::deliver::handle::Handle;
use crate::shared::orders::Restart;
use crate::sync::Ordering;
use crate::{CollectError, WorkerError};

impl Collector {
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
    /// As there, and [`CollectError::Workers`] when there is no such worker.
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
    /// As there, and [`CollectError::Workers`] without a source.
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
    pub fn pause(&mut self) -> Result<Paused<'_>, CollectError> {
        self.pause_unless(|| false)
    }

    /// As [`pause`](Self::pause), but gives up once `given_up` says so, which is asked a thousand times a second while a
    /// worker is still at something.
    ///
    /// # Errors
    /// As there; [`CollectError::PauseGivenUp`] then, and workers go on.
    pub fn pause_unless(
        &mut self,
        mut given_up: impl FnMut() -> bool,
    ) -> Result<Paused<'_>, CollectError> {
        if let Some(background) = &self.background {
            background.check()?;
        }
        let paused = Paused { collector: self };
        while !paused.holds()? {
            if given_up() {
                return Err(CollectError::PauseGivenUp);
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(paused)
    }

    /// A way to stop collection, and to update weights, from another thread.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.core))
    }
}

/// Workers of the collector start no part while this is held, and nothing is written.
#[derive(Debug)]
pub struct Paused<'a> {
    collector: &'a mut Collector,
}

impl Paused<'_> {
    /// The collector, to be looked at. Asking it for a batch would wait for workers that are paused.
    #[must_use]
    pub fn collector(&self) -> &Collector {
        self.collector
    }

    /// Whether nothing is under way any more.
    fn holds(&self) -> Result<bool, CollectError> {
        let background = self.collector.background.as_ref();
        // Its batch needs workers that are not held yet.
        let between = background.map_or(Ok(true), |background| background.hold(PATIENCE))?;
        Ok(between && self.collector.core.ring.hold())
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.collector.core.ring.resume();
        if let Some(background) = &self.collector.background {
            background.release();
        }
    }
}
