//! Whatever came before a saved state, what goes on from it draws no seed and no noise a second
//! time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tensordict::{NestedKey, Tensor};
use windrow_collect::{Collector, CollectorBuilder, NextError, OnLoss, Placement};
use windrow_env::testing::{FailAt, FailingEnv, Failure, LedgerEnv};
use windrow_env::{Env, EnvError, EnvSpec, Outcome};
use windrow_policy::policy_fn;
use windrow_slab::{Key, Row, RowMut};

use crate::crew::{Crew, ENVS, STEPS, local};
use crate::faulty::{At, Fault, Faulty, How};
use crate::frames::frames;
use crate::stamp::weights;

/// What was drawn: seeds of environments, and environment and frame of the policy's noise.
#[derive(Debug, Clone, Default)]
struct Drawn {
    seeds: Arc<Mutex<BTreeSet<u64>>>,
    noise: Arc<Mutex<BTreeSet<(u32, u64)>>>,
}

impl Drawn {
    fn seeds(&self) -> BTreeSet<u64> {
        self.seeds.lock().unwrap().clone()
    }

    fn noise(&self) -> BTreeSet<(u32, u64)> {
        self.noise.lock().unwrap().clone()
    }
}

/// A ledger that writes its seeds down.
struct Seeded {
    inner: Faulty,
    drawn: Drawn,
}

impl Env for Seeded {
    fn spec(&self) -> &EnvSpec {
        self.inner.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.drawn.seeds.lock().unwrap().extend(seed);
        self.inner.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.inner.step(action, obs)
    }
}

fn builder(crew: Crew, fault: Option<&Fault>, drawn: &Drawn) -> CollectorBuilder {
    let envs = [None, fault].map(|fault| {
        let (fault, drawn) = (fault.cloned(), drawn.clone());
        move || Seeded {
            inner: Faulty::new(fault.clone(), Duration::from_micros(10)),
            drawn: drawn.clone(),
        }
    });
    let noise = drawn.clone();
    let action = Faulty::new(None, Duration::ZERO).spec().action_leaves();
    let policy = policy_fn(action, move |input, mut out| {
        let drawn = input.envs.ids().iter().zip(input.envs.frames());
        let drawn = drawn.map(|(env, frame)| (*env, *frame));
        noise.noise.lock().unwrap().extend(drawn);
        out.get_mut::<i64>(Key::new(0))?.fill(1);
        Ok(())
    });
    Collector::builder(faulty_ledger)
        .worker_envs(envs)
        .placement(crew.placement)
        .delivery(crew.delivery)
        .num_envs(ENVS)
        .frames_per_batch(crew.frames_per_batch())
        .policy(policy)
        .on_loss(OnLoss::Restart { budget: 3 })
        .seed(7)
}

fn faulty_ledger() -> Faulty {
    Faulty::new(None, Duration::ZERO)
}

#[test]
fn what_was_drawn_before_a_loss_is_not_drawn_again_after_a_resume() {
    // With the last step of a part, the worker starts over at the frame that a batch ends with.
    let steps = [1, 5, STEPS as u64, STEPS as u64 + 1, 2 * STEPS as u64];
    for (crew, step) in local().flat_map(|crew| steps.map(|step| (crew, step))) {
        for batches in 1..=3 {
            let before = Drawn::default();
            let fault = Fault::new(At::Step(step), How::Error, 2);
            let mut collector = builder(crew, Some(&fault), &before).build().unwrap();
            for _ in 0..batches {
                drop(collector.next().unwrap().unwrap());
            }
            // Nobody draws meanwhile.
            let mut paused = collector.pause().unwrap();
            let state = paused.state_dict().unwrap();
            let (seeds, noise) = (before.seeds(), before.noise());
            drop(paused);
            drop(collector);

            let after = Drawn::default();
            let mut resumed = builder(crew, None, &after).build().unwrap();
            resumed.load_state_dict(&state).unwrap();
            for _ in 0..3 {
                drop(resumed.next().unwrap().unwrap());
            }
            resumed.shutdown().unwrap();
            let place = format!("{crew:?}, step {step}, {batches} batches");
            assert!(after.seeds().is_disjoint(&seeds), "{place}");
            assert!(after.noise().is_disjoint(&noise), "{place}");
        }
    }
}

