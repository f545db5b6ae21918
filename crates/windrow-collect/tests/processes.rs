//! Workers in processes: this very test program, run again.
#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod fatal;

use std::sync::Once;
use std::time::Duration;

use tensordict::TensorDict;
use windrow_collect::{
    CollectorBuilder, FaultKind, MultiAsyncCollector, MultiSyncCollector, NextError, OnLoss,
    Placement, WorkerError, WorkerMain, WorkerProgram,
};
use windrow_env::{CartPole, EnvError};
use windrow_policy::nn::Sequential;
use windrow_policy::{Head, NetworkPolicy, Policy, RandomPolicy};
use windrow_sync::error_chain;

use fatal::Fatal;

/// Not a test: what a worker process of the tests below runs.
#[test]
fn worker_entry() {
    prepare();
}

/// Has this program know the names that the tests use.
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut main = WorkerMain::new();
        if std::env::var_os(SHOWS_STACK).is_some() {
            main = main.shows_stack();
        }
        main.run(|registry| {
            registry.env("Own-v0", CartPole::v1)?;
            registry.env("Aborts-v0", || Fatal::new(|| std::process::abort()))?;
            registry.env("Exits-v0", || Fatal::new(|| std::process::exit(3)))?;
            registry.env("Leaves-v0", || Fatal::new(|| std::process::exit(0)))?;
            registry.env("Panics-v0", || Fatal::new(|| panic!("out of coffee")))?;
            registry.env("Fails-v0", || {
                Fatal::new(|| Err(EnvError::failed("out of tea")))
            })?;
            registry.env("Freezes-v0", || {
                Fatal::new(|| {
                    loop {
                        std::thread::park();
                    }
                })
            })?;
            registry.env("Stops-v0", || {
                Fatal::new(|| {
                    let kill = format!("kill -STOP {}", std::process::id());
                    let mut sh = std::process::Command::new("sh");
                    sh.args(["-c", &kill]).status().map_err(EnvError::failed)?;
                    // Another thread may take the signal, later than this one would go on.
                    loop {
                        std::thread::park();
                    }
                })
            })?;
            registry.env("Spins-v0", || {
                Fatal::new(|| {
                    loop {
                        std::hint::spin_loop();
                    }
                })
            })?;
            registry.policy("mine", |_worker| RandomPolicy::new())?;
            Ok(())
        })
        .unwrap();
    });
}

/// The variable that has a worker of this program say that it answers SIGUSR2.
const SHOWS_STACK: &str = "WINDROW_TEST_SHOWS_STACK";

/// This program, run again to be a worker.
fn program() -> WorkerProgram {
    let mut program = WorkerProgram::current();
    program.args = ["--exact", "worker_entry", "--nocapture"]
        .map(Into::into)
        .to_vec();
    program
}

/// Two workers, of which the second is made from `id`.
fn with_fatal(id: &'static str) -> CollectorBuilder {
    MultiSyncCollector::builder("CartPole-v1")
        .worker_envs(["CartPole-v1", id])
        .placement(Placement::Processes)
        .worker_program(program())
        .frames_per_batch(40)
        .total_frames(400)
        .track_traj_ids(true)
        .seed(3)
}

fn lost(error: NextError) -> WorkerError {
    match error {
        NextError::Worker(error) => error,
        other => panic!("{other}"),
    }
}

fn all(builder: CollectorBuilder) -> Vec<TensorDict> {
    let mut collector = builder.build().unwrap();
    let batches = collector.by_ref().map(|batch| batch.unwrap().detach());
    let batches = batches.collect();
    collector.shutdown().unwrap();
    batches
}

fn sync() -> CollectorBuilder {
    MultiSyncCollector::builder("CartPole-v1")
        .num_workers(2)
        .frames_per_batch(64)
        .total_frames(640)
        .seed(3)
}

#[test]
fn batches_are_those_of_workers_in_this_process() {
    let expected = all(sync().placement(Placement::Inline));
    let got = all(sync()
        .placement(Placement::Processes)
        .worker_program(program()));
    assert_eq!(expected.len(), 10);
    for (got, expected) in got.iter().zip(&expected) {
        for (key, tensor) in expected.leaves() {
            assert!(got.get(&key).unwrap().same_bits(tensor), "{key}");
        }
    }
}

#[test]
fn a_worker_that_ends_is_an_error_with_its_place_status_and_last_words() {
    for (id, kind, text) in [
        (
            "Aborts-v0",
            FaultKind::Died,
            "its process ended with signal 6 (SIGABRT)",
        ),
        (
            "Exits-v0",
            FaultKind::Died,
            "its process ended with exit status 3",
        ),
        (
            "Leaves-v0",
            FaultKind::Died,
            "its process ended with exit status 0, though nobody asked it to end",
        ),
        ("Panics-v0", FaultKind::Panic, "panicked: out of coffee"),
        ("Fails-v0", FaultKind::Env, "out of tea"),
    ] {
        let mut collector = with_fatal(id).build().unwrap();
        assert_eq!(collector.next().unwrap().unwrap().numel(), 40, "{id}");
        let error = lost(collector.next().unwrap().unwrap_err());
        assert_eq!((error.worker(), error.fault().kind()), (1, kind), "{error}");
        assert_eq!(error.env(), Some(1), "{error}");
        let text = text.to_owned();
        assert!(error_chain(&error).contains(&text), "{error}");
        let died = kind == FaultKind::Died;
        assert_eq!(
            died,
            error_chain(&error).contains("the kettle is empty"),
            "{error}"
        );
        assert_eq!(
            died,
            error
                .to_string()
                .contains("the last action of its environment was ["),
            "{error}"
        );
        assert!(error.step().is_some() && error.episode().is_some());
        assert!(collector.next().is_none());
        collector.shutdown().unwrap();
    }
}

