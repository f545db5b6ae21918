//! Weights on their way from the learner to the workers: versioned, newest wins, never torn.

use std::sync::{Arc, PoisonError};

use crate::sync::{AtomicI64, Mutex, MutexGuard, Ordering};
use crate::{PolicyError, Weights};

/// One generation of weights.
#[derive(Debug, Clone)]
pub struct Published {
    /// Its number: 0 are the weights that the policy came with.
    pub version: i64,
    /// A snapshot, which never changes.
    pub weights: Arc<Weights>,
}

/// Where the learner puts weights and workers look for them between two parts.
///
/// What is published is a copy: nothing is shared with the learner's tensors. Workers take the newest version and
/// skip those between; a worker that is busy is not waited for, and the learner is never kept waiting by one.
///
/// ```
/// use tensordict::{Tensor, TensorDict};
/// use windrow_policy::WeightStore;
///
/// let store = WeightStore::new(2);
/// let mut weights = TensorDict::new([]);
/// weights.set("bias", Tensor::from_vec(vec![1.0f32], [1])?)?;
/// assert_eq!(store.publish(&weights), 1);
/// assert_eq!(store.other_than(0, 1).map(|newest| newest.version), Some(1));
/// assert!(store.other_than(1, 1).is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WeightStore {
    /// The newest version for each worker; `None` before the first.
    newest: Mutex<Vec<Option<Published>>>,
    /// Who passes publications on.
    relay: Option<Arc<dyn WeightRelay>>,
    /// Why it did not.
    failure: Mutex<Option<PolicyError>>,
    /// The newest version of all, so that workers see without a lock that there is none.
    version: AtomicI64,
    /// What was replaced last: its memory takes the next copy, once no worker reads it any more.
    spare: Mutex<Option<Arc<Weights>>>,
}

/// Passes what is published to a [`WeightStore`] on to workers that cannot read the store, such as those in other processes.
pub trait WeightRelay: Send + Sync {
    /// Takes a publication for worker `worker`, or for all. Called in the order of publications, one at a time.
    ///
    /// # Errors
    /// Whatever kept it from arriving; [`WeightStore::take_failure`] returns it.
    fn pass(&self, worker: Option<usize>, published: &Published) -> Result<(), PolicyError>;
}

impl WeightStore {
    /// A store for `workers` workers that all act with version 0.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self {
            newest: Mutex::new(vec![None; workers]),
            relay: None,
            failure: Mutex::new(None),
            version: AtomicI64::new(0),
            spare: Mutex::new(None),
        }
    }

    /// Also gives every publication to `relay`.
    #[must_use]
    pub fn with_relay(mut self, relay: Arc<dyn WeightRelay>) -> Self {
        self.relay = Some(relay);
        self
    }

    /// Number of the version published last.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.version.load(Ordering::Acquire)
    }

    /// Publishes a copy of `weights` to all workers and returns its version.
    pub fn publish(&self, weights: &Weights) -> i64 {
        self.put(None, weights)
    }

    /// Publishes a copy of `weights` to one worker and returns its version; `None` when there is no such worker.
    pub fn publish_to(&self, worker: usize, weights: &Weights) -> Option<i64> {
        let workers = lock(&self.newest).len();
        (worker < workers).then(|| self.put(Some(worker), weights))
    }

    /// The newest weights for `worker`, if they are not those of `version`.
    #[must_use]
    pub fn other_than(&self, version: i64, worker: usize) -> Option<Published> {
        if self.version() == version {
            return None;
        }
        let newest = lock(&self.newest).get(worker)?.clone()?;
        (newest.version != version).then_some(newest)
    }

    /// Publishes a copy of `weights` to all workers as `version`, from which later ones count on, as after a restored state.
    pub fn restore(&self, version: i64, weights: &Weights) {
        let weights = Arc::new(weights.detach());
        let mut newest = lock(&self.newest);
        let published = Published { version, weights };
        self.pass(None, &published);
        newest.fill(Some(published));
        self.version.store(version, Ordering::Release);
    }

    /// The newest weights of worker `worker`; `None` when nothing was published to it.
    #[must_use]
    pub fn newest(&self, worker: usize) -> Option<Published> {
        lock(&self.newest).get(worker)?.clone()
    }

    /// Publishes a copy to one worker, or to all.
    fn put(&self, worker: Option<usize>, weights: &Weights) -> i64 {
        // Copied before the lock is taken, and freed after: it is held for some pointers only.
        let spare = lock(&self.spare).take().and_then(Arc::into_inner);
        let weights = Arc::new(match spare {
            Some(spare) => weights.detach_into(spare),
            None => weights.detach(),
        });
        let mut newest = lock(&self.newest);
        let version = self.version() + 1;
        let published = Published { version, weights };
        self.pass(worker, &published);
        let published = Some(published);
        let replaced: Vec<_> = match worker {
            Some(worker) => vec![std::mem::replace(&mut newest[worker], published)],
            None => newest
                .iter_mut()
                .map(|newest| std::mem::replace(newest, published.clone()))
                .collect(),
        };
        self.version.store(version, Ordering::Release);
        drop(newest);
        if let Some(replaced) = replaced.into_iter().flatten().next_back() {
            *lock(&self.spare) = Some(replaced.weights);
        }
        version
    }

    fn pass(&self, worker: Option<usize>, published: &Published) {
        if let Some(relay) = &self.relay
            && let Err(error) = relay.pass(worker, published)
        {
            *lock(&self.failure) = Some(error);
        }
    }

    /// Why the relay did not pass the last publication on, once.
    #[must_use]
    pub fn take_failure(&self) -> Option<PolicyError> {
        self.relay.as_ref()?;
        lock(&self.failure).take()
    }
}

