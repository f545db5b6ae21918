use windrow::Weights;
use windrow::policy::{Backend, Binding, Policy, PolicyError, PolicyIn, PolicySpec};
use windrow::slab::RowsMut;

use super::network::Network;
use super::torch::TorchPolicy;

/// A network that was read out of a module. The module itself acts in environments that the network does not fit.
pub(super) struct Lowered {
    network: Network,
    /// The module, which acts if it is here once the policy is bound.
    module: Option<TorchPolicy>,
}

impl Lowered {
    pub(super) fn new(network: Network, module: Option<TorchPolicy>) -> Self {
        Self { network, module }
    }
}

impl Policy for Lowered {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let fits = self.network.check_bounds(binding.spec);
        match (
            fits.and_then(|()| self.network.policy.bind(binding)),
            &mut self.module,
        ) {
            (Err(_), Some(module)) => module.bind(binding),
            (bound, _) => {
                self.module = None;
                bound
            }
        }
    }

    fn needs_first_rows(&self) -> bool {
        self.module.is_some()
    }

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
}
