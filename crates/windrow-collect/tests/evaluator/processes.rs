//! Evaluations in a process: those of a thread, and what becomes of a process that dies, stands
//! still or is not needed any more.

use std::thread;
use std::time::{Duration, Instant};

use windrow_collect::{
    EvaluateError, Evaluation, Evaluator, EvaluatorBuilder, FaultKind, NextError, Placement,
    WorkerError,
};
use windrow_env::CartPole;
use windrow_policy::nn::Sequential;
use windrow_policy::{ExplorationType, Head, NetworkPolicy, Policy, RandomPolicy};
use windrow_sync::error_chain;

use crate::faulty::{At, Fault, Gate, How, Makes, Notes, signal};
use crate::frames::MAX_LENGTH;
use crate::{Choose, choice, choose, expected, ledger, named, placed};

/// What no wait may last, however busy the machine is.
const BOUND: Duration = Duration::from_secs(60);

/// In the first evaluation: as it begins, in its midst and at the end of a batch.
const PHASES: [At; 4] = [At::Reset(1), At::Step(1), At::Step(13), At::Step(32)];

/// Episodes of an evaluation, long enough for each of [`PHASES`].
const EPISODES: usize = 30;

/// One ledger in a process, which notes itself; what happens to it happens once.
fn faulty(fault: Option<Fault>) -> (EvaluatorBuilder, Notes) {
    let made = Notes::default();
    let makes = Makes {
        fault,
        made: Some(made.clone()),
        ..Makes::default()
    };
    let builder = placed(Placement::Processes, named("Faulty", &makes));
    let builder = builder
        .policy_recipe(choose(0))
        .num_trajectories(EPISODES)
        .seed(0);
    // Keeps the files that the process writes.
    let kept = move |_: &Evaluation| _ = &makes;
    (builder.on_result(kept), made)
}

/// Stops at a gate in the call `at`.
fn gated(at: At) -> (EvaluatorBuilder, Notes, Gate) {
    let gate = Gate::default();
    let (builder, made) = faulty(Some(Fault::new(at, How::Wait(gate.clone()), 1)));
    (builder, made, gate)
}

fn died(error: EvaluateError) -> WorkerError {
    match error {
        EvaluateError::Next(NextError::Worker(error))
            if error.fault().kind() == FaultKind::Died =>
        {
            error
        }
        other => panic!("{other}"),
    }
}

fn check(evaluation: &Evaluation, action: i64) {
    let (returns, lengths) = expected(&[EPISODES as i64], MAX_LENGTH, i64::MAX, action);
    assert_eq!(
        (&evaluation.returns, &evaluation.lengths),
        (&returns, &lengths)
    );
}

/// Whether none of the processes that were noted runs any more.
fn check_gone(made: &Notes) {
    assert!(!made.is_empty());
    for process in made.lines() {
        let process = std::path::Path::new("/proc").join(process);
        assert!(!process.exists(), "{} runs", process.display());
    }
}

#[test]
fn results_are_those_of_a_thread_for_the_same_seed() {
    let net = |seed| {
        let net = Sequential::new().linear(4, 8).tanh().linear(8, 2);
        NetworkPolicy::new(net.seed(seed), Head::Categorical)
    };
    let run = |placement, num_envs| {
        let evaluator = placed(placement, "CartPole-v1")
            .policy(net(1))
            .exploration_type(ExplorationType::Random)
            .num_envs(num_envs)
            .num_trajectories(7)
            .max_steps(60)
            .seed(3)
            .build()
            .unwrap();
        let weights = [None, Some(net(2).weights()), None, Some(net(3).weights())];
        let results = weights.map(|weights| evaluator.evaluate(weights.as_ref(), None).unwrap());
        let told = |of: Evaluation| (of.returns, of.lengths, of.policy_version, of.seed, of.step);
        results.map(told)
    };
    for num_envs in [1, 3] {
        let threads = run(Placement::Threads, num_envs);
        assert_ne!(threads[0].0, threads[1].0, "the weights made no difference");
        assert_eq!(run(Placement::Processes, num_envs), threads);
    }
}

#[test]
fn a_process_that_is_killed_is_the_error_of_its_evaluation_and_the_next_one_starts_another() {
    for at in PHASES {
        let (builder, made, gate) = gated(at);
        let evaluator = builder.build().unwrap();
        let weights = choice(2);
        assert!(evaluator.trigger_eval(Some(&weights), Some(5)).unwrap());
        signal("KILL", gate.await_somebody());
        let error = died(evaluator.wait(None).unwrap().unwrap_err());
        assert!(error_chain(&error).contains("SIGKILL"), "{error}");
        assert!(!evaluator.pending());
        // The new process has the weights that were given last.
        let result = evaluator.evaluate(None, Some(6)).unwrap();
        assert_eq!((result.step, result.policy_version), (6, 1));
        check(&result, 2);
        assert_eq!(made.count(), 2);
        evaluator.shutdown().unwrap();
        check_gone(&made);
    }
}