impl std::fmt::Debug for WeightStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeightStore")
            .field("version", &self.version())
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A way for weights to reach a [`WeightStore`].
///
/// Collectors push through one, so that a transport of one's own (to another process, another machine) takes its place.
pub trait WeightUpdater: Send {
    /// Brings `weights` into `store`, and returns their version.
    ///
    /// # Errors
    /// Whatever kept them from arriving.
    fn push(&mut self, store: &WeightStore, weights: &Weights) -> Result<i64, PolicyError>;
}

/// Copies weights within the process: the default of collectors.
#[derive(Debug, Clone, Copy, Default)]
pub struct VanillaWeightUpdater;

impl VanillaWeightUpdater {
    /// The updater; it has no options.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl WeightUpdater for VanillaWeightUpdater {
    fn push(&mut self, store: &WeightStore, weights: &Weights) -> Result<i64, PolicyError> {
        Ok(store.publish(weights))
    }
}

#[cfg(test)]
mod tests {
    use tensordict::{Tensor, TensorDict};

    use super::*;

    fn weights(value: f32) -> Weights {
        let mut weights = TensorDict::new([]);
        let tensor = Tensor::from_vec(vec![value; 64], [64]).unwrap();
        weights.set("weight", tensor).unwrap();
        weights
    }

    fn value(published: &Published) -> f32 {
        let values = published.weights.as_slice::<f32>("weight").unwrap();
        assert!(values.iter().all(|&value| value == values[0]), "torn");
        values[0]
    }

    #[test]
    fn the_newest_version_wins() {
        let store = WeightStore::new(1);
        assert!(store.other_than(0, 0).is_none());
        assert_eq!(
            (store.publish(&weights(1.0)), store.publish(&weights(2.0))),
            (1, 2)
        );
        let newest = store.other_than(0, 0).unwrap();
        assert_eq!((newest.version, value(&newest)), (2, 2.0));
    }

    #[test]
    fn weights_that_are_what_they_were_are_another_version() {
        let store = WeightStore::new(1);
        let same = weights(1.0);
        for version in 1..4 {
            assert_eq!(store.publish(&same), version);
            assert_eq!(store.other_than(version - 1, 0).unwrap().version, version);
        }
        assert_eq!(store.publish_to(0, &same), Some(4));
    }

    #[test]
    fn one_worker_can_have_weights_of_its_own() {
        let store = WeightStore::new(2);
        assert_eq!(store.publish_to(1, &weights(7.0)), Some(1));
        assert!(store.other_than(0, 0).is_none());
        assert_eq!(value(&store.other_than(0, 1).unwrap()), 7.0);
        assert_eq!(store.publish_to(2, &weights(7.0)), None);
        store.publish(&weights(8.0));
        assert_eq!(value(&store.other_than(1, 1).unwrap()), 8.0);
    }

    #[test]
    fn what_is_published_is_a_copy() {
        let store = WeightStore::new(1);
        let mut live = weights(1.0);
        store.publish(&live);
        live.as_mut_slice::<f32>("weight").unwrap().fill(9.0);
        assert_eq!(value(&store.other_than(0, 0).unwrap()), 1.0);
    }

    #[test]
    fn readers_never_see_a_torn_or_an_older_version() {
        let store = WeightStore::new(1);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while seen < 2000 {
                    if let Some(published) = store.other_than(seen, 0) {
                        assert!(published.version > seen);
                        assert_eq!(value(&published), published.version as f32);
                        seen = published.version;
                    }
                }
            });
            for version in 1..=2000 {
                store.publish(&weights(version as f32));
            }
            reader.join().unwrap();
        });
    }
}
