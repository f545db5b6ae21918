//! What fails in a worker reaches the consumer once, with its place, and nothing half done is ever
//! seen.

use std::collections::BTreeSet;

use tensordict::TensorDict;
use windrow_collect::{
    BuildError, CatResults, Collector, CollectorBuilder, ControlError, Delivery, FaultKind,
    NextError, OnLoss, Placement, WorkerError, WorkerFault,
};
use windrow_env::EnvError;
use windrow_env::testing::LedgerEnv;
use windrow_sync::error_chain;

use crate::crew::world::{PLACEMENTS, World, elsewhere};
use crate::crew::{Crew, ENVS, STEPS, WORKERS, all, apart};
use crate::faulty::{At, Fault, How, Makes, Notes};
use crate::frames::{Frame, MAX_LENGTH, by_env, check_contiguous, check_ids, check_pieces, frames};

/// Every phase of a worker in which an environment is called: the first reset and a later one, the
/// first step, one in the midst of a part, the last of a part and the first of another.
const PHASES: [At; 6] = [
    At::Reset(1),
    At::Reset(3),
    At::Step(1),
    At::Step(13),
    At::Step(20),
    At::Step(21),
];

const HOWS: [fn() -> How; 2] = [|| How::Error, || How::Panic];

/// Worker that has the fault.
const FAULTY: usize = 1;

fn worker_error(error: impl Into<ControlError>) -> WorkerError {
    match error.into() {
        ControlError::Next(NextError::Worker(error)) => error,
        other => panic!("{other}"),
    }
}

/// Collects until there is an error, and says what came before it.
fn until_error(collector: &mut Collector) -> (Vec<TensorDict>, WorkerError) {
    let mut batches = Vec::new();
    loop {
        match collector.next().unwrap() {
            Ok(batch) => batches.push(batch.detach()),
            Err(error) => return (batches, worker_error(error)),
        }
    }
}

/// Where a ledger of worker 1 stands in the call `at`: environment, episode and step.
fn place(at: At) -> [u64; 3] {
    let first = (FAULTY * ENVS) as i64;
    let length = |env, episode| LedgerEnv::length(env, episode, MAX_LENGTH);
    match at {
        At::Reset(n) => {
            let episodes = n as i64 - 1;
            let ends = |env: &i64| (0..episodes).map(|e| length(*env, e)).sum::<i64>();
            let env = (first..first + ENVS as i64).min_by_key(ends).unwrap();
            [env as u64, episodes as u64, 0]
        }
        At::Step(n) => {
            let (mut episode, mut t) = (0, n as i64 - 1);
            while t >= length(first, episode) {
                t -= length(first, episode);
                episode += 1;
            }
            [first as u64, episode as u64, t as u64]
        }
    }
}

fn check_error(error: &WorkerError, at: At, how: &How) {
    assert_eq!(error.worker(), FAULTY);
    let (text, said) = (error.to_string(), format!("in {at:?}"));
    assert!(text.ends_with(&said), "{text}");
    let [env, episode, step] = place(at);
    assert_eq!(error.env(), Some(env as usize), "{text}");
    assert_eq!((error.episode(), error.step()), (Some(episode), Some(step)));
    let begin = format!("worker 1, environment {env}, episode {episode}, step {step}: ");
    assert!(text.starts_with(&begin), "{text}");
    let expected = match how {
        How::Error => FaultKind::Env,
        _ => FaultKind::Panic,
    };
    assert_eq!(error.fault().kind(), expected, "{text}");
    if let WorkerFault::Env(inner) = error.fault() {
        assert!(matches!(inner.source, EnvError::Failed(_)), "{text}");
    }
}

/// Frames of each environment are there from its first on, none missing, none twice; how many
/// environments there were.
fn check_ledger(batches: &[TensorDict]) -> usize {
    let all: Vec<Frame> = batches.iter().flat_map(frames).collect();
    check_ids(&all);
    let envs = by_env(all);
    for frames in envs.values() {
        check_contiguous(frames, MAX_LENGTH);
    }
    envs.len()
}

