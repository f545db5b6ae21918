//! Whatever came before a saved state, what goes on from it draws no seed and no noise a second time.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "conformance/crew.rs"]
mod crew;
#[path = "conformance/faulty.rs"]
mod faulty;
#[path = "conformance/frames.rs"]
mod frames;
#[path = "conformance/stamp.rs"]
mod stamp;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windrow_collect::{Collector, CollectorBuilder, OnLoss};
use windrow_env::{Env, EnvError, EnvSpec, Outcome};
use windrow_policy::policy_fn;
use windrow_slab::{Key, Row, RowMut};

use crew::{Crew, ENVS, STEPS, all};
use faulty::{At, Fault, Faulty, How};

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
    for (crew, step) in all().flat_map(|crew| steps.map(|step| (crew, step))) {
        for batches in 1..=3 {
            let before = Drawn::default();
            let fault = Fault::new(At::Step(step), How::Error, 2);
            let mut collector = builder(crew, Some(&fault), &before).build().unwrap();
            for _ in 0..batches {
                drop(collector.next().unwrap().unwrap());
            }
            // Nobody draws meanwhile.
            let paused = collector.pause().unwrap();
            let state = paused.collector().state_dict().unwrap();
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
