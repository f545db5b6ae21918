//! Whole trajectories, where some that were begun never end.

use std::sync::Arc;

use tensordict::TensorDict;
use windrow_collect::{Collector, CollectorBuilder, Delivery, Handle, OnLoss, TrajFormat};
use windrow_env::testing::LedgerEnv;

use crate::crew::world::{PLACEMENTS, World};
use crate::crew::{Crew, ENVS, WORKERS, all};
use crate::faulty::{At, Fault, How, Makes};
use crate::frames::{MAX_LENGTH, check_ids, frames};
use crate::recorder::Recorder;

/// No two trajectories of one environment are under way at once, and a batch is looked at as soon
/// as it is there.
const HELD: u64 = (WORKERS * ENVS) as u64 * (MAX_LENGTH as u64 + 10);

fn healthy(crew: Crew) -> CollectorBuilder {
    crew.builder([None, None])
}

/// Episodes that are each as long as the ledger says, and began at their beginning; how many
/// frames.
fn check_whole(batch: &TensorDict) -> u64 {
    let all = frames(batch);
    check_ids(&all);
    for episode in all.chunk_by(|a, b| a.traj_id == b.traj_id) {
        let [env, number, t] = episode[0].obs;
        assert_eq!(t, 0, "the beginning is missing");
        let length = LedgerEnv::length(env, number, MAX_LENGTH);
        assert_eq!(episode.len() as i64, length, "the end is missing");
    }
    all.len() as u64
}

/// Collects until `most` frames were, doing `each` before every batch: all that was collected is
/// either delivered, counted as dropped, or of trajectories that may still end.
fn check_accounts(mut collector: Collector, most: u64, each: fn(&mut Collector, &Handle)) {
    let handle = collector.handle();
    let mut delivered = 0;
    while collector.stats().frames < most {
        each(&mut collector, &handle);
        delivered += check_whole(&collector.next().unwrap().unwrap());
        let stats = collector.stats();
        let held = stats.frames - delivered - stats.dropped_frames;
        assert!(held <= HELD, "{held} frames are kept of {}", stats.frames);
    }
    assert!(collector.stats().dropped_frames > 100);
}

#[test]
fn trajectories_that_a_control_call_has_left_are_dropped_at_once() {
    let calls: [fn(&mut Collector, &Handle); 5] = [
        |collector, _| collector.reset(),
        |_, handle| handle.reset(),
        |collector, _| {
            collector.set_seed(7, false);
        },
        |_, handle| {
            handle.set_seed(7, false);
        },
        |collector, _| {
            let state = collector.state_dict().unwrap();
            collector.load_state_dict(&state).unwrap();
        },
    ];
    for (crew, call) in all().flat_map(|crew| calls.map(|call| (crew, call))) {
        let builder = healthy(crew)
            .trajs_per_batch(1)
            .traj_format(TrajFormat::Cat);
        check_accounts(builder.build().unwrap(), 2000, call);
    }
}

#[test]
fn trajectories_that_a_rollout_has_taken_frames_of_are_dropped() {
    let crews = all().filter(|crew| crew.delivery == Delivery::Synchronous);
    for crew in crews {
        let builder = healthy(crew)
            .trajs_per_batch(1)
            .traj_format(TrajFormat::Cat);
        let rollout = |collector: &mut Collector, _: &Handle| drop(collector.rollout().unwrap());
        check_accounts(builder.build().unwrap(), 2000, rollout);
    }
}

#[test]
fn trajectories_of_workers_that_begin_anew_are_dropped_at_once() {
    for &placement in PLACEMENTS {
        let makes = Makes {
            fault: Some(Fault::new(At::Step(13), How::Error, usize::MAX)),
            ..Makes::default()
        };
        let collector = World::of(vec![makes; WORKERS])
            .builder(placement)
            .num_envs(ENVS)
            .frames_per_batch(2 * WORKERS * ENVS)
            .on_loss(OnLoss::Restart { budget: usize::MAX })
            .trajs_per_batch(1)
            .traj_format(TrajFormat::Cat)
            .build()
            .unwrap();
        let handle = collector.handle();
        // A ledger that is seeded anew begins with its first episode.
        check_accounts(collector, 3000, |_, _| {});
        assert!(handle.stats().restarts > 50);
    }
}

#[test]
fn a_reset_before_each_batch_ends_the_trajectories_that_it_cuts() {
    for crew in all() {
        let total = 20 * crew.frames_per_batch() as u64;
        let builder = || {
            healthy(crew)
                .reset_at_each_iter(true)
                .max_frames_per_traj(1000)
                .total_frames(total)
                .trajs_per_batch(1)
        };
        let sink = Recorder::new();
        let mut written = builder().replay_buffer(Arc::clone(&sink)).build().unwrap();
        assert!(written.by_ref().all(|batch| batch.is_ok()));
        let cat = builder().traj_format(TrajFormat::Cat).build().unwrap();
        let delivered: Vec<TensorDict> = cat.map(|batch| batch.unwrap()).collect();
        for batches in [delivered, sink.batches()] {
            let all: Vec<_> = batches.iter().flat_map(frames).collect();
            assert_eq!(all.len() as u64, total, "{crew:?}: no frame is left out");
            let mut cut = 0;
            for episode in all.chunk_by(|a, b| a.traj_id == b.traj_id) {
                let last = episode.last().unwrap();
                assert!(last.done && episode.iter().rev().skip(1).all(|frame| !frame.done));
                let [env, number, t] = last.obs;
                if t + 1 < LedgerEnv::length(env, number, MAX_LENGTH) {
                    assert_eq!((last.truncated, last.terminated), (true, false));
                    cut += 1;
                }
            }
            assert!(cut > 0, "{crew:?}");
        }
    }
}

#[test]
fn episodes_longer_than_a_batch_that_begins_with_a_reset_are_delivered() {
    let mut collector = Collector::builder("Pendulum-v1")
        .frames_per_batch(50)
        .trajs_per_batch(2)
        .reset_at_each_iter(true)
        .build()
        .unwrap();
    for _ in 0..3 {
        assert_eq!(collector.next().unwrap().unwrap().batch_size(), [2, 50]);
    }
    assert_eq!(collector.stats().frames, 300);
}

#[test]
fn frames_that_would_make_no_whole_step_are_not_collected() {
    for &placement in PLACEMENTS {
        let mut collector = World::of([Makes::default()])
            .builder(placement)
            .num_envs(4)
            .frames_per_batch(8)
            .total_frames(31)
            .trajs_per_batch(1)
            .build()
            .unwrap();
        assert!(collector.by_ref().all(|batch| batch.is_ok()));
        let stats = collector.stats();
        assert_eq!((stats.frames, stats.completed), (28, true));
    }
}
