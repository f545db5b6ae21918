//! Running statistics that the environments of a collector share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensordict::TensorDict;
use windrow_collect::{
    AsyncCollector, Collector, CollectorBuilder, MultiAsyncCollector, MultiSyncCollector, OnLoss,
    Parallel, Placement,
};
use windrow_env::{
    AnyTransform, Env, EnvError, EnvFactory, EnvRecipe, EnvSpec, Gathers, Lockstep, Outcome,
    Outcomes, Pendulum, Reset, Serial, Statistics, VecEnv, VecNorm, VecNormV2, gatherings,
};
use windrow_policy::{Head, NetworkPolicy, PolicyRecipe, nn::Sequential};
use windrow_slab::{Key, Row, RowBlock, RowMut};
use windrow_sync::error_chain;

use crate::program::{elsewhere, placed, placements};
#[cfg(target_os = "linux")]
use crate::program::{know_names, program};

const ENVS: usize = 8;
const STEPS: usize = 6;

/// Acts by what was normalised.
fn policy() -> PolicyRecipe {
    let net = Sequential::new().linear(4, 8).tanh().linear(8, 2).seed(3);
    PolicyRecipe::of(NetworkPolicy::new(net, Head::Categorical))
}

/// Short episodes, normalised by `norm`.
fn env(norm: AnyTransform) -> EnvRecipe {
    EnvRecipe::of("CartPole-v1").with_transform(norm)
}

type Norms = [fn(&Statistics) -> AnyTransform; 3];

const NORMS: Norms = [
    |shared| {
        VecNorm::new(["observation", "reward"])
            .sharing(shared)
            .into()
    },
    |shared| {
        let norm = VecNormV2::new(["observation"]).with_decay(0.99);
        norm.sharing(shared).into()
    },
    |shared| {
        let norm = VecNormV2::new(["observation", "reward"]).with_decay(1.0);
        norm.with_lockstep(Lockstep::Mean).sharing(shared).into()
    },
];

fn finished(builder: CollectorBuilder) -> Vec<TensorDict> {
    let collector = builder.policy_recipe(policy()).seed(5).build().unwrap();
    let batches = collector.take(5).map(|batch| batch.unwrap().detach());
    batches.collect()
}

fn bits(shared: &Statistics) -> Vec<u64> {
    let numbers = shared.read().unwrap().numbers;
    numbers.into_iter().map(f64::to_bits).collect()
}

#[test]
fn any_number_of_workers_anywhere_gives_the_same_bytes() {
    let run = |norm: fn(&Statistics) -> AnyTransform, placement, workers| {
        let shared = Statistics::new();
        let builder = MultiSyncCollector::builder(env(norm(&shared)))
            .num_workers(workers)
            .num_envs(ENVS / workers)
            .frames_per_batch(ENVS * STEPS)
            .max_frames_per_traj(9);
        let batches = finished(placed!(builder, placement));
        (batches, bits(&shared))
    };
    for norm in NORMS {
        let (expected, numbers) = run(norm, Placement::Threads, 1);
        for placement in placements() {
            for workers in [1, 2, 4, 8] {
                let (batches, got) = run(norm, placement, workers);
                for (batch, expected) in batches.iter().zip(&expected) {
                    assert!(
                        batch.same_bits(expected),
                        "{placement:?}, {workers} workers"
                    );
                }
                assert_eq!(got, numbers, "{placement:?}, {workers} workers");
            }
        }
    }
}

#[test]
fn the_only_worker_of_a_class_of_one_updates_them_at_each_step_wherever_it_runs() {
    for norm in NORMS {
        let shared = Statistics::new();
        let of = |builder: CollectorBuilder| {
            builder
                .num_envs(3)
                .frames_per_batch(3 * STEPS)
                .max_frames_per_traj(9)
        };
        let expected = finished(of(Collector::builder(env(norm(&shared)))));
        let numbers = bits(&shared);
        for placement in elsewhere() {
            let (sync, ahead) = (Statistics::new(), Statistics::new());
            let both = [
                (&sync, Collector::builder(env(norm(&sync)))),
                (&ahead, AsyncCollector::builder(env(norm(&ahead)))),
            ];
            for (shared, builder) in both {
                let batches = finished(of(placed!(builder, placement)));
                for (batch, expected) in batches.iter().zip(&expected) {
                    assert!(batch.same_bits(expected), "{placement:?}");
                }
                assert_eq!(bits(shared), numbers, "{placement:?}");
            }
        }
        // Rows of all environments count at once, which those apart do not see.
        let apart = Statistics::new();
        let merged = finished(of(MultiSyncCollector::builder(env(norm(&apart)))));
        assert!(!merged[0].same_bits(&expected[0]));
    }
}

/// `members` processes of one environment each.
#[cfg(target_os = "linux")]
fn parallel(members: usize, norm: AnyTransform) -> Parallel {
    let parallel = Parallel::new(members, env(norm)).unwrap();
    parallel.worker_program(program())
}