#[test]
fn a_fault_that_is_raised_ends_the_collector_and_is_told_once() {
    for (crew, at) in all().flat_map(|crew| PHASES.map(|at| (crew, at))) {
        for how in HOWS {
            let fault = Fault::new(at, how(), usize::MAX);
            let mut collector = crew.builder([None, Some(fault)]).build().unwrap();
            let (batches, error) = until_error(&mut collector);
            check_error(&error, at, &how());
            check_ledger(&batches);
            assert!(collector.next().is_none(), "{crew:?}");
            assert!(matches!(collector.rollout(), Err(NextError::ShutDown)));
            collector.shutdown().unwrap();
            collector.shutdown().unwrap();
            assert!(collector.next().is_none(), "{crew:?}");
        }
    }
}

#[test]
fn a_worker_that_starts_over_loses_and_repeats_nothing() {
    for (crew, at) in all().flat_map(|crew| PHASES.map(|at| (crew, at))) {
        for how in HOWS {
            let fault = Fault::new(at, how(), 2);
            let total = crew.batches(60) * crew.frames_per_batch();
            let mut collector = crew
                .builder([None, Some(fault.clone())])
                .on_loss(OnLoss::Restart { budget: 2 })
                .total_frames(total as u64)
                .build()
                .unwrap();
            let batches: Vec<_> = collector
                .by_ref()
                .map(|batch| batch.unwrap().detach())
                .collect();
            assert_eq!(
                batches.iter().map(TensorDict::numel).sum::<usize>(),
                total,
                "{crew:?}"
            );
            assert_eq!(fault.left(), 0, "{crew:?}");
            let stats = collector.stats();
            assert_eq!((stats.frames, stats.restarts), (total as u64, 2));
            assert_eq!(stats.workers_alive, WORKERS);
            let losses = collector.take_losses();
            assert_eq!(losses.len(), 2);
            check_error(&losses[0], at, &how());
            // Environments that were made anew are other ones to the ledger; those lost in their
            // first part left nothing.
            let seen = check_ledger(&batches);
            let most = WORKERS * ENVS + 2 * ENVS;
            assert!(
                (WORKERS * ENVS..=most).contains(&seen),
                "{seen} environments"
            );
            collector.shutdown().unwrap();
        }
    }
}

#[test]
fn one_loss_more_than_the_budget_is_raised() {
    for crew in all() {
        let fault = Fault::new(At::Step(7), How::Error, usize::MAX);
        let mut collector = crew
            .builder([None, Some(fault)])
            .on_loss(OnLoss::Restart { budget: 3 })
            .build()
            .unwrap();
        let (_, error) = until_error(&mut collector);
        assert_eq!(error.worker(), FAULTY);
        assert_eq!(collector.stats().restarts, 3);
        assert_eq!(collector.take_losses().len(), 3);
        assert!(collector.next().is_none());
        collector.shutdown().unwrap();
    }
}

#[test]
fn the_others_go_on_without_a_lost_worker_until_the_last_one_is_lost() {
    for (crew, at) in all().flat_map(|crew| PHASES.map(|at| (crew, at))) {
        for how in HOWS {
            let total = crew.batches(40) * crew.frames_per_batch();
            let mut collector = crew
                .builder([None, Some(Fault::new(at, how(), usize::MAX))])
                .on_loss(OnLoss::Continue)
                .total_frames(total as u64)
                .build()
                .unwrap();
            let batches: Vec<_> = collector
                .by_ref()
                .map(|batch| batch.unwrap().detach())
                .collect();
            assert!(batches.iter().all(|batch| batch.numel() > 0), "{crew:?}");
            assert_eq!(batches.iter().map(TensorDict::numel).sum::<usize>(), total);
            assert_eq!(collector.stats().workers_alive, WORKERS - 1, "{crew:?}");
            check_error(&collector.take_losses()[0], at, &how());
            check_ledger(&batches);
            collector.shutdown().unwrap();
        }
        let second = Fault::new(At::Step(40), How::Error, usize::MAX);
        let first = Fault::new(at, How::Error, usize::MAX);
        let mut collector = crew
            .builder([Some(second), Some(first)])
            .on_loss(OnLoss::Continue)
            .build()
            .unwrap();
        let (_, error) = until_error(&mut collector);
        let lost = collector.take_losses();
        assert_eq!(lost.len(), 1, "{crew:?}");
        let told: BTreeSet<usize> = [error.worker(), lost[0].worker()].into();
        assert_eq!(told, [0, 1].into(), "{crew:?}");
        assert!(collector.next().is_none());
        collector.shutdown().unwrap();
    }
}

