//! A collector of whole trajectories from its first batch to its last.

use std::collections::BTreeMap;

use tensordict::TensorDict;
use windrow_collect::TrajFormat;
use windrow_env::testing::LedgerEnv;

use super::cell::{Cell, TRAJECTORIES};
use super::frames::{Frame, MAX_LENGTH, check_frame, check_ids, frames, mask};
use super::stamp::weights;

/// Collects everything that there is, and checks it.
pub(crate) fn check(cell: Cell, format: TrajFormat) {
    let total = cell.total_frames();
    let mut collector = cell.finite();
    assert_eq!(collector.len(), None);
    let mut held = Vec::new();
    let mut episodes: Vec<Vec<Frame>> = Vec::new();
    let mut batches = 0;
    loop {
        batches += 1;
        collector
            .update_policy_weights(&weights(batches as f32))
            .unwrap();
        let Some(batch) = collector.next() else { break };
        let batch = batch.unwrap();
        let split = split(&batch, format);
        assert_eq!(split.len(), TRAJECTORIES);
        for frame in split.iter().flatten() {
            assert_eq!(frame.weight, frame.version as f32, "{frame:?}");
            assert!(frame.version <= batches, "{frame:?}");
        }
        episodes.extend(split);
        held.push((batch.detach(), batch));
    }
    for (copy, batch) in &held {
        assert_eq!(copy, batch);
    }
    check_whole(&episodes);
    let delivered: usize = episodes.iter().map(Vec::len).sum();
    let stats = collector.stats();
    assert_eq!(stats.batches as usize, held.len());
    assert_eq!((stats.frames, stats.completed), (total as u64, true));
    assert_eq!(delivered + stats.dropped_frames as usize, total);
    // What is left over is less than a batch, and what is unfinished in each environment.
    let unfinished = cell.workers * cell.envs_per_worker() + TRAJECTORIES - 1;
    assert!(stats.dropped_frames <= unfinished as u64 * MAX_LENGTH as u64);
}

/// Whether every trajectory of a batch is one whole episode.
pub(crate) fn check_batch(batch: &TensorDict, format: TrajFormat) {
    for frames in split(batch, format) {
        check_episode(&frames);
    }
}

fn check_episode(frames: &[Frame]) {
    let [env, episode, _] = frames[0].obs;
    let length = LedgerEnv::length(env, episode, MAX_LENGTH);
    assert_eq!(frames.len() as i64, length, "{:?}", frames[0]);
    for (t, frame) in frames.iter().enumerate() {
        check_frame(frame, MAX_LENGTH);
        assert_eq!(frame.obs, [env, episode, t as i64], "in its trajectory");
        assert_eq!(frame.traj_id, frames[0].traj_id);
    }
    assert!(frames.is_sorted_by_key(|frame| frame.version));
}

/// Whether each is one whole episode, and those of an environment are its first ones.
pub(crate) fn check_whole(episodes: &[Vec<Frame>]) {
    let mut numbers: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for frames in episodes {
        check_episode(frames);
        let [env, episode, _] = frames[0].obs;
        numbers.entry(env).or_default().push(episode);
    }
    for (env, numbers) in &mut numbers {
        numbers.sort_unstable();
        let expected: Vec<i64> = (0..numbers.len() as i64).collect();
        assert_eq!(*numbers, expected, "episodes of environment {env}");
    }
    let all: Vec<Frame> = episodes.iter().flatten().cloned().collect();
    check_ids(&all);
}

fn split(batch: &TensorDict, format: TrajFormat) -> Vec<Vec<Frame>> {
    let frames = frames(batch);
    if format == TrajFormat::Cat {
        assert_eq!(batch.ndim(), 1);
        return frames
            .split_inclusive(|frame| frame.done)
            .map(<[Frame]>::to_vec)
            .collect();
    }
    let mut rest = &frames[..];
    mask(batch)
        .chunks(batch.batch_size()[1])
        .map(|row| {
            assert!(row.is_sorted_by(|before, after| before >= after));
            let len = row.iter().filter(|there| **there).count();
            rest.split_off(..len).unwrap().to_vec()
        })
        .collect()
}
