use windrow::Weights;
use windrow::env::EnvSpec;
use windrow::policy::{Policy, PolicyError, PolicyIn, PolicySpec};
use windrow::slab::RowsMut;

use crate::gil::SignalWatch;

/// A policy that looks for signals between two steps: for collectors that run in the thread that handles them, where
/// neither environments nor policy give Python a chance to.
pub(super) struct Interruptible<P> {
    policy: P,
    watch: SignalWatch,
}

impl<P> Interruptible<P> {
    pub(super) fn new(policy: P) -> Self {
        Self {
            policy,
            watch: SignalWatch::new(),
        }
    }
}

impl<P: Policy> Policy for Interruptible<P> {
    fn bind(&mut self, env: &EnvSpec) -> Result<PolicySpec, PolicyError> {
        self.policy.bind(env)
    }

    #[inline]
    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        self.watch.look().map_err(PolicyError::failed)?;
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
