//! Whole trajectories out of batches of frames, beside a reference that looks at every frame.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use tensordict::{DType, NestedKey, Tensor, TensorDict, TensorError};
use windrow_collect::{
    Collector, CollectorBuilder, Interrupt, NextError, TrajFormat, TrajectoryBatcher,
};
use windrow_env::testing::{CountingEnv, LedgerEnv};
use windrow_sync::error_chain;

/// Environments whose episodes last as long as was said, round and round.
struct Source {
    lens: Vec<usize>,
    episodes: usize,
    /// Id, length and next step of each environment's episode.
    rows: Vec<(i64, usize, usize)>,
}

impl Source {
    fn new(lens: Vec<usize>, rows: usize) -> Self {
        let mut source = Self {
            lens,
            episodes: 0,
            rows: Vec::new(),
        };
        source.rows = (0..rows).map(|_| source.begin()).collect();
        source
    }

    fn begin(&mut self) -> (i64, usize, usize) {
        let len = self.lens[self.episodes % self.lens.len()];
        self.episodes += 1;
        (100 + self.episodes as i64, len, 0)
    }

    /// A batch `[…envs, steps]`, laid out in memory step by step.
    fn batch(&mut self, envs: &[usize], steps: usize) -> TensorDict {
        let frames = steps * self.rows.len();
        let (mut ids, mut times, mut done) = (vec![], vec![], vec![]);
        for _ in 0..steps {
            for row in 0..self.rows.len() {
                let (id, len, t) = self.rows[row];
                let over = t + 1 == len;
                ids.push(id);
                times.push(t as i64);
                done.push(over);
                self.rows[row] = if over { self.begin() } else { (id, len, t + 1) };
            }
        }
        let lead = [&[steps], envs].concat();
        let time_last = |tensor: Tensor, rest: &[usize]| {
            let tensor = tensor.view([&lead[..], rest].concat()).unwrap();
            let mut axes: Vec<usize> = (0..tensor.ndim()).collect();
            axes[..lead.len()].rotate_left(1);
            tensor.permute(axes).unwrap()
        };
        // Everything there is follows from the id and the step, so that a frame tells where it
        // comes from.
        let number = |each: usize| {
            let all = ids
                .iter()
                .zip(&times)
                .flat_map(|(id, t)| (0..each as i64).map(move |i| 1 + id * 1000 + t * 10 + i));
            Tensor::from_vec(all.collect(), [frames * each]).unwrap()
        };
        let of = |dtype, rest: &[usize]| {
            let each = rest.iter().product();
            time_last(number(each).cast(dtype).unwrap(), rest)
        };
        let flag = |flags: Vec<bool>| time_last(Tensor::from_vec(flags, [frames]).unwrap(), &[1]);
        let mut batch = TensorDict::new([envs, &[steps]].concat());
        let ids = Tensor::from_slice(&ids, [frames]).unwrap();
        batch
            .set(("collector", "traj_ids"), time_last(ids, &[]))
            .unwrap();
        batch.set("action", of(DType::I64, &[])).unwrap();
        batch.set("pixels", of(DType::U8, &[2, 3])).unwrap();
        batch.set("observation", of(DType::F32, &[4])).unwrap();
        batch.set("done", flag(vec![false; frames])).unwrap();
        batch
            .set(("next", "observation"), of(DType::F64, &[3]))
            .unwrap();
        batch.set(("next", "reward"), of(DType::F32, &[1])).unwrap();
        let odd: Vec<bool> = times.iter().map(|t| t % 2 == 1).collect();
        batch.set(("next", "odd"), flag(odd)).unwrap();
        batch.set(("next", "done"), flag(done)).unwrap();
        let mut agents = TensorDict::new([envs, &[steps, 2]].concat());
        agents.set("state", of(DType::I16, &[2, 2])).unwrap();
        batch.set("agents", agents).unwrap();
        batch
    }
}

/// Trajectories put together frame by frame, in the order in which they end.
#[derive(Default)]
struct Reference {
    open: HashMap<i64, Vec<TensorDict>>,
    ended: Vec<TensorDict>,
    frames: usize,
}

impl Reference {
    fn push(&mut self, batch: &TensorDict) {
        let steps = *batch.batch_size().last().unwrap();
        let rows = batch.numel() / steps;
        let flat = batch.reshape([rows, steps]).unwrap().detach();
        for step in 0..steps {
            for row in 0..rows {
                let frame = flat.index(row).unwrap().index(step).unwrap();
                let id = frame
                    .get(("collector", "traj_ids"))
                    .unwrap()
                    .item()
                    .unwrap();
                let done = frame.get(("next", "done")).unwrap().item::<bool>().unwrap();
                self.frames += 1;
                self.open.entry(id).or_default().push(frame);
                if done {
                    let frames = self.open.remove(&id).unwrap();
                    self.ended.push(TensorDict::stack(&frames, 0).unwrap());
                }
            }
        }
    }

