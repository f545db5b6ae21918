//! What a collector's methods and its driver both look at.

use std::sync::Arc;

use windrow_policy::{Policy, WeightUpdater, Weights};
use windrow_slab::Ring;

use crate::CollectError;
use crate::outlet::Outlet;
use crate::plan::{CatResults, Plan};
use crate::stats::Tally;
use crate::sync::{AtomicBool, Mutex, MutexGuard};
use crate::worker::{Shared, lock};

/// Where weights come from when none are given.
pub(crate) type WeightSource = Box<dyn FnMut() -> Weights + Send>;

/// All of a collector but its driver: locked for moments only, so that no call waits for a batch.
pub(crate) struct Core {
    pub(crate) ring: Arc<Ring>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) plan: Plan,
    pub(crate) cat_results: CatResults,
    pub(crate) preempting: bool,
    /// Environments of each worker.
    pub(crate) num_envs: usize,
    /// Where batches are written, if they are.
    pub(crate) outlet: Option<Arc<Outlet>>,
    pub(crate) tally: Mutex<Tally>,
    pub(crate) supply: Mutex<Supply>,
    pub(crate) source: Mutex<Option<WeightSource>>,
    /// Whether trajectories that are begun are to be forgotten before the next batch.
    pub(crate) forget: AtomicBool,
}

/// The way of weights to the workers.
pub(crate) struct Supply {
    /// Tells whether weights fit; never acts.
    pub(crate) reference: Box<dyn Policy>,
    pub(crate) updater: Box<dyn WeightUpdater>,
}

impl Core {
    pub(crate) fn workers(&self) -> usize {
        self.shared.mail.len()
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.tally)
    }

    /// Counts the frames that are left from slab `seq` on.
    pub(crate) fn count_on(&self, seq: u64) {
        let frames = self.tally().frames;
        let mut schedule = self.shared.schedule();
        schedule.count_from(frames, seq);
        self.ring.end_at(schedule.end());
    }

    /// Frames still to be collected; `u64::MAX` when endless.
    pub(crate) fn frames_left(&self) -> u64 {
        let total = self.shared.schedule().total_frames;
        let frames = self.tally().frames;
        total.map_or(u64::MAX, |total| total.saturating_sub(frames))
    }

    /// Whether `weights` are the policy's.
    pub(crate) fn check_weights(&self, weights: &Weights) -> Result<(), CollectError> {
        Ok(lock(&self.supply).reference.check(weights)?)
    }

    /// Publishes `weights` to all workers.
    pub(crate) fn push_weights(&self, weights: &Weights) -> Result<i64, CollectError> {
        let mut supply = lock(&self.supply);
        supply.reference.check(weights)?;
        Ok(supply.updater.push(&self.shared.weights, weights)?)
    }

    /// Publishes what the source gives.
    pub(crate) fn push_from_source(&self) -> Result<i64, CollectError> {
        let weights = lock(&self.source).as_mut().map(|source| source());
        let Some(weights) = weights else {
            return Err(CollectError::Workers(
                "no weights were given, and the collector was built without a weight_source"
                    .to_owned(),
            ));
        };
        self.push_weights(&weights)
    }

    /// A copy of the weights that were published last.
    pub(crate) fn weights(&self) -> Weights {
        self.shared.weights.newest(0).map_or_else(
            || lock(&self.supply).reference.weights(),
            |newest| newest.weights.detach(),
        )
    }
}