#[test]
fn a_process_that_is_killed_between_two_evaluations_is_an_error_once() {
    let (builder, made) = faulty(None);
    let evaluator = builder.build().unwrap();
    check(&evaluator.evaluate(None, None).unwrap(), 0);
    signal("KILL", made.lines()[0].parse().unwrap());
    died(evaluator.evaluate(None, None).unwrap_err());
    check(&evaluator.evaluate(Some(&choice(1)), None).unwrap(), 1);
    assert_eq!(made.count(), 2);
    drop(evaluator);
    check_gone(&made);
}

#[test]
fn a_frozen_process_is_killed_after_the_step_timeout() {
    let (builder, made, gate) = gated(At::Step(13));
    let evaluator = builder
        .step_timeout(Duration::from_millis(300))
        .build()
        .unwrap();
    let error = died(evaluator.evaluate(None, None).unwrap_err());
    assert!(
        error_chain(&error).contains("step_timeout=0.3 s"),
        "{error}"
    );
    assert!(gate.has_somebody());
    check(&evaluator.evaluate(None, None).unwrap(), 0);
    assert_eq!(made.count(), 2);
}

#[test]
fn what_fails_in_a_process_is_told_as_from_a_thread() {
    for (how, kind) in [(How::Error, FaultKind::Env), (How::Panic, FaultKind::Panic)] {
        let (builder, made) = faulty(Some(Fault::new(At::Step(13), how, 1)));
        let evaluator = builder.build().unwrap();
        let error = evaluator.evaluate(None, None).unwrap_err();
        let EvaluateError::Next(NextError::Worker(error)) = error else {
            panic!("{error}")
        };
        assert_eq!((error.worker(), error.fault().kind()), (0, kind), "{error}");
        assert_eq!(error.env(), Some(0), "{error}");
        check(&evaluator.evaluate(None, None).unwrap(), 0);
        assert_eq!(made.count(), 2);
    }
}

#[test]
fn a_process_that_stands_still_is_killed_by_the_shutdown() {
    for stopped in [false, true] {
        let (builder, made, gate) = gated(At::Step(13));
        let patience = Duration::from_millis(200);
        let evaluator = builder.shutdown_timeout(patience).build().unwrap();
        assert!(evaluator.trigger_eval(None, None).unwrap());
        let stuck = gate.await_somebody();
        if stopped {
            signal("STOP", stuck);
        }
        let began = Instant::now();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| evaluator.wait(None));
            evaluator.shutdown().unwrap();
            let told = waiting.join().unwrap();
            assert!(matches!(told, Some(Err(EvaluateError::ShutDown))));
        });
        assert!((patience..BOUND).contains(&began.elapsed()));
        evaluator.shutdown().unwrap();
        check_gone(&made);
    }
}

#[test]
fn no_process_stays_behind_however_an_evaluator_ends() {
    let ends: [fn(Evaluator); 3] = [
        drop,
        |evaluator| evaluator.shutdown().unwrap(),
        |evaluator| evaluator.shutdown_within(Duration::ZERO).unwrap(),
    ];
    for (end, busy) in ends
        .iter()
        .flat_map(|end| [false, true].map(|busy| (end, busy)))
    {
        let (builder, made) = faulty(None);
        // Far more episodes than it will come to play.
        let evaluator = builder.num_trajectories(1 << 24).build().unwrap();
        if busy {
            assert!(evaluator.trigger_eval(None, None).unwrap());
        }
        end(evaluator);
        check_gone(&made);
    }
}

#[test]
fn a_shutdown_does_not_wait_until_a_process_has_made_its_environment() {
    let gate = Gate::default();
    let makes = Makes {
        fails: Some(How::Wait(gate.clone())),
        ..Makes::default()
    };
    let builder = placed(Placement::Processes, named("Faulty", &makes));
    let builder = builder.policy_recipe(choose(0)).lazily();
    let evaluator = builder.build().unwrap();
    assert!(evaluator.trigger_eval(None, None).unwrap());
    let process = gate.await_somebody();
    evaluator.shutdown().unwrap();
    let process = std::path::Path::new("/proc").join(process.to_string());
    assert!(!process.exists(), "{} runs", process.display());
}

#[test]
fn what_cannot_run_in_a_process_is_refused() {
    let refused = |builder: EvaluatorBuilder| error_chain(&builder.build().unwrap_err());
    let here = refused(ledger(Placement::Inline));
    assert!(
        here.starts_with("placement inline needs a collector"),
        "{here}"
    );
    let killed = refused(
        ledger(Placement::Threads)
            .step_timeout(Duration::from_secs(1))
            .lazily(),
    );
    assert!(killed.starts_with("step_timeout needs workers"), "{killed}");
    let zero = ledger(Placement::Processes).step_timeout(Duration::ZERO);
    let zero = refused(zero.lazily());
    assert!(zero.contains("step_timeout must be a positive"), "{zero}");
    let code = [
        placed(Placement::Processes, CartPole::v1).policy(RandomPolicy::new()),
        placed(Placement::Processes, CartPole::v1)
            .policy(RandomPolicy::new())
            .max_steps(9),
        placed(Placement::Processes, "CartPole-v1").policy(Choose(0)),
        placed(Placement::Processes, "CartPole-v1").policy_factory(|_| Choose(0)),
    ];
    for builder in code {
        let error = refused(builder);
        assert!(error.contains("windrow::worker_main"), "{error}");
    }
}
