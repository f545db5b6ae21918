//! What goes wrong, and what follows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tensordict::{DType, TensorError};
use windrow_collect::{
    BusyPolicy, EvaluateError, Evaluator, EvaluatorBuilder, NextError, OnLoss, Placement,
    WorkerFault,
};
use windrow_env::testing::{FailAt, FailingEnv, Failure, LedgerEnv};
use windrow_env::{CartPole, TimeLimit};
use windrow_policy::policy_fn;
use windrow_slab::LeafSpec;
use windrow_sync::error_chain;

use crate::{Choose, choice, expected, ledger_here, ledgers};

/// The first environment fails in its `steps`-th step, those made after it do not.
fn failing_once(failure: Failure, steps: u64) -> (EvaluatorBuilder, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let env = move || {
        let first = count.fetch_add(1, Ordering::Relaxed) == 0;
        let at = if first { steps } else { u64::MAX };
        FailingEnv::new(LedgerEnv::from_seed(), FailAt::Step(at), failure)
    };
    (Evaluator::builder(env).policy(Choose(0)).seed(0), made)
}

#[test]
fn a_lost_environment_is_made_anew_and_the_evaluation_has_all_its_episodes() {
    for failure in [Failure::Error, Failure::Panic] {
        let (builder, made) = failing_once(failure, 40);
        let evaluator = builder
            .num_trajectories(4)
            .on_loss(OnLoss::Restart { budget: 1 })
            .build()
            .unwrap();
        assert_eq!(evaluator.evaluate(None, None).unwrap().num_episodes, 4);
        assert_eq!(made.load(Ordering::Relaxed), 2);
        let losses = evaluator.take_losses();
        assert_eq!((losses.len(), losses[0].worker()), (1, 0));
        assert!(evaluator.take_losses().is_empty());
    }
    let refused = Evaluator::builder("CartPole-v1")
        .policy(Choose(0))
        .on_loss(OnLoss::Continue)
        .build();
    let told = error_chain(&refused.unwrap_err());
    assert!(told.contains("an evaluator has one"), "{told}");
}

#[test]
fn a_failure_is_the_result_of_its_request_and_the_next_one_starts_over() {
    for failure in [Failure::Error, Failure::Panic] {
        let (builder, made) = failing_once(failure, 40);
        let evaluator = builder
            .busy_policy(BusyPolicy::Queue)
            .num_trajectories(2)
            .build()
            .unwrap();
        assert_eq!(made.load(Ordering::Relaxed), 1, "nothing is made twice");
        let weights = choice(1);
        evaluator.trigger_eval(Some(&weights), None).unwrap();
        while evaluator.wait(None).unwrap().is_ok() {
            evaluator.trigger_eval(None, None).unwrap();
        }
        assert!(!evaluator.pending());
        let result = evaluator.evaluate(None, None).unwrap();
        // The new policy has the weights that were given last.
        let (returns, lengths) = expected(&[2], 20, i64::MAX, 1);
        assert_eq!((result.lengths, result.policy_version), (lengths, 1));
        assert!(
            result
                .returns
                .iter()
                .zip(returns)
                .all(|(got, sum)| (got - sum).abs() < 1e-5)
        );
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }
}

#[test]
fn failures_say_what_failed() {
    let (builder, _) = failing_once(Failure::Error, 3);
    let error = builder
        .build()
        .unwrap()
        .evaluate(None, None)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("worker 0, environment 0, episode"),
        "{error}"
    );
    assert!(error.ends_with("made to fail in Step(3)"), "{error}");

    let (builder, _) = failing_once(Failure::Panic, 3);
    let error = builder.build().unwrap().evaluate(None, None).unwrap_err();
    assert!(
        matches!(&error, EvaluateError::Next(NextError::Worker(error)) if matches!(error.fault(), WorkerFault::Panic(_))),
        "{error}"
    );

    let calls = AtomicUsize::new(0);
    let evaluator = ledger_here()
        .metrics(move |_| {
            assert_ne!(calls.fetch_add(1, Ordering::Relaxed), 0, "no metrics yet");
            Ok::<_, TensorError>(Vec::new())
        })
        .build()
        .unwrap();
    let error = evaluator.evaluate(None, None).unwrap_err().to_string();
    assert!(
        error.contains("panicked") && error.contains("no metrics yet"),
        "{error}"
    );
    evaluator.evaluate(None, None).unwrap();
}

#[test]
fn an_error_of_metrics_is_the_result_and_costs_nothing_else() {
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let env = move || {
        count.fetch_add(1, Ordering::Relaxed);
        LedgerEnv::from_seed()
    };
    let mut calls = 0..;
    let evaluator = Evaluator::builder(env)
        .policy(Choose(0))
        .busy_policy(BusyPolicy::Queue)
        .metrics(move |_| match calls.next() {
            Some(0 | 1) => Err("no metrics yet"),
            _ => Ok(vec![("calls".to_owned(), 2.0)]),
        })
        .build()
        .unwrap();
    let error = evaluator.evaluate(None, Some(7)).unwrap_err();
    assert_eq!(
        error_chain(&error),
        "the metrics of the evaluation of step 7 failed: no metrics yet"
    );
    for step in [8, 9] {
        evaluator.trigger_eval(None, Some(step)).unwrap();
    }
    while evaluator.pending() {
        std::thread::yield_now();
    }
    let error = evaluator.take_error().unwrap();
    assert!(
        matches!(error, EvaluateError::Metrics { step: 8, .. }),
        "{error}"
    );
    assert!(evaluator.take_error().is_none());
    let result = evaluator.poll(Duration::ZERO).unwrap().unwrap();
    assert_eq!((result.step, result.metrics[0].1), (9, 2.0));
    assert_eq!(made.load(Ordering::Relaxed), 1);
}

fn refused(builder: EvaluatorBuilder) -> String {
    error_chain(&builder.build().unwrap_err())
}

#[test]
fn what_cannot_be_built_is_refused() {
    assert_eq!(
        refused(ledger_here().num_trajectories(0)),
        "num_trajectories must be a positive number, got 0"
    );
    assert!(refused(ledger_here().max_steps(0)).starts_with("max_steps must be"));
    assert!(refused(ledger_here().num_envs(0)).starts_with("num_envs must be"));
    let one = "an evaluator needs one policy or one policy_factory, got";
    assert_eq!(
        refused(ledgers(Placement::Threads, 3)),
        format!("{one} 0 of them")
    );
    assert_eq!(
        refused(ledger_here().policy_factory(|_| Choose(0))),
        format!("{one} 2 of them")
    );
    let env = || TimeLimit::new(CartPole::new(), 0);
    let error = refused(Evaluator::builder(env).policy(Choose(0)));
    assert!(
        error.starts_with(
            "failed to make the environments of worker 0: max_episode_steps of CartPole-v1"
        ),
        "{error}"
    );
    let ones = policy_fn([LeafSpec::new("action", DType::I8, [1])], |_, _| Ok(()));
    let error = refused(ledgers(Placement::Threads, 3).policy(ones));
    assert!(
        error.starts_with("failed to set up the policy of worker 0: "),
        "{error}"
    );
}

#[test]
fn panics_of_constructors_are_errors() {
    let env = || -> CartPole { panic!("no poles left") };
    let error = refused(Evaluator::builder(env).policy(Choose(0)));
    assert_eq!(error, "worker 0: panicked: no poles left");
    let policy = |_| -> Choose { panic!("no choice") };
    assert_eq!(
        refused(ledgers(Placement::Threads, 3).policy_factory(policy)),
        "worker 0: panicked: no choice"
    );
}
