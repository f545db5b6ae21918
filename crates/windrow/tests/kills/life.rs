//! A collector from its build to its end, while its workers die.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use windrow::{
    Collector, ControlError, Interrupt, LazyTensorStorage, NextError, ReplayBuffer, Stats,
    TensorDict,
};

use crate::cell::{Cell, FRAMES_PER_BATCH, Mode, Rule, Way};
use crate::env::now;
use crate::ledger::Ledger;
use crate::patience;
use crate::reaper::{GLANCE, Harvest, Reaper};

/// A collector from which nothing comes for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a collector did.
pub(crate) struct Life {
    pub(crate) ledger: Ledger,
    pub(crate) harvest: Harvest,
    /// Whether it ended with the error of a worker.
    pub(crate) failed: bool,
}

/// All that came of a collector.
struct Collected {
    batches: Vec<TensorDict>,
    /// What ended it before its time, and when that was told.
    error: Option<(NextError, u64)>,
}

pub(crate) fn life(cell: Cell) -> Life {
    let (mut collector, buffer) = built(cell);
    let over = AtomicBool::new(false);
    let reaper = Reaper::new(collector.handle(), cell);
    let (collected, mut harvest) = thread::scope(|scope| {
        let harvest = scope.spawn(|| reaper.run(&over));
        let collected = collect(&mut collector, buffer.as_ref());
        over.store(true, Ordering::Release);
        (collected, harvest.join().unwrap())
    });
    let mut ledger = Ledger::of(&collected.batches, cell.mode);
    let delivered = ledger.rows;
    let failed = match collected.error {
        None => false,
        Some((NextError::Worker(error), at)) if cell.may_fail() => {
            harvest.hear(&error, at);
            after(cell, &collector, &mut ledger);
            true
        }
        Some((error, _)) => {
            ledger.accuse(format!("I4: collection ended with {error}"));
            false
        }
    };
    if cell.has_to_fail() && !failed {
        let (told, last) = (&harvest.told, harvest.waits_for());
        ledger.accuse(format!(
            "I4: the loss of a worker did not end the collector; told were those of {told:?}, not of {last:?}"
        ));
    }
    await_last_kill(&collector, &mut harvest);
    shut_down(cell, &mut collector, &mut harvest);
    let total = (!failed).then(|| cell.total_frames() as u64);
    count(&mut ledger, delivered, collector.stats(), total);
    settle(cell, &mut ledger, &collector, &mut harvest);
    Life {
        ledger,
        harvest,
        failed,
    }
}

fn built(cell: Cell) -> (Collector, Option<ReplayBuffer>) {
    let buffer = (cell.mode == Mode::Replay).then(|| {
        let storage = LazyTensorStorage::new(cell.total_frames());
        ReplayBuffer::builder().storage(storage).build().unwrap()
    });
    let builder = match &buffer {
        Some(buffer) => cell.builder().replay_buffer(buffer.clone()),
        None => cell.builder(),
    };
    let builder = builder.interrupt(patience::interrupt());
    (builder.build().unwrap(), buffer)
}

/// All batches, in copies: their memory is used again meanwhile.
fn collect(collector: &mut Collector, buffer: Option<&ReplayBuffer>) -> Collected {
    let mut batches = Vec::new();
    let ended = match buffer {
        Some(buffer) => {
            let ended = fill(collector).map_err(|error| (error, now()));
            if !buffer.is_empty() {
                batches.push(buffer.all().unwrap());
            }
            ended
        }
        None => take(collector, &mut batches).map_err(|error| (error, now())),
    };
    Collected {
        batches,
        error: ended.err(),
    }
}

/// Collects in the background, to the end.
fn fill(collector: &mut Collector) -> Result<(), NextError> {
    if let Err(error) = collector.start() {
        match error {
            ControlError::Next(error) => return Err(error),
            other => panic!("the collector does not start: {other}"),
        }
    }
    let (mut last, mut frames) = (Instant::now(), 0);
    while collector.is_running() {
        let now = collector.stats().frames;
        if now != frames {
            (frames, last) = (now, Instant::now());
        }
        if last.elapsed() > PATIENCE {
            // As of a wait for a batch that took as long.
            return Interrupt::when(|| true).check().map_err(NextError::from);
        }
        thread::sleep(GLANCE);
    }
    collector.check()
}