#[test]
fn a_worker_that_starts_over_acts_with_the_weights_that_were_published_last() {
    for crew in local() {
        let fault = Fault::new(At::Step(25), How::Error, 1);
        let builder = crew.builder([None, Some(fault)]);
        let mut collector = builder
            .on_loss(OnLoss::Restart { budget: 3 })
            .build()
            .unwrap();
        collector.update_policy_weights(&weights(5.0)).unwrap();
        let mut left = crew.batches(4);
        while left > 0 {
            let frames = frames(&collector.next().unwrap().unwrap());
            assert!(frames.iter().all(|frame| frame.weight == 5.0), "{crew:?}");
            left -= usize::from(collector.stats().restarts > 0);
        }
    }
}

#[test]
fn no_noise_is_drawn_twice_by_a_worker_that_starts_over() {
    for (placement, interrupted) in [
        (Placement::Inline, false),
        (Placement::Threads, false),
        (Placement::Inline, true),
    ] {
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let noise = Arc::clone(&drawn);
        let action = Faulty::new(None, Duration::ZERO).spec().action_leaves();
        let policy = policy_fn(action, move |input, mut out| {
            let places = input.envs.ids().iter().zip(input.envs.frames());
            let places = places.map(|(env, frame)| (*env, *frame));
            noise.lock().unwrap().extend(places);
            out.get_mut::<i64>(Key::new(0))?.fill(1);
            Ok(())
        });
        let env = || FailingEnv::new(LedgerEnv::from_seed(), FailAt::Step(7), Failure::Error);
        let mut collector = Collector::builder(env)
            .num_envs(2)
            .frames_per_batch(4)
            .placement(placement)
            .policy(policy)
            .on_loss(OnLoss::Restart { budget: 5 })
            .interruptions(if interrupted { |_| true } else { |_| false })
            .build()
            .unwrap();
        for _ in 0..15 {
            match collector.next().unwrap() {
                Ok(batch) => drop(batch),
                Err(error) => assert!(matches!(error, NextError::Interrupted(_)), "{error}"),
            }
        }
        collector.shutdown().unwrap();
        assert!(interrupted || collector.stats().restarts > 3);
        let drawn = drawn.lock().unwrap();
        let places: BTreeSet<_> = drawn.iter().collect();
        assert_eq!(places.len(), drawn.len(), "{placement:?}, {interrupted}");
    }
}

/// The figures of a state that count something.
fn counted() -> [NestedKey; 5] {
    [
        "frames".into(),
        "iter".into(),
        "next_frame".into(),
        "policy_version".into(),
        ("traj_pool", "traj_id").into(),
    ]
}

#[test]
fn figures_beyond_all_counting_are_refused_and_those_before_go_on() {
    let build = || {
        let env = || LedgerEnv::from_seed().with_max_length(5);
        let builder = Collector::builder(env).num_envs(3).frames_per_batch(12);
        builder.trajs_per_batch(1).build().unwrap()
    };
    let mut state = build().state_dict().unwrap();
    // The figures of simulators are their own.
    state.remove("simulators").unwrap();
    for (key, figure) in counted()
        .into_iter()
        .flat_map(|key| [-1, (1 << 62) + 1, i64::MAX].map(|figure| (key.clone(), figure)))
    {
        let mut forged = state.clone();
        forged.set(&key, Tensor::scalar(figure)).unwrap();
        let error = build().load_state_dict(&forged).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("failed to load the state: {key:?} must be within 0 to 2^62, got {figure}")
        );
    }
    let mut last = state;
    for key in counted() {
        last.set(&key, Tensor::scalar(1i64 << 62)).unwrap();
    }
    let mut collector = build();
    collector.load_state_dict(&last).unwrap();
    let weights = collector.policy_weights();
    let version = collector.update_policy_weights(&weights).unwrap();
    assert_eq!(version, (1 << 62) + 1);
    for _ in 0..20 {
        let batch = collector.next().unwrap().unwrap();
        let ids: Vec<i64> = batch
            .get(("collector", "traj_ids"))
            .unwrap()
            .to_vec()
            .unwrap();
        assert!(ids.iter().all(|&id| id == 0 || id >= 1 << 62));
    }
    assert!(collector.state_dict().is_ok());
}
