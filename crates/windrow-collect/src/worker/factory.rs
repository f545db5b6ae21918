//! How a worker's environments and policy are made, at first and after a loss.

use std::sync::Arc;

use windrow_env::{EnvError, EnvSpec, StepCounter, VecEnv};
use windrow_policy::{Policy, PolicyError, PolicyRecipe};
use windrow_slab::RowBlock;
use windrow_sync::catch_panic;

use super::actor::{Actor, PolicySeat};
use crate::config::builder::EnvMaker;
use crate::config::options::CollectorConfig;
use crate::config::plan::Placement;
use crate::error::{ArgumentError, BuildError, IsInterruption, WorkerError, WorkerFault};
use crate::shared::service::Service;
use crate::shared::statistics;

/// Makes the environments and the policy of one worker.
#[derive(Clone)]
pub(crate) struct WorkerFactory {
    pub(crate) worker: usize,
    pub(crate) config: Arc<CollectorConfig>,
    pub(crate) env: EnvMaker,
    pub(crate) policy: PolicyRecipe,
    /// What evaluates the policy, where the worker does not.
    pub(crate) service: Option<Arc<Service>>,
    pub(crate) is_interruption: IsInterruption,
}

/// An actor, and the first observations of its environments where episodes were begun for it.
pub(crate) type Bound = (Actor, Option<RowBlock>);

impl WorkerFactory {
    /// As [`envs`](Self::envs), in a panic's place an error.
    ///
    /// # Errors
    /// Those of [`envs`](Self::envs); [`BuildError::Worker`] after a panic.
    pub(crate) fn guarded_envs(&self) -> Result<Box<dyn VecEnv>, BuildError> {
        self.guarded(|| self.envs())
    }

    /// The environments.
    ///
    /// # Errors
    /// [`BuildError::Env`].
    pub(crate) fn envs(&self) -> Result<Box<dyn VecEnv>, BuildError> {
        ArgumentError::check_positive("max_frames_per_traj", self.config.max_frames_per_traj)?;
        self.try_envs().map_err(|source| BuildError::Env {
            worker: self.worker,
            source,
        })
    }

    fn try_envs(&self) -> Result<Box<dyn VecEnv>, EnvError> {
        let mut env = self.env.build(self.config.num_envs.unwrap_or(1))?;
        if env.num_envs() == 0 {
            return Err(EnvError::Empty);
        }
        statistics::prepare(env.as_mut(), &self.config)?;
        Ok(match self.config.max_frames_per_traj {
            None => env,
            Some(frames) => Box::new(env.transformed(StepCounter::new().with_max_steps(frames))?),
        })
    }

    /// A policy that acts in `env`, whose spec all workers call `spec`.
    ///
    /// # Errors
    /// As [`Actor::new`]; an interruption while first episodes begin.
    pub(crate) fn actor(&self, env: &mut dyn VecEnv, spec: &EnvSpec) -> Result<Bound, BuildError> {
        let seat = self.seat(env.num_envs());
        seat.take(self.policy()?, env, spec, |policy, binding| {
            Actor::new(policy, binding, self.config.exploration_type)
        })
    }

    /// The policy, not yet bound.
    ///
    /// # Errors
    /// [`BuildError::Policy`].
    pub(crate) fn policy(&self) -> Result<Box<dyn Policy>, BuildError> {
        match &self.service {
            Some(service) => match service.client() {
                Ok(client) => Ok(Box::new(client)),
                Err(error) => Err(self.policy_error(error)),
            },
            None => self.own_policy(),
        }
    }

    /// A policy of the recipe, also where a server evaluates that of the worker.
    ///
    /// # Errors
    /// [`BuildError::Policy`].
    pub(crate) fn own_policy(&self) -> Result<Box<dyn Policy>, BuildError> {
        let policy = self.policy.build(self.worker);
        policy.map_err(|error| self.policy_error(error))
    }

    /// The error of the worker's policy, or of its recipe.
    pub(crate) fn policy_error(&self, source: PolicyError) -> BuildError {
        BuildError::Policy {
            worker: self.worker,
            source,
        }
    }

    /// Where the policy acts.
    pub(crate) fn seat(&self, num_envs: usize) -> PolicySeat {
        PolicySeat {
            worker: self.worker,
            batched: batched(&self.config, num_envs),
            in_caller: self.config.plan().placement == Placement::Inline,
            is_interruption: self.is_interruption,
        }
    }

    /// The result of `make`; a panic becomes an error.
    ///
    /// # Errors
    /// As `make`; [`BuildError::Worker`] after a panic.
    pub(crate) fn guarded<T>(
        &self,
        make: impl FnOnce() -> Result<T, BuildError>,
    ) -> Result<T, BuildError> {
        catch_panic(make).unwrap_or_else(|message| {
            let fault = WorkerFault::Panic(message);
            Err(WorkerError::new(self.worker, None, fault).into())
        })
    }
}

/// Whether batches have a dimension for the environments of a worker.
pub(crate) fn batched(config: &CollectorConfig, num_envs: usize) -> bool {
    num_envs > 1 || config.num_envs.is_some()
}
