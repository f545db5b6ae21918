//! Which requests are served, when, and with which weights.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tensordict::TensorDict;
use windrow_collect::{BusyPolicy, ControlError, EvaluateError, Placement};

use crate::program::elsewhere;
use crate::{choice, choose, expected, gated, ledger, ledger_here, ledgers, slow_ledgers};

#[test]
fn weights_are_copied_when_given_and_act_until_there_are_others() {
    let (policy, gate) = gated();
    let evaluator = ledgers(Placement::Threads, 20)
        .policy(policy)
        .busy_policy(BusyPolicy::Queue)
        .build()
        .unwrap();
    let mut weights = choice(2);
    evaluator.trigger_eval(Some(&weights), None).unwrap();
    evaluator.trigger_eval(None, None).unwrap();
    weights.as_mut_slice::<i64>("choice").unwrap().fill(3);
    evaluator.trigger_eval(Some(&weights), None).unwrap();
    gate.open();
    for (action, version) in [(2, 1), (2, 1), (3, 2)] {
        let result = evaluator.wait(None).unwrap().unwrap();
        assert_eq!(result.policy_version, version);
        let returns = expected(&[10], 20, i64::MAX, action).0;
        assert!(
            result
                .returns
                .iter()
                .zip(returns)
                .all(|(got, sum)| (got - sum).abs() < 1e-5)
        );
    }
}

#[test]
fn versions_can_be_those_of_a_collector() {
    for placement in elsewhere() {
        let evaluator = ledger(placement).build().unwrap();
        assert_eq!(evaluator.evaluate(None, None).unwrap().policy_version, 0);
        evaluator.set_next_version(17);
        assert_eq!(evaluator.evaluate(None, None).unwrap().policy_version, 0);
        let weights = choice(1);
        for version in [17, 18] {
            let result = evaluator.evaluate(Some(&weights), None).unwrap();
            assert_eq!(result.policy_version, version);
        }
    }
}

#[test]
fn weights_that_do_not_fit_change_nothing() {
    for placement in elsewhere() {
        let evaluator = ledger(placement).build().unwrap();
        let good = evaluator.evaluate(Some(&choice(2)), None).unwrap();
        let error = evaluator
            .evaluate(Some(&TensorDict::new([])), None)
            .unwrap_err();
        assert!(
            matches!(error, EvaluateError::Weights(ControlError::Weights(_))),
            "{error}"
        );
        let again = evaluator.evaluate(None, None).unwrap();
        assert_eq!((again.returns, again.policy_version), (good.returns, 1));
    }
}

#[test]
fn a_busy_evaluator_skips() {
    let (policy, gate) = gated();
    let evaluator = ledgers(Placement::Threads, 20)
        .policy(policy)
        .build()
        .unwrap();
    assert!(!evaluator.pending());
    assert!(evaluator.trigger_eval(Some(&choice(1)), Some(5)).unwrap());
    assert!(!evaluator.trigger_eval(Some(&choice(2)), Some(6)).unwrap());
    assert!(evaluator.pending());
    assert!(evaluator.poll(Duration::ZERO).is_none());
    assert!(evaluator.wait(Some(Duration::from_millis(20))).is_none());
    gate.open();
    let result = evaluator.wait(None).unwrap().unwrap();
    assert_eq!((result.step, result.policy_version), (5, 1));
    // What was skipped was not counted.
    let next = evaluator.evaluate(Some(&choice(3)), None).unwrap();
    assert_eq!((next.step, next.policy_version), (1, 2));
}

#[test]
fn a_busy_evaluator_says_so() {
    let (policy, gate) = gated();
    let evaluator = ledgers(Placement::Threads, 20)
        .policy(policy)
        .busy_policy(BusyPolicy::Error)
        .build()
        .unwrap();
    assert!(evaluator.trigger_eval(None, Some(5)).unwrap());
    gate.reached();
    let error = evaluator
        .trigger_eval(None, Some(6))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the evaluator runs the evaluation of step 5, and 0 more are queued"),
        "{error}"
    );
    assert!(error.ends_with("choose to skip or to queue"), "{error}");
    gate.open();
    assert_eq!(evaluator.wait(None).unwrap().unwrap().step, 5);
    assert!(evaluator.trigger_eval(None, Some(7)).unwrap());
    assert_eq!(evaluator.wait(None).unwrap().unwrap().step, 7);
}

#[test]
fn requests_queue_in_order_and_a_blocking_one_comes_last() {
    for placement in elsewhere() {
        let evaluator = slow_ledgers(placement, 20, Duration::from_millis(1))
            .policy_recipe(choose(0))
            .num_trajectories(1)
            .busy_policy(BusyPolicy::Queue)
            .build()
            .unwrap();
        for step in [8, 6, 7] {
            assert!(evaluator.trigger_eval(None, Some(step)).unwrap());
        }
        assert_eq!(evaluator.evaluate(None, None).unwrap().step, 3);
        assert!(!evaluator.pending());
        let steps = std::iter::from_fn(|| evaluator.poll(Duration::ZERO));
        assert_eq!(
            steps.map(|result| result.unwrap().step).collect::<Vec<_>>(),
            [8, 6, 7]
        );
    }
}

#[test]
fn nobody_waits_for_what_will_not_come() {
    for placement in elsewhere() {
        let evaluator = ledger(placement).build().unwrap();
        assert!(evaluator.wait(None).is_none());
        evaluator.evaluate(None, None).unwrap();
        assert!(evaluator.wait(None).is_none());
        assert!(evaluator.wait(Some(Duration::MAX)).is_none());
        assert!(evaluator.poll(Duration::from_secs(60)).is_none());
    }
}

#[test]
fn the_callback_sees_every_result_and_may_panic() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let evaluator = ledger_here()
        .on_result(move |result| {
            let thread = std::thread::current().name().map(ToOwned::to_owned);
            told.lock().unwrap().push((result.step, thread));
            assert_ne!(result.step, 2, "made to panic");
        })
        .build()
        .unwrap();
    for step in 1..4 {
        assert_eq!(evaluator.evaluate(None, Some(step)).unwrap().step, step);
        assert_eq!(seen.lock().unwrap().len(), step as usize);
    }
    evaluator.trigger_eval(None, Some(4)).unwrap();
    assert_eq!(evaluator.wait(None).unwrap().unwrap().step, 4);
    let thread = Some("windrow-evaluator".to_owned());
    let expected: Vec<_> = (1..5).map(|step| (step, thread.clone())).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}
