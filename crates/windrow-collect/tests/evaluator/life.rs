//! The evaluator's thread: what it does, and how it ends.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use tensordict::TensorDict;
use windrow_collect::{
    BusyPolicy, Collector, ErrorKind, EvaluateError, Evaluator, EvaluatorBuilder, Placement, Stuck,
};
use windrow_env::CartPole;
use windrow_env::testing::LedgerEnv;

use crate::program::elsewhere;
use crate::{Choose, choose, gated, ledger, ledger_here, ledgers, placed, slow_ledgers};

#[test]
fn environments_and_policies_are_made_in_the_evaluators_thread() {
    let (tell, told) = channel();
    let both = tell.clone();
    let name = || std::thread::current().name().map(ToOwned::to_owned);
    let evaluator = Evaluator::builder(move || {
        tell.send(name()).unwrap();
        LedgerEnv::from_seed()
    })
    .policy_factory(move |worker| {
        assert_eq!(worker, 0);
        both.send(name()).unwrap();
        Choose(0)
    })
    .build()
    .unwrap();
    evaluator.evaluate(None, None).unwrap();
    drop(evaluator);
    let names: Vec<_> = told.iter().collect();
    assert!(names.len() >= 2);
    assert!(
        names
            .iter()
            .all(|name| name.as_deref() == Some("windrow-evaluator"))
    );
}

#[test]
fn a_lazy_evaluator_makes_nothing_before_it_evaluates() {
    let (tell, told) = channel();
    let evaluator = Evaluator::builder(move || {
        tell.send(()).unwrap();
        LedgerEnv::from_seed()
    })
    .policy_factory(|_| Choose(0))
    .num_trajectories(2)
    .lazily()
    .build()
    .unwrap();
    assert!(told.try_recv().is_err());
    for _ in 0..2 {
        assert_eq!(evaluator.evaluate(None, None).unwrap().num_episodes, 2);
    }
    drop(evaluator);
    assert_eq!(told.iter().count(), 1);
}

#[test]
fn what_goes_wrong_in_making_is_the_result_of_a_lazy_evaluation() {
    for placement in elsewhere() {
        let evaluator = placed(placement, "no such environment")
            .policy_recipe(choose(0))
            .lazily()
            .build()
            .unwrap();
        assert!(evaluator.trigger_eval(None, None).unwrap());
        let error = evaluator.wait(None).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
    }
}

/// What no end may last, however busy the machine is.
const BOUND: Duration = Duration::from_secs(60);

/// Would take minutes for one evaluation, and a shutdown waits as long as it lasts.
fn endless(placement: Placement) -> EvaluatorBuilder {
    let builder = slow_ledgers(placement, 20, Duration::from_millis(5))
        .policy_recipe(choose(0))
        .num_trajectories(10_000)
        .shutdown_timeout(Duration::MAX);
    builder.busy_policy(BusyPolicy::Queue)
}

#[test]
fn a_shutdown_ends_what_is_running() {
    for placement in elsewhere() {
        let evaluator = endless(placement).build().unwrap();
        assert!(evaluator.trigger_eval(None, None).unwrap());
        assert!(evaluator.trigger_eval(None, None).unwrap());
        let began = Instant::now();
        std::thread::scope(|scope| {
            let blocked = scope.spawn(|| evaluator.evaluate(None, None));
            let waiting = scope.spawn(|| evaluator.wait(None));
            std::thread::sleep(Duration::from_millis(20));
            evaluator.shutdown().unwrap();
            assert!(matches!(
                blocked.join().unwrap(),
                Err(EvaluateError::ShutDown)
            ));
            assert!(matches!(
                waiting.join().unwrap(),
                Some(Err(EvaluateError::ShutDown))
            ));
        });
        evaluator.shutdown().unwrap();
        assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
        assert!(!evaluator.pending());
        assert!(matches!(
            evaluator.evaluate(None, None),
            Err(EvaluateError::ShutDown)
        ));
        assert!(matches!(
            evaluator.trigger_eval(None, None),
            Err(EvaluateError::ShutDown)
        ));
        assert!(evaluator.wait(None).is_none(), "told once");
    }
}

