//! Evaluations: what they tell, when they run, and how they end.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod failures;
#[path = "../conformance/faulty.rs"]
mod faulty;
#[path = "../conformance/frames.rs"]
mod frames;
mod life;
#[cfg(target_os = "linux")]
mod processes;
#[path = "../conformance/program.rs"]
mod program;
mod requests;
mod results;
#[path = "../conformance/stamp.rs"]
mod stamp;

use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tensordict::{DType, Tensor, TensorDict};
use windrow_collect::{Evaluator, EvaluatorBuilder, Placement};
use windrow_env::testing::{CountingEnv, LedgerEnv};
use windrow_env::{EnvFactory, EnvRecipe};
use windrow_policy::{
    Binding, ExplorationType, Policy, PolicyError, PolicyIn, PolicyRecipe, PolicySpec, Registry,
    Weights, policy_fn,
};
use windrow_slab::{Key, LeafSpec, RowsMut};

use faulty::Makes;

/// What can be evaluated wherever evaluations run.
fn names(registry: &mut Registry) -> Result<(), Box<dyn Error + Send + Sync>> {
    registry.env_with("Ledger", |(max_length, step_time)| {
        LedgerEnv::from_seed()
            .with_max_length(max_length)
            .with_step_time(step_time)
    })?;
    registry.env_with("Counting", |(max, start)| CountingEnv::new(max, start))?;
    registry.env_with("Faulty", |makes: Makes| makes.make())?;
    registry.policy_with("choose", |action, _| Choose(action))?;
    registry.policy("ones", |_| {
        policy_fn([LeafSpec::new("action", DType::I8, [1])], |_, mut out| {
            out.get_mut::<i8>(Key::new(0))?.fill(1);
            Ok(())
        })
    })?;
    registry.policy("told", |_| {
        let columns = [LeafSpec::new("action", DType::I64, [])];
        policy_fn(columns, |input: &PolicyIn<'_>, mut out: RowsMut<'_>| {
            let samples = input.exploration == ExplorationType::Random;
            out.get_mut::<i64>(Key::new(0))?.fill(i64::from(samples));
            Ok(())
        })
    })?;
    Ok(())
}

/// An evaluator whose evaluations run at `placement`.
fn placed(placement: Placement, env: impl EnvFactory + Send + Sync + 'static) -> EvaluatorBuilder {
    program::placed!(Evaluator::builder(env), placement)
}

fn named(id: &str, arguments: impl serde::Serialize) -> EnvRecipe {
    EnvRecipe::of(id).with_arguments(&arguments).unwrap()
}

/// A policy that takes the action `action` until it gets weights.
fn choose(action: i64) -> PolicyRecipe {
    PolicyRecipe::named_with("choose", &action).unwrap()
}

/// Takes the action that its weights say.
#[derive(Clone)]
struct Choose(i64);

impl Policy for Choose {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        Ok(PolicySpec::new(binding.spec.action_leaves()))
    }

    fn act(&mut self, _: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
        out.get_mut::<i64>(Key::new(0))?.fill(self.0);
        Ok(())
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.check(weights)?;
        self.0 = weights
            .get("choice")
            .and_then(Tensor::item)
            .map_err(PolicyError::failed)?;
        Ok(())
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        let choice = weights.get("choice").map_err(PolicyError::failed)?;
        choice.item::<i64>().map_err(PolicyError::failed)?;
        Ok(())
    }

    fn weights(&self) -> Weights {
        choice(self.0)
    }
}

fn choice(action: i64) -> Weights {
    let mut weights = TensorDict::new([]);
    weights.set("choice", Tensor::scalar(action)).unwrap();
    weights
}

/// Environment `i` is ledger `i`.
fn ledgers(placement: Placement, max_length: i64) -> EvaluatorBuilder {
    slow_ledgers(placement, max_length, Duration::ZERO)
}

fn slow_ledgers(placement: Placement, max_length: i64, step_time: Duration) -> EvaluatorBuilder {
    placed(placement, named("Ledger", (max_length, step_time))).seed(0)
}

/// One ledger with the weights' choice as its action.
fn ledger(placement: Placement) -> EvaluatorBuilder {
    let builder = ledgers(placement, 20).policy_recipe(choose(0));
    builder.num_trajectories(3)
}

/// As [`ledger`], in the evaluator's thread.
fn ledger_here() -> EvaluatorBuilder {
    ledger(Placement::Threads)
}

/// Return and length of the first `share[i]` episodes of ledger `i`, in the order in which they end
/// in lockstep.
fn expected(shares: &[i64], max_length: i64, max_steps: i64, action: i64) -> (Vec<f32>, Vec<u64>) {
    let mut episodes = Vec::new();
    for (env, &share) in (0..).zip(shares) {
        let mut end = 0;
        for episode in 0..share {
            let length = LedgerEnv::length(env, episode, max_length).min(max_steps);
            end += length;
            let reward = |t| f64::from(LedgerEnv::reward([env, episode, t], action));
            let total: f64 = (0..length).map(reward).sum();
            episodes.push((end, env, total as f32, length as u64));
        }
    }
    episodes.sort_unstable_by_key(|&(end, env, ..)| (end, env));
    episodes
        .into_iter()
        .map(|(_, _, total, length)| (total, length))
        .unzip()
}

/// A policy whose first act waits for its gate.
#[derive(Clone)]
struct Gated(Choose, Arc<Mutex<Option<Bolt>>>);

/// The policy's side of the gate.
struct Bolt {
    reach: Sender<()>,
    opened: Receiver<()>,
}

/// Holds a [`Gated`] policy up.
struct Gate {
    reached: Receiver<()>,
    open: Sender<()>,
}

fn gated() -> (Gated, Gate) {
    let (reach, reached) = channel();
    let (open, opened) = channel();
    let policy = Gated(
        Choose(0),
        Arc::new(Mutex::new(Some(Bolt { reach, opened }))),
    );
    (policy, Gate { reached, open })
}

impl Gate {
    /// Waits for the policy to wait.
    fn reached(&self) {
        self.reached.recv().unwrap();
    }

    fn open(self) {
        drop(self.open);
    }
}

impl Policy for Gated {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        self.0.bind(binding)
    }

    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        if let Some(Bolt { reach, opened }) = self.1.lock().unwrap().take() {
            // A test that has ended waits for nothing, and opens the gate by that.
            let _ = reach.send(());
            let _ = opened.recv();
        }
        self.0.act(input, out)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.0.load(weights)
    }
}
