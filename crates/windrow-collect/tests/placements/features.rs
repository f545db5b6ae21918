//! What each option of a collector does.

use std::error::Error;

use tensordict::{DType, Tensor, TensorDict};
use windrow_collect::{
    CatResults, Collector, CollectorBuilder, MultiSyncCollector, NextError, Placement,
};
use windrow_env::testing::{CountingEnv, LedgerEnv};
use windrow_env::{EnvFactory, EnvRecipe};
use windrow_policy::{
    Binding, ExplorationType, Head, NetworkPolicy, Policy, PolicyError, PolicyIn, PolicyRecipe,
    PolicySpec, Registry, Weights, nn::Sequential, policy_fn,
};
use windrow_slab::{Key, LeafSpec, RowsMut};
use windrow_sync::error_chain;

use crate::program::{placed, placements};

/// What can be collected in every placement.
pub(crate) fn names(registry: &mut Registry) -> Result<(), Box<dyn Error + Send + Sync>> {
    registry.env("Ledger", LedgerEnv::from_seed)?;
    registry.env_with("Counting", |(max, start)| CountingEnv::new(max, start))?;
    registry.policy("ones", |_| count_up())?;
    registry.policy("marks", |_| marks())?;
    registry.policy("firsts", |_| Firsts(Vec::new()))?;
    Ok(())
}

/// A collector whose workers run at `placement`.
fn over(placement: Placement, env: impl EnvFactory + Send + Sync + 'static) -> CollectorBuilder {
    placed!(Collector::builder(env), placement)
}

/// Counts from `start` up to `max`.
fn counting(placement: Placement, max: i32, start: i32) -> CollectorBuilder {
    let env = EnvRecipe::of("Counting").with_arguments(&(max, start));
    over(placement, env.unwrap()).policy_recipe(PolicyRecipe::named("ones"))
}

fn ints(batch: &TensorDict, key: &[&str]) -> Vec<i64> {
    batch.get(key).unwrap().to_vec::<i64>().unwrap()
}

fn bools(batch: &TensorDict, key: &[&str]) -> Vec<bool> {
    batch.get(key).unwrap().to_vec::<bool>().unwrap()
}

/// Always adds one to the counter.
fn count_up() -> impl Policy {
    let columns = [LeafSpec::new("action", DType::I8, [1])];
    policy_fn(columns, |_, mut out| {
        out.get_mut::<i8>(Key::new(0))?.fill(1);
        Ok(())
    })
}

/// Takes the third action, and marks that it did.
fn marks() -> impl Policy {
    let columns = [
        LeafSpec::new("action", DType::I64, []),
        LeafSpec::new("mark", DType::F32, [2]),
    ];
    policy_fn(columns, |_: &PolicyIn<'_>, mut out: RowsMut<'_>| {
        out.get_mut::<i64>(Key::new(0))?.fill(3);
        out.get_mut::<f32>(Key::new(1))?.fill(1.0);
        Ok(())
    })
}

#[test]
fn counting_gives_the_worked_example() {
    for placement in placements() {
        let mut collector = counting(placement, 8, 4)
            .frames_per_batch(12)
            .build()
            .unwrap();
        let batch = collector.next().unwrap().unwrap();
        let obs = |key: &[&str]| batch.get(key).unwrap().to_vec::<i32>().unwrap();
        assert_eq!(obs(&["observation"]), [4, 5, 6, 7, 8, 4, 5, 6, 7, 8, 4, 5]);
        assert_eq!(
            obs(&["next", "observation"]),
            [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]
        );
        let done = bools(&batch, &["next", "done"]);
        assert_eq!(
            done.iter().map(|&d| u8::from(d)).collect::<Vec<_>>(),
            [0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]
        );
        assert_eq!(
            ints(&batch, &["collector", "traj_ids"]),
            [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]
        );
    }
}

