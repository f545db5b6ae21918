//! What workers report to the consumer.

use std::time::Duration;

use windrow_sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use windrow_sync::{Mutex, lock};

use super::commands::Resume;
use super::heartbeat::{Heartbeat, Pulse, Silence};
use super::link::Progress;
use super::stats::WorkerStats;
use crate::config::plan::OnLoss;
use crate::error::IsInterruption;
use crate::error::WorkerError;

/// What happens to a worker with a fault.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LossRule {
    pub(crate) on_loss: OnLoss,
    /// Where the others go on, they also fill its parts.
    pub(crate) reassigns: bool,
    pub(crate) is_interruption: IsInterruption,
}

/// The reports of all workers of a collector.
#[derive(Debug)]
pub(crate) struct Reports {
    counters: Vec<WorkerCounters>,
    /// Workers that still collect.
    alive: AtomicUsize,
    /// Errors that end the collector, oldest first, until they are delivered.
    failures: Mutex<Vec<WorkerError>>,
    /// Errors of workers that were lost without ending the collector, oldest first.
    losses: Mutex<Vec<WorkerError>>,
    /// Finds workers in this process that do not move.
    silence: Mutex<Silence>,
    /// The smallest trajectory id that no frame carries yet.
    next_traj_id: AtomicI64,
    /// The smallest frame from which no environment's noise and seeds were drawn yet, whatever the
    /// seed.
    next_frame: AtomicU64,
}

/// What one worker has done.
#[derive(Debug, Default)]
struct WorkerCounters {
    frames: AtomicU64,
    parts: AtomicU64,
    version: AtomicI64,
    restarts: AtomicU64,
    /// Nanoseconds that it has waited for a part.
    waited: AtomicU64,
    /// Of the process in which it runs; 0 where it runs in this one.
    pid: AtomicU64,
    gone: AtomicBool,
    /// Its signs of life, if it runs in this process.
    pulse: Pulse,
}

