//! Workers whose processes end: each is told once, with its place and its last words, and nothing
//! half done is ever seen.
#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "conformance/crew.rs"]
mod crew;
#[path = "conformance/faulty.rs"]
mod faulty;
#[path = "conformance/frames.rs"]
mod frames;
#[path = "conformance/stamp.rs"]
mod stamp;

use std::fs;
use std::thread;
use std::time::Duration;

use tensordict::TensorDict;
use windrow_collect::{
    Collector, ControlError, Delivery, FaultKind, Interrupt, NextError, OnLoss, Placement,
    WorkerError, WorkerFault,
};
use windrow_env::testing::LedgerEnv;
use windrow_sync::error_chain;

use crew::world::World;
use crew::{Crew, STEPS, WORKERS, all};
use faulty::{At, Fault, Gate, How, Makes, Notes, signal};
use frames::{Frame, MAX_LENGTH, by_env, check_contiguous, check_ids, frames};

/// As in the tests of faults: in the first part, in its midst, at its end and in the next one.
const PHASES: [At; 6] = [
    At::Reset(1),
    At::Reset(3),
    At::Step(1),
    At::Step(13),
    At::Step(20),
    At::Step(21),
];

/// Worker whose process ends.
const FAULTY: usize = 1;

/// How it ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Exit,
    Abort,
    Kill,
}

const ENDS: [End; 3] = [End::Exit, End::Abort, End::Kill];

impl End {
    /// The fault that ends the process so, at most `times` times; for a kill, with the gate before
    /// which it comes.
    fn fault(self, at: At, times: usize) -> (Fault, Option<Gate>) {
        let gate = Gate::default();
        let how = match self {
            Self::Exit => How::Exit(3),
            Self::Abort => How::Abort,
            Self::Kill => How::Wait(gate.clone()),
        };
        let kills = matches!(self, Self::Kill);
        (Fault::new(at, how, times), kills.then_some(gate))
    }

    fn check(self, error: &WorkerError, at: At) {
        let text = error_chain(&error);
        assert_eq!(error.worker(), FAULTY, "{text}");
        assert_eq!(error.fault().kind(), FaultKind::Died, "{text}");
        let WorkerFault::Died { status, stderr, .. } = error.fault() else {
            panic!("{text}")
        };
        let (expected, said) = match self {
            Self::Exit => ("ended with exit status 3", "made to exit"),
            Self::Abort => ("ended with signal 6 (SIGABRT)", "made to abort"),
            Self::Kill => ("ended with signal 9 (SIGKILL)", ""),
        };
        assert!(status.starts_with(expected), "{text}");
        if !said.is_empty() {
            assert!(stderr.contains(&format!("{said} in {at:?}")), "{text}");
        }
    }
}

/// Kills whoever comes to the gate.
fn kills(gate: Option<Gate>) -> Option<thread::JoinHandle<()>> {
    gate.map(|gate| thread::spawn(move || signal("KILL", gate.await_somebody())))
}

fn processes() -> impl Iterator<Item = Crew> {
    all().filter(|crew| crew.placement == Placement::Processes)
}

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

