//! Workers that record in processes of their own.

use std::time::Instant;

use tempfile::TempDir;
use windrow_collect::{Delivery, OnLoss, Placement};
use windrow_env::testing::LedgerEnv;

use super::faulty::{At, Fault, Gate, How, Makes, Notes, signal};
use super::frames::MAX_LENGTH;
use super::trace::{Span, Trace, by_rollout, check_phases};
use super::world::World;
use super::{config, files, multi_sync, take};

/// A world of workers with these faults.
fn world<const N: usize>(faults: [Option<Fault>; N]) -> World {
    World::of(faults.map(|fault| Makes {
        fault,
        ..Makes::default()
    }))
}

#[test]
fn all_traces_have_one_time_axis() {
    let folder = TempDir::new().unwrap();
    let config = config(&folder).workers([0, 1]).warmup_rollouts(0);
    let mut collector = multi_sync(Placement::Processes, 2).build().unwrap();
    collector.enable_profile(&config).unwrap();
    let enabled = Instant::now();
    // Takes far longer than a rollout.
    drop(multi_sync(Placement::Processes, 1).build().unwrap());
    let least = enabled.elapsed().as_nanos() as u64;
    take(&mut collector, 3);
    collector.shutdown().unwrap();
    let whole = enabled.elapsed().as_nanos() as u64;
    let traces = [0, 1].map(|worker| Trace::read(&config.path_of(worker)));
    // When each worker had its first step behind it, and its last.
    let times = traces.each_ref().map(|trace| {
        let rollouts = by_rollout(trace.only());
        let close = |span: &&Span| span.name == "Close";
        rollouts
            .iter()
            .map(|(_, phases)| {
                let mut steps = phases.iter().filter(close);
                let first = steps.next().unwrap().end;
                (first, steps.next_back().unwrap().end)
            })
            .collect::<Vec<_>>()
    });
    for (one, other) in times[0].iter().skip(1).zip(&times[1]) {
        assert!(one.0 > other.1, "{times:?}");
    }
    for (one, other) in times[1].iter().skip(1).zip(&times[0]) {
        assert!(one.0 > other.1, "{times:?}");
    }
    // The timeline began a moment before the profile was enabled.
    assert!(times.iter().all(|times| times[0].0 >= least), "{times:?}");
    let spent: Vec<_> = times.iter().map(|times| times[2].1 - times[0].0).collect();
    assert!(
        spent.iter().all(|&spent| spent <= whole - least),
        "{spent:?}"
    );
}

#[test]
fn disabling_does_not_wait_for_a_process_in_the_middle_of_a_part() {
    let folder = TempDir::new().unwrap();
    let config = config(&folder).num_rollouts(100).warmup_rollouts(0);
    let gate = Gate::default();
    let fault = Fault::new(At::Step(4), How::Wait(gate.clone()), 1);
    let mut collector = world([Some(fault)])
        .builder(Placement::Processes)
        .delivery(Delivery::FirstCome {
            workers_per_batch: 1,
        })
        .frames_per_batch(2)
        .build()
        .unwrap();
    collector.enable_profile(&config).unwrap();
    take(&mut collector, 1);
    gate.await_somebody();
    collector.disable_profile().unwrap();
    assert!(files(&folder).is_empty());
    gate.open();
    collector.shutdown().unwrap();
    assert_eq!(Trace::read(&config.path_of(0)).rollouts(), [0, 1]);
}

#[test]
fn a_lost_part_is_not_recorded() {
    let folder = TempDir::new().unwrap();
    let config = config(&folder).warmup_rollouts(0);
    let fault = Fault::new(At::Step(8), How::Error, 1);
    let mut collector = world([Some(fault), None])
        .builder(Placement::Processes)
        .on_loss(OnLoss::Restart { budget: 1 })
        .frames_per_batch(10)
        .build()
        .unwrap();
    collector.enable_profile(&config).unwrap();
    take(&mut collector, 3);
    collector.shutdown().unwrap();
    let trace = Trace::read(&config.path_of(0));
    assert_eq!(trace.rollouts(), [0, 1, 2]);
    for (rollout, phases) in by_rollout(trace.only()) {
        check_phases(rollout, phases, 5);
    }
    assert_eq!(collector.profile_summary().workers[0].phases()[0].count, 3);
}

