//! The collecting process is killed: nothing of it is left.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use windrow::{LazyTensorStorage, ReplayBuffer};

use crate::cell::{Cell, FRAMES_PER_BATCH, Mode, Rule, Way};
use crate::env::random;
use crate::reaper::{GLANCE, signal};
use crate::role::{Actor, GRACE, is_gone};
use crate::room::segments;
use crate::run::quantile;

/// What this program is called that collects until it is killed.
pub(crate) const ROLE: &str = "parent";
/// It is killed at most so many microseconds after its start, be its workers there or not, or after
/// its workers were.
const YOUTH: u64 = 150_000;

/// A multiple of a batch, and more than anybody waits for.
const ENDLESS: u64 = (FRAMES_PER_BATCH as u64) << 32;

/// What came of all kills.
#[derive(Debug, Default)]
pub(crate) struct Parents {
    killed: u64,
    workers: usize,
    /// Nanoseconds from each kill to the end of the last of its workers.
    gone: Vec<u64>,
    processes: usize,
    segments: usize,
    pub(crate) violations: Vec<String>,
}

/// Kills collecting processes, `times` of them.
pub(crate) fn run(times: u64) -> Parents {
    let mut parents = Parents::default();
    let cells = Cell::all(1).into_iter().cycle();
    let cells = cells.filter(|cell| (cell.rule, cell.way) == (Rule::Restart, Way::Kill));
    for (kill, cell) in (1..=times).zip(cells) {
        // Another one for each cell in the next round of cells, of which there is a multiple of
        // four.
        parents.kill(cell, (kill + kill / 12) % 4);
    }
    parents.gone.sort_unstable();
    parents
}

/// Collects as the cell says, until somebody ends it.
pub(crate) fn be(name: &str) {
    let mut cells = Cell::all(1).into_iter();
    let cell = cells.find(|cell| cell.name() == name).unwrap();
    let builder = cell.builder().total_frames(ENDLESS);
    if cell.mode == Mode::Replay {
        let storage = LazyTensorStorage::new(10_000);
        let buffer = ReplayBuffer::builder().storage(storage).build().unwrap();
        let mut collector = builder.replay_buffer(buffer).build().unwrap();
        collector.start().unwrap();
        while collector.is_running() {
            thread::sleep(GLANCE);
        }
        return;
    }
    for batch in builder.build().unwrap() {
        drop(batch.unwrap());
    }
}

impl Parents {
    /// At its start, or while it collects, or then beside a worker that is stopped.
    fn kill(&mut self, cell: Cell, moment: u64) {
        let segments_before = segments();
        let mut actor = Actor::start(&format!("{ROLE} {}", cell.name()), "");
        let pid = actor.process.id();
        let begun = Instant::now();
        while moment > 0 && actor.family().len() < 1 + cell.workers() {
            let ended = actor.process.try_wait().unwrap().is_some();
            if ended || begun.elapsed() > Duration::from_secs(60) {
                let outcome = actor.finish();
                self.accuse(cell, &format!("it has no workers: {outcome:?}"));
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(random() % YOUTH));
        let family = actor.family();
        if moment == 3
            && let Some(worker) = actor.worker()
        {
            signal(worker, Signal::STOP);
        }
        let at = Instant::now();
        signal(pid, Signal::KILL);
        let mut alive = family.clone();
        let mut last = at;
        // The second look finds those that began to live after the first.
        while !alive.is_empty() && at.elapsed() < GRACE {
            while alive.iter().any(|&member| !is_gone(member)) && at.elapsed() < GRACE {
                thread::sleep(GLANCE);
            }
            last = Instant::now();
            alive = actor.family();
        }
        actor.process.wait().unwrap();
        self.killed += 1;
        self.workers += family.len().saturating_sub(1);
        self.gone.push((last - at).as_nanos() as u64);
        self.processes += alive.len();
        if let Some(left) = actor.left() {
            self.accuse(cell, &left);
        }
        let more = segments().saturating_sub(segments_before);
        if more > 0 {
            self.segments += more;
            self.accuse(cell, &format!("it has left {more} segments"));
        }
    }

    fn accuse(&mut self, cell: Cell, violation: &str) {
        let cell = cell.name();
        self.violations
            .push(format!("the parent of {cell} was killed: {violation}"));
    }
}

impl fmt::Display for Parents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "parents: {} killed, their {} workers gone within {:.2} ms (p50), {:.2} ms (p99) and {:.2} ms (all); {} orphaned \
             processes, {} segments left",
            self.killed,
            self.workers,
            quantile(&self.gone, 0.5),
            quantile(&self.gone, 0.99),
            quantile(&self.gone, 1.0),
            self.processes,
            self.segments,
        )
    }
}