    /// Takes `n` trajectories out, if there are so many.
    fn pop(&mut self, n: usize) -> Option<Vec<TensorDict>> {
        let taken: Vec<TensorDict> =
            (self.ended.len() >= n).then(|| self.ended.drain(..n).collect())?;
        self.frames -= taken.iter().map(TensorDict::numel).sum::<usize>();
        Some(taken)
    }
}

fn check_cat(batch: &TensorDict, expected: &[TensorDict]) {
    let expected = TensorDict::cat(expected, 0).unwrap();
    assert_eq!(batch, &expected.with_names(&[Some("time")]).unwrap());
}

fn check_padded(batch: &TensorDict, expected: &[TensorDict]) {
    let longest = expected.iter().map(TensorDict::numel).max().unwrap();
    assert_eq!(batch.batch_size(), [expected.len(), longest]);
    let names: Vec<_> = batch.names().iter().map(Option::as_deref).collect();
    assert_eq!(names, [None, Some("time")]);
    let mask = batch.get(("collector", "mask")).unwrap().clone();
    assert_eq!(mask.shape(), batch.batch_size());
    let rest = batch.exclude(&[("collector", "mask")]);
    for (row, expected) in expected.iter().enumerate() {
        let len = expected.numel();
        let mask = mask.select(0, row).unwrap().to_vec::<bool>().unwrap();
        assert!(mask.iter().enumerate().all(|(t, &kept)| kept == (t < len)));
        let row = rest.index(row).unwrap();
        let expected = expected.clone().with_names(&[Some("time")]).unwrap();
        assert_eq!(row.slice(0, ..len).unwrap(), expected);
        for (key, tensor) in row.slice(0, len..).unwrap().leaves() {
            let padding = match key == NestedKey::from(("collector", "traj_ids")) {
                true => Tensor::full(tensor.shape(), -1i64).unwrap(),
                false => Tensor::zeros(tensor.dtype(), tensor.shape()).unwrap(),
            };
            assert_eq!(tensor, &padding, "{key}");
        }
    }
}

proptest! {
    #[test]
    fn batches_are_what_looking_at_every_frame_gives(
        lens in prop::collection::vec(1..9usize, 1..40),
        envs in prop::sample::select(vec![vec![], vec![1], vec![3], vec![8], vec![11], vec![2, 2], vec![2, 8]]),
        steps in prop::collection::vec(1..13usize, 1..12),
        n in 1..6usize,
        padded: bool,
    ) {
        let format = if padded { TrajFormat::Padded } else { TrajFormat::Cat };
        let mut source = Source::new(lens, envs.iter().product());
        let mut batcher = TrajectoryBatcher::new(n, format).unwrap();
        let mut reference = Reference::default();
        for steps in steps {
            let batch = source.batch(&envs, steps);
            batcher.push(&batch).unwrap();
            reference.push(&batch);
            prop_assert_eq!(batcher.pending_frames(), reference.frames);
            prop_assert_eq!(batcher.queued(), reference.ended.len());
            // Some wait, so that frames are moved together while trajectories queue.
            while reference.ended.len() > 2 * n && let Some(expected) = reference.pop(n) {
                let batch = batcher.pop().unwrap().unwrap();
                if padded {
                    check_padded(&batch, &expected);
                } else {
                    check_cat(&batch, &expected);
                }
            }
        }
        prop_assert_eq!(batcher.clear(), reference.frames);
        prop_assert!(batcher.pop().unwrap().is_none());
    }
}

#[test]
fn batches_that_are_held_never_change() {
    for format in [TrajFormat::Padded, TrajFormat::Cat] {
        let mut source = Source::new(vec![3, 7, 1, 4, 9, 2], 8);
        let mut batcher = TrajectoryBatcher::new(3, format).unwrap();
        let mut kept = Vec::new();
        for round in 0..40 {
            batcher.push(&source.batch(&[8], 5)).unwrap();
            while let Some(batch) = batcher.pop().unwrap() {
                // Of some, only one tensor is held.
                let held = match round % 3 {
                    0 => batch,
                    1 => batch.select(&["observation"]).unwrap(),
                    _ => continue,
                };
                kept.push((held.detach(), held));
            }
        }
        assert!(kept.len() > 50);
        assert!(kept.iter().all(|(copy, batch)| copy == batch));
    }
}

