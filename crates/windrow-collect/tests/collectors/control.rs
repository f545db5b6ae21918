//! What can be asked of a collector while it runs: nothing that was collected is lost by it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tensordict::TensorDict;
use windrow_collect::{CatResults, Collector, Delivery, Inference, NextError, OnLoss, Placement};
use windrow_slab::SlabError;
use windrow_sync::error_chain;

use crate::crew::world::{PLACEMENTS, World};
use crate::crew::{Crew, ENVS, STEPS, WORKERS, all, apart};
use crate::faulty::{At, Fault, How, Makes, Notes};
use crate::frames::{
    Frame, MAX_LENGTH, by_env, check_contiguous, check_ids, check_pieces, frames, mask,
    with_old_ids,
};
use crate::stamp::weights;

fn healthy(crew: Crew) -> windrow_collect::CollectorBuilder {
    crew.builder([None, None])
}

fn synchronous() -> impl Iterator<Item = Crew> {
    all().filter(|crew| crew.delivery == Delivery::Synchronous)
}

fn take(collector: &mut Collector, batches: usize) -> Vec<TensorDict> {
    let batches = collector.by_ref().take(batches);
    batches.map(|batch| batch.unwrap().detach()).collect()
}

fn rest(collector: &mut Collector) -> Vec<TensorDict> {
    take(collector, usize::MAX)
}

fn envs_of(batches: &[TensorDict]) -> Vec<Vec<Frame>> {
    let all: Vec<Frame> = batches.iter().flat_map(frames).collect();
    check_ids(&all);
    by_env(all).into_values().collect()
}

fn check_all(crew: Crew, batches: &[TensorDict], total: usize) {
    let envs = envs_of(batches);
    assert_eq!(envs.iter().map(Vec::len).sum::<usize>(), total, "{crew:?}");
    for frames in envs {
        check_contiguous(&frames, MAX_LENGTH);
    }
}

fn versions(batch: &TensorDict) -> Vec<i64> {
    let mut versions: Vec<i64> = frames(batch)
        .iter()
        .map(|frame| {
            assert_eq!(frame.weight, frame.version as f32);
            frame.version
        })
        .collect();
    versions.dedup();
    versions
}

#[test]
fn nothing_steps_while_a_pause_is_held_and_nothing_is_lost_by_it() {
    for crew in all() {
        let steps = Notes::default();
        let total = 30 * crew.frames_per_batch();
        let mut world = crew.world([None, None], &[]);
        world.policy.steps = Some(steps.clone());
        let mut collector = crew
            .builder_of(&world)
            .total_frames(total as u64)
            .build()
            .unwrap();
        let mut batches = take(&mut collector, 5);
        for _ in 0..3 {
            let paused = collector.pause().unwrap();
            let before = steps.count();
            thread::sleep(Duration::from_millis(10));
            assert_eq!(steps.count(), before, "{crew:?}");
            let rows = match crew.inference {
                Inference::Served => WORKERS * ENVS,
                _ => ENVS,
            };
            assert!(paused.collector().stats().frames <= (before * rows) as u64);
            drop(paused);
            batches.extend(take(&mut collector, 3));
        }
        batches.extend(rest(&mut collector));
        check_all(crew, &batches, total);
    }
}

#[test]
fn a_reset_begins_new_episodes_and_loses_no_frame() {
    for crew in all() {
        let total = 40 * crew.frames_per_batch();
        let mut collector = healthy(crew).total_frames(total as u64).build().unwrap();
        let mut batches = take(&mut collector, 5);
        for _ in 0..4 {
            collector.reset();
            let next = take(&mut collector, 4);
            if crew.delivery == Delivery::Synchronous {
                for frames in by_env(frames(&next[0])).values() {
                    assert_eq!(frames[0].obs[2], 0);
                }
            }
            batches.extend(next);
        }
        batches.extend(rest(&mut collector));
        let envs = envs_of(&batches);
        assert_eq!(envs.iter().map(Vec::len).sum::<usize>(), total);
        let cuts: usize = envs
            .iter()
            .map(|frames| check_pieces(frames, MAX_LENGTH))
            .sum();
        assert!(cuts > 0, "{crew:?}");
    }
}

#[test]
fn a_new_seed_begins_the_ledgers_that_belong_to_it() {
    for crew in all() {
        let total = crew.batches(40) * crew.frames_per_batch();
        let mut collector = healthy(crew).total_frames(total as u64).build().unwrap();
        let mut batches = take(&mut collector, 5);
        // Those who run ahead come in no certain order.
        while envs_of(&batches).len() < WORKERS * ENVS {
            batches.extend(take(&mut collector, 1));
        }
        assert_eq!(collector.set_seed(100, false), 103);
        batches.extend(rest(&mut collector));
        assert_eq!(collector.stats().seed, 100);
        let envs = envs_of(&batches);
        let ids: Vec<i64> = envs.iter().map(|frames| frames[0].env()).collect();
        assert_eq!(ids, [0, 1, 2, 3, 100, 101, 102, 103], "{crew:?}");
        assert_eq!(envs.iter().map(Vec::len).sum::<usize>(), total);
        envs.iter()
            .for_each(|frames| check_contiguous(frames, MAX_LENGTH));
    }
}

