//! The evaluation of one batch: newest weights, one call of the policy, answers (ADR 0021).

use std::sync::{Arc, Weak};

use windrow_slab::RowBlock;
use windrow_sync::catch_panic;

use super::SharedSpec;
use super::queue::Request;
use crate::{EnvRows, Policy, PolicyError, PolicyIn, WeightStore, Weights};

/// The policy and the memory of its batches. Owning it is the right to evaluate the next batch.
pub(super) struct Evaluator {
    /// The requests of the batch.
    pub(super) batch: Vec<Request>,
    store: Arc<WeightStore>,
    policy: Box<dyn Policy>,
    /// Observations and actions of all requests of a batch, with room for the largest one.
    obs: RowBlock,
    out: RowBlock,
    envs: EnvRows,
    version: i64,
    /// Reload weights even if their version is unchanged.
    reload: bool,
    /// The weights that were loaded last, to load none twice. While the weak pointer lives, no
    /// other weights get their address.
    loaded: Weak<Weights>,
}

impl Evaluator {
    /// For `policy`, which is bound as `shared` says, and batches of up to `rows` rows.
    pub(super) fn new(
        policy: Box<dyn Policy>,
        shared: &SharedSpec,
        rows: usize,
        store: Arc<WeightStore>,
    ) -> Result<Self, PolicyError> {
        Ok(Self {
            batch: Vec::new(),
            store,
            obs: RowBlock::new(&shared.observed, rows)?,
            out: RowBlock::new(&shared.spec.columns, rows)?,
            envs: EnvRows::new(0, Vec::new()),
            policy,
            version: 0,
            reload: false,
            loaded: Weak::new(),
        })
    }

    /// Evaluates the batch with the newest weights and writes the answers into its requests.
    /// Returns the version of the weights; `None` if the policy has failed, whose error is then the
    /// answer of each request.
    ///
    /// # Errors
    /// The message of a panic of the policy, which must not be used again.
    pub(super) fn serve(&mut self, reload: bool) -> Result<Option<i64>, String> {
        self.reload |= reload;
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
        // A panic of its destructor affects nobody: the server has ended.
        let _ = catch_panic(|| drop(self));
    }

    /// Loads the newest weights unless they are loaded already.
    fn refresh(&mut self) -> Result<(), PolicyError> {
        let store = &self.store;
        if store.version() == self.version && !self.reload {
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
        self.reload = false;
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
        let first = batch.first().expect("A batch begins with a request.");
        let input = PolicyIn {
            obs: self.obs.rows(),
            envs: &self.envs,
            exploration: first.exploration,
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
