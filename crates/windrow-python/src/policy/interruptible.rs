//! Ctrl-C in a collection that calls no Python code.
//!
//! Where workers step in the thread that asks for batches, that thread does not return to Python
//! until a batch is full, which may take seconds. Workers in threads need no watch: the thread that
//! waits for them handles signals itself.

use windrow::envs::{EnvError, StateVisitor};
use windrow::policy::{Binding, Policy, PolicyError, PolicyIn, PolicySpec};
use windrow::{RowsMut, Weights};

use crate::gil::SignalWatch;

/// A policy that looks for signals between two steps if it acts in the thread that asks for
/// batches: neither native environments nor a native policy give Python a chance to.
pub(super) struct Interruptible<P> {
    policy: P,
    /// None where the policy acts in a thread of the engine, which cannot handle signals.
    watch: Option<SignalWatch>,
}

impl<P> Interruptible<P> {
    /// `policy`, without a watch until it is bound.
    pub(super) fn new(policy: P) -> Self {
        Self {
            policy,
            watch: None,
        }
    }
}

impl<P: Policy> Policy for Interruptible<P> {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        self.watch = binding.in_caller.then(SignalWatch::new);
        self.policy.bind(binding)
    }

    fn needs_first_rows(&self) -> bool {
        self.policy.needs_first_rows()
    }

    fn version(&self) -> Option<i64> {
        self.policy.version()
    }

    fn become_reference(&mut self, bound: &PolicySpec) {
        self.policy.become_reference(bound);
    }

    #[inline]
    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        if let Some(watch) = &mut self.watch {
            // The exception is no failure of the policy: `error::tells_of_interruption` finds it in
            // the error.
            watch.look().map_err(PolicyError::failed)?;
        }
        self.policy.act(input, out)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.policy.load(weights)
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        self.policy.check(weights)
    }

    fn weights(&self) -> Weights {
        self.policy.weights()
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        self.policy.visit_state(state)
    }
}
