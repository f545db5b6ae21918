//! What a collector delivers, frame by frame, with an environment whose frames say which they are.

use std::collections::HashSet;

use tensordict::TensorDict;
use windrow_collect::{Collector, CollectorBuilder, NextError};
use windrow_env::testing::LedgerEnv;
use windrow_slab::SlabError;

const MAX_LENGTH: i64 = 9;

fn collector(envs: usize, frames_per_batch: usize) -> CollectorBuilder {
    // Seeded with 0, environment `i` takes the index `i` from its seed.
    Collector::builder(|| LedgerEnv::from_seed().with_max_length(MAX_LENGTH))
        .num_envs(envs)
        .frames_per_batch(frames_per_batch)
        .seed(0)
}

/// One frame as it was delivered.
#[derive(Debug, Clone, PartialEq)]
struct Frame {
    obs: [i64; 3],
    next_obs: [i64; 3],
    action: i64,
    reward: f32,
    done: bool,
    terminated: bool,
    truncated: bool,
    traj_id: i64,
}

/// Frames of every environment, in the order of time.
fn frames(batch: &TensorDict) -> Vec<Vec<Frame>> {
    let [envs, steps] = batch.batch_size()[..] else {
        panic!("shape {:?}", batch.batch_size())
    };
    let obs = |key: &[&str]| batch.get(key).unwrap().to_vec::<i64>().unwrap();
    let flag = |name| batch.get(("next", name)).unwrap().to_vec::<bool>().unwrap();
    let (now, next) = (obs(&["observation"]), obs(&["next", "observation"]));
    let (actions, ids) = (obs(&["action"]), obs(&["collector", "traj_ids"]));
    let rewards = batch
        .get(("next", "reward"))
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    let (done, terminated, truncated) = (flag("done"), flag("terminated"), flag("truncated"));
    let record = |all: &[i64], i: usize| [all[3 * i], all[3 * i + 1], all[3 * i + 2]];
    (0..envs)
        .map(|env| {
            (env * steps..(env + 1) * steps)
                .map(|i| Frame {
                    obs: record(&now, i),
                    next_obs: record(&next, i),
                    action: actions[i],
                    reward: rewards[i],
                    done: done[i],
                    terminated: terminated[i],
                    truncated: truncated[i],
                    traj_id: ids[i],
                })
                .collect()
        })
        .collect()
}

/// Checks one environment's frames from its first on: none missing, none twice, all as they must
/// be.
fn check(env: i64, frames: &[Frame]) {
    let (mut episode, mut t) = (0, 0);
    let mut ids = HashSet::new();
    for frame in frames {
        assert_eq!(frame.obs, [env, episode, t], "{frame:?}");
        assert_eq!(frame.next_obs, [env, episode, t + 1], "{frame:?}");
        assert_eq!(frame.reward, LedgerEnv::reward(frame.obs, frame.action));
        let ends = t + 1 == LedgerEnv::length(env, episode, MAX_LENGTH);
        let (terminated, truncated) = LedgerEnv::ending(env, episode);
        assert_eq!(frame.terminated, ends && terminated, "{frame:?}");
        assert_eq!(frame.truncated, ends && truncated, "{frame:?}");
        assert_eq!(frame.done, ends, "{frame:?}");
        assert_eq!(ids.insert(frame.traj_id), t == 0, "{frame:?}");
        (episode, t) = if ends {
            (episode + 1, 0)
        } else {
            (episode, t + 1)
        };
    }
}

#[test]
fn every_frame_is_delivered_once_in_order_across_batches() {
    for (envs, steps) in [(1, 1), (1, 7), (3, 5), (16, 4)] {
        let mut collector = collector(envs, envs * steps).build().unwrap();
        let mut all = vec![Vec::new(); envs];
        for batch in collector.by_ref().take(60) {
            for (all, frames) in all.iter_mut().zip(frames(&batch.unwrap())) {
                all.extend(frames);
            }
        }
        for (env, frames) in all.iter().enumerate() {
            assert_eq!(frames.len(), 60 * steps);
            check(env as i64, frames);
        }
        let ids: Vec<HashSet<i64>> = all
            .iter()
            .map(|frames| frames.iter().map(|frame| frame.traj_id).collect())
            .collect();
        let together: HashSet<&i64> = ids.iter().flatten().collect();
        assert_eq!(together.len(), ids.iter().map(HashSet::len).sum::<usize>());
    }
}

#[test]
fn data_do_not_depend_on_the_size_of_batches() {
    let collect = |frames_per_batch| {
        let mut collector = collector(2, frames_per_batch)
            .total_frames(240)
            .build()
            .unwrap();
        let batches: Vec<TensorDict> = collector
            .by_ref()
            .map(|batch| batch.unwrap().detach())
            .collect();
        TensorDict::cat(&batches, 1).unwrap()
    };
    let whole = collect(240);
    assert_eq!(whole, collect(2));
    assert_eq!(whole, collect(60));
}