#[test]
fn what_is_written_to_a_batch_shows_in_no_other_one_and_in_no_other_column() {
    for format in [TrajFormat::Padded, TrajFormat::Cat] {
        let mut source = Source::new(vec![3, 7, 1, 4, 9, 2], 8);
        let mut batcher = TrajectoryBatcher::new(3, format).unwrap();
        let mut addresses = HashMap::new();
        let mut held = Vec::new();
        for _ in 0..10 {
            let mut pushed = source.batch(&[8], 5);
            let zeros = Tensor::zeros(DType::Bool, [8, 5, 1]).unwrap();
            pushed.set(("next", "truncated"), &zeros).unwrap();
            pushed.set("truncated", zeros).unwrap();
            batcher.push(&pushed).unwrap();
            while let Some(batch) = batcher.pop().unwrap() {
                for (key, tensor) in batch.leaves() {
                    let start = tensor.as_bytes().unwrap().as_ptr().addr();
                    let before = addresses.insert(start, key.clone());
                    assert!(before.is_none(), "{key} lies where {before:?} does");
                }
                held.push(batch);
            }
        }
        assert!(held.len() > 5);
    }
}

fn ledger(envs: usize, frames_per_batch: usize) -> CollectorBuilder {
    Collector::builder(|| LedgerEnv::from_seed().with_max_length(9))
        .num_envs(envs)
        .frames_per_batch(frames_per_batch)
        .seed(0)
}

fn ints(batch: &TensorDict, key: &[&str]) -> Vec<i64> {
    batch.get(key).unwrap().to_vec().unwrap()
}

#[test]
fn episodes_come_whole_and_each_once_without_keeping_a_batch() {
    let mut collector = ledger(5, 20).max_slabs(2).build().unwrap();
    let mut batcher = TrajectoryBatcher::new(7, TrajFormat::Cat).unwrap();
    let mut seen = HashMap::new();
    let mut held = None;
    for _ in 0..300 {
        let batch = collector.next().unwrap().unwrap();
        batcher.push(&batch).unwrap();
        while let Some(batch) = batcher.pop().unwrap() {
            let observations = ints(&batch, &["observation"]);
            let ids = ints(&batch, &["collector", "traj_ids"]);
            let mut frames = observations.chunks(3).zip(&ids).peekable();
            let mut trajectories = 0;
            while let Some((first, id)) = frames.next() {
                let mut len = 1;
                while let Some((frame, _)) = frames.next_if(|(_, other)| *other == id) {
                    assert_eq!(frame, [first[0], first[1], len]);
                    len += 1;
                }
                assert_eq!(first[2], 0);
                assert_eq!(len, LedgerEnv::length(first[0], first[1], 9));
                let episode = seen.entry(first[0]).or_insert(0);
                assert_eq!(first[1], *episode, "episodes of environment {}", first[0]);
                *episode += 1;
                trajectories += 1;
            }
            assert_eq!(trajectories, 7);
            // Batches of trajectories have memory of their own, so one may be kept while collection
            // goes on.
            held = Some(batch);
        }
    }
    assert!(held.is_some() && seen.values().sum::<i64>() > 1000);
}

#[test]
fn a_piece_that_was_marked_as_truncated_is_complete() {
    let mut collector = ledger(2, 8).set_truncated(true).build().unwrap();
    let mut batcher = TrajectoryBatcher::new(1, TrajFormat::Padded).unwrap();
    let mut frames = 0;
    for _ in 0..50 {
        batcher.push(&collector.next().unwrap().unwrap()).unwrap();
        while let Some(batch) = batcher.pop().unwrap() {
            let done = batch
                .get(("next", "done"))
                .unwrap()
                .to_vec::<bool>()
                .unwrap();
            assert!(done.iter().rev().skip(1).all(|done| !done) && done.ends_with(&[true]));
            frames += done.len();
        }
        assert_eq!(batcher.pending_frames(), 0);
    }
    assert_eq!(frames, 400);
}

#[test]
fn trajectories_of_workers_in_one_row_are_told_apart() {
    // Two workers, each with frames of its own under way, one after the other along time.
    let mut batcher = TrajectoryBatcher::new(1, TrajFormat::Cat).unwrap();
    let mut workers = [Source::new(vec![5], 1), Source::new(vec![7], 1)];
    workers[1].rows[0].0 += 1000;
    workers[1].episodes += 1000;
    let mut reference = Reference::default();
    for _ in 0..20 {
        let parts = workers.each_mut().map(|worker| worker.batch(&[], 3));
        let batch = TensorDict::cat(&parts, 0).unwrap();
        batcher.push(&batch).unwrap();
        reference.push(&batch);
        while let Some(expected) = reference.pop(1) {
            check_cat(&batcher.pop().unwrap().unwrap(), &expected);
        }
    }
    assert!(batcher.pop().unwrap().is_none());
}

