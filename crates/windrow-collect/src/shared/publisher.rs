//! The way of weights to the workers.

use std::sync::Arc;

use tracing::warn;
use windrow_policy::{Backend, Policy, PolicyError, WeightUpdater, Weights};
use windrow_sync::{Mutex, error_chain, lock};

use super::Shared;
use crate::TARGET;
use crate::config::builder::WeightSource;
use crate::error::{ArgumentError, ControlError};

/// Checks weights against the policy and publishes them to the workers, from any thread.
pub(crate) struct WeightPublisher {
    shared: Arc<Shared>,
    /// Who evaluates the policy.
    pub(crate) backend: Backend,
    /// Checks whether weights fit; never acts.
    reference: Mutex<Box<dyn Policy>>,
    source: Mutex<Option<WeightSource>>,
}

impl WeightPublisher {
    pub(crate) fn new(
        shared: Arc<Shared>,
        reference: Box<dyn Policy>,
        backend: Backend,
        (updater, source): (Option<Box<dyn WeightUpdater>>, Option<WeightSource>),
    ) -> Self {
        if let Some(updater) = updater {
            shared.weights.push_through(updater);
        }
        Self {
            shared,
            backend,
            reference: Mutex::new(reference),
            source: Mutex::new(source),
        }
    }

    /// Whether `weights` are the policy's.
    pub(crate) fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        lock(&self.reference).check(weights).inspect_err(
            |error| warn!(target: TARGET, error = error_chain(error), "weights were refused"),
        )
    }

    /// Publishes `weights` to all workers; their version.
    pub(crate) fn publish(&self, weights: &Weights) -> Result<i64, PolicyError> {
        self.check(weights)?;
        self.shared.weights.publish(weights)
    }

    /// Publishes `weights`, which fit, to all workers as `version`, from which later ones count on.
    pub(crate) fn restore(&self, version: i64, weights: &Weights) -> Result<(), PolicyError> {
        self.shared.weights.restore(version, weights)
    }

    /// Publishes `weights` to worker `worker` alone; their version.
    pub(crate) fn publish_to(&self, worker: usize, weights: &Weights) -> Result<i64, ControlError> {
        if self.shared.service.is_some() {
            let needs = ArgumentError::Needs {
                name: "update_worker_weights",
                needs: "workers with policies of their own: inference local",
            };
            return Err(needs.into());
        }
        self.check(weights)?;
        let published = self.shared.weights.publish_to(worker, weights)?;
        published.ok_or_else(|| ControlError::NoSuchWorker {
            worker,
            workers: self.shared.workers(),
        })
    }

    /// Publishes the weights that the source gives, if there is one.
    pub(crate) fn publish_from_source(&self) -> Result<Option<i64>, PolicyError> {
        let weights = lock(&self.source).as_mut().map(|source| source());
        weights.map(|weights| self.publish(&weights)).transpose()
    }

    /// A copy of the weights that were published last.
    pub(crate) fn newest(&self) -> Weights {
        self.newest_shared().detach()
    }

    /// The weights that were published last, in the memory that workers read.
    pub(crate) fn newest_shared(&self) -> Weights {
        self.shared.weights.newest(0).map_or_else(
            || lock(&self.reference).weights(),
            |newest| Weights::clone(&newest.weights),
        )
    }
}
