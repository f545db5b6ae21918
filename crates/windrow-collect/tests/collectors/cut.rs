//! Batches that were cut short: their shape, and which of their frames there are.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tensordict::{DType, TensorDict, TensorError};
use windrow_collect::{
    CatResults, Collector, CollectorBuilder, Delivery, MultiAsyncCollector, MultiSyncCollector,
};
use windrow_env::testing::LedgerEnv;
use windrow_env::{Env, EnvError, EnvSpec, Outcome, Spec};
use windrow_slab::{Key, Row, RowMut, Sink, SinkError, WriterId};

use crate::frames::{frames, mask};

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
        (
            MultiAsyncCollector::builder(LedgerEnv::from_seed)
                .num_workers(2)
                .delivery(Delivery::FirstCome {
                    workers_per_batch: 2,
                })
                .cat_results(CatResults::Stack),
            vec![2, 20],
            2,
        ),
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
    let writing = || one().replay_buffer(Sizes(Arc::clone(&seen)));
    drop(cut_short(writing()));
    // Nobody could tell afterwards.
    let without_mask = |batch: TensorDict| Ok::<_, TensorError>(batch.exclude(&["collector"]));
    drop(cut_short(writing().postproc(without_mask)));
    assert_eq!(*seen.lock().unwrap(), [1, 1]);
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
            .allow_partial_batch(true)
            .build()
            .unwrap();
        let (mut batches, mut delivered) = (Vec::new(), 0);
        while let Some(batch) = collector.next() {
            batches.push(batch.unwrap().numel());
            delivered += batches[batches.len() - 1];
            // The short one may have come already.
            assert_eq!(collector.stats().frames, delivered as u64);
            assert_eq!(collector.size_hint().1, Some(5 - batches.len()));
        }
        assert_eq!(batches, [10, 10, 10, 10, 5]);
    }
}

/// Two agents with flags of their own, none of which is ever up, and another entry that is called
/// like one.
struct Agents(EnvSpec);

impl Agents {
    fn new() -> Self {
        let flag = || Spec::unbounded(DType::Bool, [2, 1]);
        let entries = ["done", "terminated", "truncated"].map(|name| (name, flag()));
        let observation = Spec::composite([
            ("agents", Spec::composite(entries)),
            ("heard", Spec::composite([("done", flag())])),
        ]);
        let mut spec = EnvSpec::new("agents", observation, Spec::discrete(2));
        spec.flags = ["done", "terminated", "truncated"]
            .map(|name| ("agents", name).into())
            .to_vec();
        Self(spec)
    }
}

impl Env for Agents {
    fn spec(&self) -> &EnvSpec {
        &self.0
    }

    fn reset(&mut self, _: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        for place in 0..4 {
            obs.get_mut(Key::<bool>::new(place))?.fill(false);
        }
        Ok(())
    }

    fn step(&mut self, _: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.reset(None, obs)?;
        Ok(Outcome::default())
    }
}

#[test]
fn the_last_step_of_a_batch_is_marked_as_truncated_for_groups_too() {
    let mut collector = Collector::builder(Agents::new)
        .set_truncated(true)
        .frames_per_batch(3)
        .build()
        .unwrap();
    for _ in 0..2 {
        let batch = collector.next().unwrap().unwrap();
        let flags = |path: &[&str]| batch.get(path).unwrap().to_vec::<bool>().unwrap();
        let last = [false, false, false, false, true, true];
        assert_eq!(flags(&["next", "agents", "done"]), last);
        assert_eq!(flags(&["next", "agents", "truncated"]), last);
        for never in [["next", "agents", "terminated"], ["next", "heard", "done"]] {
            assert_eq!(flags(&never), [false; 6], "{never:?}");
        }
        for name in ["done", "terminated", "truncated"] {
            assert_eq!(flags(&["agents", name]), [false; 6], "{name} at the root");
        }
    }
}
