//! What is no fault of an environment but ends the call that waits for a batch.

use std::collections::HashSet;
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Mutex};

use tensordict::{DType, TensorDict};
use windrow_collect::{
    BuildError, Collector, CollectorBuilder, Handle, Interrupt, MultiSyncCollector, NextError,
    OnLoss, Placement,
};
use windrow_env::testing::{FailAt, FailingEnv, Failure, LedgerEnv};
use windrow_env::{Env, EnvError, EnvSpec, Outcome};
use windrow_policy::policy_fn;
use windrow_slab::{Key, LeafSpec, Row, RowMut};
use windrow_sync::error_chain;

#[cfg(all(target_os = "linux", not(shuttle)))]
use crate::crew::world::{INTERRUPTION, World};
#[cfg(all(target_os = "linux", not(shuttle)))]
use crate::faulty::{At, Fault, How, Makes, Notes};

const REACTIONS: [OnLoss; 3] = [
    OnLoss::Raise,
    OnLoss::Continue,
    OnLoss::Restart { budget: 9 },
];

fn told_to_end(error: &(dyn Error + 'static)) -> bool {
    error_chain(&error).contains("made to fail")
}

/// Two workers, each of which is interrupted in its 13th step.
fn interrupted(placement: Placement, on_loss: OnLoss) -> CollectorBuilder {
    let ledger = LedgerEnv::from_seed().with_max_length(7);
    MultiSyncCollector::builder(move || {
        FailingEnv::new(ledger.clone(), FailAt::Step(13), Failure::Error)
    })
    .num_workers(2)
    .placement(placement)
    .frames_per_batch(20)
    .total_frames(100)
    .on_loss(on_loss)
    .interruptions(told_to_end)
}

fn ids(batch: &TensorDict) -> HashSet<i64> {
    let ids = batch.get(("collector", "traj_ids")).unwrap();
    ids.to_vec::<i64>().unwrap().into_iter().collect()
}

#[test]
fn an_interrupted_call_is_no_loss_and_the_next_one_goes_on() {
    for on_loss in REACTIONS {
        let mut collector = interrupted(Placement::Inline, on_loss).build().unwrap();
        let first = collector.next().unwrap().unwrap();
        for worker in 0..2 {
            let Some(Err(NextError::Interrupted(error))) = collector.next() else {
                panic!("worker {worker} was not interrupted")
            };
            assert_eq!((error.worker(), error.env()), (worker, Some(worker)));
        }
        let second = collector.next().unwrap().unwrap();
        assert!(
            ids(&first).is_disjoint(&ids(&second)),
            "episodes that were interrupted go on"
        );
        let frames: usize = collector.by_ref().map(|batch| batch.unwrap().numel()).sum();
        assert_eq!((second.numel(), frames), (20, 60));
        let stats = collector.stats();
        assert_eq!(
            (stats.frames, stats.workers_alive, stats.restarts),
            (100, 2, 0)
        );
        assert!(collector.take_losses().is_empty());
    }
}

#[test]
fn a_rollout_that_is_interrupted_leaves_the_count_alone() {
    let mut collector = interrupted(Placement::Inline, OnLoss::Raise)
        .build()
        .unwrap();
    collector.rollout().unwrap();
    for _ in 0..2 {
        assert!(matches!(
            collector.rollout(),
            Err(NextError::Interrupted(_))
        ));
    }
    let frames: usize = collector.by_ref().map(|batch| batch.unwrap().numel()).sum();
    assert_eq!(frames, 100);
}

#[test]
fn what_interrupts_a_thread_ends_the_collector_whatever_was_chosen() {
    for on_loss in REACTIONS {
        let mut collector = interrupted(Placement::Threads, on_loss).build().unwrap();
        collector.next().unwrap().unwrap();
        let Some(Err(NextError::Worker(error))) = collector.next() else {
            panic!("no error")
        };
        assert!(told_to_end(&error));
        assert!(collector.next().is_none());
        assert!(collector.take_losses().is_empty());
    }
}

#[cfg(all(target_os = "linux", not(shuttle)))]
#[test]
fn what_interrupts_a_process_ends_the_collector_whatever_was_chosen() {
    use windrow_collect::{FaultKind, WorkerError};

    let interrupted = |error: WorkerError| -> WorkerError {
        assert_eq!(error.fault().kind(), FaultKind::Interruption, "{error}");
        assert!(error_chain(&error).contains(INTERRUPTION), "{error}");
        error
    };
    let ended = |collector: &mut Collector| match collector.next() {
        Some(Err(NextError::Worker(error))) => error,
        other => panic!("no error of a worker: {other:?}"),
    };
    for on_loss in REACTIONS {
        let says = || How::Says(INTERRUPTION.to_owned());
        let build = |makes: Makes| {
            let builder = World::of([makes]).builder(Placement::Processes);
            builder.frames_per_batch(10).on_loss(on_loss).build()
        };
        let mut collector = build(Makes {
            fault: Some(Fault::new(At::Step(13), says(), 1)),
            ..Makes::default()
        })
        .unwrap();
        collector.next().unwrap().unwrap();
        let error = interrupted(ended(&mut collector));
        assert_eq!((error.worker(), error.env()), (0, Some(0)));
        assert!(error.step().is_some());
        assert!(collector.next().is_none());
        assert!(collector.take_losses().is_empty());
        collector.shutdown().unwrap();
        // While its environment is made.
        let makes = || Makes {
            fails: Some(says()),
            ..Makes::default()
        };
        let Err(BuildError::Worker(error)) = build(makes()) else {
            panic!("an interrupted build has an error of a worker")
        };
        interrupted(error);
        // While another one is made in the place of one that is lost, in the same process and in
        // the next.
        if on_loss == OnLoss::Raise {
            continue;
        }
        for how in [How::Error, How::Exit(3)] {
            let mut collector = World::of([Makes {
                fault: Some(Fault::new(At::Step(3), how, 1)),
                made: Some(Notes::default()),
                spared: 1,
                ..makes()
            }])
            .builder(Placement::Processes)
            .frames_per_batch(10)
            .on_loss(OnLoss::Restart { budget: 1 })
            .build()
            .unwrap();
            interrupted(ended(&mut collector));
            assert_eq!(collector.take_losses().len(), 1, "what came before it");
            collector.shutdown().unwrap();
        }
    }
}

#[test]
fn who_acts_for_a_collector_knows_that_it_would_wait_for_itself() {
    for placement in [Placement::Inline, Placement::Threads] {
        let handle: Arc<Mutex<Option<Handle>>> = Arc::default();
        let within = Arc::new(Mutex::new(HashSet::new()));
        let (asked, seen) = (Arc::clone(&handle), Arc::clone(&within));
        let policy = policy_fn(
            [LeafSpec::new("action", DType::I64, [])],
            move |_, mut out| {
                let is_within = asked.lock().unwrap().as_ref().map(Handle::is_within);
                seen.lock().unwrap().insert(is_within);
                out.get_mut::<i64>(Key::new(0))?.fill(0);
                Ok(())
            },
        );
        let mut collector = Collector::builder("CartPole-v1")
            .placement(placement)
            .policy(policy)
            .frames_per_batch(10)
            .build()
            .unwrap();
        *handle.lock().unwrap() = Some(collector.handle());
        collector.next().unwrap().unwrap();
        assert_eq!(*within.lock().unwrap(), HashSet::from([Some(true)]));
        assert!(!collector.handle().is_within());
    }
}

/// Tells when it is dropped.
struct Dropped {
    inner: LedgerEnv,
    tell: Sender<()>,
}

impl Drop for Dropped {
    fn drop(&mut self) {
        self.tell.send(()).unwrap();
    }
}

impl Env for Dropped {
    fn spec(&self) -> &EnvSpec {
        self.inner.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.inner.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.inner.step(action, obs)
    }
}

#[test]
fn what_is_made_after_nobody_waits_any_more_is_dropped() {
    let gate = Arc::new(Barrier::new(3));
    let (tell, told) = channel();
    let passed = Arc::clone(&gate);
    let env = move || {
        passed.wait();
        Dropped {
            inner: LedgerEnv::from_seed(),
            tell: tell.clone(),
        }
    };
    let checks = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&checks);
    let third = Interrupt::when(move || count.fetch_add(1, Ordering::Relaxed) == 2);
    let built = MultiSyncCollector::builder(env)
        .num_workers(2)
        .frames_per_batch(20)
        .interrupt(third)
        .build();
    assert!(matches!(built, Err(BuildError::WaitInterrupted(_))));
    assert_eq!(checks.load(Ordering::Relaxed), 3);
    gate.wait();
    // Both, and then nobody is left to tell of another.
    assert_eq!(told.iter().count(), 2);
}
