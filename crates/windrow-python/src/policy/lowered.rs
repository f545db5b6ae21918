//! A network of the engine, with the module that it was read out of as a fallback.
//!
//! Whether a network fits is known only when the policy is bound, since it depends on the
//! environment: its observations and its action space. Then one of the two is chosen for good, and
//! the other dropped.

use windrow::envs::{EnvError, StateVisitor};
use windrow::policy::{Backend, Binding, Policy, PolicyError, PolicyIn, PolicySpec};
use windrow::{RowsMut, Weights};

use super::network::Network;
use super::torch::TorchPolicy;

/// A network that was read out of a module. The module itself acts in environments that the network
/// does not fit.
pub(super) struct Lowered {
    network: Network,
    /// The module, which acts if it is still here once the policy is bound. None where the user
    /// demanded a native policy.
    module: Option<TorchPolicy>,
}

impl Lowered {
    /// `network`, or `module` in environments that it does not fit.
    pub(super) fn new(network: Network, module: Option<TorchPolicy>) -> Self {
        Self { network, module }
    }
}

impl Policy for Lowered {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        match (self.network.policy.bind(binding), &mut self.module) {
            (Err(_), Some(module)) => module.bind(binding),
            (bound, _) => {
                self.module = None;
                bound
            }
        }
    }

    // Asked before `bind`, so a module that may have to act asks for the rows that it would be
    // called with.
    fn needs_first_rows(&self) -> bool {
        self.module.is_some()
    }

    // The reference takes the same side as the policies that were bound, so that it checks the
    // weights that they load.
    fn become_reference(&mut self, bound: &PolicySpec) {
        if bound.backend == Backend::Native {
            self.module = None;
        }
    }

    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        match &mut self.module {
            None => self.network.policy.act(input, out),
            Some(module) => module.act(input, out),
        }
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        match &mut self.module {
            None => self.network.load(weights),
            Some(module) => module.load(weights),
        }
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        match &self.module {
            None => self.network.check(weights),
            Some(module) => module.check(weights),
        }
    }

    fn weights(&self) -> Weights {
        match &self.module {
            None => self.network.weights(),
            Some(module) => module.weights(),
        }
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        match &mut self.module {
            None => self.network.policy.visit_state(state),
            Some(module) => module.visit_state(state),
        }
    }
}