#[test]
fn shares_are_cut_once_enough_workers_are_ready_and_the_total_stays_exact() {
    for (crew, threshold) in synchronous().flat_map(|crew| [0.0, 0.5, 1.0].map(|t| (crew, t))) {
        let slow = Duration::from_millis(1);
        let times = [Duration::ZERO, slow];
        let world = World::of(times.map(|step_time| Makes {
            step_time,
            ..Makes::default()
        }));
        let total = 301;
        let mut collector = world
            .builder(crew.placement)
            .inference(crew.inference)
            .delivery(crew.delivery)
            .cat_results(CatResults::Stack)
            .preemptive_threshold(threshold)
            .frames_per_batch(60)
            .total_frames(total)
            .allow_partial_batch(true)
            .seed(0)
            .build()
            .unwrap();
        let batches = rest(&mut collector);
        let mut left = total;
        for batch in &batches {
            let [workers, time] = batch.batch_size()[..] else {
                panic!("{:?}", batch.batch_size())
            };
            assert_eq!(workers, WORKERS);
            assert!(batch.contains_key(("collector", "mask")));
            let mask = mask(batch);
            let steps: Vec<usize> = mask
                .chunks(time)
                .map(|row| {
                    assert!(row.is_sorted_by(|before, after| before >= after));
                    row.iter().filter(|there| **there).count()
                })
                .collect();
            // The last batches are shorter, so that the total is met.
            if left >= 60 {
                assert!(steps.iter().all(|steps| (1..=30).contains(steps)));
                match threshold {
                    0.0 => assert_eq!(steps, [1, 1]),
                    1.0 => assert_eq!(steps, [30, 30]),
                    _ if crew.placement == Placement::Inline => assert_eq!(steps, [30, 1]),
                    _ => assert!(steps[0] == 30 || steps[1] == 30, "{steps:?}"),
                }
            }
            left -= steps.iter().sum::<usize>() as u64;
        }
        let stats = collector.stats();
        assert_eq!((stats.frames, stats.completed), (total, true));
        check_all(crew, &batches, total as usize);
        assert!(collector.next().is_none());
    }
}

#[test]
fn batches_come_early_while_collection_is_stopped_and_the_total_stays_exact() {
    for crew in all() {
        let total = 10 * crew.frames_per_batch();
        let mut collector = healthy(crew).total_frames(total as u64).build().unwrap();
        let handle = collector.handle();
        handle.stop_collection();
        let mut batches = Vec::new();
        for _ in 0..3 {
            let batch = collector.next().unwrap();
            batches.push(
                batch
                    .unwrap_or_else(|error| panic!("{crew:?}: {error}"))
                    .detach(),
            );
        }
        for batch in &batches {
            let frames = mask(batch).iter().filter(|there| **there).count();
            assert_eq!(frames, crew.parts() * ENVS, "{crew:?}");
        }
        handle.start_collection();
        for batch in collector.by_ref() {
            batches.push(
                batch
                    .unwrap_or_else(|error| panic!("{crew:?}: {error}"))
                    .detach(),
            );
        }
        check_all(crew, &batches, total);
        let stats = collector.stats();
        assert_eq!((stats.frames, stats.completed), (total as u64, true));
    }
}

#[test]
fn hooks_stand_before_and_behind_every_batch() {
    for crew in all() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let (before, behind) = (Arc::clone(&log), Arc::clone(&log));
        let mut collector = healthy(crew)
            .pre_collect_hook(move || before.lock().unwrap().push(0))
            .post_collect_hook(move |batch| behind.lock().unwrap().push(batch.numel()))
            .build()
            .unwrap();
        let sizes: Vec<usize> = take(&mut collector, 3)
            .iter()
            .map(TensorDict::numel)
            .collect();
        let expected: Vec<usize> = sizes.iter().flat_map(|size| [0, *size]).collect();
        assert_eq!(*log.lock().unwrap(), expected);
    }
}