/// Three workers, which fail in these steps, and go on without each other in batches of constant
/// size.
fn of_constant_size(
    crew: Crew,
    faults: [Option<u64>; 3],
    change: impl FnOnce(CollectorBuilder) -> CollectorBuilder,
) -> Collector {
    let fault = |step| Fault::new(At::Step(step), How::Error, usize::MAX);
    let world = World::of(faults.map(|step| Makes {
        fault: step.map(fault),
        ..Makes::default()
    }));
    let builder = crew
        .builder_of(&world)
        .frames_per_batch(3 * STEPS * ENVS)
        .on_loss(OnLoss::Continue)
        .allow_partial_batch(false);
    change(builder).build().unwrap()
}

fn synchronous() -> impl Iterator<Item = Crew> {
    all().filter(|crew| crew.delivery == Delivery::Synchronous)
}

#[test]
fn the_others_fill_the_share_of_a_lost_worker_so_that_batches_keep_size_and_entries() {
    let shapes = [
        (CatResults::Flat, vec![3 * ENVS, STEPS]),
        (CatResults::Time, vec![ENVS, 3 * STEPS]),
        (CatResults::Stack, vec![3, ENVS, STEPS]),
    ];
    for (lost, (how, shape)) in (0..3).flat_map(|lost| shapes.clone().map(|shape| (lost, shape))) {
        let mut seen: Option<Vec<Frame>> = None;
        for crew in synchronous() {
            let mut faults = [None; 3];
            faults[lost] = Some(27);
            let total = 12 * 3 * STEPS * ENVS;
            let mut collector = of_constant_size(crew, faults, |builder| {
                builder.cat_results(how).total_frames(total as u64)
            });
            let batches: Vec<_> = collector.by_ref().map(Result::unwrap).collect();
            assert_eq!(batches.len(), 12, "{crew:?}");
            for batch in &batches {
                assert_eq!(batch.batch_size(), shape, "{crew:?}");
                assert!(!batch.contains_key(("collector", "mask")), "{crew:?}");
            }
            assert_eq!(collector.stats().workers_alive, 2);
            assert_eq!(collector.take_losses().len(), 1);
            assert_eq!(check_ledger(&batches), 3 * ENVS);
            // The substitutes are the same wherever workers run, whoever is faster.
            let frames: Vec<Frame> = batches.iter().flat_map(frames).collect();
            assert_eq!(
                seen.get_or_insert_with(|| frames.clone()),
                &frames,
                "{crew:?}"
            );
        }
    }
}

#[test]
fn one_worker_fills_all_shares_once_the_others_are_lost_and_its_loss_is_raised() {
    for crew in synchronous() {
        for order in [[27, 14, 400], [400, 27, 14], [14, 400, 14]] {
            let mut collector = of_constant_size(crew, order.map(Some), |builder| builder);
            let (batches, error) = until_error(&mut collector);
            assert_eq!(order[error.worker()], 400, "{crew:?}: {error}");
            assert!(batches.len() > 10, "{crew:?}");
            assert!(
                batches
                    .iter()
                    .all(|batch| batch.numel() == 3 * STEPS * ENVS)
            );
            check_ledger(&batches);
            collector.shutdown().unwrap();
        }
    }
}

#[test]
fn trajectories_in_the_shares_of_a_lost_worker_are_whole() {
    for crew in synchronous() {
        for lost in 0..3 {
            let mut faults = [None; 3];
            faults[lost] = Some(27);
            let mut collector = of_constant_size(crew, faults, |builder| {
                builder.trajs_per_batch(1).total_frames(1200)
            });
            let batches: Vec<_> = collector.by_ref().map(Result::unwrap).collect();
            for batch in &batches {
                let frames = frames(batch);
                check_pieces(&frames, MAX_LENGTH);
                let [env, episode, _] = frames[0].obs;
                let length = LedgerEnv::length(env, episode, MAX_LENGTH);
                assert_eq!(frames.len() as i64, length, "{crew:?}: {:?}", frames[0]);
            }
            check_ledger(&batches);
            let delivered: usize = batches.iter().map(|batch| frames(batch).len()).sum();
            let stats = collector.stats();
            assert_eq!(delivered as u64 + stats.dropped_frames, 1200);
            assert_eq!(stats.frames, 1200);
        }
    }
}