#[test]
fn max_frames_per_traj_truncates_and_counts_steps() {
    for placement in placements() {
        let mut collector = counting(placement, 100, 0)
            .frames_per_batch(7)
            .max_frames_per_traj(3)
            .build()
            .unwrap();
        let batch = collector.next().unwrap().unwrap();
        assert_eq!(ints(&batch, &["step_count"]), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(ints(&batch, &["next", "step_count"]), [1, 2, 3, 1, 2, 3, 1]);
        let truncated = bools(&batch, &["next", "truncated"]);
        assert_eq!(truncated, [false, false, true, false, false, true, false]);
        assert_eq!(bools(&batch, &["next", "done"]), truncated);
        assert_eq!(bools(&batch, &["next", "terminated"]), [false; 7]);
    }
}

#[test]
fn set_truncated_marks_the_last_step_and_the_episode_goes_on() {
    for placement in placements() {
        let mut collector = counting(placement, 100, 0)
            .frames_per_batch(3)
            .set_truncated(true)
            .build()
            .unwrap();
        for start in [0, 3] {
            let batch = collector.next().unwrap().unwrap();
            assert_eq!(bools(&batch, &["next", "truncated"]), [false, false, true]);
            assert_eq!(bools(&batch, &["next", "done"]), [false, false, true]);
            assert_eq!(bools(&batch, &["next", "terminated"]), [false; 3]);
            assert_eq!(ints(&batch, &["collector", "traj_ids"]), [0; 3]);
            let obs = batch.get("observation").unwrap().to_vec::<i32>().unwrap();
            assert_eq!(obs, [start, start + 1, start + 2]);
        }
    }
}

#[test]
fn reset_at_each_iter_begins_every_batch_with_a_new_episode() {
    for placement in placements() {
        let mut collector = counting(placement, 100, 0)
            .frames_per_batch(4)
            .reset_at_each_iter(true)
            .build()
            .unwrap();
        for id in 0..3 {
            let batch = collector.next().unwrap().unwrap();
            let obs = batch.get("observation").unwrap().to_vec::<i32>().unwrap();
            assert_eq!(obs, [0, 1, 2, 3]);
            assert_eq!(ints(&batch, &["collector", "traj_ids"]), [id; 4]);
        }
    }
}

#[test]
fn init_random_frames_ignore_the_policy_for_whole_batches_and_leave_its_columns_zero() {
    for placement in placements() {
        let mut collector = over(placement, "Ledger")
            .policy_recipe(PolicyRecipe::named("marks"))
            .frames_per_batch(50)
            .total_frames(200)
            .init_random_frames(51)
            .seed(0)
            .build()
            .unwrap();
        let batches: Vec<_> = collector.by_ref().map(Result::unwrap).collect();
        for (i, batch) in batches.iter().enumerate() {
            let all_three = ints(batch, &["action"]).iter().all(|&action| action == 3);
            assert_eq!(all_three, i >= 2, "batch {i}");
            let mark = batch.get("mark").unwrap().to_vec::<f32>().unwrap();
            assert_eq!(mark, [if i >= 2 { 1.0 } else { 0.0 }; 100], "batch {i}");
        }
    }
}

#[test]
fn totals_are_exact_and_the_last_batch_may_be_short() {
    for placement in placements() {
        let mut collector = over(placement, "Ledger")
            .num_envs(2)
            .frames_per_batch(10)
            .total_frames(24)
            .allow_partial_batch(true)
            .build()
            .unwrap();
        assert_eq!(collector.len(), Some(3));
        let shapes: Vec<_> = collector
            .by_ref()
            .map(|batch| batch.unwrap().batch_size().to_vec())
            .collect();
        assert_eq!(shapes, [[2, 5], [2, 5], [2, 2]]);
        let stats = collector.stats();
        assert_eq!(
            (stats.frames, stats.batches, stats.completed),
            (24, 3, true)
        );
        assert!(collector.next().is_none());
        let mut none = over(placement, "Ledger")
            .frames_per_batch(10)
            .total_frames(0)
            .build()
            .unwrap();
        assert!(none.is_empty() && none.next().is_none());
    }
}

#[test]
fn batches_rounded_up_keep_the_total() {
    for placement in placements() {
        let rounded = |total| {
            over(placement, "Ledger")
                .num_envs(6)
                .frames_per_batch(100)
                .round_up(true)
                .total_frames(total)
                .build()
        };
        let mut collector = rounded(300).unwrap();
        assert_eq!(collector.stats().requested_frames_per_batch, 102);
        let shapes: Vec<_> = collector
            .by_ref()
            .map(|batch| batch.unwrap().batch_size().to_vec())
            .collect();
        assert_eq!(shapes, [[6, 17], [6, 17], [6, 16]]);
        let error = rounded(306).unwrap_err().to_string();
        assert!(
            error.starts_with("total_frames=306 is not a multiple of frames_per_batch=100"),
            "{error}"
        );
    }
}

#[test]
fn breaking_off_and_going_on_counts_on() {
    for placement in placements() {
        let mut collector = over(placement, "Ledger")
            .frames_per_batch(10)
            .total_frames(40)
            .build()
            .unwrap();
        for batch in (&mut collector).take(1) {
            batch.unwrap();
        }
        assert_eq!(collector.size_hint(), (0, Some(3)));
        assert_eq!(collector.by_ref().count(), 3);
    }
}

#[test]
fn a_rollout_is_whole_and_not_counted() {
    for placement in placements() {
        let mut collector = over(placement, "Ledger")
            .frames_per_batch(10)
            .total_frames(20)
            .postproc(|mut batch: TensorDict| {
                batch.set("seen", Tensor::zeros(DType::F32, [10])?)?;
                Ok::<_, tensordict::TensorError>(batch)
            })
            .seed(0)
            .build()
            .unwrap();
        let before = collector.rollout().unwrap();
        assert_eq!(before.batch_size(), &[10]);
        assert!(!before.contains_key("seen"));
        assert_eq!(collector.stats().frames, 0);
        let rest: Vec<_> = collector.by_ref().map(Result::unwrap).collect();
        assert_eq!(rest.len(), 2);
        assert!(rest.iter().all(|batch| batch.contains_key("seen")));
        assert_eq!(collector.rollout().unwrap().batch_size(), &[10]);
        assert!(collector.next().is_none());
    }
}

#[test]
fn postprocs_run_in_order_and_their_errors_say_where() {
    for placement in placements() {
        let mut collector = over(placement, "Ledger")
            .frames_per_batch(4)
            .postproc(|batch: TensorDict| batch.reshape([2, 2]))
            .postproc(|batch: TensorDict| {
                assert_eq!(batch.batch_size(), &[2, 2]);
                batch.reshape([3])
            })
            .build()
            .unwrap();
        let error = collector.next().unwrap().unwrap_err();
        assert!(
            error_chain(&error).starts_with("postproc failed on batch 0: "),
            "{error}"
        );
        assert!(collector.next().is_none());
    }
}

#[test]
fn flat_batches_of_several_workers_are_views_that_do_not_change_while_they_are_held() {
    let build = |how| {
        MultiSyncCollector::builder("CartPole-v1")
            .num_workers(2)
            .num_envs(3)
            .frames_per_batch(2 * 3 * 5)
            .cat_results(how)
            .seed(1)
            .build()
            .unwrap()
    };
    let batches = |how| {
        build(how)
            .by_ref()
            .take(4)
            .map(Result::unwrap)
            .collect::<Vec<_>>()
    };
    let stacked = batches(CatResults::Stack);
    for (how, size, strides) in [
        (CatResults::Flat, [6, 5], [4, 24, 1]),
        (CatResults::Time, [3, 10], [4, 12, 1]),
    ] {
        let held = batches(how);
        for (flat, stacked) in held.iter().zip(&stacked) {
            assert_eq!(flat.batch_size(), size);
            let observed = flat.get("observation").unwrap();
            assert_eq!(observed.strides(), strides, "{how:?} is a view of the slab");
            let each: Vec<_> = (0..2)
                .map(|worker| stacked.index(worker).unwrap())
                .collect();
            let dim = usize::from(how == CatResults::Time);
            assert!(
                flat.same_bits(&TensorDict::cat(&each, dim).unwrap()),
                "{how:?}"
            );
        }
    }
}

#[test]
fn return_same_td_uses_one_memory_and_never_changes_a_batch_that_is_held() {
    for placement in placements() {
        let mut collector = over(placement, "Ledger")
            .frames_per_batch(4)
            .return_same_td(true)
            .build()
            .unwrap();
        let address = |batch: &TensorDict| batch.get("action").unwrap().data_ptr();
        let first = address(&collector.next().unwrap().unwrap());
        let held = collector.next().unwrap().unwrap();
        assert_eq!(address(&held), first);
        assert!(matches!(collector.next(), Some(Err(NextError::Slab(_)))));
        drop(held);
        assert!(collector.next().unwrap().is_ok());
    }
}

#[test]
fn seeds_are_those_of_the_environments() {
    for placement in placements() {
        let mut collector = over(placement, "CartPole-v1")
            .num_envs(6)
            .frames_per_batch(60)
            .build()
            .unwrap();
        assert_eq!(collector.set_seed(1, false), 6);
        let batch = collector.next().unwrap().unwrap();
        assert_eq!(collector.set_seed(1, true), 1);
        let same = collector.next().unwrap().unwrap();
        let first = |batch: &TensorDict, env: usize| {
            let row = batch
                .select_index(0, env)
                .unwrap()
                .select_index(0, 0)
                .unwrap();
            row.get("observation").unwrap().to_vec::<f32>().unwrap()
        };
        assert_eq!(first(&same, 0), first(&batch, 0));
        assert_eq!(first(&same, 0), first(&same, 5));
        assert_ne!(first(&batch, 0), first(&batch, 5));
        let mut alone = over(placement, "CartPole-v1")
            .frames_per_batch(1)
            .seed(6)
            .build()
            .unwrap();
        let row = alone.next().unwrap().unwrap();
        assert_eq!(
            row.get("observation").unwrap().to_vec::<f32>().unwrap(),
            first(&batch, 5)
        );
    }
}

#[test]
fn without_a_seed_one_is_drawn_that_gives_the_same_data_again() {
    for placement in placements() {
        let build = |seed: Option<u64>| {
            let builder = over(placement, "CartPole-v1").frames_per_batch(30);
            match seed {
                Some(seed) => builder.seed(seed),
                None => builder,
            }
            .build()
            .unwrap()
        };
        let (mut drawn, mut other) = (build(None), build(None));
        assert_ne!(drawn.stats().seed, other.stats().seed);
        let batch = drawn.next().unwrap().unwrap();
        assert_ne!(batch, other.next().unwrap().unwrap());
        let mut again = build(Some(drawn.stats().seed));
        assert_eq!(batch, again.next().unwrap().unwrap());
    }
}

#[test]
fn reset_begins_new_episodes_with_new_ids() {
    for placement in placements() {
        let mut collector = counting(placement, 100, 0)
            .frames_per_batch(3)
            .build()
            .unwrap();
        drop(collector.next());
        collector.reset();
        let batch = collector.next().unwrap().unwrap();
        assert_eq!(
            batch.get("observation").unwrap().to_vec::<i32>().unwrap(),
            [0, 1, 2]
        );
        assert_eq!(ints(&batch, &["collector", "traj_ids"]), [1; 3]);
    }
}

fn network(seed: u64) -> NetworkPolicy {
    let net = Sequential::new()
        .linear(4, 8)
        .tanh()
        .linear(8, 2)
        .seed(seed);
    NetworkPolicy::new(net, Head::Categorical).return_log_prob(true)
}

fn with_network(placement: Placement, seed: u64) -> Collector {
    over(placement, "CartPole-v1")
        .num_envs(3)
        .policy(network(seed))
        .frames_per_batch(90)
        .track_policy_version(true)
        .seed(5)
        .build()
        .unwrap()
}

#[test]
fn new_weights_act_from_the_next_batch_on_under_a_new_version() {
    for placement in placements() {
        let (mut collector, mut other) = (with_network(placement, 1), with_network(placement, 2));
        drop((collector.next(), other.next()));
        assert_eq!(
            collector
                .update_policy_weights(&other.policy_weights())
                .unwrap(),
            1
        );
        collector.set_seed(9, false);
        other.set_seed(9, false);
        let batch = collector.next().unwrap().unwrap();
        let expected = other.next().unwrap().unwrap();
        let log_prob = |batch: &TensorDict| {
            batch
                .get("action_log_prob")
                .unwrap()
                .to_vec::<f32>()
                .unwrap()
        };
        assert_eq!(log_prob(&batch), log_prob(&expected));
        assert_eq!(ints(&batch, &["policy_version"]), [1; 90]);
        assert_eq!(ints(&expected, &["policy_version"]), [0; 90]);
    }
}

#[test]
fn weights_that_do_not_fit_change_nothing() {
    for placement in placements() {
        let mut collector = with_network(placement, 1);
        let before = collector.policy_weights();
        let mut wrong = before.clone();
        wrong
            .set("0.weight", Tensor::zeros(DType::F32, [8, 5]).unwrap())
            .unwrap();
        let error = error_chain(&collector.update_policy_weights(&wrong).unwrap_err());
        assert!(
            error.contains("0.weight") && error.contains("[8, 5]") && error.contains("[8, 4]"),
            "{error}"
        );
        assert_eq!(collector.policy_weights(), before);
        assert_eq!(collector.stats().policy_version, 0);
        assert!(collector.next().unwrap().is_ok());
    }
}

#[test]
fn exploration_can_be_switched_off() {
    for placement in placements() {
        let collect = |seed| {
            let mut collector = over(placement, "CartPole-v1")
                .policy(network(1))
                .exploration_type(ExplorationType::Mode)
                .frames_per_batch(40)
                .seed(seed)
                .build()
                .unwrap();
            collector.set_seed(3, false);
            collector.next().unwrap().unwrap().detach()
        };
        assert_eq!(collect(1), collect(2));
    }
}

#[test]
fn a_state_goes_on_where_it_was_saved() {
    for placement in placements() {
        let mut collector = with_network(placement, 1);
        drop(
            collector
                .by_ref()
                .take(3)
                .map(Result::unwrap)
                .collect::<Vec<_>>(),
        );
        let path =
            std::env::temp_dir().join(format!("windrow-state-{}.safetensors", std::process::id()));
        collector.state_dict().unwrap().save(&path).unwrap();
        let last = collector.next().unwrap().unwrap();
        let state = TensorDict::load(&path).unwrap();
        std::fs::remove_file(&path).unwrap();

        let mut restored = with_network(placement, 2);
        restored.load_state_dict(&state).unwrap();
        let stats = restored.stats();
        assert_eq!((stats.frames, stats.batches, stats.seed), (270, 3, 5));
        assert_eq!(restored.policy_weights(), collector.policy_weights());
        let batch = restored.next().unwrap().unwrap();
        assert_eq!(batch, last);
        let mut again = with_network(placement, 3);
        again.load_state_dict(&state).unwrap();
        assert_eq!(again.next().unwrap().unwrap(), batch);
    }
}

#[test]
fn a_state_at_the_end_yields_nothing() {
    for placement in placements() {
        let build = || {
            over(placement, "Ledger")
                .frames_per_batch(5)
                .total_frames(10)
                .build()
                .unwrap()
        };
        let mut collector = build();
        assert_eq!(collector.by_ref().count(), 2);
        let mut restored = build();
        restored
            .load_state_dict(&collector.state_dict().unwrap())
            .unwrap();
        assert!(restored.next().is_none());
    }
}

#[test]
fn a_state_that_makes_no_sense_changes_nothing() {
    for placement in placements() {
        let mut collector = with_network(placement, 1);
        let state = collector.state_dict().unwrap();
        let mut negative = state.clone();
        negative.set("frames", Tensor::scalar(-1i64)).unwrap();
        let error = collector.load_state_dict(&negative).unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to load the state: \"frames\" must be within 0 to 2^62, got -1"
        );
        let mut short = state.clone();
        short.remove("seed").unwrap();
        assert!(
            collector
                .load_state_dict(&short)
                .unwrap_err()
                .to_string()
                .contains("seed")
        );
        assert_eq!(collector.state_dict().unwrap(), state);
    }
}

