//! The workers of a collector while it is being built: their environments and policies, and then
//! their links.

use std::sync::Arc;
use std::time::Duration;

use windrow_env::{EnvSpec, Gathers, VecEnv};
#[cfg(target_os = "linux")]
use windrow_peer::Program;
use windrow_policy::{Policy, PolicySpec};
use windrow_slab::{Layout, RecordSpec, Ring, RingSpec, Shares, SlabError};
use windrow_sync::Interrupt;

use super::envs::{common, make_all};
use crate::config::builder::CollectorBuilder;
#[cfg(target_os = "linux")]
use crate::config::builder::WorkerStart;
use crate::config::plan::Placement;
use crate::error::{ArgumentError, BuildError};
use crate::placement::Workers;
#[cfg(all(target_os = "linux", feature = "remote"))]
use crate::process::elsewhere;
#[cfg(target_os = "linux")]
use crate::process::{handshake::Handshake, messages::Ready, program::or_current, weights};
use crate::shared::service::Service;
use crate::shared::{Shared, ThreadLink};
use crate::worker::Worker;
use crate::worker::actor::describe_all;
use crate::worker::cursor::Beginning;
use crate::worker::factory::{Bound, WorkerFactory};

/// Workers that are being made.
pub(super) enum NewWorkers {
    Here(Local),
    #[cfg(target_os = "linux")]
    Processes(Handshake),
}

/// Workers of this process.
pub(super) struct Local {
    inline: bool,
    makers: Vec<WorkerFactory>,
    envs: Vec<Box<dyn VecEnv>>,
    actors: Vec<Bound>,
}

/// The data from which the links of workers are made.
pub(super) struct LinkSpec<'a> {
    pub(super) spec: &'a EnvSpec,
    pub(super) policy: &'a PolicySpec,
    pub(super) record: RecordSpec,
    pub(super) shares: Shares,
    pub(super) beginning: Beginning,
    /// How long a call in a worker process may take.
    pub(super) step_timeout: Option<Duration>,
}

impl NewWorkers {
    /// Makes the environments of all workers.
    pub(super) fn new(
        chosen: &CollectorBuilder,
        makers: Vec<WorkerFactory>,
    ) -> Result<Self, BuildError> {
        let inline = match chosen.config.plan().placement {
            Placement::Inline => true,
            Placement::Threads => false,
            #[cfg(target_os = "linux")]
            Placement::Processes => {
                let program = program(&chosen.start)?;
                return Handshake::start(&makers, program, &chosen.interrupt).map(Self::Processes);
            }
            #[cfg(not(target_os = "linux"))]
            Placement::Processes => {
                let (name, needs) = ("placement processes", "Linux");
                return Err(ArgumentError::Needs { name, needs }.into());
            }
        };
        Ok(Self::Here(Local {
            inline,
            envs: make_all(&makers, &chosen.interrupt)?,
            makers,
            actors: Vec::new(),
        }))
    }

    /// The spec and the number of environments that all workers have in common.
    pub(super) fn common(&self) -> Result<(EnvSpec, usize), BuildError> {
        match self {
            Self::Here(local) => common(local.envs.iter().map(|env| (env.spec(), env.num_envs()))),
            #[cfg(target_os = "linux")]
            Self::Processes(handshake) => common(handshake.specs()),
        }
    }

    /// The running statistics that the environments of each worker share.
    pub(super) fn statistics(&self) -> Vec<Vec<Gathers>> {
        let of = |spec: &EnvSpec| spec.statistics.clone();
        match self {
            Self::Here(local) => local.envs.iter().map(|env| of(env.spec())).collect(),
            #[cfg(target_os = "linux")]
            Self::Processes(handshake) => handshake.specs().map(|(spec, _)| of(spec)).collect(),
        }
    }

    /// Lets `service` evaluate the policy of workers in this process.
    pub(super) fn serve(&mut self, service: &Arc<Service>) {
        match self {
            Self::Here(local) => {
                let makers = local.makers.iter_mut();
                makers.for_each(|maker| maker.service = Some(Arc::clone(service)));
            }
            #[cfg(target_os = "linux")]
            Self::Processes(_) => {}
        }
    }

    /// Makes the policies of all workers and binds them to the environments of each. Returns what
    /// all policies say about themselves.
    pub(super) fn bind(
        &mut self,
        spec: &EnvSpec,
        interrupt: &Interrupt,
    ) -> Result<PolicySpec, BuildError> {
        match self {
            Self::Here(local) => {
                // Policies here are bound in no time.
                let _ = interrupt;
                local.bind(spec)
            }
            #[cfg(target_os = "linux")]
            Self::Processes(handshake) => alike(&handshake.bind(spec, interrupt)?),
        }
    }

