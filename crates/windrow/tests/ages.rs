//! No part is older than `max_lag` allows when it is delivered, however workers, learners and
//! publishers take turns; nothing is lost for that, and nobody waits for ever.
//!
//! `WINDROW_FRAMES` says how many frames are collected in threads, and a hundredth of them in
//! processes; `cargo xtask faults age` sets it. It is a program, whose `main` begins as that of
//! every program with worker processes does.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "kills/policy.rs"]
mod policy;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use windrow::envs::testing::LedgerEnv;
use windrow::envs::{Env, EnvError, EnvSpec, Outcome};
use windrow::{
    AsyncBatchedCollector, AsyncCollector, Collector, CollectorBuilder, Delivery, Handle,
    LazyTensorStorage, MultiAsyncCollector, MultiSyncCollector, Placement, PolicyRecipe,
    ReplayBuffer, Row, RowMut, TensorDict,
};

const NAME: &str = "Uneven";
const WORKERS: usize = 4;
const STEPS: usize = 8;
const LAGS: [usize; 4] = [0, 1, 2, 8];
/// A run from which nothing comes for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A number that nobody can foresee.
fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// A ledger whose steps take longer or shorter.
struct Uneven(LedgerEnv);

impl Env for Uneven {
    fn spec(&self) -> &EnvSpec {
        self.0.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.0.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        match random() % 512 {
            0 => thread::sleep(Duration::from_micros(random() % 500)),
            1..=8 => thread::yield_now(),
            _ => {}
        }
        self.0.step(action, obs)
    }
}

/// One kind of run.
#[derive(Debug, Clone, Copy)]
struct Cell {
    class: Class,
    placement: Placement,
    max_lag: usize,
    publisher: Publisher,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Collector,
    Async,
    AsyncBatched,
    MultiSync,
    /// Whose slow workers are cut short.
    Preempting,
    MultiAsync,
    /// Whose batches are of the first two that are ready.
    FirstTwo,
    /// Whose batches are of whole trajectories.
    Trajectories,
}

/// Who publishes weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Publisher {
    /// The loop over the collector, between two batches: none, one or several times.
    Learner,
    /// Another thread, at any moment.
    Thread,
    /// Another thread, while the collector writes to a replay buffer in the background.
    Background,
}

impl Cell {
    fn all() -> Vec<Self> {
        use Class::{
            Async, AsyncBatched, Collector, FirstTwo, MultiAsync, MultiSync, Preempting,
            Trajectories,
        };
        let several = [MultiSync, Preempting, MultiAsync, FirstTwo, Trajectories];
        let mut cells = Vec::new();
        for class in [Collector, Async, AsyncBatched].into_iter().chain(several) {
            for placement in placements(class) {
                for max_lag in LAGS {
                    for publisher in [Publisher::Learner, Publisher::Thread, Publisher::Background]
                    {
                        cells.push(Self {
                            class,
                            placement,
                            max_lag,
                            publisher,
                        });
                    }
                }
            }
        }
        cells.sort_by_cached_key(|_| random());
        cells
    }

    fn workers(self) -> usize {
        match self.class {
            Class::Collector | Class::Async => 1,
            _ => WORKERS,
        }
    }

    fn builder(self) -> CollectorBuilder {
        let builder = match self.class {
            Class::Collector => Collector::builder(NAME),
            Class::Async => AsyncCollector::builder(NAME),
            Class::AsyncBatched => AsyncBatchedCollector::builder(NAME),
            Class::MultiSync => MultiSyncCollector::builder(NAME),
            Class::Preempting => MultiSyncCollector::builder(NAME).preemptive_threshold(0.5),
            Class::MultiAsync => MultiAsyncCollector::builder(NAME),
            Class::FirstTwo => MultiAsyncCollector::builder(NAME).delivery(Delivery::FirstCome {
                workers_per_batch: 2,
            }),
            Class::Trajectories => MultiAsyncCollector::builder(NAME).trajs_per_batch(3),
        };
        let shares = match self.class {
            Class::MultiSync | Class::Preempting => WORKERS,
            Class::FirstTwo => 2,
            _ => 1,
        };
        builder
            .num_workers(self.workers())
            .placement(self.placement)
            .policy_recipe(PolicyRecipe::named(policy::NAME))
            .frames_per_batch(shares * STEPS)
            .max_lag(self.max_lag)
            .seed(random() >> 16)
    }
}

