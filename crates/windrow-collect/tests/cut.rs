//! Batches that were cut short: their shape, and which of their frames there are.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "conformance/frames.rs"]
mod frames;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tensordict::TensorDict;
use windrow_collect::{
    CatResults, Collector, CollectorBuilder, Delivery, MultiAsyncCollector, MultiSyncCollector,
};
use windrow_env::testing::LedgerEnv;
use windrow_slab::{Sink, SinkError, WriterId};

use frames::{frames, mask};

/// A batch of these shares that is cut short after a step.
fn cut_short(builder: CollectorBuilder) -> TensorDict {
    let mut collector = builder.frames_per_batch(40).seed(0).build().unwrap();
    collector.handle().stop_collection();
    collector.next().unwrap().unwrap()
}

#[test]
fn a_batch_that_was_cut_short_keeps_its_shape_and_says_which_frames_there_are() {
    let workers = |workers| MultiSyncCollector::builder(LedgerEnv::from_seed).num_workers(workers);
    let stacked = |of| workers(of).cat_results(CatResults::Stack);
    let one = || Collector::builder(LedgerEnv::from_seed);
    let cases = [
        (one(), vec![40], 1),
        (one().num_envs(1), vec![1, 40], 1),
        (one().num_envs(4), vec![4, 10], 4),
        (
            MultiAsyncCollector::builder(LedgerEnv::from_seed).num_workers(2),
            vec![40],
            1,
        ),
        (workers(1), vec![40], 1),
        (stacked(1), vec![1, 40], 1),
        (stacked(2), vec![2, 20], 2),
        (stacked(2).num_envs(2), vec![2, 2, 10], 4),
        (stacked(2).preemptive_threshold(0.0), vec![2, 20], 2),
    ];
    for (builder, size, rows) in cases {
        let shown = format!("{builder:?}");
        let batch = cut_short(builder);
        assert_eq!(batch.batch_size(), size, "{shown}");
        let ids: Vec<i64> = batch
            .get(("collector", "traj_ids"))
            .unwrap()
            .to_vec()
            .unwrap();
        assert_eq!(mask(&batch).len(), ids.len());
        for (i, (id, there)) in ids.into_iter().zip(mask(&batch)).enumerate() {
            let first = i % (batch.numel() / rows) == 0;
            assert_eq!((there, id == -1), (first, !first), "{shown}, frame {i}");
        }
    }
}

#[test]
fn frames_of_several_workers_one_after_the_other_are_those_that_there_are() {
    for how in [CatResults::Flat, CatResults::Time] {
        let workers = |workers| {
            MultiSyncCollector::builder(LedgerEnv::from_seed)
                .num_workers(workers)
                .cat_results(how)
        };
        let preempted = |of| workers(of).preemptive_threshold(0.0);
        for (builder, expected) in [
            (workers(4), 0..4),
            (preempted(4), 0..4),
            (preempted(1), 0..1),
        ] {
            let batch = cut_short(builder);
            let envs = frames(&batch).into_iter().map(|frame| frame.env());
            assert!(envs.eq(expected), "{how:?}");
            assert!(!batch.contains_key(("collector", "mask")));
        }
    }
}

#[test]
fn padding_of_a_batch_that_was_cut_short_is_not_taken_for_frames() {
    let size_of = |builder: CollectorBuilder| cut_short(builder).batch_size().to_vec();
    let one = || Collector::builder(LedgerEnv::from_seed);
    assert_eq!(size_of(one().num_envs(2).split_trajs(true)), [2, 1]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let written = Arc::clone(&seen);
    drop(cut_short(one().replay_buffer(Sizes(written))));
    assert_eq!(*seen.lock().unwrap(), [1]);
}

/// Notes how many frames were written.
#[derive(Debug)]
struct Sizes(Arc<Mutex<Vec<usize>>>);

impl Sink for Sizes {
    fn attach(&self) -> WriterId {
        WriterId(0)
    }

    fn extend(&self, _: WriterId, batch: &TensorDict) -> Result<(), SinkError> {
        self.0.lock().unwrap().push(batch.numel());
        Ok(())
    }

    fn detach(&self, _: WriterId, _: Option<SinkError>) {}
}

#[test]
fn the_short_batch_is_the_last_one_also_where_others_are_slower() {
    for workers_per_batch in [1, 2] {
        let times = [Duration::from_millis(10), Duration::ZERO];
        let envs = times.map(|time| move || LedgerEnv::from_seed().with_step_time(time));
        let mut collector = MultiAsyncCollector::builder(LedgerEnv::from_seed)
            .worker_envs(envs)
            .delivery(Delivery::FirstCome { workers_per_batch })
            .frames_per_batch(10)
            .total_frames(45)
            .partial_last_batch(true)
            .build()
            .unwrap();
        let frames: Vec<usize> = collector
            .by_ref()
            .map(|batch| batch.unwrap().numel())
            .collect();
        assert_eq!(frames, [10, 10, 10, 10, 5]);
    }
}
