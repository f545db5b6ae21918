//! Kills workers, and hears of those that are lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use windrow::{Handle, WorkerError};

use crate::cell::{Cell, Way};
use crate::env::{LAST_WORDS, now, random};

/// How often it looks, which is how well it knows when a loss was noticed.
const GLANCE: Duration = Duration::from_micros(50);
/// Longest rest of a worker that is stopped, and longest wait before a kill.
const REST: u64 = 5_000;

/// What came of one run.
#[derive(Debug, Default)]
pub(crate) struct Harvest {
    /// Workers that died while the collector needed them.
    pub(crate) deaths: u64,
    /// Nanoseconds from each death to the moment when the collector had noticed it.
    pub(crate) noticed: Vec<u64>,
    pub(crate) violations: Vec<String>,
}

/// Somebody who was killed, and whose loss nobody has told yet.
struct Victim {
    worker: usize,
    at: u64,
}

pub(crate) struct Reaper {
    handle: Handle,
    cell: Cell,
    victim: Option<Victim>,
    harvest: Harvest,
}

impl Reaper {
    pub(crate) fn new(handle: Handle, cell: Cell) -> Self {
        Self {
            handle,
            cell,
            victim: None,
            harvest: Harvest::default(),
        }
    }

    /// Until the run is `over`: kills a worker each time that `each` further frames were collected, unless they die by
    /// themselves.
    pub(crate) fn run(mut self, each: u64, over: &AtomicBool) -> Harvest {
        let mut next = random() % each;
        while !over.load(Ordering::Acquire) {
            self.hear();
            let due = self.handle.stats().frames >= next;
            if !self.cell.way.is_own() && self.victim.is_none() && due {
                self.kill();
                next += each;
            }
            thread::sleep(GLANCE);
        }
        self.hear();
        self.harvest
    }

    fn hear(&mut self) {
        for loss in self.handle.take_losses() {
            let now = now();
            self.harvest.deaths += 1;
            if !self.cell.way.is_told_by(&loss) {
                self.accuse(&format!("I4: a loss with another reason: {loss}"));
            }
            let died = match self.victim.take() {
                Some(victim) if victim.worker == loss.worker() => Some(victim.at),
                victim => {
                    self.victim = victim;
                    died_at(&loss)
                }
            };
            match died {
                Some(died) => self.harvest.noticed.push(now.saturating_sub(died)),
                None => self.accuse(&format!("I4: a loss that nobody has caused: {loss}")),
            }
        }
    }

    fn kill(&mut self) {
        pause(REST / 10);
        let workers = self.handle.worker_stats();
        let worker = &workers[random() as usize % workers.len()];
        // One whose process is being replaced.
        let Some(pid) = worker.pid else { return };
        if self.cell.way == Way::Stop {
            signal(pid, Signal::STOP);
            pause(REST);
            self.hear();
        }
        let at = now();
        signal(pid, Signal::KILL);
        let worker = worker.worker;
        self.victim = Some(Victim { worker, at });
    }

    fn accuse(&mut self, violation: &str) {
        let cell = self.cell;
        self.harvest
            .violations
            .push(format!("{cell:?}: {violation}"));
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

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    // It may have been waited for already.
    let _ = kill_process(pid, signal);
}
