//! What a collector's methods and its driver both look at.

use std::sync::Arc;
use std::time::Duration;

use windrow_policy::{Policy, WeightUpdater, Weights};
use windrow_slab::Ring;

use crate::CollectError;
use crate::config::plan::{CatResults, Plan};
use crate::deliver::outlet::Outlet;
use crate::shared::stats::{Stats, Tally, WorkerRecord, WorkerStats};
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::worker::cursor::Restart;
use crate::worker::{Shared, lock};

/// Where weights come from when none are given.
pub(crate) type WeightSource = Box<dyn FnMut() -> Weights + Send>;

/// All of a collector but its driver: locked for moments only, so that no call waits for a batch.
pub(crate) struct Core {
    pub(crate) ring: Arc<Ring>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) plan: Plan,
    pub(crate) cat_results: CatResults,
    pub(crate) preempting: bool,
    /// Environments of each worker.
    pub(crate) num_envs: usize,
    /// Where batches are written, if they are.
    pub(crate) outlet: Option<Arc<Outlet>>,
    pub(crate) tally: Mutex<Tally>,
    pub(crate) supply: Mutex<Supply>,
    pub(crate) source: Mutex<Option<WeightSource>>,
    /// Whether trajectories that are begun are to be forgotten before the next batch.
    pub(crate) forget: AtomicBool,
    /// Seed that environments and policy noise derive from.
    pub(crate) seed: AtomicU64,
    /// Whether the collector was shut down or has failed.
    pub(crate) over: AtomicBool,
    /// Whether an error has ended it.
    pub(crate) failed: AtomicBool,
}

/// The way of weights to the workers.
pub(crate) struct Supply {
    /// Tells whether weights fit; never acts.
    pub(crate) reference: Box<dyn Policy>,
    pub(crate) updater: Box<dyn WeightUpdater>,
}

impl Core {
    pub(crate) fn workers(&self) -> usize {
        self.shared.mail.len()
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.tally)
    }

    /// See [`Collector::stats`](crate::Collector::stats).
    pub(crate) fn stats(&self) -> Stats {
        let (total_frames, frames_per_batch) = {
            let schedule = self.shared.schedule();
            (schedule.total_frames, schedule.frames_per_batch())
        };
        let records = &self.shared.records;
        let sum = |count: fn(&WorkerRecord) -> &AtomicU64| {
            let counts = records.iter().map(count);
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        let tally = self.tally();
        let (frames_per_second, recent_frames_per_second) = tally.throughput.rates();
        Stats {
            frames: tally.frames,
            batches: tally.batches,
            dropped_frames: tally.dropped,
            total_frames,
            completed: total_frames.is_some_and(|total| tally.frames >= total),
            failed: self.failed.load(Ordering::Relaxed),
            requested_frames_per_batch: frames_per_batch as usize,
            workers: self.workers(),
            workers_alive: self.shared.alive.load(Ordering::Relaxed),
            restarts: sum(|record| &record.restarts),
            num_envs: self.workers() * self.num_envs,
            frames_per_second,
            recent_frames_per_second,
            workers_waited: Duration::from_nanos(sum(|record| &record.waited)),
            policy_version: self.shared.weights.version(),
            policy_lag: tally.lag.of_all(),
            seed: self.seed.load(Ordering::Relaxed),
            slabs: self.ring.slabs(),
            slab_bytes: self.ring.slabs() * self.ring.layout().bytes(),
        }
    }

    /// An error has ended the collector: handles say that it is over.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
        self.over.store(true, Ordering::Relaxed);
    }

    /// See [`Collector::worker_stats`](crate::Collector::worker_stats).
    pub(crate) fn worker_stats(&self) -> Vec<WorkerStats> {
        let newest = self.shared.weights.version();
        let records = self.shared.records.iter().enumerate();
        records
            .map(|(worker, record)| record.stats(worker, newest))
            .collect()
    }

    /// Seeds environments and noise, each worker's with its next part; the seed of the last environment.
    pub(crate) fn set_seed(&self, seed: u64, static_seed: bool) -> u64 {
        self.seed.store(seed, Ordering::Relaxed);
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
        for worker in 0..self.workers() {
            let mut mail = self.shared.mail(worker);
            // New episodes are under way already, and their seed is not to be forgotten.
            if how != Restart::Unseeded || mail.restart.is_none() {
                mail.restart = Some(how);
            }
        }
    }

    /// Counts the frames that are left from slab `seq` on.
    pub(crate) fn count_on(&self, seq: u64) {
        let frames = self.tally().frames;
        let mut schedule = self.shared.schedule();
        schedule.count_from(frames, seq);
        self.ring.end_at(schedule.end());
    }

    /// Frames still to be collected; `u64::MAX` when endless.
    pub(crate) fn frames_left(&self) -> u64 {
        let total = self.shared.schedule().total_frames;
        let frames = self.tally().frames;
        total.map_or(u64::MAX, |total| total.saturating_sub(frames))
    }

    /// Whether `weights` are the policy's.
    pub(crate) fn check_weights(&self, weights: &Weights) -> Result<(), CollectError> {
        Ok(lock(&self.supply).reference.check(weights)?)
    }

    /// Publishes `weights` to all workers.
    pub(crate) fn push_weights(&self, weights: &Weights) -> Result<i64, CollectError> {
        let mut supply = lock(&self.supply);
        supply.reference.check(weights)?;
        Ok(supply.updater.push(&self.shared.weights, weights)?)
    }

    /// Publishes `weights` to worker `worker` alone.
    pub(crate) fn push_weights_to(
        &self,
        worker: usize,
        weights: &Weights,
    ) -> Result<i64, CollectError> {
        self.check_weights(weights)?;
        let published = self.shared.weights.publish_to(worker, weights);
        published.ok_or_else(|| {
            CollectError::Workers(format!(
                "there is no worker {worker}: the collector has {}",
                self.workers()
            ))
        })
    }

    /// Publishes what the source gives.
    pub(crate) fn push_from_source(&self) -> Result<i64, CollectError> {
        let weights = lock(&self.source).as_mut().map(|source| source());
        let Some(weights) = weights else {
            return Err(CollectError::Workers(
                "no weights were given, and the collector was built without a weight_source"
                    .to_owned(),
            ));
        };
        self.push_weights(&weights)
    }

    /// A copy of the weights that were published last.
    pub(crate) fn weights(&self) -> Weights {
        self.shared.weights.newest(0).map_or_else(
            || lock(&self.supply).reference.weights(),
            |newest| newest.weights.detach(),
        )
    }
}
