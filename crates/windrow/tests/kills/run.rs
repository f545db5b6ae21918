//! As many runs as it takes for so many to die.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use windrow::{CollectError, Collector, LazyTensorStorage, ReplayBuffer, TensorDict};

use crate::cell::{Cell, FRAMES_PER_BATCH, Mode};
use crate::ledger::Ledger;
use crate::reaper::{Harvest, Reaper};
use crate::room::Room;

/// Frames that are collected for each death.
const FRAMES_PER_DEATH: usize = 100 * FRAMES_PER_BATCH;
/// Most deaths in the life of one collector; fewer where there are not enough for all cells.
const DEATHS: u64 = 6;
/// A collector from which nothing comes for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What came of all runs.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    deaths: u64,
    rows: u64,
    noticed: Vec<u64>,
    orphans: usize,
    segments: usize,
    collectors: u64,
    pub(crate) violations: Vec<String>,
}

/// Runs collectors of all cells in turn until `kills` of their workers have died.
pub(crate) fn run(kills: u64) -> Sum {
    let mut sum = Sum::default();
    let room = Room::now();
    let each = (kills / Cell::all().len() as u64).clamp(1, DEATHS);
    while sum.deaths < kills {
        for cell in Cell::all() {
            if sum.deaths >= kills {
                break;
            }
            sum.add(cell, each as usize, room);
        }
    }
    sum.noticed.sort_unstable();
    sum
}

impl Sum {
    fn add(&mut self, cell: Cell, deaths: usize, room: Room) {
        let (ledger, harvest) = life(cell, deaths);
        self.collectors += 1;
        self.deaths += harvest.deaths;
        self.rows += ledger.rows;
        self.noticed.extend(harvest.noticed);
        self.violations.extend(harvest.violations);
        let of_cell = |violation| format!("{cell:?}: {violation}");
        self.violations
            .extend(ledger.violations.into_iter().map(of_cell));
        let now = Room::back_to(room);
        if now != room {
            self.orphans += now.processes.saturating_sub(room.processes);
            self.segments += now.segments.saturating_sub(room.segments);
            self.violations
                .push(format!("{cell:?}: I6: {room:?} before, {now:?} after"));
        }
    }

    /// Milliseconds within which this share of all losses was noticed.
    fn quantile(&self, share: f64) -> f64 {
        let last = self.noticed.len().saturating_sub(1);
        let at = (share * last as f64).ceil() as usize;
        self.noticed.get(at).map_or(0.0, |&ns| ns as f64 / 1e6)
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        for violation in self.violations.iter().take(SHOWN) {
            writeln!(f, "violation: {violation}")?;
        }
        write!(
            f,
            "{} kills, {} rows checked, {} violations, noticed within {:.2} ms (p50) and {:.2} ms (p99), {} orphaned processes, \
             {} segments left; {} collectors",
            self.deaths,
            self.rows,
            self.violations.len(),
            self.quantile(0.5),
            self.quantile(0.99),
            self.orphans,
            self.segments,
            self.collectors,
        )
    }
}

/// A collector from its build to its end, with about so many deaths.
fn life(cell: Cell, deaths: usize) -> (Ledger, Harvest) {
    let total = deaths * FRAMES_PER_DEATH;
    let builder = cell.builder().total_frames(total as u64);
    let buffer = (cell.mode == Mode::Replay).then(|| {
        let storage = LazyTensorStorage::new(total);
        ReplayBuffer::builder().storage(storage).build().unwrap()
    });
    let mut collector = match &buffer {
        Some(buffer) => builder.replay_buffer(buffer.clone()),
        None => builder,
    }
    .build()
    .unwrap();
    let over = AtomicBool::new(false);
    let reaper = Reaper::new(collector.handle(), cell);
    let (collected, harvest) = thread::scope(|scope| {
        let harvest = scope.spawn(|| reaper.run(FRAMES_PER_DEATH as u64, &over));
        let collected = collect(&mut collector, buffer.as_ref());
        over.store(true, Ordering::Release);
        (collected, harvest.join().unwrap())
    });
    let mut ledger = Ledger::default();
    match collected {
        Ok(batches) => batches.iter().for_each(|batch| ledger.enter(batch)),
        Err(error) => ledger.accuse(format!("I4: collection ended with {error}")),
    }
    if let Err(error) = collector.shutdown() {
        ledger.accuse(format!("I6: the shutdown failed: {error}"));
    }
    ledger.close(cell.mode);
    settle(cell, &mut ledger, &collector, &harvest, total as u64);
    (ledger, harvest)
}

/// All batches, in copies: their memory is used again meanwhile.
fn collect(
    collector: &mut Collector,
    buffer: Option<&ReplayBuffer>,
) -> Result<Vec<TensorDict>, CollectError> {
    let mut last = Instant::now();
    if let Some(buffer) = buffer {
        collector.start()?;
        let mut frames = 0;
        while collector.is_running() {
            let now = collector.stats().frames;
            if now != frames {
                (frames, last) = (now, Instant::now());
            }
            if last.elapsed() > PATIENCE {
                return Err(CollectError::BatchGivenUp);
            }
            thread::sleep(Duration::from_millis(1));
        }
        collector.check()?;
        return Ok(vec![buffer.all().unwrap()]);
    }
    let mut batches = Vec::new();
    while let Some(batch) = collector.next_unless(|| last.elapsed() > PATIENCE) {
        batches.push(batch?.detach());
        last = Instant::now();
    }
    Ok(batches)
}

/// Nothing is missing that was asked for, and every loss is known.
fn settle(cell: Cell, ledger: &mut Ledger, collector: &Collector, harvest: &Harvest, total: u64) {
    let stats = collector.stats();
    if stats.frames != total || ledger.rows + stats.dropped_frames != total {
        ledger.accuse(format!(
            "I4: {} rows were delivered and {} dropped; {} of {total} were counted",
            ledger.rows, stats.dropped_frames, stats.frames
        ));
    }
    // Of one who was killed beside the last frames, nobody has heard yet.
    let late = collector.take_losses();
    for loss in late.iter().filter(|loss| !cell.way.is_told_by(loss)) {
        ledger.accuse(format!("I4: a loss with another reason: {loss}"));
    }
    let told = harvest.deaths + late.len() as u64;
    if stats.restarts != told {
        let replaced = stats.restarts;
        ledger.accuse(format!(
            "I4: {told} losses were told, {replaced} workers replaced"
        ));
    }
}
