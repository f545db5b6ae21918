//! The thread of a server.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use windrow_slab::RowBlock;

use super::board::Request;
use super::{Hub, Joint};
use crate::sync::lock;
use crate::{EnvRows, ExplorationType, Policy, PolicyError, PolicyIn, Weights};

/// What the thread owns.
pub(super) struct Server {
    hub: Arc<Hub>,
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

/// Says that the thread has ended, however it does.
struct Ends(Arc<Hub>);

impl Drop for Ends {
    fn drop(&mut self) {
        lock(&self.0.board).running = false;
        self.0.end("its thread has ended");
    }
}

impl Server {
    /// A server of `policy`, which is bound to what `joint` says.
    pub(super) fn new(
        hub: &Arc<Hub>,
        policy: Box<dyn Policy>,
        joint: &Joint,
    ) -> Result<Self, PolicyError> {
        let rows = hub.config.max_batch_size;
        Ok(Self {
            obs: RowBlock::new(&joint.observed, rows)?,
            out: RowBlock::new(&joint.spec.columns, rows)?,
            envs: EnvRows::new(0, Vec::new()),
            hub: Arc::clone(hub),
            policy,
            version: 0,
            look_again: false,
            loaded: Weak::new(),
        })
    }

    pub(super) fn run(mut self) {
        let ends = Ends(Arc::clone(&self.hub));
        let hub = &ends.0;
        let mut batch = Vec::new();
        while let Some(look_again) = hub.gather(&mut batch) {
            let begun = lock(&hub.board).now();
            self.look_again |= look_again;
            let evaluated = catch_unwind(AssertUnwindSafe(|| {
                self.refresh()?;
                self.evaluate(&mut batch)
            }));
            match evaluated {
                Ok(Ok(())) => {
                    let answered = batch.iter_mut();
                    answered.for_each(|request| request.answer = Some(Ok(self.version)));
                }
                Ok(Err(error)) => {
                    let error = Arc::new(error);
                    for request in &mut batch {
                        request.answer = Some(Err(PolicyError::Served(Arc::clone(&error))));
                    }
                }
                Err(panic) => {
                    hub.end(&format!("its policy panicked: {}", said(panic.as_ref())));
                    break;
                }
            }
            lock(&hub.board).answer(&mut batch, begun);
            hub.answered.wake_all();
        }
        // A panic of its drop ends nothing but this thread, which has ended.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(self)));
    }

    /// Loads the newest weights, if they are others.
    fn refresh(&mut self) -> Result<(), PolicyError> {
        let store = &self.hub.weights;
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

    fn evaluate(&mut self, batch: &mut [Request]) -> Result<(), PolicyError> {
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

/// The message of a panic.
fn said(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "with a payload that is not a string".to_owned())
}