fn rest(collector: &mut Collector) -> Vec<TensorDict> {
    collector
        .by_ref()
        .map(|batch| batch.unwrap().detach())
        .collect()
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

fn numel(batches: &[TensorDict]) -> usize {
    batches.iter().map(TensorDict::numel).sum()
}

#[test]
fn a_process_that_ends_ends_the_collector_and_is_told_once() {
    for (crew, at) in processes().flat_map(|crew| PHASES.map(|at| (crew, at))) {
        for end in ENDS {
            let (fault, gate) = end.fault(at, usize::MAX);
            let mut collector = crew.builder([None, Some(fault)]).build().unwrap();
            let killer = kills(gate);
            let (batches, error) = until_error(&mut collector);
            end.check(&error, at);
            check_ledger(&batches);
            assert!(collector.next().is_none(), "{crew:?}");
            collector.shutdown().unwrap();
            collector.shutdown().unwrap();
            killer.map(thread::JoinHandle::join);
        }
    }
}

#[test]
fn the_place_of_a_single_environment_is_known_after_its_death() {
    for (end, step) in ENDS.iter().flat_map(|end| [1, 13].map(|step| (end, step))) {
        let at = At::Step(step);
        let (fault, gate) = end.fault(at, 1);
        let makes = [None, Some(fault)].map(|fault| Makes {
            fault,
            ..Makes::default()
        });
        let mut collector = World::of(makes)
            .builder(Placement::Processes)
            .frames_per_batch(2 * STEPS)
            .seed(0)
            .build()
            .unwrap();
        let killer = kills(gate);
        let (_, error) = until_error(&mut collector);
        end.check(&error, at);
        let (episode, t) = stand(1, step as i64 - 1);
        assert!(
            error_chain(&error).contains("; it was in `step`;"),
            "{error}"
        );
        assert_eq!(error.env(), Some(1), "{error}");
        let place = (error.episode(), error.step());
        assert_eq!(place, (Some(episode as u64), Some(t as u64)), "{error}");
        killer.map(thread::JoinHandle::join);
    }
}

/// Episode and step of environment `env` once it was stepped `steps` times.
fn stand(env: i64, steps: i64) -> (i64, i64) {
    let (mut episode, mut step) = (0, steps);
    while step >= LedgerEnv::length(env, episode, MAX_LENGTH) {
        step -= LedgerEnv::length(env, episode, MAX_LENGTH);
        episode += 1;
    }
    (episode, step)
}

#[test]
fn each_of_several_environments_is_told_after_a_death_and_none_is_blamed() {
    let crew = processes().next().unwrap();
    // Which steps were done when one of them was to begin its third episode.
    let twice = |env| LedgerEnv::length(env, 0, MAX_LENGTH) + LedgerEnv::length(env, 1, MAX_LENGTH);
    let third = |envs: i64| (envs..2 * envs).map(twice).min().unwrap() - 1;
    let ended = "in `reset`, after the end of an episode";
    for (end, envs) in ENDS.iter().flat_map(|how| [2, 10].map(|envs| (how, envs))) {
        for (at, steps, doing, acted) in [
            (At::Reset(1), 0, "in `reset`, at the start of a part", false),
            (At::Reset(3), third(envs), ended, true),
            (At::Step(1), 0, "in `step`", true),
            (At::Step(13), 12, "in `step`", true),
            (At::Step(21), 20, "in `step`", true),
        ] {
            let (fault, gate) = end.fault(at, 1);
            let mut collector = crew
                .builder([None, Some(fault)])
                .num_envs(envs as usize)
                .frames_per_batch(WORKERS * STEPS * envs as usize)
                .build()
                .unwrap();
            let killer = kills(gate);
            let (_, error) = until_error(&mut collector);
            end.check(&error, at);
            let text = error_chain(&error);
            let place = (error.env(), error.episode(), error.step());
            assert_eq!(place, (None, None, None), "{text}");
            let head = format!("; it was {doing}, {envs} environments that step together: ");
            assert!(text.contains(&head), "{text}");
            for env in envs..2 * envs {
                let (episode, step) = stand(env, steps);
                let mut line = format!("environment {env} in episode {episode}, step {step}");
                line += if acted { ", last action [" } else { ";" };
                let named = env - envs < 8;
                assert_eq!(text.contains(&line), named, "{at:?} {line}: {text}");
            }
            assert_eq!(text.contains("; and 2 more"), envs == 10, "{text}");
            killer.map(thread::JoinHandle::join);
        }
    }
}

#[test]
fn another_process_takes_the_place_and_nothing_is_lost_or_repeated() {
    for (crew, at) in processes().flat_map(|crew| PHASES.map(|at| (crew, at))) {
        for end in ENDS {
            let times = if matches!(end, End::Kill) { 1 } else { 2 };
            let (fault, gate) = end.fault(at, times);
            let total = crew.batches(60) * crew.frames_per_batch();
            let mut collector = crew
                .builder([None, Some(fault.clone())])
                .on_loss(OnLoss::Restart { budget: times })
                .total_frames(total as u64)
                .build()
                .unwrap();
            let killer = kills(gate);
            let batches = rest(&mut collector);
            assert_eq!(numel(&batches), total, "{crew:?}");
            assert_eq!(fault.left(), 0, "{crew:?}");
            let stats = collector.stats();
            assert_eq!(stats.frames, total as u64);
            assert_eq!(
                (stats.restarts, stats.workers_alive),
                (times as u64, WORKERS)
            );
            let losses = collector.take_losses();
            assert_eq!(losses.len(), times);
            losses.iter().for_each(|error| end.check(error, at));
            check_ledger(&batches);
            collector.shutdown().unwrap();
            killer.map(thread::JoinHandle::join);
        }
    }
}

#[test]
fn one_death_more_than_the_budget_is_raised() {
    for (crew, end) in processes().flat_map(|crew| [(crew, End::Exit), (crew, End::Abort)]) {
        let at = At::Step(7);
        let mut collector = crew
            .builder([None, Some(end.fault(at, usize::MAX).0)])
            .on_loss(OnLoss::Restart { budget: 2 })
            .build()
            .unwrap();
        let (batches, error) = until_error(&mut collector);
        end.check(&error, at);
        check_ledger(&batches);
        assert_eq!(collector.stats().restarts, 2);
        assert_eq!(collector.take_losses().len(), 2);
        assert!(collector.next().is_none());
        collector.shutdown().unwrap();
    }
}

#[test]
fn the_others_go_on_without_a_process_until_the_last_one_has_ended() {
    for (crew, at) in processes().flat_map(|crew| PHASES.map(|at| (crew, at))) {
        for end in ENDS {
            let (fault, gate) = end.fault(at, usize::MAX);
            let total = crew.batches(40) * crew.frames_per_batch();
            let mut collector = crew
                .builder([None, Some(fault)])
                .on_loss(OnLoss::Continue)
                .total_frames(total as u64)
                .build()
                .unwrap();
            let killer = kills(gate);
            let batches = rest(&mut collector);
            assert_eq!(numel(&batches), total, "{crew:?}");
            assert_eq!(collector.stats().workers_alive, WORKERS - 1, "{crew:?}");
            end.check(&collector.take_losses()[0], at);
            check_ledger(&batches);
            collector.shutdown().unwrap();
            killer.map(thread::JoinHandle::join);
        }
        let both = [At::Step(40), at].map(|at| Some(End::Exit.fault(at, usize::MAX).0));
        let mut collector = crew
            .builder(both)
            .on_loss(OnLoss::Continue)
            .build()
            .unwrap();
        let (batches, error) = until_error(&mut collector);
        let lost = collector.take_losses();
        assert_eq!(lost.len(), 1, "{crew:?}");
        assert_eq!(error.worker() + lost[0].worker(), 1, "{error}, {lost:?}");
        check_ledger(&batches);
        assert!(collector.next().is_none());
        collector.shutdown().unwrap();
    }
}

#[test]
fn the_others_fill_the_share_of_a_process_that_has_ended_so_that_batches_keep_their_size() {
    let mut synchronous = processes();
    let crew = synchronous.find(|crew| crew.delivery == Delivery::Synchronous);
    let crew = crew.unwrap();
    for (end, lost) in ENDS.iter().flat_map(|end| [0, 1].map(|lost| (end, lost))) {
        for at in [At::Reset(1), At::Step(20), At::Step(27)] {
            let (fault, gate) = end.fault(at, usize::MAX);
            let mut faults = [None, None];
            faults[lost] = Some(fault);
            let mut collector = crew
                .builder(faults)
                .on_loss(OnLoss::Continue)
                .allow_partial_batch(false)
                .total_frames(20 * crew.frames_per_batch() as u64)
                .build()
                .unwrap();
            let killer = kills(gate);
            let batches = rest(&mut collector);
            assert_eq!(batches.len(), 20, "{end:?} {at:?}");
            let size = crew.frames_per_batch();
            assert!(batches.iter().all(|batch| batch.numel() == size));
            let losses = collector.take_losses();
            assert_eq!((losses.len(), losses[0].worker()), (1, lost));
            check_ledger(&batches);
            collector.shutdown().unwrap();
            killer.map(thread::JoinHandle::join);
        }
    }
}

#[test]
fn a_process_that_is_killed_between_two_batches_is_replaced() {
    for crew in processes() {
        let made = Notes::default();
        let mut world = crew.world([None, None], &[]);
        world.envs[FAULTY].made = Some(made.clone());
        let mut collector = crew
            .builder_of(&world)
            .on_loss(OnLoss::Restart { budget: 1 })
            .build()
            .unwrap();
        let next = |collector: &mut Collector| collector.next().unwrap().unwrap().detach();
        let mut batches: Vec<_> = (0..3).map(|_| next(&mut collector)).collect();
        signal("KILL", made.lines()[0].parse().unwrap());
        while collector.stats().restarts == 0 {
            batches.push(next(&mut collector));
        }
        // Of another index, that of a resumed seed.
        let new = |frame: &Frame| !(0..4).contains(&frame.env());
        while !batches
            .last()
            .is_some_and(|batch| frames(batch).iter().any(new))
        {
            batches.push(next(&mut collector));
        }
        End::Kill.check(&collector.take_losses()[0], At::Reset(1));
        check_ledger(&batches);
        collector.shutdown().unwrap();
    }
}

#[test]
fn a_process_that_takes_a_place_and_ends_at_once_counts_as_one_more() {
    for (how, kind) in [
        (How::Exit(4), FaultKind::Died),
        (How::Error, FaultKind::Remake),
    ] {
        let makes = Makes {
            fault: Some(Fault::new(At::Step(7), How::Abort, 1)),
            fails: Some(how),
            made: Some(Notes::default()),
            spared: 1,
            ..Makes::default()
        };
        let mut collector = World::of([Makes::default(), makes])
            .builder(Placement::Processes)
            .frames_per_batch(2 * STEPS)
            .on_loss(OnLoss::Restart { budget: 3 })
            .seed(0)
            .build()
            .unwrap();
        let (_, error) = until_error(&mut collector);
        assert_eq!(
            (error.worker(), error.fault().kind()),
            (FAULTY, kind),
            "{error}"
        );
        let text = error_chain(&error);
        match kind {
            FaultKind::Died => {
                assert!(text.contains("exit status 4"), "{text}");
                assert!(text.contains("the world ended"), "{text}");
            }
            _ => assert!(text.contains("no such world"), "{text}"),
        }
        collector.shutdown().unwrap();
    }
}

#[test]
fn a_process_that_ends_before_it_has_made_its_environment_fails_the_build() {
    for workers in [1, 2] {
        let makes = Makes {
            fails: Some(How::Exit(5)),
            ..Makes::default()
        };
        let world = World::of(vec![makes; workers]);
        let error = world
            .builder(Placement::Processes)
            .frames_per_batch(6)
            .build();
        let text = error_chain(&error.unwrap_err());
        assert!(
            text.contains("exit status 5") && text.contains("the world ended"),
            "{text}"
        );
    }
}

/// A collector whose second worker ends so, as it drops its environment.
fn ends_in_drop(how: How, on_loss: OnLoss) -> Collector {
    ends_in_drop_or(how, on_loss, Interrupt::never())
}

/// As [`ends_in_drop`], with an interrupt.
fn ends_in_drop_or(how: How, on_loss: OnLoss, interrupt: Interrupt) -> Collector {
    let ends = [None, Some(how)].map(|ends| Makes {
        ends,
        ..Makes::default()
    });
    let builder = World::of(ends).builder(Placement::Processes);
    let builder = builder.frames_per_batch(2 * STEPS).on_loss(on_loss);
    let mut collector = builder.interrupt(interrupt).build().unwrap();
    collector.next().unwrap().unwrap();
    collector
}

#[test]
fn a_death_in_a_shutdown_is_told_once() {
    for (end, how) in [(End::Exit, How::Exit(3)), (End::Abort, How::Abort)] {
        let mut collector = ends_in_drop(how.clone(), OnLoss::Raise);
        let error = worker_error(collector.shutdown().unwrap_err());
        end.check(&error, At::Reset(0));
        collector.shutdown().unwrap();
        assert!(collector.take_losses().is_empty());
        for on_loss in [OnLoss::Restart { budget: 1 }, OnLoss::Continue] {
            let mut collector = ends_in_drop(how.clone(), on_loss);
            collector.shutdown().unwrap();
            end.check(&collector.take_losses()[0], At::Reset(0));
        }
    }
    // One that takes its time, and is killed meanwhile by somebody else.
    let gate = Gate::default();
    let mut collector = ends_in_drop(How::Wait(gate.clone()), OnLoss::Raise);
    let killer = kills(Some(gate));
    let error = worker_error(collector.shutdown().unwrap_err());
    End::Kill.check(&error, At::Reset(0));
    killer.map(thread::JoinHandle::join);
}

#[test]
fn what_a_shutdown_kills_since_it_does_not_end_is_no_loss() {
    let gate = Gate::default();
    let how = How::Wait(gate.clone());
    let mut collector = ends_in_drop_or(how, OnLoss::Raise, gate.interrupt());
    let interrupted = collector.shutdown_within(Duration::MAX).unwrap_err();
    assert!(matches!(interrupted, ControlError::WaitInterrupted(_)));
    collector.shutdown().unwrap();
    assert!(collector.take_losses().is_empty());
}

#[test]
fn a_build_that_fails_leaves_no_process() {
    for _ in 0..20 {
        let made = Notes::default();
        let makes = Makes {
            made: Some(made.clone()),
            ..Makes::default()
        };
        let fails = Makes {
            fails: Some(How::Exit(5)),
            ..Makes::default()
        };
        let world = World::of([makes, fails]);
        let built = world.builder(Placement::Processes).frames_per_batch(6);
        assert!(built.build().is_err());
        // That of the worker that made its environment, if it came so far.
        for pid in made.lines() {
            assert!(!fs::exists(format!("/proc/{pid}")).unwrap(), "{pid}");
        }
    }
}

#[test]
fn a_state_is_not_lost_with_the_process_that_was_to_take_it_up() {
    for (crew, at) in processes().flat_map(|crew| [At::Reset(1), At::Step(4)].map(|at| (crew, at)))
    {
        let mut saving = crew.builder([None, None]).build().unwrap();
        let before: Vec<_> = saving.by_ref().take(20).map(Result::unwrap).collect();
        let state = saving.state_dict().unwrap();
        let (fault, _) = End::Exit.fault(at, 1);
        let mut collector = crew
            .builder([None, Some(fault)])
            .on_loss(OnLoss::Restart { budget: 1 })
            .build()
            .unwrap();
        collector.load_state_dict(&state).unwrap();
        let mut after = Vec::new();
        while collector.stats().restarts == 0 || after.len() < 40 {
            after.push(collector.next().unwrap().unwrap().detach());
        }
        let ids = |batches: &[TensorDict]| -> Vec<i64> {
            let all = batches.iter().flat_map(frames);
            all.map(|frame| frame.traj_id).collect()
        };
        let newest = ids(&before).into_iter().max();
        assert!(ids(&after).into_iter().min() > newest, "{crew:?}, {at:?}");
        check_ledger(&after);
    }
}
