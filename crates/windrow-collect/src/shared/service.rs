//! The policy of a collector whose workers ask a server for their actions.

use std::sync::Arc;
use std::time::Duration;

use windrow_policy::{
    InferenceServer, PolicyError, PolicyRecipe, Served, ServerConfig, ServerStats, WeightStore,
};
use windrow_sync::{Mutex, lock};

/// Starts an inference server when the first worker needs it, and another one where that has ended.
#[derive(Debug)]
pub(crate) struct Service {
    recipe: PolicyRecipe,
    config: ServerConfig,
    weights: Arc<WeightStore>,
    /// Held while a server is started, which runs code of the user.
    starting: Mutex<()>,
    server: Mutex<Option<Arc<InferenceServer>>>,
}

impl Service {
    pub(crate) fn new(
        recipe: PolicyRecipe,
        config: ServerConfig,
        weights: Arc<WeightStore>,
    ) -> Self {
        Self {
            recipe,
            config,
            weights,
            starting: Mutex::new(()),
            server: Mutex::new(None),
        }
    }

    /// A client of the server. One that a panic of its policy has ended is replaced, with the
    /// newest weights.
    ///
    /// # Errors
    /// As [`InferenceServer::start`].
    pub(crate) fn client(&self) -> Result<Served, PolicyError> {
        let _starting = lock(&self.starting);
        if let Some(server) = self.server().filter(|server| server.ended().is_none()) {
            return Ok(server.client());
        }
        let weights = Arc::clone(&self.weights);
        let started = InferenceServer::start(&self.recipe, weights, self.config)?;
        Ok(lock(&self.server).insert(Arc::new(started)).client())
    }

    fn server(&self) -> Option<Arc<InferenceServer>> {
        lock(&self.server).clone()
    }

    pub(crate) fn weights(&self) -> &Arc<WeightStore> {
        &self.weights
    }

    /// Figures of the present server.
    pub(crate) fn stats(&self) -> Option<ServerStats> {
        self.server().map(|server| server.stats())
    }

    /// Ends the server, and waits at most `timeout` until its thread has dropped the policy;
    /// whether it has.
    pub(crate) fn end(&self, timeout: Duration) -> bool {
        self.server().is_none_or(|server| {
            server.shutdown();
            server.join(timeout)
        })
    }
}
