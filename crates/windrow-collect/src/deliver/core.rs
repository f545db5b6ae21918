//! What a collector's methods and its driver both look at.

use std::sync::Arc;

use tensordict::NestedKey;
use windrow_policy::ServerStats;
use windrow_slab::Ring;
use windrow_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use windrow_sync::mpsc::TryRecvError;
use windrow_sync::{Interrupt, Mutex, MutexGuard, lock};

use crate::config::plan::{CatResults, Plan};
use crate::deliver::sink_writer::SinkWriter;
use crate::error::ControlError;
use crate::shared::Shared;
use crate::shared::calls::Request;
use crate::shared::commands::Restart;
use crate::shared::lifecycle::Lifecycle;
use crate::shared::publisher::WeightPublisher;
use crate::shared::stats::{Counters, Stats, WorkerStats};

/// All of a collector but its driver: locked for moments only, so that no call waits for a batch.
pub(crate) struct Core {
    pub(crate) ring: Arc<Ring>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) plan: Plan,
    pub(crate) cat_results: CatResults,
    pub(crate) preempting: bool,
    /// Whether parts may not be older than [`max_lag`](crate::CollectorBuilder::max_lag).
    pub(crate) ages_are_bounded: bool,
    /// Environments of each worker.
    pub(crate) num_envs: usize,
    /// Dimensions that these are in, where they are in several.
    pub(crate) dimensions: Vec<usize>,
    /// Observations that whoever delivers batches makes differences of.
    pub(crate) deltas: Vec<(NestedKey, String)>,
    /// Where batches are written, if they are.
    pub(crate) writer: Option<Arc<SinkWriter>>,
    pub(crate) counters: Mutex<Counters>,
    pub(crate) publisher: WeightPublisher,
    /// Ends waits of calls.
    pub(crate) interrupt: Interrupt,
    /// Whether trajectories that are begun are to be forgotten before the next batch.
    pub(crate) forget: AtomicBool,
    pub(crate) lifecycle: Arc<Lifecycle>,
    /// Frames of slabs that were taken from the ring, and not counted: of those that a saved state
    /// has, too.
    pub(crate) undelivered: AtomicU64,
    /// Why the state that was saved last has no simulators.
    pub(crate) not_held: Mutex<Option<String>>,
    /// Whether it collects in a thread of its own.
    pub(crate) running: AtomicBool,
}

impl Core {
    pub(crate) fn workers(&self) -> usize {
        self.shared.workers()
    }

    pub(crate) fn counters(&self) -> MutexGuard<'_, Counters> {
        lock(&self.counters)
    }

    /// See [`Collector::stats`](crate::Collector::stats).
    pub(crate) fn stats(&self) -> Stats {
        let (total_frames, frames_per_batch) = {
            let schedule = self.shared.schedule();
            (schedule.total_frames, schedule.frames_per_batch())
        };
        let reports = &self.shared.reports;
        let counters = self.counters();
        let (frames_per_second, recent_frames_per_second) = counters.throughput.rates();
        Stats {
            frames: counters.frames,
            batches: counters.batches,
            dropped_frames: counters.dropped,
            total_frames,
            completed: total_frames.is_some_and(|total| counters.frames >= total),
            failed: self.lifecycle.has_failed(),
            requested_frames_per_batch: frames_per_batch as usize,
            workers: self.workers(),
            workers_alive: reports.alive(),
            restarts: reports.restarts(),
            num_envs: self.workers() * self.num_envs,
            frames_per_second,
            recent_frames_per_second,
            workers_waited: reports.waited_in_all(),
            policy_version: self.shared.weights.version(),
            policy_lag: counters.lag.of_all(),
            policy_age: counters.age,
            oldest_part: self.ring.oldest(),
            max_lag_waited: self.ring.was_held_back() + self.publisher.waited(),
            seed: self.shared.seed(),
            slabs: self.ring.slabs(),
            slab_bytes: self.ring.slabs() * self.ring.layout().bytes(),
        }
    }

    /// See [`Collector::server_stats`](crate::Collector::server_stats).
    pub(crate) fn server_stats(&self) -> Option<ServerStats> {
        self.shared.service.as_ref()?.stats()
    }

    /// Ends waits for the ring and writes to the sink.
    pub(crate) fn shut_down(&self) {
        self.lifecycle.shut_down();
        self.ring.stop();
        if let Some(writer) = &self.writer {
            writer.detach(None);
        }
    }

    /// See [`Collector::worker_stats`](crate::Collector::worker_stats).
    pub(crate) fn worker_stats(&self) -> Vec<WorkerStats> {
        self.shared.reports.stats(self.shared.weights.version())
    }

    /// Seeds environments and noise, each worker's with its next part; the seed of the last
    /// environment.
    pub(crate) fn set_seed(&self, seed: u64, static_seed: bool) -> u64 {
        self.restart(Restart::Seeded {
            seed,
            same: static_seed,
        });
        if static_seed {
            seed
        } else {
            seed.wrapping_add((self.workers() * self.num_envs) as u64 - 1)
        }
    }

    /// Begins new episodes with each worker's next part.
    pub(crate) fn restart(&self, how: Restart) {
        self.shared.restart(how);
    }

    /// The answer of worker `worker`, in a thread or a process, to `request`. `interrupt` ends the
    /// wait for it.
    ///
    /// # Errors
    /// [`ControlError::NoAnswer`] where the worker has ended; [`ControlError::WaitInterrupted`].
    pub(crate) fn ask(
        &self,
        worker: usize,
        request: Request,
        interrupt: &Interrupt,
    ) -> Result<Vec<u8>, ControlError> {
        let answer = self.shared.calls.ask(worker, request);
        // A worker in a thread waits for the ring.
        self.ring.notify();
        let received = || match answer.try_recv() {
            Ok(answer) => Some(Ok(answer)),
            Err(TryRecvError::Disconnected) => Some(Err(ControlError::NoAnswer { worker })),
            Err(TryRecvError::Empty) => None,
        };
        interrupt.wait(|slice| self.ring.wait_within(slice, received))?
    }

    /// Counts the frames that are left from slab `seq` on.
    pub(crate) fn count_on(&self, seq: u64) {
        let frames = self.counters().frames + self.undelivered.load(Ordering::Relaxed);
        let end = {
            let mut schedule = self.shared.schedule();
            schedule.count_from(frames, seq);
            schedule.end()
        };
        // The schedule is free again: the ring may give parts to worker processes here, which asks
        // it for their shares.
        self.ring.end_at(end);
    }

    /// Frames still to be collected; `u64::MAX` when endless.
    pub(crate) fn frames_left(&self) -> u64 {
        let total = self.shared.schedule().total_frames;
        let frames = self.counters().frames;
        total.map_or(u64::MAX, |total| total.saturating_sub(frames))
    }
}
