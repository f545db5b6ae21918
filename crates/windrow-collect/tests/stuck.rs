//! Workers that stand still: others go on, nobody waits for them for ever, and no thread stays
//! behind.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "conformance/crew.rs"]
mod crew;
#[path = "conformance/faulty.rs"]
mod faulty;
#[path = "conformance/frames.rs"]
mod frames;
#[path = "conformance/stamp.rs"]
mod stamp;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tensordict::TensorDict;
use windrow_collect::{
    BuildError, Collector, ControlError, Delivery, Interrupt, MultiSyncCollector, NextError,
    OnLoss, Placement, Stuck,
};
use windrow_env::testing::LedgerEnv;
use windrow_env::{Env, EnvError, EnvSpec, Outcome};
use windrow_slab::{Row, RowMut, SlabError};

use crew::world::{World, elsewhere};
use crew::{Crew, ENVS, all};
use faulty::{At, Fault, Gate, How, Makes, Notes};
use frames::{MAX_LENGTH, by_env, check_contiguous, frames};

/// What no wait may last, however busy the machine is: a shutdown gives workers five seconds.
const BOUND: Duration = Duration::from_secs(60);

/// Steps that take so long let every worker have its turn.
const STEP: Duration = Duration::from_micros(20);

const PHASES: [At; 4] = [At::Reset(1), At::Reset(3), At::Step(1), At::Step(13)];

fn threads() -> impl Iterator<Item = Crew> {
    all().filter(|crew| crew.placement == Placement::Threads)
}

/// Workers in threads and in processes.
fn beside() -> impl Iterator<Item = Crew> {
    all().filter(|crew| crew.placement != Placement::Inline)
}

/// Those whose workers run ahead, each batch of the first that is ready.
fn first_come() -> impl Iterator<Item = Crew> {
    let delivery = Delivery::FirstCome {
        workers_per_batch: 1,
    };
    beside().filter(move |crew| crew.delivery == delivery)
}

/// A collector whose worker 1 waits at the gate in the call `at`.
fn held_up(crew: Crew, at: At, gate: &Gate) -> Collector {
    let fault = Fault::new(at, How::Wait(gate.clone()), 1);
    crew.builder([None, Some(fault)]).build().unwrap()
}

fn opens_soon(gate: &Gate) -> thread::JoinHandle<()> {
    let gate = gate.clone();
    thread::spawn(move || {
        gate.await_somebody();
        thread::sleep(Duration::from_millis(30));
        gate.open();
    })
}

/// Shuts a collector down that hangs, so that its test fails instead.
struct Watch {
    done: Sender<()>,
    guard: thread::JoinHandle<bool>,
}

impl Watch {
    fn over(collector: &Collector) -> Self {
        let handle = collector.handle();
        let (done, waiting) = channel();
        let guard = thread::spawn(move || {
            let in_time = waiting.recv_timeout(BOUND).is_ok();
            if !in_time {
                handle.shutdown();
            }
            in_time
        });
        Self { done, guard }
    }

    /// Whether it came to an end by itself.
    fn end(self) -> bool {
        let _ = self.done.send(());
        self.guard.join().unwrap()
    }
}

fn check_all(batches: &[TensorDict]) {
    let all = batches.iter().flat_map(frames);
    for frames in by_env(all).values() {
        check_contiguous(frames, MAX_LENGTH);
    }
}

#[test]
fn a_batch_that_waits_for_all_waits_for_the_slowest_and_is_whole() {
    let crews = beside().filter(|crew| crew.delivery == Delivery::Synchronous);
    for (crew, at) in crews.flat_map(|crew| PHASES.map(|at| (crew, at))) {
        let gate = Gate::default();
        let mut collector = held_up(crew, at, &gate);
        let opener = opens_soon(&gate);
        let batches: Vec<_> = collector.by_ref().take(6).map(Result::unwrap).collect();
        opener.join().unwrap();
        check_all(&batches);
        assert!(
            batches
                .iter()
                .all(|batch| batch.numel() == 2 * ENVS * crew::STEPS)
        );
    }
}

#[test]
fn the_first_come_goes_on_while_another_stands_still_whose_frames_are_whole_then() {
    let slow = (ENVS..2 * ENVS).map(|env| env as i64);
    let slow: BTreeSet<i64> = slow.collect();
    for (crew, at) in first_come().flat_map(|crew| PHASES.map(|at| (crew, at))) {
        let gate = Gate::default();
        let mut collector = held_up(crew, at, &gate);
        let mut batches = Vec::new();
        while batches.len() < 20 || !gate.has_somebody() {
            batches.push(collector.next().unwrap().unwrap().detach());
        }
        gate.open();
        let came = |batch: &TensorDict| slow.contains(&frames(batch)[0].env());
        while batches.iter().filter(|batch| came(batch)).count() < 4 {
            batches.push(collector.next().unwrap().unwrap().detach());
        }
        check_all(&batches);
    }
}

