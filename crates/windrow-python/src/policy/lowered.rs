use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use windrow::Weights;
use windrow::env::EnvSpec;
use windrow::policy::{Policy, PolicyError, PolicyIn, PolicySpec};
use windrow::slab::RowsMut;

use super::network::Network;
use super::torch::TorchPolicy;

/// A network read out of a module, and the module itself for environments that the network does not fit.
pub(super) struct Lowered {
    network: Network,
    module: Option<TorchPolicy>,
    /// Told whether the module acts.
    by_torch: Arc<AtomicBool>,
}

impl Lowered {
    pub(super) fn new(
        network: Network,
        module: Option<TorchPolicy>,
        by_torch: Arc<AtomicBool>,
    ) -> Self {
        Self {
            network,
            module,
            by_torch,
        }
    }

    /// The module, where it acts.
    fn module(&self) -> Option<&TorchPolicy> {
        let by_torch = self.by_torch.load(Ordering::Relaxed);
        self.module.as_ref().filter(|_| by_torch)
    }
}

impl Policy for Lowered {
    fn bind(&mut self, env: &EnvSpec) -> Result<PolicySpec, PolicyError> {
        let fits = self.network.check_bounds(env);
        let bound = fits.and_then(|()| self.network.policy.bind(env));
        match (&mut self.module, bound) {
            (_, Ok(spec)) => {
                self.module = None;
                Ok(spec)
            }
            (None, Err(error)) => Err(error),
            (Some(module), Err(_)) => {
                self.by_torch.store(true, Ordering::Relaxed);
                module.bind(env)
            }
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
        match self.module() {
            None => self.network.check(weights),
            Some(module) => module.check(weights),
        }
    }

    fn weights(&self) -> Weights {
        match self.module() {
            None => self.network.weights(),
            Some(module) => module.weights(),
        }
    }
}
