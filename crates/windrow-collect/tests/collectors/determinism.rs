//! The same seed gives the same data, bit for bit, however many workers collect them and wherever
//! those run.

use crate::crew::world::{PLACEMENTS, elsewhere};
#[cfg(target_os = "linux")]
use crate::crew::world::{World, program};
use tensordict::{DType, TensorDict};
use windrow_collect::{
    AsyncCollector, CatResults, Collector, CollectorBuilder, Delivery, Inference,
    MultiSyncCollector, Placement, TrajFormat,
};
use windrow_env::{Env, EnvError, EnvSpec, Outcome, Spec};
use windrow_policy::{Head, NetworkPolicy, PolicyRecipe, nn::Sequential};
use windrow_slab::{Key, Row, RowMut};

/// Environments over all workers: they can be shared out over 1, 2, 3 and 4.
const ENVS: usize = 12;
const STEPS: usize = 7;
const SEEDS: [u64; 3] = [0, 1, 0xdead_beef];
const CREWS: [usize; 4] = [1, 2, 3, 4];

fn network(seed: u64) -> NetworkPolicy {
    let net = Sequential::new()
        .linear(4, 16)
        .tanh()
        .linear(16, 16)
        .relu()
        .linear(16, 2)
        .seed(seed);
    NetworkPolicy::new(net, Head::Categorical).return_log_prob(true)
}

/// CartPole with episodes short enough to end within a few batches, over `workers` workers.
fn builder(placement: Placement, workers: usize, seed: u64) -> CollectorBuilder {
    let builder = MultiSyncCollector::builder("CartPole-v1").placement(placement);
    #[cfg(target_os = "linux")]
    let builder = builder.worker_program(program(&World::default()));
    builder
        .num_workers(workers)
        .num_envs(ENVS / workers)
        .frames_per_batch(ENVS * STEPS)
        .max_frames_per_traj(20)
        .track_policy_version(true)
        .seed(seed)
}

fn take(collector: &mut Collector, batches: usize) -> Vec<TensorDict> {
    let batches = collector.by_ref().take(batches);
    batches.map(|batch| batch.unwrap().detach()).collect()
}

/// Whether `run` gives the same as one worker inline does, with any number of workers wherever they
/// run, and where a server acts for them.
fn assert_alike(run: impl Fn(CollectorBuilder) -> Vec<TensorDict>, seed: u64) {
    let expected = run(builder(Placement::Inline, 1, seed));
    assert!(!expected.is_empty());
    for workers in CREWS {
        let placed = PLACEMENTS
            .iter()
            .map(|&placement| (placement, Inference::Local));
        for (placement, inference) in placed.chain([(Placement::Threads, Inference::Served)]) {
            let got = run(builder(placement, workers, seed).inference(inference));
            assert_eq!(got.len(), expected.len());
            for (n, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(got.batch_size(), expected.batch_size());
                for (key, tensor) in expected.leaves() {
                    let same = got.get(&key).unwrap() == tensor;
                    assert!(
                        same,
                        "{key} of batch {n}: {placement:?}, {inference:?}, {workers} workers, seed {seed}"
                    );
                }
                assert_eq!(got, expected);
            }
        }
    }
}

#[test]
fn a_policy_that_was_written_down_collects_the_same() {
    let bytes = PolicyRecipe::of(network(3)).to_bytes().unwrap();
    let recipe = PolicyRecipe::from_bytes(&bytes).unwrap();
    let build = || builder(Placement::Threads, 2, 1);
    let read = take(&mut build().policy_recipe(recipe).build().unwrap(), 3);
    let expected = take(&mut build().policy(network(3)).build().unwrap(), 3);
    assert_eq!(read, expected);
}

#[test]
fn random_actions_do_not_depend_on_workers() {
    for seed in SEEDS {
        assert_alike(|builder| take(&mut builder.build().unwrap(), 6), seed);
    }
}

#[test]
fn a_network_acts_the_same_in_any_worker_across_updates_of_its_weights() {
    let updates: Vec<_> = (10..16)
        .map(|seed| {
            let collector = Collector::builder("CartPole-v1").policy(network(seed));
            collector
                .frames_per_batch(1)
                .build()
                .unwrap()
                .policy_weights()
        })
        .collect();
    for seed in SEEDS {
        let run = |builder: CollectorBuilder| {
            let mut collector = builder.policy(network(1)).build().unwrap();
            let mut batches = take(&mut collector, 2);
            for weights in &updates {
                collector.update_policy_weights(weights).unwrap();
                batches.extend(take(&mut collector, 1));
            }
            batches
        };
        assert_alike(run, seed);
    }
}

