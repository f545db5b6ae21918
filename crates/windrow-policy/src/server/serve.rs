//! The evaluation of batches.

use std::sync::{Arc, Weak};

use windrow_slab::RowBlock;
use windrow_sync::catch_panic;

use super::Joint;
use super::board::Request;
use crate::{EnvRows, ExplorationType, Policy, PolicyError, PolicyIn, WeightStore, Weights};

/// The policy, and all that its evaluation needs: whoever has it evaluates the next batch.
pub(super) struct Server {
    /// The requests that are evaluated.
    pub(super) batch: Vec<Request>,
    store: Arc<WeightStore>,
    policy: Box<dyn Policy>,
    /// All requests of a batch, and what the policy writes for them: memory for the largest.
    obs: RowBlock,
    out: RowBlock,
    envs: EnvRows,
    version: i64,
    /// Whether weights of the same version may be others now.
    look_again: bool,
    /// The weights that were loaded last. A weak pointer keeps their address from being used again, and no memory of theirs.
    loaded: Weak<Weights>,
}

impl Server {
    /// A server of `policy`, which is bound to what `joint` says, for batches of up to `rows` rows.
    pub(super) fn new(
        policy: Box<dyn Policy>,
        joint: &Joint,
        rows: usize,
        store: Arc<WeightStore>,
    ) -> Result<Self, PolicyError> {
        Ok(Self {
            batch: Vec::new(),
            store,
            obs: RowBlock::new(&joint.observed, rows)?,
            out: RowBlock::new(&joint.spec.columns, rows)?,
            envs: EnvRows::new(0, Vec::new()),
            policy,
            version: 0,
            look_again: false,
            loaded: Weak::new(),
        })
    }

    /// Evaluates the batch, with the newest weights, and answers its requests: the version that acted.
    ///
    /// # Errors
    /// The message of a panic of the policy, which is not to be used again.
    pub(super) fn serve(&mut self, look_again: bool) -> Result<Option<i64>, String> {
        self.look_again |= look_again;
        let evaluated = catch_panic(|| {
            self.refresh()?;
            self.evaluate()
        });
        match evaluated? {
            Ok(()) => Ok(Some(self.version)),
            Err(error) => {
                let error = Arc::new(error);
                for request in &mut self.batch {
                    request.failure = Some(PolicyError::Served(Arc::clone(&error)));
                }
                Ok(None)
            }
        }
    }

    /// Drops the policy, which may panic.
    pub(super) fn end(self) {
        // Nobody needs it any more.
        let _ = catch_panic(|| drop(self));
    }

    /// Loads the newest weights, if they are others.
    fn refresh(&mut self) -> Result<(), PolicyError> {
        let store = &self.store;
        if store.version() == self.version && !self.look_again {
            return Ok(());
        }
        let Some(newest) = store.newest(0) else {
            return Ok(());
        };
        if !std::ptr::eq(self.loaded.as_ptr(), Arc::as_ptr(&newest.weights)) {
            self.policy.load(&newest.weights)?;
            self.loaded = Arc::downgrade(&newest.weights);
        }
        self.version = newest.version;
        self.look_again = false;
        Ok(())
    }

    fn evaluate(&mut self) -> Result<(), PolicyError> {
        let batch = &mut self.batch;
        let rows = batch.iter().map(|request| request.rows()).sum();
        self.obs.limit(rows)?;
        self.out.limit(rows)?;
        self.envs.clear();
        let mut obs = self.obs.rows_mut();
        for request in &*batch {
            obs.copy_envs(self.envs.len(), request.obs.rows(), 0..request.rows())?;
            self.envs.append(&request.envs);
        }
        let exploration = batch.first().map(|first| first.exploration);
        let input = PolicyIn {
            obs: self.obs.rows(),
            envs: &self.envs,
            exploration: exploration.unwrap_or(ExplorationType::Random),
        };
        self.policy.act(&input, self.out.rows_mut())?;
        let mut at = 0;
        for request in batch {
            let rows = at..at + request.rows();
            at = rows.end;
            request.out.rows_mut().copy_envs(0, self.out.rows(), rows)?;
        }
        Ok(())
    }
}