#[test]
fn the_first_two_of_three_go_on_while_the_third_stands_still() {
    for placement in elsewhere() {
        let gate = Gate::default();
        let fault = Fault::new(At::Step(5), How::Wait(gate.clone()), 1);
        let world = World::of([None, None, Some(fault)].map(|fault| Makes {
            fault,
            step_time: STEP,
            ..Makes::default()
        }));
        let mut collector = world
            .builder(placement)
            .delivery(Delivery::FirstCome {
                workers_per_batch: 2,
            })
            .frames_per_batch(20)
            .total_frames(4000)
            .seed(0)
            .build()
            .unwrap();
        let watch = Watch::over(&collector);
        let mut batches: Vec<_> = collector.by_ref().take(12).map(Result::unwrap).collect();
        assert!(watch.end(), "they waited for the third");
        gate.open();
        batches.extend(collector.by_ref().map(|batch| batch.unwrap().detach()));
        let all = batches.iter().flat_map(frames);
        let envs = by_env(all);
        assert_eq!(envs.len(), 3);
        assert_eq!(envs.values().map(Vec::len).sum::<usize>(), 4000);
        for frames in envs.values() {
            check_contiguous(frames, MAX_LENGTH);
        }
    }
}

#[test]
fn whoever_waits_is_told_of_a_shutdown_at_once_although_a_worker_is_stuck() {
    for crew in beside() {
        let gate = Gate::default();
        let mut collector = held_up(crew, At::Step(1), &gate);
        let handle = collector.handle();
        let stopper = {
            let gate = gate.clone();
            thread::spawn(move || {
                gate.await_somebody();
                handle.shutdown();
                handle.shutdown();
            })
        };
        let began = Instant::now();
        let error = collector.by_ref().find_map(Result::err).unwrap();
        assert!(matches!(error, NextError::ShutDown), "{error}");
        assert!(began.elapsed() < BOUND);
        assert!(collector.next().is_none());
        stopper.join().unwrap();
        gate.open();
        collector.shutdown().unwrap();
    }
}

#[test]
fn a_shutdown_gives_up_on_a_stuck_worker_and_says_so() {
    let gate = Gate::default();
    let crew = threads().next().unwrap();
    let mut collector = held_up(crew, At::Step(13), &gate);
    let batch = collector.next().unwrap().unwrap();
    let copy = batch.detach();
    let handle = collector.handle();
    let asking = thread::spawn(move || {
        let error = collector.next().unwrap().unwrap_err();
        assert!(matches!(error, NextError::ShutDown), "{error}");
        collector
    });
    gate.await_somebody();
    handle.shutdown();
    let mut collector = asking.join().unwrap();
    let began = Instant::now();
    let error = collector.shutdown().unwrap_err();
    assert!(began.elapsed() < BOUND);
    assert!(
        matches!(
            error,
            ControlError::Stuck(Stuck {
                stuck: 1,
                threads: 2,
                ..
            })
        ),
        "{error}"
    );
    gate.open();
    collector.shutdown().unwrap();
    drop(collector);
    assert_eq!(copy, batch);
}

#[test]
#[cfg(target_os = "linux")]
fn a_process_that_stands_still_is_killed_by_the_shutdown() {
    let processes = || beside().filter(|crew| crew.placement == Placement::Processes);
    for (crew, stopped) in processes().flat_map(|crew| [(crew, false), (crew, true)]) {
        let gate = Gate::default();
        let made = Notes::default();
        let fault = Fault::new(At::Step(13), How::Wait(gate.clone()), 1);
        let mut world = crew.world([None, Some(fault)], &[]);
        world
            .envs
            .iter_mut()
            .for_each(|env| env.made = Some(made.clone()));
        let mut collector = crew.builder_of(&world).build().unwrap();
        let batch = collector.next().unwrap().unwrap();
        let copy = batch.detach();
        let handle = collector.handle();
        let asking = thread::spawn(move || {
            let error = collector.by_ref().find_map(Result::err).unwrap();
            assert!(matches!(error, NextError::ShutDown), "{error}");
            collector
        });
        let stuck = gate.await_somebody();
        if stopped {
            faulty::signal("STOP", stuck);
        }
        handle.shutdown();
        let mut collector = asking.join().unwrap();
        let patience = Duration::from_millis(200);
        let began = Instant::now();
        collector.shutdown_within(patience).unwrap();
        assert!((patience..BOUND).contains(&began.elapsed()));
        collector.shutdown().unwrap();
        drop(collector);
        assert_eq!(copy, batch);
        let processes: BTreeSet<String> = made.lines().into_iter().collect();
        assert_eq!(processes.len(), 2);
        for process in processes {
            let process = std::path::Path::new("/proc").join(process);
            assert!(!process.exists(), "{} runs", process.display());
        }
    }
}

