//! Hang detection: finds workers that are alive, but in a call that does not return, and kills them.

use std::fs::read_to_string;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use windrow_peer::Exit;
use windrow_sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use windrow_sync::thread::Builder;

use super::pool::WorkerPool;
use super::slot::WorkerProcess;
use crate::CollectError;

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

/// What was seen of a worker.
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
/// [`CollectError::Start`] when the operating system refuses a thread.
pub(super) fn start(pool: &Arc<WorkerPool>, patience: Duration) -> Result<StopGuard, CollectError> {
    let (guard, ended) = channel();
    let pool = Arc::downgrade(pool);
    Builder::new()
        .name("windrow-watchdog".to_owned())
        .spawn(move || detect(&pool, patience, &ended))
        .map_err(CollectError::Start)?;
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

    /// Worker `worker` has not moved for `patience`: notes what it does. Whether it was asked for its stack, which it will write to its
    /// standard error.
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

/// A worker that did not move, as it was seen before its end.
#[derive(Debug)]
pub(super) struct Hang {
    patience: Duration,
    /// What the system showed of it, in words that follow "its thread".
    seen: String,
}

impl Hang {
    /// How its process ended, in words that follow "its process".
    pub(super) fn end(&self, exit: Exit) -> String {
        let end = match exit.is_kill() {
            true => "was killed".to_owned(),
            false => format!("was asked for its stack, and ended with {exit}"),
        };
        let seconds = self.patience.as_secs_f64();
        let seen = match &*self.seen {
            "" => String::new(),
            seen => format!("; its thread {seen}"),
        };
        format!(
            "{end}: no call of its environment or policy returned for step_timeout={seconds} s{seen}"
        )
    }
}

/// A thread, as the system shows it.
#[derive(Debug)]
struct ThreadState {
    status: String,
    /// The number of the system call that it is in, or other words.
    call: String,
    /// The function of the system in which it sleeps, where there is one and the system tells.
    sleeps_in: String,
}

impl ThreadState {
    /// Reads the state of thread `thread` of process `pid`. What cannot be read is empty.
    fn read(pid: u32, thread: u32) -> Self {
        let read =
            |file| read_to_string(format!("/proc/{pid}/task/{thread}/{file}")).unwrap_or_default();
        Self {
            status: read("status"),
            call: read("syscall"),
            sleeps_in: read("wchan"),
        }
    }

    fn field(&self, name: &str) -> Option<&str> {
        let value = self.status.lines().find_map(|line| line.strip_prefix(name));
        value.map(str::trim)
    }

    /// Whether a debugger holds it.
    fn is_traced(&self) -> bool {
        self.field("TracerPid:").is_some_and(|tracer| tracer != "0")
    }

    /// Whether a signal has stopped its process: then it answers nothing.
    fn is_stopped(&self) -> bool {
        self.state() == Some('T')
    }

    fn state(&self) -> Option<char> {
        self.field("State:")?.chars().next()
    }

    /// What it does, in words that follow "its thread"; empty where the system does not tell.
    fn describe(&self) -> String {
        let state = match self.state() {
            None => return String::new(),
            Some('R') => return "was running".to_owned(),
            Some('T') => return "was stopped by a signal (T)".to_owned(),
            Some('S') => "was asleep",
            Some('D') => "was in a wait that no signal ends (D)",
            Some(other) => return format!("was in state {other}"),
        };
        let call = self.call.split_whitespace().next();
        let call = call.filter(|call| call.parse::<u32>().is_ok());
        let call = call.map_or_else(String::new, |call| format!(" in system call {call}"));
        match self.sleeps_in.trim() {
            "" | "0" => format!("{state}{call}"),
            function => format!("{state}{call} ({function})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(state: &str, tracer: u32, call: &str, sleeps_in: &str) -> ThreadState {
        ThreadState {
            status: format!(
                "Name:\tsome State:\nState:\t{state}\nTgid:\t7\nTracerPid:\t{tracer}\n"
            ),
            call: call.to_owned(),
            sleeps_in: sleeps_in.to_owned(),
        }
    }

    #[test]
    fn a_thread_is_described_as_far_as_the_system_tells() {
        for (state, call, function, words) in [
            ("R (running)", "running\n", "0", "was running"),
            (
                "T (stopped)",
                "230 0x0 0x0",
                "do_signal_stop",
                "was stopped by a signal (T)",
            ),
            (
                "S (sleeping)",
                "202 0x7f 0x0 0x1\n",
                "futex_do_wait",
                "was asleep in system call 202 (futex_do_wait)",
            ),
            ("S (sleeping)", "", "0", "was asleep"),
            ("S (sleeping)", "running", "", "was asleep"),
            (
                "D (disk sleep)",
                "-1 0x7f 0x0",
                "nfs_wait",
                "was in a wait that no signal ends (D) (nfs_wait)",
            ),
            ("Z (zombie)", "", "0", "was in state Z"),
        ] {
            let thread = thread(state, 0, call, function);
            assert_eq!(thread.describe(), words);
            assert_eq!(thread.is_stopped(), state.starts_with('T'));
        }
        let gone = ThreadState::read(u32::MAX, u32::MAX);
        assert_eq!(gone.describe(), "");
        assert!(!gone.is_stopped() && !gone.is_traced());
    }

    #[test]
    fn who_is_debugged_is_known_by_the_tracer() {
        assert!(thread("t (tracing stop)", 4, "", "").is_traced());
        assert!(!thread("S (sleeping)", 0, "", "").is_traced());
    }
}
