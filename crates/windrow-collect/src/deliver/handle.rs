use std::sync::Arc;

use tensordict::{NestedKey, TensorDict};
use windrow_policy::{Backend, ServerStats, Weights};
use windrow_sync::Interrupt;
use windrow_sync::atomic::Ordering;

use crate::deliver::core::Core;
use crate::error::{ControlError, NextError, WorkerError};
use crate::shared::commands::Restart;
use crate::shared::heartbeat::silent;
use crate::shared::publisher::WeightUpdate;
use crate::shared::reentrancy::ReentrancyGuard;
use crate::shared::stats::{Stats, WorkerStats};

/// Ends a collector or cuts its present batch short, and sets weights and seeds and reads figures,
/// from any thread: also while the collector waits for a batch, or for room in a replay buffer.
#[derive(Clone)]
pub struct Handle {
    pub(super) core: Arc<Core>,
}

impl Handle {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Ends collection: a call that waits for a batch returns [`NextError::ShutDown`]. Nothing more
    /// is written to a replay buffer, also where a write waits there.
    pub fn shutdown(&self) {
        self.core.shut_down();
    }

    /// Cuts every part short at its next step, until [`start_collection`](Self::start_collection):
    /// batches come early. A batch of one worker, or of workers side by side, keeps its shape:
    /// zeros pad it, with trajectory id -1 and false in `("collector", "mask")`. A batch that
    /// concatenates the frames of several workers is shorter.
    pub fn stop_collection(&self) {
        self.core.ring.cut_all(true);
    }

    /// Fills parts whole again.
    pub fn start_collection(&self) {
        self.core.ring.cut_all(false);
    }

    /// As [`Collector::update_policy_weights`](crate::Collector::update_policy_weights).
    ///
    /// # Errors
    /// Those of [`Collector::update_policy_weights`](crate::Collector::update_policy_weights).
    pub fn update_policy_weights(&self, weights: &Weights) -> Result<i64, ControlError> {
        self.check_running()?;
        self.begin_update(None)?.publish(weights)
    }

    /// Waits until weights may be published: see
    /// [`max_lag`](crate::CollectorBuilder::max_lag).
    ///
    /// # Errors
    /// As [`Collector::update_policy_weights`](crate::Collector::update_policy_weights) where it
    /// waits.
    #[doc(hidden)]
    pub fn begin_update(&self, worker: Option<usize>) -> Result<WeightUpdate<'_>, ControlError> {
        self.check_running()?;
        self.core.publisher.update(worker)
    }

    /// As [`Collector::update_worker_weights`](crate::Collector::update_worker_weights).
    ///
    /// # Errors
    /// Those of [`Collector::update_worker_weights`](crate::Collector::update_worker_weights).
    pub fn update_worker_weights(
        &self,
        worker: usize,
        weights: &Weights,
    ) -> Result<i64, ControlError> {
        self.begin_update(Some(worker))?.publish(weights)
    }

    /// A copy of the weights that were published last.
    #[must_use]
    pub fn policy_weights(&self) -> Weights {
        self.core.publisher.newest()
    }

    /// The weights that were published last, in the memory that workers of this process read.
    /// Whoever keeps them until after the next publication but one keeps that memory from being
    /// used again.
    #[must_use]
    pub fn shared_policy_weights(&self) -> Weights {
        self.core.publisher.newest_shared()
    }

    /// Whether the collector was [started](crate::Collector::start) and has not ended yet.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.core.running.load(Ordering::Relaxed)
    }

    /// Whether the collector is ending, so that a write must not wait for the replay buffer any
    /// more.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.core.lifecycle.is_ending()
    }

    /// How long the present write to the replay buffer has taken so far, if there is one.
    #[must_use]
    pub fn write_waits(&self) -> Option<std::time::Duration> {
        self.core.writer.as_ref().and_then(|writer| writer.waited())
    }

    /// Who evaluates the policy.
    #[must_use]
    pub fn policy_backend(&self) -> Backend {
        self.core.publisher.backend
    }

    /// Slabs allocated so far; see [`Stats::slabs`](crate::Stats::slabs).
    #[must_use]
    pub fn slabs(&self) -> usize {
        self.core.ring.slabs()
    }

    /// How many environments a worker has, and whether batches have a dimension for them.
    #[must_use]
    pub fn envs_of_a_worker(&self) -> (usize, bool) {
        (self.core.num_envs, self.core.ring.layout().shares().batched)
    }

    /// Dimensions that the environments of a worker are in, where they are in
    /// [several](windrow_env::EnvSpec::dimensions); none elsewhere.
    #[must_use]
    pub fn dimensions(&self) -> &[usize] {
        &self.core.dimensions
    }

    /// Observations that batches are to have as [differences](windrow_env::EnvSpec::deltas) under
    /// `"next"`. The engine's have both in full.
    #[must_use]
    pub fn deltas(&self) -> &[(NestedKey, String)] {
        &self.core.deltas
    }

    /// Figures since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Figures of each worker since the start.
    #[must_use]
    pub fn worker_stats(&self) -> Vec<WorkerStats> {
        self.core.worker_stats()
    }

    /// Figures of the inference server, if there is one.
    #[must_use]
    pub fn server_stats(&self) -> Option<ServerStats> {
        self.core.server_stats()
    }

    /// As [`Collector::set_seed`](crate::Collector::set_seed). Unfinished trajectories are dropped
    /// with the next batch.
    pub fn set_seed(&self, seed: u64, static_seed: bool) -> u64 {
        self.core.forget.store(true, Ordering::Relaxed);
        self.core.set_seed(seed, static_seed)
    }

    /// As [`Collector::reset`](crate::Collector::reset). Unfinished trajectories are dropped with
    /// the next batch.
    pub fn reset(&self) {
        self.core.forget.store(true, Ordering::Relaxed);
        self.core.restart(Restart::Unseeded);
    }

    /// As [`Collector::state_dict`](crate::Collector::state_dict), without simulators and at once.
    /// Counts a batch that waits to be written.
    ///
    /// # Errors
    /// [`ControlError::Tensor`], as [`Collector::state_dict`](crate::Collector::state_dict).
    pub fn state_dict(&self) -> Result<TensorDict, ControlError> {
        Ok(self.core.state_dict()?)
    }

    /// Whether the calling thread runs an environment or a policy of the collector: it must not
    /// wait for the collector, which waits for it.
    #[must_use]
    pub fn is_within(&self) -> bool {
        ReentrancyGuard::is_within(self.core.shared.collector)
    }

    /// As [`Collector::take_losses`](crate::Collector::take_losses).
    #[must_use]
    pub fn take_losses(&self) -> Vec<WorkerError> {
        self.core.shared.reports.take_losses()
    }

    /// Reports workers in this process that have not moved for long, by `interrupt`.
    pub(crate) fn report_silent(&self, interrupt: &Interrupt) {
        let shared = &self.core.shared;
        let Some(after) = interrupt.reports_after() else {
            return;
        };
        for worker in shared.reports.silent(after) {
            // An error of the report does not end the wait.
            let _ = interrupt.report(&silent(&shared.name(worker), after, ""));
        }
    }

    pub(super) fn check_running(&self) -> Result<(), NextError> {
        match self.core.lifecycle.is_over() {
            true => Err(NextError::ShutDown),
            false => Ok(()),
        }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle")
            .field("plan", &self.core.plan)
            .field("workers", &self.core.workers())
            .finish_non_exhaustive()
    }
}