#[test]
fn dropping_a_collector_with_a_stuck_worker_takes_bounded_time() {
    for crew in first_come() {
        let gate = Gate::default();
        let mut collector = held_up(crew, At::Step(13), &gate);
        let batch = collector.next().unwrap().unwrap();
        let copy = batch.detach();
        while !gate.has_somebody() {
            collector.next().unwrap().unwrap();
        }
        let began = Instant::now();
        drop(collector);
        assert!(began.elapsed() < BOUND);
        // What the worker still writes goes nowhere that is held.
        gate.open();
        assert_eq!(copy, batch);
    }
}

#[test]
fn a_worker_in_the_midst_of_a_long_part_ends_at_its_next_step() {
    let makes = Makes {
        step_time: Duration::from_millis(5),
        ..Makes::default()
    };
    let world = World::of(vec![makes; 2]);
    for crew in beside() {
        let mut collector = world
            .builder(crew.placement)
            .inference(crew.inference)
            .delivery(crew.delivery)
            .frames_per_batch(100_000)
            .seed(0)
            .build()
            .unwrap();
        let handle = collector.handle();
        let stopper = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            handle.shutdown();
        });
        assert!(matches!(collector.next(), Some(Err(NextError::ShutDown))));
        stopper.join().unwrap();
        let began = Instant::now();
        collector.shutdown().unwrap();
        assert!(began.elapsed() < BOUND);
    }
}

#[test]
fn a_long_part_ends_at_its_next_step_when_collection_is_stopped_while_somebody_waits() {
    let steps = Notes::default();
    let makes = Makes {
        step_time: Duration::from_millis(5),
        ..Makes::default()
    };
    let mut world = World::of(vec![makes; 2]);
    world.policy.steps = Some(steps.clone());
    for crew in beside() {
        let frames_per_batch = 100_000;
        let mut collector = world
            .builder(crew.placement)
            .inference(crew.inference)
            .delivery(crew.delivery)
            .frames_per_batch(frames_per_batch)
            .seed(0)
            .build()
            .unwrap();
        let handle = collector.handle();
        let before = steps.count();
        let stopper = {
            let steps = steps.clone();
            thread::spawn(move || {
                steps.await_lines(before + 3);
                handle.stop_collection();
            })
        };
        let batch = collector.next().unwrap().unwrap();
        stopper.join().unwrap();
        let there = frames(&batch).len();
        assert!((1..frames_per_batch).contains(&there), "{crew:?}: {there}");
    }
}

