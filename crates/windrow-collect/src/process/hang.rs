//! Hang detection: finds workers that are alive, but in a call that does not return, and kills
//! them.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use windrow_sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use windrow_sync::thread::Builder;

use super::pool::WorkerPool;
use super::slot::WorkerProcess;
use super::thread_state::{Hang, ThreadState};
use crate::error::BuildError;

/// How long a worker that shows its stack has time to do so.
const GRACE: Duration = Duration::from_millis(500);

/// Ends the detector's thread when it is dropped.
pub(super) type StopGuard = Sender<()>;

/// Where a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Heartbeat {
    /// Slab of the part that it fills.
    seq: u64,
    /// Grows with each phase of each step.
    beat: u32,
}

/// The state of a worker when it was looked at.
struct Observation {
    /// `None` for one that has nothing to do.
    heartbeat: Option<Heartbeat>,
    /// Since when.
    since: Instant,
    /// When it was asked for its stack.
    asked: Option<Instant>,
}

impl Observation {
    fn new(heartbeat: Option<Heartbeat>, since: Instant) -> Self {
        Self {
            heartbeat,
            since,
            asked: None,
        }
    }
}

/// Starts a thread that kills workers of `pool` that have not moved for `patience`.
///
/// # Errors
/// [`BuildError::Thread`] when the operating system refuses a thread.
pub(super) fn start(pool: &Arc<WorkerPool>, patience: Duration) -> Result<StopGuard, BuildError> {
    let (guard, ended) = channel();
    let pool = Arc::downgrade(pool);
    Builder::new()
        .name("windrow-watchdog".to_owned())
        .spawn(move || detect(&pool, patience, &ended))
        .map_err(BuildError::Thread)?;
    Ok(guard)
}

fn detect(pool: &Weak<WorkerPool>, patience: Duration, ended: &Receiver<()>) {
    let mut observations: Vec<Observation> = Vec::new();
    // A worker is noticed at most a quarter late.
    let pause = (patience / 4).clamp(Duration::from_millis(1), GRACE);
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let Some(pool) = pool.upgrade() else { return };
        let now = Instant::now();
        let heartbeats = pool.heartbeats();
        observations.resize_with(heartbeats.len(), || Observation::new(None, now));
        for (worker, (heartbeat, seen)) in heartbeats.into_iter().zip(&mut observations).enumerate()
        {
            if heartbeat.is_none() || heartbeat != seen.heartbeat || pool.is_debugged(worker) {
                if seen.asked.is_some() {
                    pool.recovered(worker);
                }
                *seen = Observation::new(heartbeat, now);
            } else if let Some(asked) = seen.asked {
                if now - asked >= GRACE {
                    pool.kill_hung(worker);
                    *seen = Observation::new(None, now);
                }
            } else if now - seen.since >= patience {
                if pool.hung(worker, patience) {
                    seen.asked = Some(now);
                } else {
                    pool.kill_hung(worker);
                    *seen = Observation::new(None, now);
                }
            }
        }
    }
}

impl WorkerPool {
    fn heartbeats(&self) -> Vec<Option<Heartbeat>> {
        let state = self.state();
        let slots = state.slots.iter().enumerate();
        let heartbeats = slots.map(|(worker, slot)| {
            let seq = slot.part.as_ref()?.seq();
            let beat = self.control.place(worker).ok()?.beat;
            Some(Heartbeat { seq, beat })
        });
        heartbeats.collect()
    }

    fn process(&self, worker: usize) -> Option<WorkerProcess> {
        self.slot(worker, |slot| slot.process)
    }

    /// Whether a debugger holds worker `worker`.
    fn is_debugged(&self, worker: usize) -> bool {
        let process = self.process(worker);
        process.is_some_and(|WorkerProcess { pid, .. }| ThreadState::read(pid, pid).is_traced())
    }

    /// Worker `worker` has not moved for `patience`: notes what it does. Whether it was asked for
    /// its stack, which it will write to its standard error.
    fn hung(&self, worker: usize, patience: Duration) -> bool {
        let Some(process) = self.process(worker) else {
            return false;
        };
        let thread = ThreadState::read(process.pid, process.thread);
        let seen = thread.describe();
        self.slot(worker, |slot| slot.hang = Some(Hang { patience, seen }));
        process.shows_stack && !thread.is_stopped() && self.supervisor.ask_for_stack(worker).is_ok()
    }

    /// Worker `worker` moves again.
    fn recovered(&self, worker: usize) {
        self.slot(worker, |slot| slot.hang = None);
    }

    /// Kills worker `worker`, which has not moved.
    fn kill_hung(&self, worker: usize) {
        // Nothing is left to be killed after a shutdown.
        let _ = self.supervisor.kill(worker);
    }
}