/// Asks for all batches.
fn take(collector: &mut Collector, batches: &mut Vec<TensorDict>) -> Result<(), NextError> {
    while let Some(batch) = patience::next(collector, PATIENCE) {
        batches.push(batch?.detach());
    }
    Ok(())
}

/// The error has come once, and another collector begins beside the one that is over.
fn after(cell: Cell, collector: &Collector, ledger: &mut Ledger) {
    match collector.check() {
        Err(NextError::ShutDown) => {}
        other => ledger.accuse(format!("I4: after the error came {other:?}")),
    }
    if !collector.stats().failed {
        ledger.accuse("I4: the collector that ended with an error has not failed".to_owned());
    }
    // None of whose workers dies.
    let next = Cell {
        way: Way::Kill,
        ..cell
    };
    let total = 4 * FRAMES_PER_BATCH as u64;
    let mut another = next.builder().total_frames(total).build().unwrap();
    let mut batches = Vec::new();
    if let Err(error) = take(&mut another, &mut batches) {
        ledger.accuse(format!("I4: the next collector ended with {error}"));
    }
    let mut next_ledger = Ledger::of(&batches, cell.mode);
    let delivered = next_ledger.rows;
    count(&mut next_ledger, delivered, another.stats(), Some(total));
    ledger.rows += next_ledger.rows;
    ledger.violations.append(&mut next_ledger.violations);
}

/// Of one who was killed beside the last frames, nobody may have heard yet.
fn await_last_kill(collector: &Collector, harvest: &mut Harvest) {
    let begun = Instant::now();
    loop {
        for loss in collector.take_losses() {
            harvest.hear(&loss, now());
        }
        let Some(worker) = harvest.waits_for() else {
            return;
        };
        if begun.elapsed() > PATIENCE {
            harvest.accuse(format!("I4: nobody tells that worker {worker} was killed"));
            return;
        }
        thread::sleep(GLANCE);
    }
}

/// Ends the collector, which may tell of losses that no call has told yet.
fn shut_down(cell: Cell, collector: &mut Collector, harvest: &mut Harvest) {
    let late = match collector.shutdown() {
        Ok(()) => Vec::new(),
        Err(ControlError::Next(NextError::Worker(error))) => vec![error],
        Err(ControlError::SeveralWorkers(errors)) => errors,
        Err(error) => {
            harvest.accuse(format!("I6: the shutdown failed: {error}"));
            Vec::new()
        }
    };
    for error in late {
        // Others may have died by themselves while the first one's error was on its way.
        match cell.may_fail() && cell.way.is_own() {
            true => harvest.hear(&error, now()),
            false => harvest.accuse(format!("I4: the shutdown told of {error}")),
        }
    }
}

/// All frames that were collected were `delivered` or dropped, and none is missing of the `total`.
fn count(ledger: &mut Ledger, delivered: u64, stats: Stats, total: Option<u64>) {
    let (frames, dropped) = (stats.frames, stats.dropped_frames);
    if delivered + dropped != frames || total.is_some_and(|total| total != frames) {
        ledger.accuse(format!(
            "I4: {delivered} rows were delivered and {dropped} dropped; {frames} of {total:?} were counted"
        ));
    }
}

/// Every loss is known, once.
fn settle(cell: Cell, ledger: &mut Ledger, collector: &Collector, harvest: &mut Harvest) {
    let stats = collector.stats();
    let told = harvest.told.len();
    let restarts = match cell.rule {
        Rule::Restart => told,
        Rule::Raise | Rule::Continue => {
            let different: HashSet<_> = harvest.told.iter().collect();
            if different.len() < told {
                let told = &harvest.told;
                ledger.accuse(format!("I4: a loss was told twice, of workers {told:?}"));
            }
            0
        }
    };
    if stats.restarts != restarts as u64 {
        let replaced = stats.restarts;
        ledger.accuse(format!(
            "I4: {told} losses were told, {replaced} workers replaced"
        ));
    }
    let age = stats.policy_age;
    if cell.max_lag.is_some_and(|most| age > most as u64) {
        ledger.accuse(format!("I7: a part of age {age} was delivered"));
    }
    let left = match cell.rule {
        Rule::Restart | Rule::Raise => cell.workers(),
        Rule::Continue => cell.workers().saturating_sub(told),
    };
    if stats.workers_alive != left {
        let alive = stats.workers_alive;
        ledger.accuse(format!(
            "I4: {told} losses were told, {alive} workers are alive"
        ));
    }
}
