//! The way of weights to the workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::warn;
use windrow_policy::{Backend, Policy, PolicyError, WeightUpdater, Weights};
use windrow_slab::Publication;
use windrow_sync::{Interrupt, Mutex, error_chain, lock};

use super::Shared;
use super::reentrancy::ReentrancyGuard;
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
    /// Ends waits for parts that would be too old.
    interrupt: Interrupt,
    /// How long such a wait may take, if there is a limit.
    patience: Option<Duration>,
    waited: Mutex<Duration>,
}

/// New weights for the workers, or for one, which may be published now: no part will be older than
/// `max_lag` allows. Workers begin no part meanwhile.
#[derive(Debug)]
pub struct WeightUpdate<'a> {
    publisher: &'a WeightPublisher,
    publication: Publication<'a>,
    worker: Option<usize>,
}

impl WeightUpdate<'_> {
    /// Publishes `weights`; their version.
    ///
    /// # Errors
    /// [`ControlError::Weights`]; nothing was published then.
    pub fn publish(self, weights: &Weights) -> Result<i64, ControlError> {
        let publisher = self.publisher;
        publisher.check(weights)?;
        let store = &publisher.shared.weights;
        let published = match self.worker {
            None => Some(store.publish(weights)?),
            Some(worker) => store.publish_to(worker, weights)?,
        };
        self.publication.finish();
        published.ok_or_else(|| publisher.no_such_worker(self.worker))
    }
}

impl WeightPublisher {
    pub(crate) fn new(
        shared: Arc<Shared>,
        reference: Box<dyn Policy>,
        backend: Backend,
        (updater, source): (Option<Box<dyn WeightUpdater>>, Option<WeightSource>),
        (interrupt, patience): (Interrupt, Option<Duration>),
    ) -> Self {
        if let Some(updater) = updater {
            shared.weights.push_through(updater);
        }
        Self {
            shared,
            backend,
            reference: Mutex::new(reference),
            source: Mutex::new(source),
            interrupt,
            patience,
            waited: Mutex::default(),
        }
    }

    /// Whether `weights` are the policy's.
    pub(crate) fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        lock(&self.reference).check(weights).inspect_err(
            |error| warn!(target: TARGET, error = error_chain(error), "weights were refused"),
        )
    }

    /// Waits until weights for `worker`, or for all workers, may be published: where `max_lag` is
    /// set, for parts that would be too old after it.
    ///
    /// # Errors
    /// [`ControlError::Argument`] for one worker where a server evaluates the policy,
    /// [`ControlError::NoSuchWorker`]; [`ControlError::WaitsForItself`] within such a part,
    /// [`ControlError::WaitInterrupted`] and [`ControlError::PartsWait`].
    pub(crate) fn update(&self, worker: Option<usize>) -> Result<WeightUpdate<'_>, ControlError> {
        if worker.is_some() && self.shared.service.is_some() {
            let needs = ArgumentError::Needs {
                name: "update_worker_weights",
                needs: "workers with policies of their own: inference local",
            };
            return Err(needs.into());
        }
        if worker.is_some_and(|worker| worker >= self.shared.workers()) {
            return Err(self.no_such_worker(worker));
        }
        let mut publication = self.shared.ring.publication(worker);
        if !publication.wait_within(Duration::ZERO) {
            self.wait(&mut publication)?;
        }
        Ok(WeightUpdate {
            publisher: self,
            publication,
            worker,
        })
    }

    fn wait(&self, publication: &mut Publication<'_>) -> Result<(), ControlError> {
        if ReentrancyGuard::is_within(self.shared.collector) {
            return Err(ControlError::WaitsForItself);
        }
        let begin = Instant::now();
        let mut attempt = |slice| publication.wait_within(slice).then_some(());
        let granted = match self.patience {
            None => self.interrupt.wait(attempt).map(Some),
            Some(patience) => self.interrupt.wait_within(patience, &mut attempt),
        };
        let waited = begin.elapsed();
        *lock(&self.waited) += waited;
        granted?.ok_or_else(|| ControlError::PartsWait {
            workers: publication.delaying(),
            waited,
        })
    }

    fn no_such_worker(&self, worker: Option<usize>) -> ControlError {
        ControlError::NoSuchWorker {
            worker: worker.unwrap_or_default(),
            workers: self.shared.workers(),
        }
    }

    /// How long publications have waited for parts that would have been too old.
    pub(crate) fn waited(&self) -> Duration {
        *lock(&self.waited)
    }

    /// Publishes `weights`, which fit, to all workers as `version`, from which later ones count on.
    pub(crate) fn restore(&self, version: i64, weights: &Weights) -> Result<(), PolicyError> {
        self.shared.weights.restore(version, weights)
    }

    /// Publishes the weights that the source gives, if there is one.
    pub(crate) fn publish_from_source(&self) -> Result<Option<i64>, ControlError> {
        let weights = lock(&self.source).as_mut().map(|source| source());
        weights
            .map(|weights| self.update(None)?.publish(&weights))
            .transpose()
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

impl std::fmt::Debug for WeightPublisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeightPublisher").finish_non_exhaustive()
    }
}
