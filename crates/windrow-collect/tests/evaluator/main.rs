//! Evaluations: what they tell, when they run, and how they end.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod failures;
mod life;
mod requests;
mod results;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use tensordict::{Tensor, TensorDict};
use windrow_collect::{Evaluator, EvaluatorBuilder};
use windrow_env::testing::LedgerEnv;
use windrow_policy::{Binding, Policy, PolicyError, PolicyIn, PolicySpec, Weights};
use windrow_slab::{Key, RowsMut};

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
fn ledgers(max_length: i64) -> EvaluatorBuilder {
    Evaluator::builder(move || LedgerEnv::from_seed().with_max_length(max_length)).seed(0)
}

/// One ledger with the weights' choice as its action.
fn ledger() -> EvaluatorBuilder {
    ledgers(20).policy(Choose(0)).num_trajectories(3)
}

/// Return and length of the first `share[i]` episodes of ledger `i`, in the order in which they end in lockstep.
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
