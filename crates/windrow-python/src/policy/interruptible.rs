use windrow::Weights;
use windrow::policy::{Binding, Policy, PolicyError, PolicyIn, PolicySpec};
use windrow::slab::RowsMut;

use crate::gil::SignalWatch;

/// A policy that looks for signals between two steps if it acts in the thread that asks for batches: neither native
/// environments nor a native policy give Python a chance to.
pub(super) struct Interruptible<P> {
    policy: P,
    watch: Option<SignalWatch>,
}

impl<P> Interruptible<P> {
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

    fn become_reference(&mut self, bound: &PolicySpec) {
        self.policy.become_reference(bound);
    }

    #[inline]
    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        if let Some(watch) = &mut self.watch {
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
}