#[test]
fn a_short_last_batch_is_shared_among_all_parts_also_those_of_a_lost_worker() {
    for crew in synchronous() {
        // Trajectories are delivered, so that the rest need be no whole batch.
        let mut collector = of_constant_size(crew, [None, Some(27), None], |builder| {
            builder.trajs_per_batch(1).total_frames(10 * 60 + 22)
        });
        let batches: Vec<_> = collector.by_ref().map(Result::unwrap).collect();
        check_ledger(&batches);
        assert_eq!(collector.stats().frames, 622, "{crew:?}");
        let by_workers: u64 = collector
            .worker_stats()
            .iter()
            .map(|worker| worker.frames)
            .sum();
        assert_eq!(by_workers, 622, "{crew:?}");
    }
}

#[test]
fn a_policy_that_fails_is_a_loss_like_any_other() {
    for crew in apart() {
        for how in HOWS {
            let fault = Fault::new(At::Step(13), how(), usize::MAX);
            let mut world = crew.world([None, None], &[]);
            world.policy.fault = Some((FAULTY, fault));
            let mut collector = crew.builder_of(&world).build().unwrap();
            let (_, error) = until_error(&mut collector);
            assert_eq!((error.worker(), error.env()), (FAULTY, None));
            let text = error_chain(&error);
            assert!(text.ends_with("in Step(13)"), "{text}");
            let kind = match how() {
                How::Error => FaultKind::Policy,
                _ => FaultKind::Panic,
            };
            assert_eq!(error.fault().kind(), kind, "{text}");

            let fault = Fault::new(At::Step(13), how(), 1);
            let mut world = crew.world([None, None], std::slice::from_ref(&fault));
            world.policy.fault = Some((FAULTY, fault));
            let total = crew.batches(60) * crew.frames_per_batch();
            let mut collector = crew
                .builder_of(&world)
                .on_loss(OnLoss::Restart { budget: 1 })
                .total_frames(total as u64)
                .build()
                .unwrap();
            let batches: Vec<_> = collector
                .by_ref()
                .map(|batch| batch.unwrap().detach())
                .collect();
            assert_eq!(batches.iter().map(TensorDict::numel).sum::<usize>(), total);
            assert_eq!(collector.stats().restarts, 1);
            check_ledger(&batches);
        }
    }
}

#[test]
fn batches_that_are_held_outlive_an_error() {
    for crew in all() {
        let fault = Fault::new(At::Step(44), How::Panic, 1);
        let mut collector = crew.builder([None, Some(fault)]).build().unwrap();
        let mut held = Vec::new();
        let error = loop {
            match collector.next().unwrap() {
                Ok(batch) => held.push((batch.detach(), batch)),
                Err(error) => break error,
            }
            if held.len() > 8 {
                held.remove(0);
            }
        };
        worker_error(error);
        drop(collector);
        assert!(!held.is_empty());
        for (copy, batch) in &held {
            assert_eq!(copy, batch);
        }
    }
}

#[test]
fn trajectories_that_come_before_an_error_are_whole() {
    for (crew, step) in all().flat_map(|crew| (30..60).map(move |step| (crew, step))) {
        let fault = Fault::new(At::Step(step), How::Error, 1);
        let mut collector = crew
            .builder([None, Some(fault)])
            .trajs_per_batch(1)
            .build()
            .unwrap();
        let (batches, error) = until_error(&mut collector);
        assert_eq!(error.worker(), FAULTY);
        for batch in &batches {
            let frames = frames(batch);
            check_pieces(&frames, MAX_LENGTH);
            let [env, episode, _] = frames[0].obs;
            let length = LedgerEnv::length(env, episode, MAX_LENGTH);
            assert_eq!(frames.len() as i64, length, "{crew:?}: {:?}", frames[0]);
        }
    }
}