/// What `envs` observe, and what they earn, in some steps from seeded resets on. `around` surrounds
/// each.
#[cfg(target_os = "linux")]
fn played<V: VecEnv + ?Sized>(
    envs: &mut V,
    mut around: impl FnMut(&mut V, &mut dyn FnMut(&mut V)),
) -> Vec<u32> {
    let n = envs.num_envs();
    let mut obs = RowBlock::new(&envs.spec().observation_leaves(), n).unwrap();
    let actions = RowBlock::new(&envs.spec().action_leaves(), n).unwrap();
    let (mut reward, mut seen) = (vec![0.0; n], Vec::new());
    let seed = |env: usize| Reset {
        env,
        seed: Some(env as u64),
    };
    let all: Vec<_> = (0..n).map(seed).collect();
    for step in 0..8 {
        around(envs, &mut |envs| match step {
            0 => envs.reset(&all, obs.rows_mut()).unwrap(),
            // One begins anew between steps.
            4 => envs.reset(&all[1..2], obs.rows_mut()).unwrap(),
            _ => {
                let outcomes = Outcomes {
                    reward: &mut reward,
                    terminated: &mut vec![false; n],
                    truncated: &mut vec![false; n],
                };
                envs.step(actions.rows(), obs.rows_mut(), outcomes).unwrap();
            }
        });
        seen.extend_from_slice(obs.rows().get::<f32>(Key::new(0)).unwrap());
        seen.extend_from_slice(&reward);
    }
    seen.into_iter().map(f32::to_bits).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn members_of_a_parallel_gather_together() {
    know_names();
    for norm in NORMS {
        let (shared, here) = (Statistics::new(), Statistics::new());
        let mut members = parallel(3, norm(&shared)).start().unwrap();
        let seen = played(&mut members, |envs, step| step(envs));
        // The same in one process, where each gathers apart and what they gathered is merged after
        // each step.
        let mut envs = env(norm(&here)).build(3).unwrap();
        gatherings(envs.as_mut()).unwrap()[0].gather_apart(3);
        let expected = played(envs.as_mut(), |envs, step| {
            let gathers = envs.gatherings()[0].gathers().clone();
            let mut notes = vec![0.0; gathers.numbers()];
            gathers.send(&mut notes);
            envs.gatherings()[0].take_up(&notes).unwrap();
            step(envs);
            envs.gatherings()[0].hand_in(&mut notes);
            Gathers::merge([(&gathers, &notes[..])]);
        });
        assert_eq!(seen, expected);
        assert_eq!(bits(&shared), bits(&here));
        // Nothing changes them while they are frozen.
        let before = bits(&shared);
        shared.set_frozen(true);
        played(&mut members, |envs, step| step(envs));
        assert_eq!(bits(&shared), before);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn collectors_of_parallel_environments_give_the_bytes_of_those_of_their_members() {
    know_names();
    let of = |builder: CollectorBuilder| {
        let builder = builder.frames_per_batch(4 * STEPS);
        finished(builder.max_frames_per_traj(9))
    };
    for norm in NORMS {
        let shared = Statistics::new();
        let single = MultiSyncCollector::builder(env(norm(&shared)));
        let expected = of(single.num_workers(1).num_envs(4));
        for workers in [1, 2] {
            let gathered = Statistics::new();
            let members = parallel(4 / workers, norm(&gathered));
            let batches = of(MultiSyncCollector::builder(members).num_workers(workers));
            for (batch, expected) in batches.iter().zip(&expected) {
                assert!(batch.same_bits(expected), "{workers} workers");
            }
            assert_eq!(bits(&gathered), bits(&shared), "{workers} workers");
        }
        // In classes of one worker, they gather step by step wherever it runs.
        let (here, there) = (Statistics::new(), Statistics::new());
        let expected = of(Collector::builder(parallel(4, norm(&here))));
        let batches = of(AsyncCollector::builder(parallel(4, norm(&there))));
        for (batch, expected) in batches.iter().zip(&expected) {
            assert!(batch.same_bits(expected));
        }
        assert_eq!(bits(&there), bits(&here));
    }
}

/// How many rows were counted.
fn count(shared: &Statistics) -> f64 {
    shared.read().map_or(0.0, |gathered| gathered.numbers[8])
}

#[test]
fn who_comes_first_is_merged_first_and_nothing_is_lost() {
    for placement in elsewhere() {
        let shared = Statistics::new();
        let norm = VecNormV2::new(["observation"]).with_decay(1.0);
        let builder = MultiAsyncCollector::builder(env(norm.sharing(&shared).into()))
            .num_workers(3)
            .frames_per_batch(20)
            .total_frames(300);
        let collector = placed!(builder, placement).build().unwrap();
        let mut resets = 0;
        for batch in collector {
            let done = batch
                .unwrap()
                .get(("next", "done"))
                .unwrap()
                .to_vec::<bool>();
            resets += done.unwrap().into_iter().filter(|done| *done).count();
        }
        // Each step, the begin of an episode after each end, and the first of each environment that
        // came in time.
        let begun = count(&shared) - (300 + resets) as f64;
        assert!((1.0..=3.0).contains(&begun), "{placement:?}: {begun}");
    }
}

#[test]
fn the_users_object_is_read_written_and_frozen_between_batches() {
    for placement in placements() {
        let shared = Statistics::new();
        let norm = VecNormV2::new(["observation"]).with_decay(1.0);
        let builder = MultiSyncCollector::builder(env(norm.sharing(&shared).into()))
            .num_workers(2)
            .frames_per_batch(20)
            .max_frames_per_traj(100);
        let mut collector = placed!(builder, placement).build().unwrap();
        let mut next = || {
            let batch = collector.next().unwrap().unwrap();
            let done = batch
                .get(("next", "done"))
                .unwrap()
                .to_vec::<bool>()
                .unwrap();
            done.into_iter().filter(|done| *done).count() as f64
        };
        let first = 22.0 + next();
        assert_eq!(count(&shared), first);
        let saved = shared.read().unwrap();
        shared.set_frozen(true);
        next();
        assert_eq!(shared.read().unwrap(), saved);
        shared.set_frozen(false);
        let more = 20.0 + next();
        assert_eq!(count(&shared), first + more);
        shared.write(&saved).unwrap();
        let more = 20.0 + next();
        assert_eq!(count(&shared), first + more, "{placement:?}");
    }
}

#[test]
fn collectors_of_one_worker_each_both_contribute() {
    let shared = Statistics::new();
    let norm = || {
        let norm = VecNormV2::new(["observation"]).with_decay(1.0);
        env(norm.sharing(&shared).into())
    };
    let mut rows = 0;
    for placement in placements() {
        let mut both = [Collector::builder(norm()), AsyncCollector::builder(norm())].map(|one| {
            let builder = one.frames_per_batch(20).total_frames(80);
            placed!(builder, placement).build().unwrap()
        });
        for _ in 0..4 {
            for collector in &mut both {
                let batch = collector.next().unwrap().unwrap();
                let done = batch.get(("next", "done")).unwrap();
                let done = done.to_vec::<bool>().unwrap().into_iter();
                rows += 20 + done.filter(|done| *done).count();
            }
        }
        // Each has begun once.
        rows += 2;
        assert_eq!(count(&shared), rows as f64, "{placement:?}");
    }
}

#[test]
fn workers_that_gather_something_else_in_one_place_are_refused() {
    for placement in placements() {
        let shared = Statistics::new();
        let of = |key: &str| env(VecNorm::new([key]).sharing(&shared).into());
        let builder = MultiSyncCollector::builder("CartPole-v1")
            .worker_envs([of("observation"), of("reward")])
            .frames_per_batch(20);
        let refused = placed!(builder, placement).build().err().unwrap();
        let expected = "statistics of VecNorm: expected VecNorm of [\"";
        let refused = error_chain(&refused);
        assert!(refused.contains(expected), "{placement:?}: {refused}");
    }
}

/// A pendulum that fails in step `at` of the first that were made.
struct Fails {
    env: Pendulum,
    left: Option<usize>,
}

impl Env for Fails {
    fn spec(&self) -> &EnvSpec {
        self.env.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.env.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        if let Some(left) = &mut self.left {
            *left = left
                .checked_sub(1)
                .ok_or_else(|| EnvError::failed("on purpose"))?;
        }
        self.env.step(action, obs)
    }
}

#[test]
fn what_a_lost_worker_has_gathered_goes_with_its_part() {
    // Sixty steps and two resets, and one of the environment in the place of the lost one: not the
    // three steps before its end. Where the other worker fills the share of the lost one, there is
    // none in its place.
    let rules = [
        (OnLoss::Restart { budget: 1 }, 63.0),
        (OnLoss::Continue, 62.0),
    ];
    let both = [Placement::Inline, Placement::Threads];
    for (placement, (on_loss, expected)) in both
        .iter()
        .flat_map(|place| rules.map(|rule| (*place, rule)))
    {
        let shared = Statistics::new();
        let norm = VecNormV2::new(["observation"])
            .with_decay(1.0)
            .sharing(&shared);
        let made = Arc::new(AtomicUsize::new(0));
        let make = move || -> Result<Box<dyn VecEnv>, EnvError> {
            let first = made.fetch_add(1, Ordering::Relaxed) == 0;
            let fails = || Fails {
                env: Pendulum::new(),
                left: first.then_some(13),
            };
            Ok(Box::new(
                Serial::from_fn(1, fails)?.transformed(norm.clone())?,
            ))
        };
        let collector = MultiSyncCollector::builder(make)
            .placement(placement)
            .num_workers(2)
            .frames_per_batch(20)
            .total_frames(60)
            .on_loss(on_loss)
            .allow_partial_batch(false)
            .build()
            .unwrap();
        assert_eq!(collector.map(Result::unwrap).count(), 3);
        let count = shared.read().unwrap().numbers[6];
        assert_eq!(count, expected, "{placement:?} {on_loss:?}");
    }
}