#[test]
fn weights_come_from_the_source_before_each_batch_or_when_asked_for() {
    for crew in all() {
        let mut published = 0.0;
        let source = move || {
            published += 1.0;
            weights(published)
        };
        let mut collector = healthy(crew)
            .weight_source(source)
            .update_at_each_batch(true)
            .build()
            .unwrap();
        let mut last = 0;
        for n in 1..=12 {
            let batch = collector.next().unwrap().unwrap();
            assert_eq!(collector.stats().policy_version, n);
            let newest = versions(&batch).into_iter().max().unwrap();
            assert!(newest <= n);
            if !crew.runs_ahead() {
                assert_eq!(versions(&batch), [n], "{crew:?}");
            }
            last = last.max(newest);
        }
        assert!(last > 6, "{crew:?}: {last}");
        assert_eq!(collector.update_policy_weights_from_source().unwrap(), 13);
    }
    let mut without = healthy(all().next().unwrap()).build().unwrap();
    let error = without.update_policy_weights_from_source().unwrap_err();
    assert!(error_chain(&error).contains("weight_source"), "{error}");
    let without = healthy(all().next().unwrap()).update_at_each_batch(true);
    let error = without.build().unwrap_err().to_string();
    assert_eq!(error, "update_at_each_batch needs a weight_source");
}

#[test]
fn a_worker_can_have_weights_of_its_own() {
    for crew in apart().filter(|crew| crew.delivery == Delivery::Synchronous) {
        let mut collector = healthy(crew)
            .cat_results(CatResults::Stack)
            .build()
            .unwrap();
        let stamps = |collector: &mut Collector| {
            let batch = collector.next().unwrap().unwrap();
            let weight = |worker| batch.index(worker).unwrap();
            [0, 1].map(|worker| {
                let stamps: Vec<f32> = weight(worker).get("weight").unwrap().to_vec().unwrap();
                assert!(stamps.iter().all(|stamp| *stamp == stamps[0]));
                stamps[0]
            })
        };
        assert_eq!(stamps(&mut collector), [0.0, 0.0]);
        assert_eq!(
            collector.update_worker_weights(0, &weights(10.0)).unwrap(),
            1
        );
        assert_eq!(stamps(&mut collector), [10.0, 0.0]);
        collector.update_worker_weights(0, &weights(100.0)).unwrap();
        collector.update_worker_weights(1, &weights(200.0)).unwrap();
        assert_eq!(stamps(&mut collector), [100.0, 200.0]);
        collector.update_policy_weights(&weights(5.0)).unwrap();
        assert_eq!(stamps(&mut collector), [5.0, 5.0]);
        let error = collector
            .update_worker_weights(2, &weights(1.0))
            .unwrap_err();
        assert!(error_chain(&error).contains("no worker 2"), "{error}");
    }
}

#[test]
fn statistics_tell_how_stale_and_how_idle_workers_are() {
    for crew in all() {
        let mut collector = healthy(crew).build().unwrap();
        for n in 1..=20 {
            collector.update_policy_weights(&weights(n as f32)).unwrap();
            collector.next().unwrap().unwrap();
            thread::sleep(Duration::from_micros(300));
        }
        let stats = collector.stats();
        let lag = stats.policy_lag;
        assert!(lag.min >= 0 && lag.min as f64 <= lag.mean && lag.mean <= lag.max as f64);
        // How far behind a worker falls that runs ahead is the scheduler's affair.
        assert!(crew.runs_ahead() || lag.max == 0, "{crew:?}: {lag:?}");
        let idle = stats.workers_waited;
        assert_eq!(idle > Duration::ZERO, crew.placement != Placement::Inline);
        assert_eq!((stats.workers, stats.num_envs), (WORKERS, WORKERS * ENVS));
        assert_eq!(stats.frames as usize, 20 * crew.frames_per_batch());
        assert!(stats.slab_bytes > 0);
    }
}

