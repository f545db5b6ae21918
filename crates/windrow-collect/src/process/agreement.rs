//! What all workers of a collector have in common: also those that come later, in the place of one that died.

use std::os::fd::AsFd;
use std::sync::Arc;

use windrow_env::EnvSpec;
use windrow_peer::{ControlBlock, Frame, ProcessError};
use windrow_policy::PolicySpec;

use super::messages::{Ready, Specified, ToWorker};
use super::weights::WeightSender;
use crate::error::CollectError;
use crate::shared::Shared;
use crate::worker::actor::describe_all;

/// Specs, layout and memory of a collector's workers.
pub(super) struct Agreement {
    pub(super) spec: EnvSpec,
    pub(super) num_envs: usize,
    pub(super) ready: Ready,
    pub(super) weights: Arc<WeightSender>,
}

impl Agreement {
    /// Tells a worker with the environments `made` the common spec, which theirs must be.
    pub(super) fn bind(&self, worker: usize, made: &Specified) -> Result<Frame, CollectError> {
        let mut joined = self.spec.clone();
        joined
            .join(&made.spec)
            .map_err(|source| CollectError::Env { worker, source })?;
        if made.num_envs != self.num_envs {
            return Err(CollectError::UnequalEnvs {
                worker,
                expected: self.num_envs,
                got: made.num_envs,
            });
        }
        Ok(Frame::of(&ToWorker::Bind(Box::new(self.spec.clone())))?)
    }

    /// Tells a worker whose policy is `bound` where the memory lies.
    pub(super) fn ready(
        &self,
        bound: &PolicySpec,
        control: &ControlBlock,
        shared: &Shared,
    ) -> Result<Frame, CollectError> {
        if bound.columns != self.ready.columns {
            return Err(CollectError::OtherColumns {
                expected: describe_all(&self.ready.columns),
                got: describe_all(&bound.columns),
            });
        }
        let mut ready = Frame::of(&ToWorker::Ready(Box::new(self.ready.clone())))?;
        let slabs = shared.ring.file().ok_or(ProcessError::ShutDown)?;
        let files = [
            slabs.as_fd(),
            control.as_fd(),
            self.weights.exchange.as_fd(),
        ];
        for file in files {
            ready.attach(file)?;
        }
        Ok(ready)
    }
}
