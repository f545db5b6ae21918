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
/// Publishing copies: the store shares no memory with the learner's tensors. Workers take the
/// newest version and skip those between; neither side waits for the other.
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
    /// What brings publications to their readers, one after the other; the last one makes the copy
    /// that this store keeps. Locked while they work, so that they see publications in order.
    updaters: Mutex<Vec<Box<dyn WeightUpdater>>>,
    /// The newest version of all, so that workers see without a lock that there is none.
    version: AtomicI64,
}

/// A way for weights to reach those who act with them: a copy in this process, memory that other
/// processes read, a server.
///
/// A [`WeightStore`] pushes each publication through its updaters. Collectors take one as their
/// `weight_updater`, which comes before their own.
pub trait WeightUpdater: Send {
    /// Brings `weights` to worker `worker`, or to all, as version `version`. Called in the order of
    /// publications, one at a time.
    ///
    /// # Errors
    /// Whatever kept them from arriving: whoever publishes them gets it, and nothing is published.
    fn push(
        &mut self,
        worker: Option<usize>,
        version: i64,
        weights: &Weights,
    ) -> Result<Pushed, PolicyError>;
}

/// Where a [`WeightUpdater`] has brought weights.
#[derive(Debug)]
#[non_exhaustive]
pub enum Pushed {
    /// To readers of the store. The next updater gets these weights, or the store where there is
    /// none.
    Here(Arc<Weights>),
    /// To another place, which counts its versions by itself. The store keeps what it has.
    Elsewhere {
        /// Their number at that place.
        version: i64,
    },
}

impl WeightStore {
    /// A store for `workers` workers of this process that all act with version 0.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self::with_updater(workers, VanillaWeightUpdater::new())
    }

    /// A store whose copies `updater` makes.
    #[must_use]
    pub fn with_updater(workers: usize, updater: impl WeightUpdater + 'static) -> Self {
        Self {
            newest: Mutex::new(vec![None; workers]),
            updaters: Mutex::new(vec![Box::new(updater)]),
            version: AtomicI64::new(0),
        }
    }

    /// Pushes what is published through `updater` before all others.
    pub fn push_through(&self, updater: Box<dyn WeightUpdater>) {
        lock(&self.updaters).insert(0, updater);
    }

    /// Number of the version published last.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.version.load(Ordering::Acquire)
    }

    /// Publishes a copy of `weights` to all workers and returns its version.
    ///
    /// # Errors
    /// That of an [updater](WeightUpdater). Nothing was published then.
    pub fn publish(&self, weights: &Weights) -> Result<i64, PolicyError> {
        self.push(None, None, weights)
    }

    /// Publishes a copy of `weights` to one worker and returns its version; `None` when there is no
    /// such worker.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn publish_to(&self, worker: usize, weights: &Weights) -> Result<Option<i64>, PolicyError> {
        let workers = lock(&self.newest).len();
        (worker < workers)
            .then(|| self.push(Some(worker), None, weights))
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

    /// Publishes a copy of `weights` to all workers as `version`, from which later ones count on,
    /// as after a restored state. Only the store's own updater gets them: what acts elsewhere is
    /// not of this state.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn restore(&self, version: i64, weights: &Weights) -> Result<(), PolicyError> {
        self.push(None, Some(version), weights).map(drop)
    }

    /// The newest weights of worker `worker`; `None` when nothing was published to it.
    #[must_use]
    pub fn newest(&self, worker: usize) -> Option<Published> {
        lock(&self.newest).get(worker)?.clone()
    }

    /// Publishes a copy to one worker, or to all, as the next version, or restores it as `version`;
    /// its version.
    fn push(
        &self,
        worker: Option<usize>,
        version: Option<i64>,
        weights: &Weights,
    ) -> Result<i64, PolicyError> {
        let mut updaters = lock(&self.updaters);
        let first = version.map_or(0, |_| updaters.len() - 1);
        let version = version.unwrap_or_else(|| self.version() + 1);
        let mut copy: Option<Arc<Weights>> = None;
        for updater in &mut updaters[first..] {
            match updater.push(worker, version, copy.as_deref().unwrap_or(weights))? {
                Pushed::Here(weights) => copy = Some(weights),
                Pushed::Elsewhere { version } => return Ok(version),
            }
        }
        let weights = copy.unwrap_or_else(|| Arc::new(weights.detach()));
        let published = Some(Published { version, weights });
        let mut newest = lock(&self.newest);
        // Dropped once the lock is free: it is held for some pointers only.
        let _replaced: Vec<_> = match worker {
            Some(worker) => vec![std::mem::replace(&mut newest[worker], published)],
            None => newest
                .iter_mut()
                .map(|newest| std::mem::replace(newest, published.clone()))
                .collect(),
        };
        self.version.store(version, Ordering::Release);
        drop(newest);
        Ok(version)
    }
}