#[test]
fn too_many_batches_kept_are_an_error_that_can_be_mended() {
    // Batches of the first two of three are put together from slabs that lie apart: copies, which
    // keep no slab.
    let views = |crew: &Crew| {
        crew.delivery == Delivery::Synchronous
            || crew.delivery
                == Delivery::FirstCome {
                    workers_per_batch: 1,
                }
    };
    for crew in all().filter(views) {
        let total = 30 * crew.frames_per_batch();
        let mut collector = healthy(crew)
            .max_slabs(5)
            .cat_results(CatResults::Stack)
            .total_frames(total as u64)
            .build()
            .unwrap();
        // Where the first come make a batch, it is a copy of them.
        if crew.delivery != Delivery::Synchronous && crew.parts() > 1 {
            continue;
        }
        let mut kept = Vec::new();
        let mut batches = Vec::new();
        let mut refused = 0;
        for batch in &mut collector {
            match batch {
                Ok(batch) => {
                    batches.push(batch.detach());
                    kept.push(batch);
                }
                Err(NextError::Slab(SlabError::Exhausted { slabs: 5, .. })) => {
                    assert_eq!(kept.len(), 5);
                    refused += 1;
                    kept.truncate(3);
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(refused > 5, "{crew:?}");
        check_all(crew, &batches, total);
    }
}

#[test]
fn a_collector_that_has_ended_can_be_asked_for_more() {
    for crew in synchronous() {
        let total = 4 * crew.frames_per_batch();
        let mut collector = healthy(crew).total_frames(total as u64).build().unwrap();
        let mut batches = vec![collector.rollout().unwrap().detach()];
        let state = collector.state_dict().unwrap();
        batches.extend(rest(&mut collector));
        batches.push(collector.rollout().unwrap().detach());
        let all = with_old_ids(&batches, &[0, batches.len() - 1]);
        assert_eq!(all.len(), total + 2 * crew.frames_per_batch(), "{crew:?}");
        for frames in by_env(all).values() {
            check_contiguous(frames, MAX_LENGTH);
        }
        assert!(collector.next().is_none());
        collector.load_state_dict(&state).unwrap();
        assert_eq!(rest(&mut collector).len(), 4);
    }
}

#[test]
fn a_saved_state_goes_on_where_workers_are_ahead() {
    for crew in all() {
        let total = 20 * crew.frames_per_batch();
        let build = || healthy(crew).total_frames(total as u64).build().unwrap();
        let mut collector = build();
        collector.update_policy_weights(&weights(1.0)).unwrap();
        let before = take(&mut collector, 7);
        let state = collector.state_dict().unwrap();
        let ids = |batches: &[TensorDict]| -> Vec<i64> {
            let all = batches.iter().flat_map(frames);
            all.map(|frame| frame.traj_id).collect()
        };
        for mut other in [build(), collector] {
            drop(take(&mut other, 2));
            other.load_state_dict(&state).unwrap();
            let after = rest(&mut other);
            assert_eq!(after.len(), 13, "{crew:?}");
            assert_eq!(other.stats().frames, total as u64);
            assert!(after.iter().all(|batch| versions(batch) == [1]), "{crew:?}");
            let newest = ids(&before).into_iter().max();
            assert!(ids(&after).into_iter().min() > newest, "{crew:?}");
        }
    }
}

#[test]
fn a_state_can_be_loaded_although_the_first_worker_is_gone() {
    for crew in synchronous() {
        let fault = Fault::new(At::Step(3), How::Error, 1);
        let total = 4 * crew.frames_per_batch();
        let mut collector = crew
            .builder([Some(fault), None])
            .on_loss(OnLoss::Continue)
            .total_frames(total as u64)
            .build()
            .unwrap();
        let state = collector.state_dict().unwrap();
        drop(rest(&mut collector));
        drop(collector.rollout().unwrap());
        collector.load_state_dict(&state).unwrap();
        let after = rest(&mut collector);
        let frames: usize = after.iter().map(TensorDict::numel).sum();
        assert_eq!(frames, total, "{crew:?}");
    }
}

#[test]
fn workers_may_differ_in_policy_and_share() {
    for &placement in PLACEMENTS {
        let mut world = World::of(vec![Makes::default(); 3]);
        world.policy.own_weights = true;
        let mut collector = world
            .builder(placement)
            .frames_per_batch([3, 1, 5])
            .seed(0)
            .build()
            .unwrap();
        let batch = collector.next().unwrap().unwrap();
        let stamps: Vec<f32> = batch.get("weight").unwrap().to_vec().unwrap();
        assert_eq!(stamps, [0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0]);
    }
}

#[test]
fn a_lost_worker_does_not_count_as_a_fast_one() {
    for crew in synchronous() {
        let fault = Fault::new(At::Step(3), How::Error, 1);
        let mut collector = crew
            .builder([None, Some(fault)])
            .on_loss(OnLoss::Continue)
            .preemptive_threshold(0.5)
            .build()
            .unwrap();
        let batches = take(&mut collector, 6);
        assert_eq!(collector.stats().workers_alive, 1);
        let last = frames(batches.last().unwrap()).len();
        assert_eq!(last, STEPS * ENVS, "{crew:?}");
    }
}

#[test]
fn weights_that_are_published_while_workers_run_are_those_that_act() {
    for crew in all() {
        let mut collector = healthy(crew).build().unwrap();
        let handle = collector.handle();
        let publisher = thread::spawn(move || {
            let mut version = 0;
            // Until the collector is gone.
            while handle
                .update_policy_weights(&weights((version + 1) as f32))
                .is_ok()
            {
                version += 1;
                thread::yield_now();
            }
        });
        let mut batches = Vec::new();
        let mut seen = BTreeSet::new();
        while seen.len() < 10 || batches.len() < 30 {
            let batch = collector.next().unwrap().unwrap();
            // Each frame says which version acted, and what its weights were.
            seen.extend(versions(&batch));
            batches.push(batch.detach());
        }
        check_all(crew, &batches, batches.len() * crew.frames_per_batch());
        collector.shutdown().unwrap();
        publisher.join().unwrap();
    }
}
