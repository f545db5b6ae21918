//! What a batch will look like is known before there is one.

use tensordict::{DType, Tensor, TensorDict};
use windrow_collect::{
    CatResults, Collector, CollectorBuilder, MultiAsyncCollector, MultiSyncCollector, NextError,
};
use windrow_env::testing::LedgerEnv;

/// Everything but the values: batch size, names, and key, dtype and shape of every entry.
type Shape = (Vec<usize>, Vec<Option<String>>, Vec<Leaf>);
type Leaf = (String, DType, Vec<usize>);

fn shape(batch: &TensorDict) -> Shape {
    let names = batch.names().iter();
    let leaves = batch.leaves();
    let mut leaves: Vec<Leaf> = leaves
        .map(|(key, tensor)| (key.to_string(), tensor.dtype(), tensor.shape().to_vec()))
        .collect();
    leaves.sort_by(|a, b| a.0.cmp(&b.0));
    (
        batch.batch_size().to_vec(),
        names
            .map(|name| name.as_deref().map(str::to_owned))
            .collect(),
        leaves,
    )
}

fn builders() -> Vec<CollectorBuilder> {
    let sync = |how| {
        MultiSyncCollector::builder(LedgerEnv::from_seed)
            .num_workers(3)
            .cat_results(how)
    };
    let all = [CatResults::Stack, CatResults::Flat, CatResults::Time];
    let mut builders = vec![
        Collector::builder(LedgerEnv::from_seed),
        Collector::builder(LedgerEnv::from_seed).num_envs(1),
        Collector::builder(LedgerEnv::from_seed)
            .num_envs(3)
            .set_truncated(true)
            .track_traj_ids(false),
        MultiAsyncCollector::builder(LedgerEnv::from_seed)
            .num_workers(2)
            .num_envs(2)
            .max_frames_per_traj(5),
        sync(CatResults::Stack).preemptive_threshold(1.0),
    ];
    // Shares of 10, 10 and 10 steps, and of 12, 12 and 6, of one environment or of two.
    for how in all {
        builders.push(sync(how));
        builders.push(sync(how).num_envs(2).track_policy_version(true));
        builders.push(sync(how).frames_per_batch([24, 24, 12]).num_envs(2));
    }
    builders
}

#[test]
fn a_fake_batch_has_the_names_shapes_and_dtypes_of_a_real_one() {
    for builder in builders() {
        let shown = format!("{builder:?}");
        let mut collector = builder.frames_per_batch(60).seed(0).build().unwrap();
        let fake = collector.fake_batch().unwrap();
        assert_eq!(collector.stats().frames, 0);
        let real = collector.next().unwrap().unwrap();
        assert_eq!(shape(&fake), shape(&real), "{shown}");
        assert_eq!(shape(&collector.fake_batch().unwrap()), shape(&fake));
        let rewards: Vec<f32> = fake.get(("next", "reward")).unwrap().to_vec().unwrap();
        assert!(rewards.iter().all(|&reward| reward == 0.0));
    }
}

#[test]
fn post_processing_is_part_of_it() {
    let mut collector = Collector::builder(LedgerEnv::from_seed)
        .frames_per_batch(10)
        .postproc(|mut batch: TensorDict| {
            batch.set("seen", Tensor::zeros(DType::F32, [10])?)?;
            Ok::<_, tensordict::TensorError>(batch)
        })
        .build()
        .unwrap();
    let fake = collector.fake_batch().unwrap();
    assert!(fake.contains_key("seen"));
    assert_eq!(shape(&fake), shape(&collector.next().unwrap().unwrap()));
}

#[test]
fn whole_trajectories_have_no_shape_before_they_are_there() {
    let builder = Collector::builder(LedgerEnv::from_seed)
        .frames_per_batch(10)
        .trajs_per_batch(2);
    let mut collector = builder.build().unwrap();
    let error = collector.fake_batch().unwrap_err().to_string();
    assert!(error.contains("whole trajectories"), "{error}");
    collector.shutdown().unwrap();
    assert!(matches!(collector.fake_batch(), Err(NextError::ShutDown)));
}