#[test]
fn each_of_several_errors_is_told_once() {
    for crew in all() {
        let faults = [0, 1].map(|_| Fault::new(At::Step(3), How::Error, 1));
        let mut collector = crew.builder(faults.clone().map(Some)).build().unwrap();
        let (_, error) = until_error(&mut collector);
        let mut told = vec![error.worker()];
        // All that is left at once.
        match collector.shutdown() {
            Ok(()) => {}
            Err(ControlError::SeveralWorkers(errors)) => {
                told.extend(errors.iter().map(WorkerError::worker));
            }
            Err(error) => told.push(worker_error(error).worker()),
        }
        collector.shutdown().unwrap();
        told.sort_unstable();
        let struck: Vec<usize> = (0..WORKERS)
            .filter(|worker| faults[*worker].left() == 0)
            .collect();
        assert_eq!(told, struck, "{crew:?}");
    }
}

#[test]
fn a_shutdown_tells_of_all_workers_that_failed_at_once() {
    for placement in elsewhere() {
        let came = Notes::default();
        let world = World::of((0..3).map(|_| Makes {
            fault: Some(Fault::new(At::Step(1), How::Together(came.clone(), 3), 1)),
            ..Makes::default()
        }));
        let builder = world.builder(placement).frames_per_batch(6);
        let mut collector = builder.seed(0).build().unwrap();
        let first = worker_error(collector.next().unwrap().unwrap_err());
        let rest = collector.shutdown().unwrap_err();
        let text = error_chain(&rest);
        assert!(text.starts_with("2 workers failed: worker "), "{text}");
        let ControlError::SeveralWorkers(rest) = rest else {
            panic!("{text}")
        };
        let mut told = vec![first.worker(), rest[0].worker(), rest[1].worker()];
        told.sort_unstable();
        assert_eq!(told, [0, 1, 2], "{placement:?}");
        collector.shutdown().unwrap();
    }
}

#[test]
fn an_error_that_nobody_asked_for_is_told_by_the_shutdown() {
    for crew in all().filter(|crew| crew.placement != Placement::Inline) {
        // In the part that follows the first batch: only those who run ahead get there unasked.
        let fault = Fault::new(At::Step(11), How::Error, 1);
        let mut collector = crew.builder([None, Some(fault.clone())]).build().unwrap();
        if !crew.runs_ahead() {
            continue;
        }
        while fault.left() > 0 {
            drop(collector.next().unwrap());
        }
        let told = collector.shutdown();
        let error = match told {
            Err(error) => worker_error(error),
            // It was the answer to the last `next`.
            Ok(()) => continue,
        };
        assert_eq!(error.worker(), FAULTY);
        collector.shutdown().unwrap();
    }
}

#[test]
fn an_environment_that_cannot_be_made_fails_the_build() {
    for (&placement, workers) in PLACEMENTS
        .iter()
        .flat_map(|placement| [1, 2, 3].map(|workers| (placement, workers)))
    {
        let made = Makes {
            fails: Some(How::Error),
            ..Makes::default()
        };
        let world = World::of(vec![made; workers]);
        let builder = world.builder(placement).frames_per_batch(6);
        let error = builder.build().unwrap_err();
        let text = error_chain(&error);
        if placement == Placement::Processes {
            assert!(matches!(error, BuildError::Remote { .. }), "{text}");
        } else {
            assert!(matches!(error, BuildError::Env { worker: 0, .. }), "{text}");
        }
        assert_eq!(error.kind(), windrow_collect::ErrorKind::Argument);
        assert!(text.contains("no such world"), "{text}");
    }
}

#[test]
fn a_factory_that_panics_fails_the_build_with_what_it_said() {
    for (&placement, workers) in PLACEMENTS
        .iter()
        .flat_map(|placement| [(placement, 1), (placement, 2)])
    {
        let made = Makes {
            fails: Some(How::Panic),
            ..Makes::default()
        };
        let world = World::of(vec![made; workers]);
        let error = world.builder(placement).frames_per_batch(6).build();
        let text = error_chain(&error.unwrap_err());
        assert!(
            text.contains("worker ") && text.contains("the world burst"),
            "{text}"
        );

        let mut world = World::of(vec![Makes::default(); workers]);
        world.policy.fails = true;
        let error = world.builder(placement).frames_per_batch(6).build();
        let text = error_chain(&error.unwrap_err());
        assert!(
            text.contains("worker ") && text.contains("the policy burst"),
            "{text}"
        );
    }
}