impl std::fmt::Debug for WeightStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeightStore")
            .field("version", &self.version())
            .finish_non_exhaustive()
    }
}

/// Copies weights within the process: the default of collectors.
#[derive(Debug, Clone, Default)]
pub struct VanillaWeightUpdater {
    last: Option<Arc<Weights>>,
    /// The copy before the last one: its memory takes the next copy, where no worker reads it any
    /// more.
    spare: Option<Arc<Weights>>,
}

impl VanillaWeightUpdater {
    /// The updater; it has no options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl WeightUpdater for VanillaWeightUpdater {
    fn push(&mut self, _: Option<usize>, _: i64, weights: &Weights) -> Result<Pushed, PolicyError> {
        let spare = self.spare.take().and_then(Arc::into_inner);
        let copy = Arc::new(match spare {
            Some(spare) => weights.detach_into(spare),
            None => weights.detach(),
        });
        self.spare = self.last.replace(Arc::clone(&copy));
        Ok(Pushed::Here(copy))
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
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Passed>>);

    type Passed = Vec<(Option<usize>, Published)>;

    impl WeightUpdater for Kept {
        fn push(
            &mut self,
            worker: Option<usize>,
            version: i64,
            weights: &Weights,
        ) -> Result<Pushed, PolicyError> {
            if weights.as_slice::<f32>("weight").unwrap()[0] < 0.0 {
                return Err(PolicyError::failed("refused"));
            }
            let weights = Arc::new(weights.detach());
            let copy = Arc::clone(&weights);
            lock(&self.0).push((worker, Published { version, weights }));
            Ok(Pushed::Here(copy))
        }
    }

    #[test]
    fn readers_of_the_store_get_the_copies_that_its_updater_makes() {
        let kept = Kept::default();
        let store = WeightStore::with_updater(2, kept.clone());
        assert_eq!(store.publish(&weights(1.0)).unwrap(), 1);
        assert_eq!(store.publish_to(1, &weights(2.0)).unwrap(), Some(2));
        store.restore(9, &weights(9.0)).unwrap();
        assert_eq!(store.publish_to(0, &weights(10.0)).unwrap(), Some(10));
        let passed = lock(&kept.0);
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
    fn what_an_updater_refuses_was_not_published() {
        let store = WeightStore::with_updater(1, Kept::default());
        store.publish(&weights(1.0)).unwrap();
        let refused = store.publish(&weights(-1.0)).unwrap_err();
        assert_eq!(refused.to_string(), "refused");
        assert!(store.publish_to(0, &weights(-1.0)).is_err());
        assert!(store.restore(7, &weights(-1.0)).is_err());
        assert_eq!(store.version(), 1);
        assert_eq!(value(&store.newest(0).unwrap()), 1.0);
        assert_eq!(store.publish(&weights(2.0)).unwrap(), 2);
    }

    /// Doubles weights, and brings negative ones to another place.
    struct Doubles;

    impl WeightUpdater for Doubles {
        fn push(
            &mut self,
            _: Option<usize>,
            version: i64,
            weights: &Weights,
        ) -> Result<Pushed, PolicyError> {
            let value = weights.as_slice::<f32>("weight").unwrap()[0];
            Ok(match value < 0.0 {
                true => Pushed::Elsewhere {
                    version: version + 100,
                },
                false => Pushed::Here(Arc::new(self::weights(2.0 * value))),
            })
        }
    }

    #[test]
    fn updaters_follow_each_other_and_restored_weights_reach_the_last_alone() {
        let kept = Kept::default();
        let store = WeightStore::with_updater(1, kept.clone());
        store.push_through(Box::new(Doubles));
        assert_eq!(store.publish(&weights(3.0)).unwrap(), 1);
        assert_eq!(value(&store.newest(0).unwrap()), 6.0);
        assert_eq!(store.publish(&weights(-3.0)).unwrap(), 102);
        assert_eq!((store.version(), lock(&kept.0).len()), (1, 1));
        store.restore(7, &weights(4.0)).unwrap();
        let newest = store.newest(0).unwrap();
        assert_eq!((newest.version, value(&newest)), (7, 4.0));
    }

    #[test]
    fn a_copy_that_nobody_reads_is_written_again() {
        let store = WeightStore::new(1);
        let publish = |of: f32| {
            store.publish(&weights(of)).unwrap();
            let newest = store.newest(0).unwrap();
            (newest.weights.get("weight").unwrap().data_ptr(), newest)
        };
        let (first, held) = publish(1.0);
        publish(2.0);
        assert_ne!(publish(3.0).0, first);
        assert_eq!(value(&held), 1.0);
        let fourth = publish(4.0).0;
        publish(5.0);
        assert_eq!(publish(6.0).0, fourth);
    }

    #[test]
    fn each_publisher_gets_the_failure_of_its_own_weights() {
        let store = WeightStore::with_updater(2, Kept::default());
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