#[test]
fn a_worker_that_dies_between_two_parts_is_told_without_an_action() {
    let mut collector = sync()
        .placement(Placement::Processes)
        .worker_program(program())
        .build()
        .unwrap();
    collector.next().unwrap().unwrap();
    let pid = collector.worker_stats()[1].pid.unwrap();
    let signal = |name: &str| {
        let mut kill = std::process::Command::new("kill");
        let sent = kill.args([name, &pid.to_string()]).status();
        assert!(sent.unwrap().success());
    };
    // It does not take up the part that it is lent now. Were it lent none before its death, there
    // would be no action to tell either.
    signal("-STOP");
    let error = std::thread::scope(|scope| {
        let asks = scope.spawn(|| collector.by_ref().find_map(Result::err));
        std::thread::sleep(std::time::Duration::from_millis(100));
        signal("-KILL");
        asks.join().unwrap().unwrap().to_string()
    });
    assert!(error.contains("signal 9 (SIGKILL)"), "{error}");
    assert!(!error.contains("the last action"), "{error}");
    assert!(!error.contains("handing over"), "{error}");
}

#[test]
fn a_lost_worker_is_replaced_or_left_as_the_user_says() {
    for id in ["Aborts-v0", "Exits-v0", "Panics-v0", "Fails-v0"] {
        for on_loss in [OnLoss::Restart { budget: 100 }, OnLoss::Continue] {
            let mut collector = with_fatal(id).on_loss(on_loss).build().unwrap();
            // Ids of each environment's frames, one for each run of them.
            let mut ids = [Vec::new(), Vec::new()];
            let mut frames = 0;
            for batch in &mut collector {
                let batch = batch.unwrap();
                frames += batch.numel();
                for &id in batch.as_slice::<i64>(("collector", "traj_ids")).unwrap() {
                    let runs = &mut ids[usize::from(id % 2 == 1)];
                    if runs.last() != Some(&id) {
                        runs.push(id);
                    }
                }
            }
            assert!(ids.iter().all(|runs| runs.is_sorted()), "{id}: {ids:?}");
            assert_eq!(frames, 400, "{id} {on_loss:?}");
            let losses = collector.take_losses();
            assert!(losses.iter().all(|loss| loss.worker() == 1));
            let alive = collector.stats().workers_alive;
            match on_loss {
                OnLoss::Continue => assert_eq!((losses.len(), alive), (1, 1), "{id}"),
                _ => assert!(losses.len() > 4 && alive == 2, "{id}: {losses:?}"),
            }
            collector.shutdown().unwrap();
        }
    }
}

#[test]
fn a_frozen_worker_is_killed_after_the_step_timeout() {
    let frozen = |on_loss| {
        let builder = with_fatal("Freezes-v0").on_loss(on_loss);
        builder
            .step_timeout(Duration::from_millis(300))
            .build()
            .unwrap()
    };
    let mut collector = frozen(OnLoss::Raise);
    let error = lost(collector.by_ref().find_map(Result::err).unwrap());
    assert_eq!(error.fault().kind(), FaultKind::Died);
    assert!(
        error_chain(&error).contains("step_timeout=0.3 s"),
        "{error}"
    );
    assert_eq!(error.step().map(|step| step < 30), Some(true));
    let mut collector = frozen(OnLoss::Continue);
    let frames: usize = collector.by_ref().map(|batch| batch.unwrap().numel()).sum();
    assert_eq!((frames, collector.take_losses().len()), (400, 1));
}

/// The error of the worker that is frozen in `id`, where workers run as `program`.
fn frozen_in(id: &'static str, program: WorkerProgram) -> String {
    let builder = with_fatal(id)
        .worker_program(program)
        .step_timeout(Duration::from_millis(300));
    let mut collector = builder.build().unwrap();
    let error = lost(collector.by_ref().find_map(Result::err).unwrap());
    assert_eq!((error.worker(), error.env()), (1, Some(1)), "{error}");
    error.to_string()
}

#[test]
fn the_error_of_a_frozen_worker_says_what_it_was_doing() {
    for (id, thread) in [
        ("Freezes-v0", "its thread was asleep"),
        ("Stops-v0", "its thread was stopped by a signal (T)"),
        ("Spins-v0", "its thread was running"),
    ] {
        let error = frozen_in(id, program());
        let head = "its process was killed: no call of its environment or policy returned for step_timeout=0.3 s; ";
        let head = format!("{head}{thread}");
        assert!(error.contains(&head), "{error}");
        assert!(
            error.contains("; it was in `step`; the last action"),
            "{error}"
        );
    }
}