    /// A ring whose parts the workers can fill.
    pub(super) fn ring(&self, layout: Layout, spec: RingSpec) -> Result<Arc<Ring>, SlabError> {
        match self {
            Self::Here(_) => Ring::new(layout, spec),
            #[cfg(target_os = "linux")]
            Self::Processes(_) => Ring::shared(layout, spec),
        }
    }

    /// Gives each worker a link. Weights are such as those of `reference`.
    pub(super) fn connect(
        self,
        shared: Shared,
        links: LinkSpec<'_>,
        reference: &dyn Policy,
    ) -> Result<(Workers, Arc<Shared>), BuildError> {
        match self {
            Self::Here(local) => {
                // Workers here read the weights of the store.
                let _ = reference;
                let shared = Arc::new(shared);
                let workers = local.connect(&shared, &links)?;
                Ok((workers, shared))
            }
            #[cfg(target_os = "linux")]
            Self::Processes(handshake) => {
                let leaves = weights::leaves(&reference.weights());
                let sender = weights::WeightSender::new(shared.workers(), leaves.clone())?;
                let shared = Arc::new(shared.with_updater(weights::WeightSender::clone(&sender)));
                let ready = Ready {
                    columns: links.policy.columns.clone(),
                    record: links.record,
                    shares: links.shares,
                    beginning: links.beginning,
                    weights: leaves,
                };
                let mut pool =
                    handshake.finish(links.spec, ready, &shared, sender, links.policy)?;
                if let Some(patience) = links.step_timeout {
                    pool.detect_hangs(patience)?;
                }
                Ok((Workers::Processes(pool), shared))
            }
        }
    }
}

impl Local {
    fn bind(&mut self, spec: &EnvSpec) -> Result<PolicySpec, BuildError> {
        for (maker, env) in self.makers.iter().zip(&mut self.envs) {
            let actor = maker.guarded(|| maker.actor(env.as_mut(), spec))?;
            self.actors.push(actor);
        }
        let specs = self.actors.iter().map(|(actor, _)| actor.spec().clone());
        let policy = alike(&specs.collect::<Vec<_>>())?;
        for (worker, env) in self.envs.iter_mut().enumerate() {
            env.bind(&policy.columns)
                .map_err(|source| BuildError::Env { worker, source })?;
        }
        Ok(policy)
    }

    fn connect(self, shared: &Arc<Shared>, links: &LinkSpec<'_>) -> Result<Workers, BuildError> {
        let members = self.envs.into_iter().zip(self.actors).zip(self.makers);
        let connected = members.map(|((env, (actor, first)), maker)| {
            let (worker, num_envs) = (maker.worker, env.num_envs());
            let mut cursor = links.beginning.cursor(links.spec, worker, num_envs)?;
            if let Some(first) = first {
                cursor.prime(first);
            }
            Ok(Worker {
                link: ThreadLink::new(worker, Arc::clone(shared)),
                env,
                actor,
                cursor,
                maker,
            })
        });
        let workers = connected.collect::<Result<Vec<_>, BuildError>>()?;
        let service = shared.service.clone();
        Ok(Workers::local(self.inline, workers, service))
    }
}

/// What runs as a worker process.
#[cfg(target_os = "linux")]
fn program(start: &WorkerStart) -> Result<Program, BuildError> {
    #[cfg(feature = "remote")]
    if let Some(launcher) = &start.launcher {
        let launcher = Arc::clone(launcher);
        return Ok(elsewhere::relay::program(launcher, start.refused_values));
    }
    Ok(or_current(start.program.as_ref())?.into())
}

/// What the policies of all workers say about themselves: all write the same columns.
fn alike(policies: &[PolicySpec]) -> Result<PolicySpec, BuildError> {
    let Some(first) = policies.first() else {
        let name = "num_workers";
        return Err(ArgumentError::NotPositive { name }.into());
    };
    let mut others = policies.iter().enumerate();
    match others.find(|(_, policy)| policy.columns != first.columns) {
        None => Ok(first.clone()),
        Some((worker, other)) => Err(BuildError::UnequalPolicies {
            worker,
            expected: describe_all(&first.columns),
            got: describe_all(&other.columns),
        }),
    }
}