#[test]
fn frames_that_a_mask_excludes_are_left_out() {
    let mut source = Source::new(vec![3], 2);
    let mut batch = source.batch(&[2], 4);
    let kept = vec![true, true, true, false, true, true, false, false];
    let mask = Tensor::from_vec(kept, [2, 4]).unwrap();
    batch.set(("collector", "mask"), mask).unwrap();
    let mut batcher = TrajectoryBatcher::new(1, TrajFormat::Cat).unwrap();
    batcher.push(&batch).unwrap();
    let first = batcher.pop().unwrap().unwrap();
    assert_eq!(ints(&first, &["collector", "traj_ids"]), [101; 3]);
    assert!(!first.contains_key(("collector", "mask")));
    assert_eq!((batcher.queued(), batcher.pending_frames()), (0, 2));
}

#[test]
fn batches_without_a_frame_are_taken() {
    let mut source = Source::new(vec![2], 3);
    let mut batcher = TrajectoryBatcher::new(1, TrajFormat::Padded).unwrap();
    let batch = source.batch(&[3], 2);
    batcher.push(&batch.narrow(1, 0, 0).unwrap()).unwrap();
    batcher.push(&batch.narrow(0, 0, 0).unwrap()).unwrap();
    assert_eq!(batcher.pending_frames(), 0);
    batcher.push(&batch).unwrap();
    assert_eq!(batcher.queued(), 3);
}

#[test]
fn no_trajectory_at_all_is_refused() {
    let error = TrajectoryBatcher::new(0, TrajFormat::default()).unwrap_err();
    let message = "trajs_per_batch must be a positive number, got 0";
    assert_eq!(error.to_string(), message);
}

#[test]
fn what_is_missing_or_other_is_named_and_changes_nothing() {
    let mut source = Source::new(vec![4], 2);
    let whole = source.batch(&[2], 3);
    let mut batcher = TrajectoryBatcher::new(1, TrajFormat::Padded).unwrap();
    let push = |batcher: &mut TrajectoryBatcher, batch: &TensorDict| {
        batcher.push(batch).unwrap_err().to_string()
    };

    let bare = whole.exclude(&[("collector", "traj_ids")]);
    let error = batcher.push(&bare).unwrap_err();
    assert!(matches!(error, TensorError::Missing { .. }));
    assert!(
        error_chain(&error).contains(r#"("collector", "traj_ids")"#),
        "{error}"
    );
    let endless = whole.exclude(&[("next", "done")]);
    assert!(push(&mut batcher, &endless).contains(r#"("next", "done")"#));
    let frame = whole.index(0).unwrap().index(0).unwrap();
    assert!(push(&mut batcher, &frame).contains("dimension"));

    batcher.push(&whole).unwrap();
    let before = batcher.pending_frames();
    assert_eq!(
        push(&mut batcher, &whole.exclude(&["action"])),
        r#"push: entries of dict 1 differ from those of the first, missing ["\"action\""], extra []"#
    );
    let mut other = whole.clone();
    other
        .set("action", Tensor::zeros(DType::F32, [2, 3]).unwrap())
        .unwrap();
    assert_eq!(
        push(&mut batcher, &other),
        r#"entry "action": expected dtype int64, got float32"#
    );
    other
        .set("action", Tensor::zeros(DType::I64, [2, 3, 2]).unwrap())
        .unwrap();
    assert_eq!(
        push(&mut batcher, &other),
        r#"entry "action": push: expected shape [2, 3], got [2, 3, 2]"#
    );
    let wide = Tensor::zeros(DType::I64, [2, 3, 2]).unwrap();
    other.set(("collector", "traj_ids"), wide).unwrap();
    assert_eq!(
        push(&mut batcher, &other),
        r#"entry ("collector", "traj_ids"): trajectories: expected shape [2, 3], got [2, 3, 2]"#
    );
    assert_eq!(batcher.pending_frames(), before);
    batcher.push(&source.batch(&[2], 3)).unwrap();
    assert_eq!(batcher.queued(), 2);
}

#[test]
fn the_wait_for_a_trajectory_that_never_ends_can_be_interrupted() {
    let builder = Collector::builder(|| CountingEnv::new(i32::MAX, 0));
    let builder = builder.frames_per_batch(8).trajs_per_batch(1);
    let checks = AtomicUsize::new(0);
    let tenth = Interrupt::when(move || checks.fetch_add(1, Ordering::Relaxed) == 9);
    let mut collector = builder.interrupt(tenth).build().unwrap();
    let batch = collector.next();
    assert!(matches!(batch, Some(Err(NextError::WaitInterrupted(_)))));
    assert_eq!(collector.stats().frames, 80);
}
