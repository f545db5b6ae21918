//! What all workers of a collector have in common: also those that come later, in the place of one
//! that died.

use std::os::fd::AsFd;
use std::sync::Arc;

use windrow_env::EnvSpec;
use windrow_peer::{ControlBlock, Frame, ProcessError};
use windrow_policy::PolicySpec;

use super::messages::{Ready, Specified, ToWorker};
use super::weights::WeightSender;
use crate::error::BuildError;
use crate::shared::Shared;
use crate::worker::actor::describe_all;

/// Specs, layout and memory of a collector's workers.
pub(super) struct WorkerSetup {
    pub(super) recipes: Recipes,
    pub(super) spec: EnvSpec,
    pub(super) num_envs: usize,
    pub(super) ready: Ready,
    pub(super) weights: Arc<WeightSender>,
}

/// What workers make, as messages that are sent first.
pub(super) struct Recipes {
    /// One for each worker.
    pub(super) hellos: Vec<Vec<u8>>,
    pub(super) policy: Vec<u8>,
}

impl Recipes {
    /// What worker `worker` is sent first.
    pub(super) fn first(&self, worker: usize) -> impl Iterator<Item = Frame> {
        [&self.hellos[worker], &self.policy]
            .map(|message| Frame::from(message.clone()))
            .into_iter()
    }
}

impl WorkerSetup {
    pub(super) fn first(&self, worker: usize) -> impl Iterator<Item = Frame> {
        self.recipes.first(worker)
    }

    /// Checks that the environments that a worker has made are those of all.
    pub(super) fn check(&self, worker: usize, made: &Specified) -> Result<(), BuildError> {
        let mut joined = self.spec.clone();
        joined
            .join(&made.spec)
            .map_err(|source| BuildError::Env { worker, source })?;
        match made.num_envs == self.num_envs {
            true => Ok(()),
            false => Err(BuildError::UnequalEnvs {
                worker,
                expected: self.num_envs,
                got: made.num_envs,
            }),
        }
    }

    /// The common spec, to which policies are bound.
    pub(super) fn bind(&self) -> ToWorker {
        ToWorker::Bind(Box::new(self.spec.clone()))
    }

    /// Where the memory lies, for a worker whose policy is `bound`.
    pub(super) fn ready(
        &self,
        bound: &PolicySpec,
        control: &ControlBlock,
        shared: &Shared,
    ) -> Result<Frame, BuildError> {
        if bound.columns != self.ready.columns {
            return Err(BuildError::OtherColumns {
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