#[test]
fn throughput_is_told() {
    for placement in placements() {
        let mut collector = over(placement, "CartPole-v1")
            .frames_per_batch(500)
            .build()
            .unwrap();
        assert_eq!(collector.stats().frames_per_second, 0.0);
        drop(collector.by_ref().take(3).collect::<Vec<_>>());
        let stats = collector.stats();
        assert!(stats.frames_per_second > 0.0 && stats.recent_frames_per_second > 0.0);
        assert!(stats.slab_bytes > 500 * 40);
    }
}

#[test]
fn vectors_of_environments_are_taken_as_they_are() {
    for placement in placements() {
        let mut collector = over(placement, EnvRecipe::of("CartPole-v1").with_num_envs(4))
            .frames_per_batch(20)
            .build()
            .unwrap();
        assert_eq!(collector.next().unwrap().unwrap().batch_size(), &[4, 5]);
    }
}

/// A policy with state: remembers which rows were told to begin.
#[derive(Clone)]
struct Firsts(Vec<bool>);

impl Policy for Firsts {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let mut columns = binding.spec.action_leaves();
        columns.push(LeafSpec::new("first", DType::Bool, []));
        Ok(PolicySpec::new(columns))
    }

    fn act(&mut self, input: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        self.0 = input.envs.is_first().to_vec();
        out.get_mut::<i64>(Key::new(0))?.fill(0);
        out.get_mut::<bool>(Key::new(1))?
            .copy_from_slice(input.envs.is_first());
        Ok(())
    }

    fn load(&mut self, _: &Weights) -> Result<(), PolicyError> {
        Ok(())
    }
}

#[test]
fn policies_are_told_when_an_episode_begins() {
    for placement in placements() {
        let mut collector = over(placement, "Ledger")
            .num_envs(3)
            .policy_recipe(PolicyRecipe::named("firsts"))
            .frames_per_batch(60)
            .seed(0)
            .build()
            .unwrap();
        for _ in 0..3 {
            let batch = collector.next().unwrap().unwrap();
            let t: Vec<bool> = ints(&batch, &["observation"])
                .chunks(3)
                .map(|obs| obs[2] == 0)
                .collect();
            assert_eq!(bools(&batch, &["first"]), t);
        }
    }
}
