//! Kills workers, and hears of those that are lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use windrow::{Handle, WorkerError};

use crate::cell::{Cell, FRAMES_PER_DEATH, Way};
use crate::env::{LAST_WORDS, now, random};
use crate::policy;

/// How often it looks, which is how well it knows when a loss was noticed.
pub(crate) const GLANCE: Duration = Duration::from_micros(50);
/// Looks between two publications of weights, on average.
const GLANCES: u64 = 64;
/// Longest rest of a worker that is stopped, and longest wait before a kill.
const REST: u64 = 5_000;

/// What came of one run.
#[derive(Debug)]
pub(crate) struct Harvest {
    cell: Cell,
    /// Workers that died while the collector needed them, in the order in which it told so.
    pub(crate) told: Vec<usize>,
    /// Nanoseconds from each death to the moment when the collector had noticed it.
    pub(crate) noticed: Vec<u64>,
    pub(crate) violations: Vec<String>,
    victim: Option<Victim>,
}

/// Somebody who was killed, and whose loss nobody has told yet.
#[derive(Debug)]
struct Victim {
    worker: usize,
    at: u64,
}

pub(crate) struct Reaper {
    handle: Handle,
    harvest: Harvest,
    /// Version of the weights that were published last.
    version: i64,
}

impl Harvest {
    /// A worker was lost with this error, which was seen at `now`.
    pub(crate) fn hear(&mut self, loss: &WorkerError, now: u64) {
        self.told.push(loss.worker());
        if !self.cell.way.is_told_by(loss) {
            self.accuse(format!("I4: a loss with another reason: {loss}"));
        }
        let died = match self.victim.take() {
            Some(victim) if victim.worker == loss.worker() => Some(victim.at),
            victim => {
                self.victim = victim;
                died_at(loss)
            }
        };
        match died {
            // It has said when it began to take memory, and dies when there is none left.
            Some(_) if self.cell.way == Way::Hunger => {}
            Some(died) => self.noticed.push(now.saturating_sub(died)),
            None => self.accuse(format!("I4: a loss that nobody has caused: {loss}")),
        }
    }

    /// The worker that was killed and whose loss nobody has told.
    pub(crate) fn waits_for(&self) -> Option<usize> {
        self.victim.as_ref().map(|victim| victim.worker)
    }

    pub(crate) fn accuse(&mut self, violation: String) {
        self.violations.push(violation);
    }
}

impl Reaper {
    pub(crate) fn new(handle: Handle, cell: Cell) -> Self {
        Self {
            handle,
            harvest: Harvest {
                cell,
                told: Vec::new(),
                noticed: Vec::new(),
                violations: Vec::new(),
                victim: None,
            },
            version: 0,
        }
    }

    /// Until the run is `over`: kills as many workers as the cell says, about evenly over the
    /// frames that are collected, unless they die by themselves; publishes weights.
    pub(crate) fn run(mut self, over: &AtomicBool) -> Harvest {
        let each = FRAMES_PER_DEATH as u64;
        let (mut next, mut left) = (random() % each, self.harvest.cell.deaths);
        if self.harvest.cell.way.is_own() {
            left = 0;
        }
        while !over.load(Ordering::Acquire) {
            self.hear();
            let due = left > 0 && self.handle.stats().frames >= next;
            if due && self.harvest.victim.is_none() && self.kill() {
                (next, left) = (next + each, left - 1);
            }
            if random().is_multiple_of(GLANCES) {
                self.publish();
            }
            thread::sleep(GLANCE);
        }
        self.hear();
        self.harvest
    }

    fn hear(&mut self) {
        for loss in self.handle.take_losses() {
            self.harvest.hear(&loss, now());
        }
    }

    /// Kills any of those that have a process; whether there was one.
    fn kill(&mut self) -> bool {
        pause(REST / 10);
        let workers = self.handle.worker_stats().into_iter();
        let workers: Vec<_> = workers
            .filter_map(|worker| Some((worker.worker, worker.pid?)))
            .collect();
        if workers.is_empty() {
            return false;
        }
        let (worker, pid) = workers[random() as usize % workers.len()];
        if self.harvest.cell.way == Way::Stop {
            signal(pid, Signal::STOP);
            pause(REST);
            self.hear();
        }
        let at = now();
        signal(pid, Signal::KILL);
        self.harvest.victim = Some(Victim { worker, at });
        true
    }

    fn publish(&mut self) {
        let expected = self.version + 1;
        // Refused once the collector is over.
        let Ok(version) = self
            .handle
            .update_policy_weights(&policy::weights(expected))
        else {
            return;
        };
        if version != expected {
            self.harvest.accuse(format!(
                "I5: publication {expected} became version {version}"
            ));
        }
        self.version = version;
    }
}

/// What a worker that dies by itself says last.
fn died_at(loss: &WorkerError) -> Option<u64> {
    let text = loss.to_string();
    let (_, behind) = text.rsplit_once(LAST_WORDS)?;
    let digits: String = behind.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn pause(most_us: u64) {
    thread::sleep(Duration::from_micros(random() % most_us));
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    // It may have been waited for already.
    let _ = kill_process(pid, signal);
}