#[test]
fn warm_up_and_a_short_last_batch_do_not_depend_on_workers() {
    let run = |builder: CollectorBuilder| {
        let mut collector = builder
            .policy(network(1))
            .init_random_frames(100)
            .total_frames((ENVS * (3 * STEPS + 5)) as u64)
            .allow_partial_batch(true)
            .build()
            .unwrap();
        take(&mut collector, 10)
    };
    assert_alike(run, 3);
}

#[test]
fn a_new_seed_midway_starts_the_same_data_in_any_worker() {
    let run = |builder: CollectorBuilder| {
        let mut collector = builder.policy(network(1)).build().unwrap();
        let mut batches = take(&mut collector, 3);
        assert_eq!(collector.set_seed(77, false), 77 + ENVS as u64 - 1);
        batches.extend(take(&mut collector, 3));
        assert_eq!(collector.set_seed(77, true), 77);
        batches.extend(take(&mut collector, 2));
        collector.reset();
        batches.extend(take(&mut collector, 2));
        batches
    };
    assert_alike(run, 5);
}

/// Everything but trajectory ids, which are never used twice.
fn without_ids(batches: &[TensorDict]) -> Vec<TensorDict> {
    let batches = batches.iter();
    batches
        .map(|batch| batch.exclude(&[("collector", "traj_ids")]))
        .collect()
}

#[test]
fn a_seed_is_followed_by_the_same_data_whenever_it_is_given() {
    for (&placement, workers) in PLACEMENTS.iter().zip([1, 3, 3]) {
        for policy in [None, Some(network(1))] {
            let make = |seed| {
                let builder = builder(placement, workers, seed);
                match &policy {
                    None => builder.build().unwrap(),
                    Some(policy) => builder.policy(policy.clone()).build().unwrap(),
                }
            };
            let expected = without_ids(&take(&mut make(9), 3));
            let mut collector = make(1);
            for before in [0, 4, 1] {
                take(&mut collector, before);
                collector.set_seed(9, false);
                assert_eq!(without_ids(&take(&mut collector, 3)), expected);
            }
            collector.set_seed(9, true);
            let alike = without_ids(&take(&mut collector, 2));
            assert_ne!(alike, expected[..2]);
            collector.reset();
            assert_ne!(without_ids(&take(&mut collector, 2)), alike);
            collector.set_seed(9, true);
            assert_eq!(without_ids(&take(&mut collector, 2)), alike);
        }
    }
}

/// A state from which any number of workers goes on, with new episodes.
fn without_simulators(collector: &mut Collector) -> TensorDict {
    let mut state = collector.state_dict().unwrap();
    state.remove("simulators").unwrap();
    state
}

#[test]
fn a_state_saved_after_a_seed_goes_on_behind_all_that_was_drawn() {
    let mut collector = builder(Placement::Inline, 1, 1).build().unwrap();
    take(&mut collector, 5);
    collector.set_seed(9, false);
    take(&mut collector, 2);
    let state = without_simulators(&mut collector);
    let number = |key: &str| state.get(key).unwrap().item::<i64>().unwrap();
    assert_eq!(
        (number("seed"), number("next_frame")),
        (9, 5 * STEPS as i64)
    );
    let seeded = without_ids(&take(&mut collector, 2));
    let run = |builder: CollectorBuilder| {
        let mut resumed = builder.build().unwrap();
        resumed.load_state_dict(&state).unwrap();
        let mut batches = take(&mut resumed, 2);
        assert_ne!(without_ids(&batches), seeded);
        resumed.set_seed(9, false);
        batches.extend(take(&mut resumed, 2));
        batches
    };
    assert_alike(run, 3);
}

#[test]
fn a_seed_is_kept_when_a_reset_follows_it() {
    let batches = |then: fn(&mut Collector)| {
        let mut collector = builder(Placement::Inline, 2, 1).build().unwrap();
        take(&mut collector, 1);
        collector.set_seed(9, false);
        then(&mut collector);
        take(&mut collector, 2)
    };
    assert_eq!(batches(Collector::reset), batches(|_| ()));
    let first = |then: fn(&mut Collector)| {
        let mut collector = builder(Placement::Inline, 2, 1).build().unwrap();
        then(&mut collector);
        take(&mut collector, 2)
    };
    assert_eq!(first(Collector::reset), first(|_| ()));
}

#[test]
fn a_saved_state_goes_on_the_same_in_any_worker() {
    let mut saving = builder(Placement::Threads, 3, 2)
        .policy(network(1))
        .build()
        .unwrap();
    take(&mut saving, 4);
    let state = without_simulators(&mut saving);
    let run = |builder: CollectorBuilder| {
        let mut collector = builder.policy(network(4)).build().unwrap();
        collector.load_state_dict(&state).unwrap();
        assert_eq!(collector.policy_weights(), saving.policy_weights());
        let mut batches = take(&mut collector, 3);
        // Also into a collector that has begun.
        collector.load_state_dict(&state).unwrap();
        batches.extend(take(&mut collector, 3));
        assert_eq!(batches[..3], batches[3..]);
        batches
    };
    assert_alike(run, 100);
}