fn placements(class: Class) -> Vec<Placement> {
    match class {
        Class::Collector => vec![Placement::Inline, Placement::Threads],
        Class::AsyncBatched => vec![Placement::Threads],
        _ if cfg!(target_os = "linux") => vec![Placement::Threads, Placement::Processes],
        _ => vec![Placement::Threads],
    }
}

/// What a run found.
#[derive(Debug, Default)]
struct Found {
    frames: u64,
    versions: i64,
    oldest: u64,
    waited: Duration,
    violations: Vec<String>,
}

/// The versions that were published, each with how many batches had been delivered before.
#[derive(Debug, Default)]
struct Published(Vec<u64>);

impl Published {
    /// How many batches before `batch` were delivered between publications since `version`.
    fn age(&self, version: i64, batch: u64) -> usize {
        let later = self.0.iter().skip(usize::try_from(version).unwrap());
        let mut after: Vec<_> = later.filter(|&&after| after < batch).collect();
        after.dedup();
        after.len()
    }
}

fn run(cell: Cell, frames: u64) -> Found {
    let buffer = (cell.publisher == Publisher::Background).then(|| {
        let storage = LazyTensorStorage::new(4096);
        ReplayBuffer::builder().storage(storage).build().unwrap()
    });
    let builder = cell.builder();
    let mut collector = match &buffer {
        Some(buffer) => builder.replay_buffer(buffer.clone()).build().unwrap(),
        None => builder.build().unwrap(),
    };
    let (handle, is_over) = (collector.handle(), AtomicBool::new(false));
    let mut found = Found::default();
    thread::scope(|scope| {
        if cell.publisher != Publisher::Learner {
            scope.spawn(|| publish(&handle, cell.workers(), &is_over));
        }
        match cell.publisher {
            Publisher::Background => {
                collector.start().unwrap();
                while collector.stats().frames < frames {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            _ => found.violations = learn(&mut collector, cell, frames),
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let stats = collector.stats();
    if stats.policy_age > cell.max_lag as u64 {
        let age = stats.policy_age;
        found
            .violations
            .push(format!("a part of age {age} was delivered"));
    }
    if stats.dropped_frames > 0 && cell.class != Class::Trajectories {
        let dropped = stats.dropped_frames;
        found
            .violations
            .push(format!("{dropped} frames were dropped"));
    }
    collector.shutdown().unwrap();
    Found {
        frames: stats.frames,
        versions: stats.policy_version,
        oldest: stats.policy_age,
        waited: stats.max_lag_waited,
        ..found
    }
}

/// Takes batches, and publishes between them where no other thread does; what is wrong with them.
fn learn(collector: &mut Collector, cell: Cell, frames: u64) -> Vec<String> {
    let (mut published, mut last, mut violations) =
        (Published::default(), HashMap::new(), Vec::new());
    let mut delivered = 0;
    while collector.stats().frames < frames {
        let batch = collector.next().unwrap().unwrap();
        delivered += 1;
        if cell.class != Class::Trajectories {
            violations.extend(out_of_order(&batch, &mut last));
            if cell.publisher == Publisher::Learner {
                let versions = batch.get(policy::COLUMN).unwrap().to_vec::<i64>().unwrap();
                let oldest = versions.into_iter().min().unwrap();
                let age = published.age(oldest, delivered);
                if age > cell.max_lag {
                    violations.push(format!("a frame of age {age} came in batch {delivered}"));
                }
            }
        }
        drop(batch);
        if cell.publisher == Publisher::Learner && !(delivered / 16).is_multiple_of(3) {
            for _ in 0..random() % 3 {
                let version = published.0.len() as i64 + 1;
                let weights = policy::weights(version);
                assert_eq!(collector.update_policy_weights(&weights).unwrap(), version);
                published.0.push(delivered);
            }
        }
        if random().is_multiple_of(8) {
            thread::sleep(Duration::from_micros(random() % 200));
        }
    }
    violations
}

/// Frames that do not follow what came of their environment before.
fn out_of_order(batch: &TensorDict, last: &mut HashMap<i64, (i64, i64)>) -> Vec<String> {
    let rows = batch.get("observation").unwrap().to_vec::<i64>().unwrap();
    let mut wrong = Vec::new();
    for row in rows.chunks_exact(3) {
        let (env, episode, t) = (row[0], row[1], row[2]);
        let follows = match last.insert(env, (episode, t)) {
            None => t == 0,
            Some((before, at)) => {
                (episode, t) == (before, at + 1) || (episode, t) == (before + 1, 0)
            }
        };
        if !follows {
            wrong.push(format!(
                "frame {t} of episode {episode} of environment {env} is out of order"
            ));
        }
    }
    wrong
}

/// Publishes to all or to one, at any moment.
fn publish(handle: &Handle, workers: usize, is_over: &AtomicBool) {
    let weights = handle.policy_weights();
    while !is_over.load(Ordering::Relaxed) {
        let one = random().is_multiple_of(4) && handle.server_stats().is_none();
        let published = match one {
            true => handle.update_worker_weights(random() as usize % workers, &weights),
            false => handle.update_policy_weights(&weights),
        };
        published.unwrap();
        match random() % 8 {
            0 => thread::sleep(Duration::from_millis(2)),
            _ => thread::sleep(Duration::from_micros(random() % 100)),
        }
    }
}

/// Runs all kinds, and says what came of it.
fn report(frames: u64) -> bool {
    let cells = Cell::all();
    let in_threads = cells
        .iter()
        .filter(|cell| cell.placement != Placement::Processes);
    let each = frames / in_threads.count() as u64;
    let (done, current) = (AtomicU64::new(0), Mutex::default());
    let is_over = AtomicBool::new(false);
    let mut sum = Found::default();
    thread::scope(|scope| {
        scope.spawn(|| watch(&done, &current, &is_over));
        for cell in &cells {
            let frames = match cell.placement {
                Placement::Processes => each / 100,
                _ => each,
            };
            *current.lock().unwrap() = format!("{cell:?}");
            let found = run(*cell, frames.max(200));
            done.fetch_add(1, Ordering::Relaxed);
            sum.frames += found.frames;
            sum.versions += found.versions;
            sum.oldest = sum.oldest.max(found.oldest);
            sum.waited += found.waited;
            let violations = found.violations.into_iter().take(3);
            sum.violations
                .extend(violations.map(|violation| format!("{cell:?}: {violation}")));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!(
        "{} cells, {} frames checked, {} violations, {} versions, largest age {}, {:.1} s waited",
        cells.len(),
        sum.frames,
        sum.violations.len(),
        sum.versions,
        sum.oldest,
        sum.waited.as_secs_f64()
    );
    for violation in sum.violations.iter().take(20) {
        println!("violation: {violation}");
    }
    sum.violations.is_empty()
}

/// Ends the program where a run hangs.
fn watch(done: &AtomicU64, current: &Mutex<String>, is_over: &AtomicBool) {
    let (mut seen, mut since) = (0, std::time::Instant::now());
    while !is_over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(20));
        let now = done.load(Ordering::Relaxed);
        if now != seen {
            (seen, since) = (now, std::time::Instant::now());
        }
        if since.elapsed() > PATIENCE {
            println!("violation: {} hangs", current.lock().unwrap());
            std::process::exit(1);
        }
    }
}

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    windrow::worker_main(|registry| {
        registry.env(NAME, || Uneven(LedgerEnv::from_seed().with_max_length(20)))?;
        registry.policy(policy::NAME, |_| policy::Stamp::default())?;
        Ok(())
    })
    .unwrap();
    if std::env::args().any(|argument| argument == "--list") {
        // Runners of tests ask what there is before they run it; nothing of it is ignored.
        if !std::env::args().any(|argument| argument == "--ignored") {
            println!("no_part_is_too_old: test");
        }
        return ExitCode::SUCCESS;
    }
    let frames = std::env::var("WINDROW_FRAMES").map_or(60_000, |frames| frames.parse().unwrap());
    match report(frames) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
