//! Hang detection: finds workers that are alive, but in a call that does not return, and kills
//! them.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use windrow_sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use windrow_sync::thread::Builder;

use super::live::LastSeen;
use super::pool::WorkerPool;
use super::slot::WorkerProcess;
use super::thread_state::{Hang, ThreadState};
use crate::error::BuildError;
use crate::shared::heartbeat::Heartbeat;

/// How long a worker that shows its stack has time to do so.
const GRACE: Duration = Duration::from_millis(500);

/// Ends the detector's thread when it is dropped.
pub(super) type StopGuard = Sender<()>;

/// The result of a look at a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// It moves, has nothing to do, or has time left.
    Fine,
    /// It moves again, after a request for its stack.
    Recovered,
    /// It has not moved for too long: the caller requests its stack, or kills it.
    Hung,
    /// It has not sent its stack within the time for that: the caller kills it.
    Unanswering,
}

/// The state of a worker when it was looked at.
#[derive(Debug)]
pub(super) struct Observation {
    /// `None` for one that has nothing to do.
    heartbeat: Option<Heartbeat>,
    /// Since when.
    since: Instant,
    /// When it was asked for its stack.
    asked: Option<Instant>,
}

impl Observation {
    pub(super) fn new(heartbeat: Option<Heartbeat>, since: Instant) -> Self {
        Self {
            heartbeat,
            since,
            asked: None,
        }
    }

    /// Looks at a worker, which may take `patience` for each call, or any time while it is
    /// `debugged`.
    pub(super) fn look(
        &mut self,
        heartbeat: Option<Heartbeat>,
        patience: Duration,
        debugged: impl FnOnce() -> bool,
    ) -> Finding {
        let now = Instant::now();
        if heartbeat.is_none() || heartbeat != self.heartbeat || debugged() {
            let asked = self.asked;
            *self = Self::new(heartbeat, now);
            return asked.map_or(Finding::Fine, |_| Finding::Recovered);
        }
        match self.asked {
            Some(asked) if now - asked >= GRACE => {
                *self = Self::new(None, now);
                Finding::Unanswering
            }
            None if now - self.since >= patience => {
                self.asked = Some(now);
                Finding::Hung
            }
            _ => Finding::Fine,
        }
    }

    /// Notes that the worker, which cannot show its stack, was killed.
    pub(super) fn was_killed(&mut self) {
        *self = Self::new(None, Instant::now());
    }
}

/// The time between two looks: a hang is noticed late by at most a quarter of `patience`.
pub(super) fn pause(patience: Duration) -> Duration {
    (patience / 4).clamp(Duration::from_millis(1), GRACE)
}

impl WorkerProcess {
    /// True while a debugger holds it.
    pub(super) fn is_debugged(self) -> bool {
        ThreadState::read(self.pid, self.pid).is_traced()
    }

    /// The state of the process, in words that follow "it".
    pub(super) fn doing(self) -> String {
        match &*ThreadState::read(self.pid, self.thread).describe() {
            "" => format!("is process {}", self.pid),
            seen => format!("is process {}, whose thread {seen}", self.pid),
        }
    }

    /// Describes a process that has not moved for `patience`. Also returns whether it can show its
    /// stack.
    pub(super) fn hang(self, patience: Duration) -> (Hang, bool) {
        let thread = ThreadState::read(self.pid, self.thread);
        let seen = thread.describe();
        (
            Hang { patience, seen },
            self.shows_stack && !thread.is_stopped(),
        )
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
    while ended.recv_timeout(pause(patience)) == Err(RecvTimeoutError::Timeout) {
        let Some(pool) = pool.upgrade() else { return };
        let heartbeats = pool.heartbeats();
        let now = Instant::now();
        observations.resize_with(heartbeats.len(), || Observation::new(None, now));
        for (worker, (heartbeat, seen)) in heartbeats.into_iter().zip(&mut observations).enumerate()
        {
            match seen.look(heartbeat, patience, || pool.is_debugged(worker)) {
                Finding::Fine => {}
                Finding::Recovered => pool.recovered(worker),
                Finding::Hung if pool.hung(worker, patience) => {}
                Finding::Hung | Finding::Unanswering => {
                    pool.kill_hung(worker);
                    seen.was_killed();
                }
            }
        }
    }
}

impl WorkerPool {
    pub(crate) fn heartbeats(&self) -> Vec<Option<Heartbeat>> {
        let state = self.state();
        let slots = state.slots.iter().enumerate();
        let heartbeats = slots.map(|(worker, slot)| {
            let seq = slot.part.as_ref()?.seq();
            let beat = self.control.place(worker).ok()?.beat;
            Some(Heartbeat { seq, beat })
        });
        heartbeats.collect()
    }

    /// The state of worker `worker`, in words that follow "it".
    pub(crate) fn doing(&self, worker: usize) -> String {
        let process = self.process(worker).map(WorkerProcess::doing);
        let seen = self.slot(worker, |slot| {
            let part = slot.part.as_ref();
            part.map(|part| LastSeen::of(worker, &self.control, part, &[]).doing)
        });
        let seen = seen.filter(|doing| !doing.is_empty());
        let seen = seen.map(|doing| format!("is {doing}"));
        let all: Vec<_> = [seen, process].into_iter().flatten().collect();
        all.join(", ")
    }

    fn process(&self, worker: usize) -> Option<WorkerProcess> {
        self.slot(worker, |slot| slot.process)
    }

    /// Whether a debugger holds worker `worker`.
    fn is_debugged(&self, worker: usize) -> bool {
        self.process(worker).is_some_and(WorkerProcess::is_debugged)
    }

    /// Worker `worker` has not moved for `patience`: notes what it does. Whether it was asked for
    /// its stack, which it will write to its standard error.
    fn hung(&self, worker: usize, patience: Duration) -> bool {
        let Some(process) = self.process(worker) else {
            return false;
        };
        let (hang, shows_stack) = process.hang(patience);
        self.slot(worker, |slot| slot.hang = Some(hang));
        shows_stack && self.supervisor.ask_for_stack(worker).is_ok()
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
