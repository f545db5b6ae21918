//! One collector from its first batch to its last, with weights that change before each of them.

use tensordict::TensorDict;
use windrow_collect::{CatResults, Collector};

use super::cell::{Cell, STEPS, WHOLE, Wait};
use super::frames::{Frame, MAX_LENGTH, by_env, check_contiguous, check_ids, frames, mask};
use super::stamp::weights;

/// Batches that are held while others are collected.
const HELD: usize = 3;

/// Collects everything that there is, and checks it.
pub(crate) fn check(cell: Cell) {
    let total = cell.total_frames();
    let mut collector = cell.finite();
    assert_eq!(collector.len(), Some(WHOLE + 1));

    let mut held: Vec<(TensorDict, TensorDict)> = Vec::new();
    let mut batches: Vec<Vec<Frame>> = Vec::new();
    loop {
        let published = batches.len() as i64 + 1;
        let version = collector.update_policy_weights(&weights(published as f32));
        assert_eq!(version.unwrap(), published);
        let Some(batch) = collector.next() else { break };
        let batch = batch.unwrap();
        check_shape(cell, &batch);
        batches.push(frames(&batch));
        held.push((batch.detach(), batch));
        if held.len() > HELD {
            held.remove(0);
        }
        held.iter()
            .for_each(|(copy, batch)| assert_eq!(copy, batch));
    }
    check_counts(&collector, total, batches.len());
    check_versions(cell, &batches);
    check_rows(cell, &batches);
    let all: Vec<Frame> = batches.into_iter().flatten().collect();
    check_all(cell, &all);
    drop(collector);
    held.iter()
        .for_each(|(copy, batch)| assert_eq!(copy, batch));
}

/// Every frame of every environment, none missing and none twice.
pub(crate) fn check_all(cell: Cell, all: &[Frame]) {
    assert_eq!(all.len(), cell.total_frames());
    check_ids(all);
    let envs = by_env(all.iter().cloned());
    let last = (cell.workers * cell.envs_per_worker()) as i64;
    assert!(
        envs.keys().all(|env| (0..last).contains(env)),
        "{:?}",
        envs.keys()
    );
    for frames in envs.values() {
        check_contiguous(frames, MAX_LENGTH);
    }
}

fn check_counts(collector: &Collector, total: usize, batches: usize) {
    let stats = collector.stats();
    assert_eq!(batches, WHOLE + 1);
    assert_eq!(
        (stats.frames, stats.batches, stats.completed),
        (total as u64, batches as u64, true)
    );
    assert_eq!(collector.size_hint(), (0, Some(0)));
    assert_eq!(stats.dropped_frames, 0);
    assert_eq!(
        (stats.workers, stats.workers_alive, stats.restarts),
        (stats.workers, stats.workers, 0)
    );
}

/// Batch `n` was asked for after version `n + 1` was published.
fn check_versions(cell: Cell, batches: &[Vec<Frame>]) {
    for (n, batch) in batches.iter().enumerate() {
        let published = n as i64 + 1;
        for frame in batch {
            assert_eq!(frame.weight, frame.version as f32, "{frame:?}");
            assert!(frame.version <= published, "{frame:?} in batch {n}");
            if cell.ahead() == 0 {
                assert_eq!(frame.version, published, "in batch {n}");
            }
        }
    }
    let mut all: Vec<i64> = batches
        .iter()
        .flatten()
        .map(|frame| frame.version)
        .collect();
    for frames in by_env(batches.iter().flatten().cloned()).values() {
        assert!(frames.is_sorted_by_key(|frame| frame.version));
    }
    // How stale they are is bounded, in whatever order they came: part `n` is begun when the batch
    // that holds part `n - ahead` is asked for, at the earliest.
    all.sort_unstable();
    let part = cell.shares()[0] * cell.envs_per_worker();
    for (n, version) in all.iter().enumerate() {
        let asked = (n / part).saturating_sub(cell.ahead()) / cell.parts();
        assert!(*version > asked as i64, "{all:?}");
    }
}

/// Where a batch waits for all, its rows are in the order of workers, whoever was faster.
fn check_rows(cell: Cell, batches: &[Vec<Frame>]) {
    if cell.wait != Wait::All {
        return;
    }
    let (shares, envs) = (cell.shares(), cell.envs_per_worker());
    let each = |worker: usize| (0..envs).map(move |env| worker * envs + env);
    let expected: Vec<i64> = if cell.cat_results() == CatResults::Time {
        // Rows are environments of a worker; along each, one worker after the other.
        (0..envs)
            .flat_map(|env| {
                shares
                    .iter()
                    .enumerate()
                    .flat_map(move |(worker, &steps)| vec![(worker * envs + env) as i64; steps])
            })
            .collect()
    } else {
        shares
            .iter()
            .enumerate()
            .flat_map(|(worker, &steps)| each(worker).flat_map(move |env| vec![env as i64; steps]))
            .collect()
    };
    for batch in &batches[..WHOLE] {
        let rows: Vec<i64> = batch.iter().map(Frame::env).collect();
        assert_eq!(rows, expected);
    }
}

fn check_shape(cell: Cell, batch: &TensorDict) {
    assert_eq!(
        batch.names().last().unwrap().as_deref(),
        Some("time"),
        "{:?}",
        batch.names()
    );
    let there = mask(batch);
    let frames = there.iter().filter(|there| **there).count();
    if frames != STEPS * cell.envs_per_worker() {
        // The last one, or where the first come make a batch, the one that the last share was part
        // of.
        assert!(frames < STEPS * cell.envs_per_worker());
        return;
    }
    let (shares, parts) = (cell.shares(), cell.parts());
    let longest = shares[0];
    let (mut shape, padded) = match (cell.cat_results(), cell.envs) {
        (CatResults::Stack, None) => (vec![parts], true),
        (CatResults::Stack, Some(envs)) => (vec![parts, envs], true),
        (CatResults::Flat, Some(envs)) => (vec![parts * envs], true),
        (CatResults::Time, Some(envs)) => (vec![envs], false),
        _ => (vec![], false),
    };
    shape.push(if padded { longest } else { STEPS });
    assert_eq!(batch.batch_size(), shape);
    let uneven = shares.iter().any(|share| *share != longest);
    assert_eq!(
        batch.contains_key(("collector", "mask")),
        padded && uneven,
        "whether there is a mask"
    );
    // What is padded is zero, and behind the frames.
    let actions: Vec<i64> = batch.get("action").unwrap().to_vec().unwrap();
    let time = *batch.batch_size().last().unwrap();
    for (there, actions) in there.chunks(time).zip(actions.chunks(time)) {
        assert!(there.is_sorted_by(|before, after| before >= after));
        let padding = there.iter().zip(actions).filter(|(there, _)| !**there);
        assert!(padding.clone().all(|(_, action)| *action == 0));
    }
}