#[test]
fn the_same_seed_gives_the_same_data_and_another_one_other_actions() {
    let first = |seed| {
        let mut collector = collector(4, 64).build().unwrap();
        collector.set_seed(seed, false);
        collector.next().unwrap().unwrap().detach()
    };
    assert_eq!(first(3), first(3));
    assert_ne!(
        first(3).get("action").unwrap(),
        first(4).get("action").unwrap()
    );
}

#[test]
fn environments_act_independently_of_each_other() {
    // Environment 1 of 3 does what environment 1 of 2 does: noise is keyed by environment, not by
    // row order.
    let env_1 = |envs| {
        let mut collector = collector(envs, envs * 40).build().unwrap();
        frames(&collector.next().unwrap().unwrap()).swap_remove(1)
    };
    let strip = |frames: Vec<Frame>| -> Vec<_> {
        frames
            .into_iter()
            .map(|frame| (frame.obs, frame.action))
            .collect()
    };
    assert_eq!(strip(env_1(2)), strip(env_1(3)));
}

#[test]
fn kept_batches_never_change() {
    let mut collector = collector(2, 20).build().unwrap();
    let mut kept = Vec::new();
    for batch in collector.by_ref().take(40) {
        let batch = batch.unwrap();
        kept.push((batch.detach(), batch));
    }
    for (copy, batch) in &kept {
        assert_eq!(copy, batch);
    }
}

#[test]
fn one_batch_too_many_kept_is_an_error_that_can_be_mended() {
    let mut collector = collector(2, 20).max_slabs(3).build().unwrap();
    let mut kept: Vec<_> = collector.by_ref().take(3).map(Result::unwrap).collect();
    let error = collector.next().unwrap().unwrap_err();
    assert!(matches!(
        error,
        NextError::Slab(SlabError::Exhausted { slabs: 3, .. })
    ));
    assert!(error.to_string().contains("drop one"), "{error}");
    let third = frames(&kept.pop().unwrap());
    let fourth = frames(&collector.next().unwrap().unwrap());
    // Nothing was lost by the refusal.
    for (env, (before, after)) in third.iter().zip(&fourth).enumerate() {
        let (last, first) = (before.last().unwrap(), &after[0]);
        let expected = if last.done {
            [env as i64, last.obs[1] + 1, 0]
        } else {
            last.next_obs
        };
        assert_eq!(first.obs, expected);
    }
}

#[test]
fn one_environment_alone_has_no_dimension_unless_it_was_asked_for() {
    let mut flat = Collector::builder(LedgerEnv::from_seed)
        .frames_per_batch(6)
        .build()
        .unwrap();
    let batch = flat.next().unwrap().unwrap();
    assert_eq!(batch.batch_size(), &[6]);
    assert_eq!(
        batch
            .names()
            .iter()
            .flatten()
            .map(|name| &**name)
            .collect::<Vec<_>>(),
        ["time"]
    );
    let mut batched = collector(1, 6).build().unwrap();
    let batch = batched.next().unwrap().unwrap();
    assert_eq!(batch.batch_size(), &[1, 6]);
    assert_eq!(batch.names()[1].as_deref(), Some("time"));
    assert_eq!(batch.names()[0], None);
}

#[test]
fn the_layout_is_the_documented_one() {
    let mut collector = Collector::builder("CartPole-v1")
        .num_envs(2)
        .frames_per_batch(10)
        .max_frames_per_traj(3)
        .track_policy_version(true)
        .build()
        .unwrap();
    let batch = collector.next().unwrap().unwrap();
    let leaves: Vec<String> = batch
        .leaves()
        .map(|(key, tensor)| format!("{key:?} {} {:?}", tensor.dtype(), tensor.shape()))
        .collect();
    assert_eq!(
        leaves,
        [
            "\"action\" int64 [2, 5]",
            "(\"collector\", \"traj_ids\") int64 [2, 5]",
            "\"done\" bool [2, 5, 1]",
            "(\"next\", \"done\") bool [2, 5, 1]",
            "(\"next\", \"observation\") float32 [2, 5, 4]",
            "(\"next\", \"policy_version\") int64 [2, 5]",
            "(\"next\", \"reward\") float32 [2, 5, 1]",
            "(\"next\", \"step_count\") int64 [2, 5, 1]",
            "(\"next\", \"terminated\") bool [2, 5, 1]",
            "(\"next\", \"truncated\") bool [2, 5, 1]",
            "\"observation\" float32 [2, 5, 4]",
            "\"policy_version\" int64 [2, 5]",
            "\"step_count\" int64 [2, 5, 1]",
            "\"terminated\" bool [2, 5, 1]",
            "\"truncated\" bool [2, 5, 1]",
        ]
    );
    let mut bare = Collector::builder("CartPole-v1")
        .frames_per_batch(10)
        .track_traj_ids(false)
        .build()
        .unwrap();
    let batch = bare.next().unwrap().unwrap();
    assert!(!batch.contains_key("collector") && !batch.contains_key("policy_version"));
}
