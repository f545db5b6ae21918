//! What policies learn before they act.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tensordict::{DType, TensorDict};
use windrow_collect::{Collector, CollectorBuilder, MultiSyncCollector, NextError, OnLoss};
use windrow_env::{Env, EnvError, EnvSpec, Outcome, Spec};
use windrow_policy::{
    Backend, Binding, Policy, PolicyError, PolicyIn, PolicySpec, RandomPolicy, Weights,
};
use windrow_slab::{Key, Row, RowMut, RowsMut};
use windrow_sync::error_chain;

/// Observes which of its episodes this is.
#[derive(Clone)]
struct Episodes {
    spec: EnvSpec,
    episode: i32,
    fails: Fails,
}

#[derive(Clone, Copy, PartialEq)]
enum Fails {
    Never,
    AtReset,
    AtStep,
}

const EPISODE: Key<i32> = Key::new(0);

/// One environment, which begins its first episode without a seed.
fn unseeded(fails: Fails) -> Episodes {
    let mut spec = EnvSpec::new(
        "Episodes",
        Spec::unbounded(DType::I32, [1]),
        Spec::discrete(2),
    );
    spec.keeps_seed = true;
    Episodes {
        spec,
        episode: 0,
        fails,
    }
}

impl Env for Episodes {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, _: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        if self.fails == Fails::AtReset {
            return Err(EnvError::failed("made to fail"));
        }
        self.episode += 1;
        Ok(obs.write(EPISODE, &[self.episode])?)
    }

    fn step(&mut self, _: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        if self.fails == Fails::AtStep {
            return Err(EnvError::failed("made to fail"));
        }
        obs.write(EPISODE, &[self.episode])?;
        Ok(Outcome {
            reward: 0.0,
            terminated: false,
            truncated: false,
        })
    }
}

/// What a policy has learned when it was bound.
#[derive(Debug, Clone, PartialEq)]
struct Learned {
    worker: usize,
    num_envs: usize,
    batched: bool,
    in_caller: bool,
    first: Option<Vec<i32>>,
}

#[derive(Clone, Default)]
struct Log {
    bound: Arc<Mutex<Vec<Learned>>>,
    references: Arc<Mutex<Vec<PolicySpec>>>,
}

/// Acts at random, and tells what it has learned.
struct Curious {
    random: RandomPolicy,
    needs_first_rows: bool,
    log: Log,
}

impl Policy for Curious {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let first = binding.first_rows.map(|rows| rows.get(EPISODE).unwrap());
        self.log.bound.lock().unwrap().push(Learned {
            worker: binding.worker,
            num_envs: binding.num_envs,
            batched: binding.batched,
            in_caller: binding.in_caller,
            first: first.map(<[i32]>::to_vec),
        });
        Ok(self.random.bind(binding)?.backend(Backend::Framework))
    }

    fn needs_first_rows(&self) -> bool {
        self.needs_first_rows
    }

    fn become_reference(&mut self, bound: &PolicySpec) {
        self.log.references.lock().unwrap().push(bound.clone());
    }

    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        self.random.act(input, out)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.random.load(weights)
    }
}

fn curious(builder: CollectorBuilder, needs_first_rows: bool) -> (CollectorBuilder, Log) {
    let log = Log::default();
    let told = log.clone();
    let make = move |_| Curious {
        random: RandomPolicy::new(),
        needs_first_rows,
        log: told.clone(),
    };
    (builder.policy_factory(make), log)
}

fn one(fails: Fails) -> CollectorBuilder {
    Collector::builder(move || unseeded(fails)).frames_per_batch(4)
}

fn episodes(batch: &TensorDict) -> Vec<i32> {
    batch.get("observation").unwrap().to_vec().unwrap()
}

#[test]
fn a_policy_learns_its_place() {
    let (builder, log) = curious(one(Fails::Never), false);
    builder.build().unwrap();
    let alone = Learned {
        worker: 0,
        num_envs: 1,
        batched: false,
        in_caller: true,
        first: None,
    };
    assert_eq!(*log.bound.lock().unwrap(), [alone]);

    let workers = MultiSyncCollector::builder(|| unseeded(Fails::Never)).num_workers(2);
    let (builder, log) = curious(workers.num_envs(3).frames_per_batch(12), true);
    builder.build().unwrap();
    let expected = [0, 1].map(|worker| Learned {
        worker,
        num_envs: 3,
        batched: true,
        in_caller: false,
        first: Some(vec![1; 3]),
    });
    assert_eq!(*log.bound.lock().unwrap(), expected);
}

#[test]
fn collection_goes_on_with_the_episodes_that_a_policy_has_seen() {
    let mut collector = curious(one(Fails::Never), true).0.build().unwrap();
    assert_eq!(episodes(&collector.next().unwrap().unwrap()), [1; 4]);
    collector.reset();
    assert_eq!(episodes(&collector.next().unwrap().unwrap()), [2; 4]);
}

#[test]
fn a_seed_begins_other_episodes_than_a_policy_has_seen() {
    let builder = curious(one(Fails::Never), true).0;
    let mut collector = builder.seed(0).build().unwrap();
    assert_eq!(episodes(&collector.next().unwrap().unwrap()), [2; 4]);
}

#[test]
fn a_policy_that_is_made_anew_sees_first_observations_of_new_environments() {
    let made = AtomicUsize::new(0);
    let env = move || match made.fetch_add(1, Ordering::Relaxed) {
        0 => unseeded(Fails::AtStep),
        _ => unseeded(Fails::Never),
    };
    let builder = Collector::builder(env)
        .frames_per_batch(4)
        .on_loss(OnLoss::Restart { budget: 1 });
    let (builder, log) = curious(builder, true);
    let mut collector = builder.build().unwrap();
    // What follows a loss is seeded.
    assert_eq!(episodes(&collector.next().unwrap().unwrap()), [2; 4]);
    let bound = log.bound.lock().unwrap();
    assert_eq!(bound.len(), 2);
    assert_eq!(bound[0], bound[1]);
    assert_eq!(bound[1].first, Some(vec![1]));
}

#[test]
fn an_environment_that_cannot_begin_fails_once_frames_are_collected() {
    let (builder, log) = curious(one(Fails::AtReset), true);
    let mut collector = builder.build().unwrap();
    assert_eq!(log.bound.lock().unwrap()[0].first, None);
    let Some(Err(NextError::Worker(error))) = collector.next() else {
        panic!("the environment did not fail")
    };
    assert_eq!((error.worker(), error.env()), (0, Some(0)));
}

#[test]
fn an_interruption_while_episodes_begin_ends_the_build() {
    fn told_to_end(error: &(dyn Error + 'static)) -> bool {
        error_chain(&error).contains("made to fail")
    }
    let builder = curious(one(Fails::AtReset), true).0;
    let error = builder.interruptions(told_to_end).build().unwrap_err();
    assert!(error_chain(&error).contains("made to fail"), "{error}");
}

#[test]
fn who_evaluates_is_what_the_bound_policy_says() {
    let (builder, log) = curious(one(Fails::Never), false);
    let collector = builder.build().unwrap();
    assert_eq!(collector.handle().policy_backend(), Backend::Framework);
    let references = log.references.lock().unwrap();
    assert_eq!(references.len(), 1);
    assert_eq!(references[0].backend, Backend::Framework);
    let native = one(Fails::Never).build().unwrap();
    assert_eq!(native.handle().policy_backend(), Backend::Native);
}
