//! A program that may have 256 descriptors, and uses them up.

use std::error::Error;
use std::fs::File;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use windrow::{
    BuildError, Collector, MultiSyncCollector, NextError, OnLoss, Placement, error_chain,
};

use crate::cell::Way;
use crate::patience;
use crate::reaper::signal;
use crate::room::{Room, children};

pub(crate) const ROLE: &str = "descriptors";
pub(crate) const LIMITS: &str = "ulimit -n 256;";

/// Workers of each collector.
const WORKERS: usize = 3;
/// Workers that are replaced in one collector.
const RESTARTS: u64 = 100;
/// A collector from which nothing comes for so long hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Says in a line what it did; panics when a shortage is told badly, or leaves something behind.
pub(crate) fn be() {
    let room = Room::now();
    let (most, error) = more_and_more(room);
    let needed = with_few(room);
    let replaced = replaced_with_few(room);
    many_restarts(room);
    println!(
        "descriptors: of 256, {most} collectors of {WORKERS} workers left none ({error}); with 0 to {} of the {needed} that another \
         needs each was refused, with 0 to {} its lost worker; {RESTARTS} restarts left none open",
        needed - 1,
        replaced - 1,
    );
}

fn collector() -> Result<Collector, BuildError> {
    MultiSyncCollector::builder(Way::Kill.id())
        .num_workers(WORKERS)
        .frames_per_batch(60)
        .placement(Placement::Processes)
        .on_loss(OnLoss::Restart { budget: usize::MAX })
        .interrupt(patience::interrupt())
        .build()
}

/// Collects a batch; an hour would be no different from the time that this takes.
fn collect(collector: &mut Collector) -> Result<(), NextError> {
    match patience::next(collector, PATIENCE) {
        Some(Ok(batch)) => {
            assert_eq!(batch.numel(), 60);
            Ok(())
        }
        Some(Err(NextError::WaitInterrupted(_))) => panic!("no batch within {PATIENCE:?}"),
        Some(Err(error)) => Err(error),
        None => panic!("no batch, and no error"),
    }
}

/// Descriptors are named, and the limit, and what to do.
fn check(error: &(dyn Error + 'static)) -> String {
    let text = error_chain(error);
    let words = ["256 file descriptors", "ulimit -n"];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    text
}

fn check_back_to(room: Room, after: &str) {
    assert_eq!(Room::back_to(room), room, "after {after}");
}

/// Builds collectors until one fails: the others go on, and there is room again without them. How
/// many there were.
fn more_and_more(room: Room) -> (usize, String) {
    // To count processes takes a descriptor for their folder, and one for a file in it.
    let spare = [(); 2].map(|()| File::open("/dev/null").unwrap());
    let mut collectors = Vec::new();
    let error = loop {
        match collector() {
            Ok(collector) => collectors.push(collector),
            Err(error) => break check(&error),
        }
    };
    drop(spare);
    let most = collectors.len();
    assert!(most > 5, "{most}");
    assert_eq!(children(), most * WORKERS, "of the one that failed");
    for collector in &mut collectors {
        collect(collector).unwrap();
    }
    collectors.truncate(most / 2);
    collect(&mut collector().unwrap()).unwrap();
    for collector in &mut collectors {
        collect(collector).unwrap();
    }
    drop(collectors);
    check_back_to(room, "many collectors");
    (most, error)
}

/// Leaves `free` descriptors, for as long as the result lives.
fn all_but(free: usize) -> Vec<File> {
    let files = std::iter::from_fn(|| File::open("/dev/null").ok());
    let mut all: Vec<File> = files.collect();
    all.truncate(all.len() - free);
    all
}

/// Builds a collector with each number of free descriptors, up to the first that is enough.
fn with_few(room: Room) -> usize {
    for free in 0.. {
        let taken = all_but(free);
        let built = collector();
        drop(taken);
        let enough = match built {
            Ok(mut collector) => {
                collect(&mut collector).unwrap();
                true
            }
            Err(error) => {
                check(&error);
                false
            }
        };
        check_back_to(room, &format!("a build with {free} descriptors"));
        if enough {
            return free;
        }
    }
    0
}

/// Has a worker die with each number of free descriptors, up to the first with which another one
/// takes its place.
fn replaced_with_few(room: Room) -> usize {
    for free in 0.. {
        let mut collector = collector().unwrap();
        collect(&mut collector).unwrap();
        let taken = all_but(free);
        kill(&collector);
        let begun = Instant::now();
        let outcome = loop {
            assert!(begun.elapsed() < PATIENCE, "{free}");
            match collect(&mut collector) {
                Ok(()) if collector.worker_stats()[0].frames > 0 && replaced(&collector, 1) => {
                    break Ok(());
                }
                Ok(()) => {}
                Err(error) => break Err(error),
            }
        };
        drop(taken);
        if let Err(error) = &outcome {
            check(error);
        }
        // Others may have failed for the same reason.
        let _ = collector.shutdown();
        drop(collector);
        check_back_to(room, &format!("a death with {free} descriptors"));
        if outcome.is_ok() {
            return free;
        }
    }
    0
}

fn kill(collector: &Collector) {
    let worker = collector.worker_stats()[0];
    signal(worker.pid.unwrap(), Signal::KILL);
}

/// Whether a worker has taken the place of the first one for the `time`-th time, and has collected
/// since.
fn replaced(collector: &Collector, time: u64) -> bool {
    let worker = collector.worker_stats()[0];
    worker.restarts == time && worker.pid.is_some()
}

/// Replaces one worker again and again.
fn many_restarts(room: Room) {
    let mut collector = collector().unwrap();
    collect(&mut collector).unwrap();
    let working = Room::now();
    for time in 1..=RESTARTS {
        kill(&collector);
        while !replaced(&collector, time) {
            collect(&mut collector).unwrap();
        }
        collect(&mut collector).unwrap();
    }
    check_back_to(working, "many restarts");
    drop(collector);
    check_back_to(room, "the end of a collector with many restarts");
}
