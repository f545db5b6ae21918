//! Weights on their way from the learner to the workers: versioned, newest wins, never torn.

use std::sync::Arc;

use windrow_sync::atomic::{AtomicI64, Ordering};
use windrow_sync::{Mutex, lock};

use crate::{PolicyError, Weights};

/// One generation of weights.
#[derive(Debug, Clone)]
pub struct Published {
    /// Its number: 0 are the weights that the policy came with.
    pub version: i64,
    /// A snapshot, which never changes.
    pub weights: Arc<Weights>,
}

/// The learner publishes weights here, and workers load the newest before each part.
///
/// Publishing copies: the store shares no memory with the learner's tensors. Workers take the newest version and skip those between;
/// neither side waits for the other.
///
/// ```
/// use tensordict::{Tensor, TensorDict};
/// use windrow_policy::WeightStore;
///
/// let store = WeightStore::new(2);
/// let mut weights = TensorDict::new([]);
/// weights.set("bias", Tensor::from_vec(vec![1.0f32], [1])?)?;
/// assert_eq!(store.publish(&weights)?, 1);
/// assert_eq!(store.other_than(0, 1).map(|newest| newest.version), Some(1));
/// assert!(store.other_than(1, 1).is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WeightStore {
    /// The newest version for each worker; `None` before the first.
    newest: Mutex<Vec<Option<Published>>>,
    /// Copies weights for other processes; `None`: the store copies.
    relay: Option<Arc<dyn WeightRelay>>,
    /// The newest version of all, so that workers see without a lock that nothing is new.
    version: AtomicI64,
    /// The weights that were replaced last: the next copy reuses their memory, if no worker reads them any more.
    spare: Mutex<Option<Arc<Weights>>>,
}

/// Copies weights that are published to a [`WeightStore`] to workers that cannot read the store, such as those in other processes.
pub trait WeightRelay: Send + Sync {
    /// Copies `weights` as version `version` of worker `worker`, or of all, and returns the copy, which the store keeps for its own
    /// readers. Called in the order of publications, one at a time.
    ///
    /// # Errors
    /// Any reason why the weights cannot arrive. The publishing call returns it, and nothing was published then.
    fn pass(
        &self,
        worker: Option<usize>,
        version: i64,
        weights: &Weights,
    ) -> Result<Weights, PolicyError>;
}

impl WeightStore {
    /// A store for `workers` workers that all act with version 0.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self {
            newest: Mutex::new(vec![None; workers]),
            relay: None,
            version: AtomicI64::new(0),
            spare: Mutex::new(None),
        }
    }

    /// Copies through `relay`.
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
    ///
    /// # Errors
    /// An error of the [relay](WeightRelay), if there is one. Nothing was published then.
    pub fn publish(&self, weights: &Weights) -> Result<i64, PolicyError> {
        self.put(None, None, weights)
    }

    /// Publishes a copy of `weights` to one worker and returns its version; `None` when there is no such worker.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn publish_to(&self, worker: usize, weights: &Weights) -> Result<Option<i64>, PolicyError> {
        let workers = lock(&self.newest).len();
        (worker < workers)
            .then(|| self.put(Some(worker), None, weights))
            .transpose()
    }

    /// The newest weights for `worker`, unless they have the version `version`.
    #[must_use]
    pub fn other_than(&self, version: i64, worker: usize) -> Option<Published> {
        if self.version() == version {
            return None;
        }
        let newest = lock(&self.newest).get(worker)?.clone()?;
        (newest.version != version).then_some(newest)
    }

    /// Publishes a copy of `weights` to all workers as `version`, from which later ones count on, as after a restored state.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn restore(&self, version: i64, weights: &Weights) -> Result<(), PolicyError> {
        self.put(None, Some(version), weights).map(drop)
    }

    /// The newest weights of worker `worker`; `None` when nothing was published to it.
    #[must_use]
    pub fn newest(&self, worker: usize) -> Option<Published> {
        lock(&self.newest).get(worker)?.clone()
    }

    /// Publishes a copy to one worker, or to all, as `version`, or else as the next one; its version.
    fn put(
        &self,
        worker: Option<usize>,
        version: Option<i64>,
        weights: &Weights,
    ) -> Result<i64, PolicyError> {
        // Copies before the lock is taken, and frees after it, so that the lock is held for some pointers only. A relay must copy in the
        // order of versions, and therefore under the lock.
        let copied = match &self.relay {
            Some(relay) => Err(relay),
            None => Ok(self.copy(weights)),
        };
        let mut newest = lock(&self.newest);
        let version = version.unwrap_or_else(|| self.version() + 1);
        let copy = copied.or_else(|relay| relay.pass(worker, version, weights))?;
        let weights = Arc::new(copy);
        let published = Some(Published { version, weights });
        let replaced: Vec<_> = match worker {
            Some(worker) => vec![std::mem::replace(&mut newest[worker], published)],
            None => newest
                .iter_mut()
                .map(|newest| std::mem::replace(newest, published.clone()))
                .collect(),
        };
        self.version.store(version, Ordering::Release);
        drop(newest);
        // The memory of a relay's copies is the relay's.
        if self.relay.is_none()
            && let Some(replaced) = replaced.into_iter().flatten().next_back()
        {
            *lock(&self.spare) = Some(replaced.weights);
        }
        Ok(version)
    }

    /// A copy in memory of the store's own.
    fn copy(&self, weights: &Weights) -> Weights {
        let spare = lock(&self.spare).take().and_then(Arc::into_inner);
        match spare {
            Some(spare) => weights.detach_into(spare),
            None => weights.detach(),
        }
    }
}