#[test]
fn whole_trajectories_come_in_the_same_order_with_any_number_of_workers() {
    for format in [TrajFormat::Padded, TrajFormat::Cat] {
        let run = |builder: CollectorBuilder| {
            let mut collector = builder
                .trajs_per_batch(5)
                .traj_format(format)
                .total_frames((ENVS * STEPS * 12) as u64)
                .build()
                .unwrap();
            take(&mut collector, 100)
        };
        assert_alike(run, 6);
    }
}

#[test]
fn the_same_run_twice_is_the_same_in_every_way_of_putting_shares_together() {
    for how in [CatResults::Flat, CatResults::Time, CatResults::Stack] {
        let run = |placement| {
            let mut collector = builder(placement, 3, 8)
                .frames_per_batch(ENVS * STEPS - 4)
                .cat_results(how)
                .build()
                .unwrap();
            take(&mut collector, 4)
        };
        let first = run(Placement::Threads);
        assert_eq!(first, run(Placement::Threads));
        for &placement in PLACEMENTS {
            assert_eq!(first, run(placement), "{placement:?}");
        }
    }
}

#[test]
fn one_worker_in_the_background_collects_what_one_in_the_foreground_does() {
    let run = |builder: CollectorBuilder| {
        let builder = builder.policy(network(1)).num_envs(4).frames_per_batch(40);
        take(&mut builder.seed(3).build().unwrap(), 8)
    };
    let foreground = run(Collector::builder("CartPole-v1"));
    assert_eq!(foreground, run(AsyncCollector::builder("CartPole-v1")));
}

#[test]
fn batches_of_whichever_worker_came_first_are_those_that_it_would_have_collected_alone() {
    const WORKERS: usize = 3;
    let rows = |placement| {
        let delivery = Delivery::FirstCome {
            workers_per_batch: 1,
        };
        let mut collector = builder(placement, WORKERS, 4)
            .delivery(delivery)
            .frames_per_batch(ENVS / WORKERS * STEPS)
            .build()
            .unwrap();
        let mut batches = take(&mut collector, 12);
        // Episodes of environment `i` of all are numbered `i` and on in steps of that number.
        let worker = |batch: &TensorDict| {
            let ids = batch.get(("collector", "traj_ids")).unwrap();
            ids.to_vec::<i64>().unwrap()[0] as usize % ENVS / (ENVS / WORKERS)
        };
        batches.sort_by_key(worker);
        let mut crews = vec![Vec::new(); WORKERS];
        for batch in batches {
            crews[worker(&batch)].push(batch);
        }
        crews
    };
    let inline = rows(Placement::Inline);
    for placement in elsewhere() {
        for (inline, other) in inline.iter().zip(&rows(placement)) {
            let common = inline.len().min(other.len());
            assert_eq!(inline[..common], other[..common], "{placement:?}");
        }
    }
}

/// Observes the seed that it was reset with, -1 without one; keeps its own.
struct Keeping(EnvSpec);

impl Env for Keeping {
    fn spec(&self) -> &EnvSpec {
        &self.0
    }

    fn reset(&mut self, seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        let seen = seed.map_or(-1, u64::cast_signed);
        Ok(obs.write(Key::<i64>::new(0), &[seen])?)
    }

    fn step(&mut self, _: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        obs.write(Key::<i64>::new(0), &[0])?;
        Ok(Outcome::default())
    }
}

#[test]
fn environments_that_keep_their_seed_are_seeded_with_one_that_is_given() {
    let make = || {
        let observation = Spec::unbounded(DType::I64, [1]);
        let mut spec = EnvSpec::new("Keeping", observation, Spec::discrete(1000));
        spec.keeps_seed = true;
        Keeping(spec)
    };
    let builder = || Collector::builder(make).frames_per_batch(20).noise_seed(3);
    let run = |mut collector: Collector| {
        let batch = collector.next().unwrap().unwrap();
        let seen = batch.as_slice::<i64>("observation").unwrap()[0];
        let actions = batch.get("action").unwrap();
        (seen, actions.to_vec::<i64>().unwrap())
    };
    let (seen, actions) = run(builder().build().unwrap());
    assert_eq!(seen, -1);
    assert_eq!(run(builder().build().unwrap()), (seen, actions.clone()));
    assert_ne!(run(builder().noise_seed(4).build().unwrap()).1, actions);
    assert_eq!(run(builder().seed(3).build().unwrap()), (3, actions));
    let mut seeded = builder().build().unwrap();
    seeded.set_seed(8, false);
    assert_eq!(run(seeded).0, 8);
}