#[test]
fn a_frozen_worker_is_asked_for_its_stack_if_it_answers() {
    let mut answers = program();
    answers.vars = vec![(SHOWS_STACK.into(), "1".into())];
    // One that claims to answer and does not: the signal ends it.
    let error = frozen_in("Freezes-v0", answers.clone());
    let head = "its process was asked for its stack, and ended with signal 12 (SIGUSR2): no call";
    assert!(error.contains(head), "{error}");
    // It could not answer before it goes on.
    let error = frozen_in("Stops-v0", answers.clone());
    assert!(error.contains("its process was killed: no call"), "{error}");
    // The signal is ignored, as if it were answered: the worker is killed all the same.
    let mut args = vec![
        "--ignore-signal=USR2".into(),
        std::env::current_exe().unwrap().into(),
    ];
    args.append(&mut answers.args);
    let error = frozen_in(
        "Freezes-v0",
        WorkerProgram {
            program: "env".into(),
            args,
            ..answers
        },
    );
    assert!(error.contains("its process was killed: no call"), "{error}");
}

#[test]
fn a_step_timeout_needs_processes_and_a_positive_number() {
    let error = |timeout, placement| {
        let builder = sync().placement(placement).step_timeout(timeout);
        error_chain(&builder.build().unwrap_err())
    };
    let needs = error(Duration::from_secs(1), Placement::Threads);
    assert!(needs.contains("step_timeout needs workers"), "{needs}");
    let zero = error(Duration::ZERO, Placement::Processes);
    assert!(zero.contains("step_timeout must be a positive"), "{zero}");
}

#[test]
fn too_many_losses_are_an_error() {
    let mut collector = with_fatal("Exits-v0")
        .on_loss(OnLoss::Restart { budget: 2 })
        .build()
        .unwrap();
    let error = collector.by_ref().find_map(Result::err).unwrap();
    assert_eq!(lost(error).fault().kind(), FaultKind::Died);
    assert_eq!(collector.take_losses().len(), 2);
}

#[test]
fn code_that_cannot_be_sent_is_an_error_that_says_what_to_do() {
    let build = |builder: CollectorBuilder| {
        let builder = builder.placement(Placement::Processes).frames_per_batch(10);
        error_chain(&builder.build().unwrap_err())
    };
    let error = build(MultiSyncCollector::builder(CartPole::v1).worker_program(program()));
    assert!(error.contains("windrow::worker_main"), "{error}");
    let policy = MultiSyncCollector::builder("CartPole-v1").worker_program(program());
    let error = build(policy.policy_factory(|_| RandomPolicy::new()));
    assert!(error.contains("windrow::worker_main"), "{error}");
    let error = build(MultiSyncCollector::builder("Tetris-v0").worker_program(program()));
    assert!(
        error.contains("no environment is called \"Tetris-v0\""),
        "{error}"
    );
}

#[test]
fn names_of_the_program_make_environments_and_policies() {
    prepare();
    let builder = MultiAsyncCollector::builder("Own-v0")
        .policy_recipe(windrow_policy::PolicyRecipe::named("mine"))
        .num_workers(2)
        .placement(Placement::Processes)
        .worker_program(program())
        .frames_per_batch(50)
        .total_frames(500);
    assert_eq!(
        all(builder).iter().map(TensorDict::numel).sum::<usize>(),
        500
    );
}

#[test]
fn new_weights_act_from_the_next_batch_on() {
    let net = |seed| {
        let net = Sequential::new()
            .linear(4, 8)
            .tanh()
            .linear(8, 2)
            .seed(seed);
        NetworkPolicy::new(net, Head::Categorical)
    };
    let run = |placement| {
        let mut collector = sync()
            .policy(net(1))
            .placement(placement)
            .worker_program(program())
            .track_policy_version(true)
            .build()
            .unwrap();
        let mut batches = Vec::new();
        for i in 0..10 {
            batches.push(collector.next().unwrap().unwrap().detach());
            if i % 3 == 0 {
                collector.update_policy_weights(&net(i).weights()).unwrap();
                assert_eq!(collector.policy_weights(), net(i).weights());
            }
        }
        batches
    };
    let (expected, got) = (run(Placement::Inline), run(Placement::Processes));
    let version = got[9].as_slice::<i64>("policy_version").unwrap()[0];
    assert_eq!(version, 3);
    for (got, expected) in got.iter().zip(&expected) {
        for (key, tensor) in expected.leaves() {
            assert!(got.get(&key).unwrap().same_bits(tensor), "{key}");
        }
    }
}

#[test]
fn a_collector_that_was_never_asked_for_a_batch_ends_its_workers() {
    let mut collector = sync()
        .placement(Placement::Processes)
        .worker_program(program())
        .build()
        .unwrap();
    collector.shutdown().unwrap();
    collector.shutdown().unwrap();
    assert!(matches!(collector.next(), Some(Err(NextError::ShutDown))));
}