impl Reports {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            counters: (0..workers).map(|_| WorkerCounters::default()).collect(),
            alive: AtomicUsize::new(workers),
            failures: Mutex::default(),
            losses: Mutex::default(),
            silence: Mutex::default(),
            next_traj_id: AtomicI64::new(0),
            next_frame: AtomicU64::new(0),
        }
    }

    /// The sign of life of worker `worker`, which runs in this process.
    pub(super) fn pulse(&self, worker: usize) -> &Pulse {
        &self.counters[worker].pulse
    }

    /// Workers in this process that have not moved for `after`, each once.
    pub(crate) fn silent(&self, after: Duration) -> Vec<usize> {
        lock(&self.silence).look(self.heartbeats(), after)
    }

    /// The heartbeats of workers in this process; `None` for a worker that has nothing to do.
    pub(crate) fn heartbeats(&self) -> Vec<Option<Heartbeat>> {
        let pulses = self.counters.iter();
        pulses.map(|counters| counters.pulse.heartbeat()).collect()
    }

    /// Worker `worker` has waited so long for a part.
    pub(crate) fn waited(&self, worker: usize, time: Duration) {
        let waited = &self.counters[worker].waited;
        waited.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Worker `worker` runs in process `pid`, or in none any more.
    #[cfg(target_os = "linux")]
    pub(crate) fn runs_in(&self, worker: usize, pid: Option<u32>) {
        let pid = pid.map_or(0, u64::from);
        self.counters[worker].pid.store(pid, Ordering::Relaxed);
    }

    /// Worker `worker` has filled a part with `frames` frames.
    pub(super) fn collected(&self, worker: usize, frames: u64, progress: Progress) {
        self.advance(progress);
        let counters = &self.counters[worker];
        counters.frames.fetch_add(frames, Ordering::Relaxed);
        counters.parts.fetch_add(1, Ordering::Relaxed);
        let version = &counters.version;
        version.store(progress.version, Ordering::Relaxed);
    }

    /// Notes where a state that is saved later has to begin.
    pub(crate) fn advance(&self, progress: Progress) {
        let (id, frame) = (progress.next_traj_id, progress.next_frame);
        self.next_traj_id.fetch_max(id, Ordering::Relaxed);
        self.next_frame.fetch_max(frame, Ordering::Relaxed);
    }

    /// Worker `worker` was lost with `error` and starts over.
    pub(super) fn restarted(&self, worker: usize, error: WorkerError) {
        let restarts = &self.counters[worker].restarts;
        restarts.fetch_add(1, Ordering::Relaxed);
        self.add_loss(error);
    }

    /// Worker `worker` collects no more; how many others still do.
    pub(super) fn leave(&self, worker: usize) -> usize {
        self.counters[worker].gone.store(true, Ordering::Relaxed);
        self.alive.fetch_sub(1, Ordering::AcqRel) - 1
    }

    /// Keeps the error of a worker that was replaced or is gone; of very many, the first ones.
    pub(super) fn add_loss(&self, error: WorkerError) {
        const KEPT: usize = 1000;
        let mut losses = lock(&self.losses);
        if losses.len() < KEPT {
            losses.push(error);
        }
    }

    pub(super) fn add_failure(&self, error: WorkerError) {
        lock(&self.failures).push(error);
    }

    pub(super) fn go_on_from(&self, saved: Resume) {
        self.next_traj_id.store(saved.traj_id, Ordering::Relaxed);
        self.next_frame.store(saved.frame, Ordering::Relaxed);
    }

    /// The errors of workers that were lost since this was last asked.
    pub(crate) fn take_losses(&self) -> Vec<WorkerError> {
        std::mem::take(&mut *lock(&self.losses))
    }

    /// The oldest error that ends the collector and was not delivered yet.
    pub(crate) fn take_failure(&self) -> Option<WorkerError> {
        let mut failures = lock(&self.failures);
        (!failures.is_empty()).then(|| failures.remove(0))
    }

    /// The smallest trajectory id that no frame carries yet.
    pub(crate) fn next_traj_id(&self) -> i64 {
        self.next_traj_id.load(Ordering::Relaxed)
    }

    /// The smallest frame from which no noise or seed was drawn yet.
    pub(crate) fn next_frame(&self) -> u64 {
        self.next_frame.load(Ordering::Relaxed)
    }

    /// Workers that still collect.
    pub(crate) fn alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }

    /// How often a worker started over.
    pub(crate) fn restarts(&self) -> u64 {
        self.sum(|counters| &counters.restarts)
    }

    /// How long workers have waited for parts, over all of them.
    pub(crate) fn waited_in_all(&self) -> Duration {
        Duration::from_nanos(self.sum(|counters| &counters.waited))
    }

    fn sum(&self, counter: fn(&WorkerCounters) -> &AtomicU64) -> u64 {
        let counts = self.counters.iter().map(counter);
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// What each worker has done, where `newest` is the newest version of the weights.
    pub(crate) fn stats(&self, newest: i64) -> Vec<WorkerStats> {
        let counters = self.counters.iter().enumerate();
        counters
            .map(|(worker, counters)| counters.stats(worker, newest))
            .collect()
    }
}

impl WorkerCounters {
    fn stats(&self, worker: usize, newest: i64) -> WorkerStats {
        let policy_version = self.version.load(Ordering::Relaxed);
        WorkerStats {
            worker,
            frames: self.frames.load(Ordering::Relaxed),
            parts: self.parts.load(Ordering::Relaxed),
            restarts: self.restarts.load(Ordering::Relaxed),
            alive: !self.gone.load(Ordering::Relaxed),
            waited: Duration::from_nanos(self.waited.load(Ordering::Relaxed)),
            pid: match self.pid.load(Ordering::Relaxed) {
                0 => None,
                pid => u32::try_from(pid).ok(),
            },
            policy_version,
            policy_lag: (newest - policy_version).max(0),
        }
    }
}