#[test]
fn what_is_unread_outlives_a_shutdown() {
    for placement in elsewhere() {
        let evaluator = ledger(placement).build().unwrap();
        evaluator.trigger_eval(None, Some(1)).unwrap();
        while evaluator.pending() {
            std::thread::yield_now();
        }
        evaluator.shutdown().unwrap();
        assert_eq!(evaluator.poll(Duration::ZERO).unwrap().unwrap().step, 1);
        let error = evaluator.poll(Duration::ZERO).unwrap().unwrap_err();
        assert!(error.to_string().contains("was shut down"), "{error}");
        assert!(evaluator.poll(Duration::ZERO).is_none());
    }
}

#[test]
fn a_drop_without_a_shutdown_ends_it_too() {
    for placement in elsewhere() {
        let evaluator = endless(placement).build().unwrap();
        evaluator.trigger_eval(None, None).unwrap();
        let began = Instant::now();
        drop(evaluator);
        assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    }
}

#[test]
fn a_stuck_evaluation_holds_a_shutdown_up_once() {
    let (policy, gate) = gated();
    let timeout = Duration::from_millis(200);
    let evaluator = ledgers(Placement::Threads, 20)
        .policy(policy)
        .shutdown_timeout(timeout)
        .build()
        .unwrap();
    evaluator.trigger_eval(None, None).unwrap();
    gate.reached();
    let began = Instant::now();
    let error = evaluator.shutdown().unwrap_err();
    assert!(
        matches!(
            error,
            Stuck {
                stuck: 1,
                threads: 1,
                ..
            }
        ),
        "{error}"
    );
    assert!(!evaluator.pending());
    assert!(began.elapsed() >= timeout);
    // As many of them as would take longer than anything should if each of them waited.
    let again = Instant::now();
    let often = 2 * BOUND.as_millis() / timeout.as_millis();
    for _ in 0..often {
        assert!(evaluator.shutdown().is_err());
    }
    assert!(again.elapsed() < BOUND, "{:?}", again.elapsed());
    gate.open();
    while evaluator.shutdown().is_err() {
        assert!(again.elapsed() < 2 * BOUND);
        std::thread::yield_now();
    }
}

#[test]
fn a_collector_beside_it_collects_the_same() {
    for placement in elsewhere() {
        let collect = || {
            let mut collector = Collector::builder(CartPole::v1)
                .frames_per_batch(200)
                .seed(1)
                .build()
                .unwrap();
            std::iter::from_fn(move || collector.next())
                .take(5)
                .map(|batch| batch.unwrap().detach())
        };
        let alone: Vec<TensorDict> = collect().collect();
        let evaluator = placed(placement, "CartPole-v1")
            .policy_recipe(choose(0))
            .build()
            .unwrap();
        let beside = collect().inspect(|_| {
            evaluator.trigger_eval(None, None).unwrap();
        });
        assert_eq!(beside.collect::<Vec<_>>(), alone);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_idle_evaluator_sleeps() {
    let (tell, told) = channel();
    let evaluator = ledger_here()
        .on_result(move |_| {
            let task = std::fs::read_link("/proc/thread-self").unwrap();
            tell.send(task).unwrap();
        })
        .build()
        .unwrap();
    evaluator.evaluate(None, None).unwrap();
    let status = std::path::Path::new("/proc")
        .join(told.recv().unwrap())
        .join("status");
    // How often the thread was given a processor.
    let switches = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.unwrap().to_owned()
    };
    // Who looks for work again and again has no such pause, however late the machine lets it go to
    // sleep.
    let began = Instant::now();
    loop {
        let before = switches();
        std::thread::sleep(Duration::from_millis(200));
        if switches() == before {
            break;
        }
        assert!(began.elapsed() < BOUND, "it does not sleep");
    }
}