#[test]
fn workers_go_on_when_batches_are_dropped_although_nobody_waits() {
    for crew in first_come() {
        let steps = Notes::default();
        let mut world = crew.world([None, None], &[]);
        world.policy.steps = Some(steps.clone());
        let builder = crew.builder_of(&world).max_slabs(5);
        let mut collector = builder.build().unwrap();
        let mut kept = Vec::new();
        loop {
            match collector.next().unwrap() {
                Ok(batch) => kept.push(batch),
                Err(NextError::Slab(SlabError::Exhausted { .. })) => break,
                Err(other) => panic!("{other}"),
            }
        }
        // All memory is kept: nobody has a part.
        assert_eq!(kept.len(), 5);
        let before = steps.count();
        thread::spawn(move || drop(kept)).join().unwrap();
        steps.await_lines(before + 1);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_build_that_nobody_waits_for_any_more_leaves_no_process() {
    let gate = Gate::default();
    let makes = Makes {
        fails: Some(How::Wait(gate.clone())),
        ..Makes::default()
    };
    let world = World::of([Makes::default(), makes]);
    let builder = world.builder(Placement::Processes).frames_per_batch(20);
    let built = builder.interrupt(gate.interrupt()).build();
    assert!(matches!(built, Err(BuildError::WaitInterrupted(_))));
    let process = gate.await_somebody().to_string();
    let process = std::path::Path::new("/proc").join(process);
    assert!(!process.exists(), "{} runs", process.display());
}

#[test]
fn a_pause_waits_for_a_worker_that_stands_still_and_loses_nothing() {
    for (crew, at) in first_come().flat_map(|crew| PHASES.map(|at| (crew, at))) {
        let gate = Gate::default();
        let mut collector = held_up(crew, at, &gate);
        let opener = opens_soon(&gate);
        let mut batches = Vec::new();
        while !gate.has_somebody() {
            batches.push(collector.next().unwrap().unwrap().detach());
        }
        drop(collector.pause().unwrap());
        opener.join().unwrap();
        batches.extend(collector.by_ref().take(12).map(Result::unwrap));
        check_all(&batches);
    }
}

#[test]
fn a_pause_can_be_interrupted_and_workers_go_on() {
    for crew in first_come() {
        let gate = Gate::default();
        let fault = Fault::new(At::Step(13), How::Wait(gate.clone()), 1);
        // How often a pause was checked; none before that.
        let checks = Arc::new(AtomicUsize::new(usize::MAX));
        let count = Arc::clone(&checks);
        let third = Interrupt::when(move || {
            let is_pause = |checks| (checks < usize::MAX).then_some(checks + 1);
            count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_pause) == Ok(2)
        });
        let builder = crew.builder([None, Some(fault)]).interrupt(third);
        let mut collector = builder.build().unwrap();
        let mut batches = Vec::new();
        while !gate.has_somebody() {
            batches.push(collector.next().unwrap().unwrap().detach());
        }
        checks.store(0, Ordering::Relaxed);
        let interrupted = collector.pause().unwrap_err();
        assert!(matches!(interrupted, ControlError::WaitInterrupted(_)));
        assert_eq!(checks.load(Ordering::Relaxed), 3);
        let next = collector.by_ref().take(5);
        batches.extend(next.map(|batch| batch.unwrap().detach()));
        gate.open();
        drop(collector.pause().unwrap());
        let next = collector.by_ref().take(5);
        batches.extend(next.map(|batch| batch.unwrap().detach()));
        check_all(&batches);
    }
}

/// Notes the threads that it steps in, as Linux numbers them.
#[derive(Clone)]
struct Traced {
    inner: LedgerEnv,
    seen: Arc<Mutex<BTreeSet<std::path::PathBuf>>>,
}

impl Env for Traced {
    fn spec(&self) -> &EnvSpec {
        self.inner.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        let task = std::fs::read_link("/proc/thread-self").unwrap();
        let task = std::path::Path::new("/proc").join(task);
        let name = std::fs::read_to_string(task.join("comm")).unwrap();
        assert!(name.starts_with("windrow-worker"), "{name}");
        self.seen.lock().unwrap().insert(task);
        self.inner.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.inner.step(action, obs)
    }
}

#[test]
#[cfg(target_os = "linux")]
fn no_thread_stays_behind() {
    let ends: [fn(Collector); 3] = [
        drop,
        |mut collector| collector.shutdown().unwrap(),
        |mut collector| {
            collector.handle().shutdown();
            while collector.next().is_some() {}
        },
    ];
    for (crew, end) in threads().flat_map(|crew| ends.map(|end| (crew, end))) {
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let env = {
            let seen = Arc::clone(&seen);
            move || Traced {
                inner: LedgerEnv::from_seed().with_step_time(STEP),
                seen: Arc::clone(&seen),
            }
        };
        let mut collector = MultiSyncCollector::builder(env)
            .num_workers(3)
            .delivery(crew.delivery)
            .frames_per_batch(30)
            .build()
            .unwrap();
        while seen.lock().unwrap().len() < 3 {
            collector.next().unwrap().unwrap();
        }
        end(collector);
        // The system takes a moment to forget a thread that was joined.
        let began = Instant::now();
        for task in &*seen.lock().unwrap() {
            while task.exists() {
                assert!(began.elapsed() < BOUND, "{} runs", task.display());
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Bursts when it is thrown away after a fault.
struct Fragile {
    inner: LedgerEnv,
    steps: u64,
}

impl Drop for Fragile {
    fn drop(&mut self) {
        assert!(
            self.steps != 3 || thread::panicking(),
            "made to panic in drop"
        );
    }
}

impl Env for Fragile {
    fn spec(&self) -> &EnvSpec {
        self.inner.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.inner.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.steps += 1;
        if self.steps == 3 {
            return Err(EnvError::failed("made to fail"));
        }
        self.inner.step(action, obs)
    }
}

#[test]
fn an_environment_that_panics_when_it_is_replaced_does_not_leave_the_consumer_waiting() {
    let env = || Fragile {
        inner: LedgerEnv::from_seed(),
        steps: 0,
    };
    let mut collector = MultiSyncCollector::builder(env)
        .num_workers(2)
        .frames_per_batch(20)
        .on_loss(OnLoss::Restart { budget: 5 })
        .build()
        .unwrap();
    let watch = Watch::over(&collector);
    let error = collector.by_ref().find_map(Result::err).unwrap();
    assert!(watch.end(), "the consumer was left waiting");
    assert!(matches!(error, NextError::Worker(_)), "{error}");
}
