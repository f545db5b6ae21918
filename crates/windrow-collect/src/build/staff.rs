//! The workers of a collector while it is being built: their environments and policies, and then their seats.

use std::sync::Arc;

use windrow_env::{EnvSpec, VecEnv};
use windrow_policy::PolicySpec;

use super::envs::{common, make_all};
use crate::CollectError;
use crate::config::builder::CollectorBuilder;
use crate::placement::Workers;
use crate::shared::{LocalDesk, Shared};
use crate::worker::Worker;
use crate::worker::actor::describe_all;
use crate::worker::cursor::Beginning;
use crate::worker::making::{Bound, Maker};

/// Workers of this process that are being hired.
pub(super) struct Staff {
    makers: Vec<Maker>,
    envs: Vec<Box<dyn VecEnv>>,
    actors: Vec<Bound>,
}

impl Staff {
    /// Makes the environments of all workers.
    pub(super) fn new(
        makers: Vec<Maker>,
        given_up: impl FnMut() -> bool,
    ) -> Result<Self, CollectError> {
        Ok(Self {
            envs: make_all(&makers, given_up)?,
            makers,
            actors: Vec::new(),
        })
    }

    /// The spec and the number of environments that all workers have in common.
    pub(super) fn common(&self) -> Result<(EnvSpec, usize), CollectError> {
        common(self.envs.iter().map(|env| (env.spec(), env.num_envs())))
    }

    /// Makes the policies of all workers and binds them to the environments of each, and those to what policies write. Returns
    /// what all policies say about themselves.
    pub(super) fn bind(&mut self, spec: &EnvSpec) -> Result<PolicySpec, CollectError> {
        for (maker, env) in self.makers.iter().zip(&mut self.envs) {
            let actor = maker.guarded(|| maker.actor(env.as_mut(), spec))?;
            self.actors.push(actor);
        }
        let specs = self.actors.iter().map(|(actor, _)| actor.spec());
        let policy = alike(specs)?;
        for (worker, env) in self.envs.iter_mut().enumerate() {
            env.bind(&policy.columns)
                .map_err(|source| CollectError::Env { worker, source })?;
        }
        Ok(policy)
    }

    /// Gives each worker a desk.
    pub(super) fn seat(
        self,
        chosen: &CollectorBuilder,
        shared: &Arc<Shared>,
        beginning: &Beginning,
        spec: &EnvSpec,
    ) -> Result<Workers, CollectError> {
        let members = self.envs.into_iter().zip(self.actors).zip(self.makers);
        let seated = members.map(|((env, (actor, first)), maker)| {
            let mut cursor = beginning.cursor(spec, maker.worker, env.num_envs())?;
            if let Some(first) = first {
                cursor.prime(first);
            }
            Ok(Worker {
                desk: LocalDesk::new(maker.worker, Arc::clone(shared)),
                env,
                actor,
                cursor,
                maker,
            })
        });
        let workers = seated.collect::<Result<Vec<_>, CollectError>>()?;
        Ok(Workers::new(chosen.config.placement, workers))
    }
}

/// What the policies of all workers say about themselves: all write the same columns.
pub(super) fn alike<'a>(
    policies: impl Iterator<Item = &'a PolicySpec>,
) -> Result<PolicySpec, CollectError> {
    let mut first: Option<&PolicySpec> = None;
    for (worker, policy) in policies.enumerate() {
        let expected = first.get_or_insert(policy);
        if policy.columns != expected.columns {
            return Err(CollectError::UnequalPolicies {
                worker,
                expected: describe_all(&expected.columns),
                got: describe_all(&policy.columns),
            });
        }
    }
    first.cloned().ok_or(CollectError::NotPositive {
        name: "num_workers",
    })
}