#[test]
fn a_process_that_ends_leaves_the_others_their_profile_and_its_successor_begins_anew() {
    for how in [How::Exit(3), How::Abort] {
        let folder = TempDir::new().unwrap();
        let config = config(&folder).num_rollouts(5).workers([0, 1]);
        // In the third part, when one was recorded.
        let fault = Fault::new(At::Step(13), how, 1);
        let mut collector = world([None, Some(fault)])
            .builder(Placement::Processes)
            .on_loss(OnLoss::Restart { budget: 1 })
            .frames_per_batch(10)
            .seed(0)
            .build()
            .unwrap();
        collector.enable_profile(&config).unwrap();
        take(&mut collector, 2);
        // The other worker is not through yet.
        assert!(files(&folder).is_empty());
        take(&mut collector, 8);
        collector.shutdown().unwrap();
        assert_eq!(files(&folder), ["trace_0.json", "trace_1.json"]);
        let loss = &collector.take_losses()[0];
        let (mut episode, mut step) = (0, 12);
        while step >= LedgerEnv::length(1, episode, MAX_LENGTH) {
            step -= LedgerEnv::length(1, episode, MAX_LENGTH);
            episode += 1;
        }
        let place = (loss.episode(), loss.step());
        let expected = (Some(episode as u64), Some(step as u64));
        assert_eq!(place, expected, "also noted while it records: {loss}");
        for worker in collector.profile_summary().workers {
            let trace = Trace::read(&config.path_of(worker.worker));
            assert_eq!(trace.rollouts(), [1, 2, 3, 4]);
            for (rollout, phases) in by_rollout(trace.only()) {
                check_phases(rollout, phases, 5);
            }
            assert_eq!(worker.phases()[0].count, 4, "those of its own trace");
        }
    }
}

#[test]
fn a_process_that_ends_for_good_is_not_waited_for() {
    let folder = TempDir::new().unwrap();
    let config = config(&folder).num_rollouts(100).workers([0, 1]);
    let fault = Fault::new(At::Step(13), How::Exit(3), 1);
    let mut collector = world([None, Some(fault)])
        .builder(Placement::Processes)
        .on_loss(OnLoss::Continue)
        .frames_per_batch(10)
        .build()
        .unwrap();
    collector.enable_profile(&config).unwrap();
    take(&mut collector, 6);
    collector.disable_profile().unwrap();
    assert_eq!(files(&folder), ["trace_0.json"]);
    collector.shutdown().unwrap();
    assert_eq!(files(&folder), ["trace_0.json"]);
    let summary = collector.profile_summary();
    assert_eq!(summary.workers[1].phases()[0].count, 1, "what it had told");
}

#[test]
fn what_a_process_has_half_written_is_removed_after_its_death() {
    let folder = TempDir::new().unwrap();
    let config = config(&folder).num_rollouts(1).warmup_rollouts(0);
    let made = Notes::default();
    let mut world = world([None, None]);
    world.envs[0].made = Some(made.clone());
    let mut collector = world
        .builder(Placement::Processes)
        .on_loss(OnLoss::Continue)
        .frames_per_batch(2 * 50_000)
        .build()
        .unwrap();
    collector.enable_profile(&config).unwrap();
    take(&mut collector, 1);
    // It writes for a while.
    while files(&folder).is_empty() {}
    signal("KILL", made.lines()[0].parse().unwrap());
    while collector.stats().workers_alive == 2 {
        take(&mut collector, 1);
    }
    let left = files(&folder);
    assert!(left.iter().all(|name| name == "trace_0.json"), "{left:?}");
    collector.disable_profile().unwrap();
    collector.shutdown().unwrap();
}