impl std::fmt::Debug for WeightStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeightStore")
            .field("version", &self.version())
            .finish_non_exhaustive()
    }
}

/// The way of weights to a [`WeightStore`].
///
/// Collectors push through an updater; replace it to bring weights from another process or machine.
pub trait WeightUpdater: Send {
    /// Brings `weights` into `store`, and returns their version.
    ///
    /// # Errors
    /// Any reason why the weights cannot arrive.
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
        store.publish(weights)
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
            (
                store.publish(&weights(1.0)).unwrap(),
                store.publish(&weights(2.0)).unwrap()
            ),
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
            assert_eq!(store.publish(&same).unwrap(), version);
            assert_eq!(store.other_than(version - 1, 0).unwrap().version, version);
        }
        assert_eq!(store.publish_to(0, &same).unwrap(), Some(4));
    }

    #[test]
    fn one_worker_can_have_weights_of_its_own() {
        let store = WeightStore::new(2);
        assert_eq!(store.publish_to(1, &weights(7.0)).unwrap(), Some(1));
        assert!(store.other_than(0, 0).is_none());
        assert_eq!(value(&store.other_than(0, 1).unwrap()), 7.0);
        assert_eq!(store.publish_to(2, &weights(7.0)).unwrap(), None);
        store.publish(&weights(8.0)).unwrap();
        assert_eq!(value(&store.other_than(1, 1).unwrap()), 8.0);
    }

    #[test]
    fn what_is_published_is_a_copy() {
        let store = WeightStore::new(1);
        let mut live = weights(1.0);
        store.publish(&live).unwrap();
        live.as_mut_slice::<f32>("weight").unwrap().fill(9.0);
        assert_eq!(value(&store.other_than(0, 0).unwrap()), 1.0);
    }

    /// Keeps what it passes on, and refuses negative weights.
    #[derive(Default)]
    struct Kept(Mutex<Vec<(Option<usize>, Published)>>);

    impl WeightRelay for Kept {
        fn pass(
            &self,
            worker: Option<usize>,
            version: i64,
            weights: &Weights,
        ) -> Result<Weights, PolicyError> {
            if weights.as_slice::<f32>("weight").unwrap()[0] < 0.0 {
                return Err(PolicyError::failed("refused"));
            }
            let weights = Arc::new(weights.detach());
            let copy = Weights::clone(&weights);
            lock(&self.0).push((worker, Published { version, weights }));
            Ok(copy)
        }
    }

    #[test]
    fn readers_of_the_store_get_the_copies_that_the_relay_makes() {
        let relay = Arc::new(Kept::default());
        let store = WeightStore::new(2).with_relay(Arc::<Kept>::clone(&relay));
        assert_eq!(store.publish(&weights(1.0)).unwrap(), 1);
        assert_eq!(store.publish_to(1, &weights(2.0)).unwrap(), Some(2));
        store.restore(9, &weights(9.0)).unwrap();
        assert_eq!(store.publish_to(0, &weights(10.0)).unwrap(), Some(10));
        let passed = lock(&relay.0);
        let told: Vec<_> = passed
            .iter()
            .map(|(worker, passed)| (*worker, passed.version, value(passed)))
            .collect();
        let expected = [
            (None, 1, 1.0),
            (Some(1), 2, 2.0),
            (None, 9, 9.0),
            (Some(0), 10, 10.0),
        ];
        assert_eq!(told, expected);
        let address = |weights: &Weights| weights.get("weight").unwrap().data_ptr();
        for (worker, at) in [(0, 3), (1, 2)] {
            let (newest, (_, passed)) = (store.newest(worker).unwrap(), &passed[at]);
            assert_eq!(newest.version, passed.version);
            assert_eq!(address(&newest.weights), address(&passed.weights));
        }
    }

    #[test]
    fn what_the_relay_refuses_was_not_published() {
        let store = WeightStore::new(1).with_relay(Arc::new(Kept::default()));
        store.publish(&weights(1.0)).unwrap();
        let refused = store.publish(&weights(-1.0)).unwrap_err();
        assert_eq!(refused.to_string(), "refused");
        assert!(store.publish_to(0, &weights(-1.0)).is_err());
        assert!(store.restore(7, &weights(-1.0)).is_err());
        assert_eq!(store.version(), 1);
        assert_eq!(value(&store.newest(0).unwrap()), 1.0);
        assert_eq!(store.publish(&weights(2.0)).unwrap(), 2);
    }

    #[test]
    fn each_publisher_gets_the_failure_of_its_own_weights() {
        let store = WeightStore::new(2).with_relay(Arc::new(Kept::default()));
        std::thread::scope(|scope| {
            for worker in [None, Some(0), Some(1)] {
                let store = &store;
                scope.spawn(move || {
                    for round in 0..2000 {
                        let good = (round + worker.unwrap_or(2)) % 2 == 0;
                        let weights = weights(if good { 1.0 } else { -1.0 });
                        let published = match worker {
                            None => store.publish(&weights).map(Some),
                            Some(worker) => store.publish_to(worker, &weights),
                        };
                        assert_eq!(published.is_ok(), good);
                    }
                });
            }
        });
        assert_eq!(store.version(), 3000);
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
                store.publish(&weights(version as f32)).unwrap();
            }
            reader.join().unwrap();
        });
    }
}
