//! Worker processes while their collector is being built: they make environments and policies, and
//! agree.

use std::sync::Arc;

use windrow_env::{EnvError, EnvSpec};
use windrow_peer::{ControlBlock, ControlSpec, Event, Frame, Program, Roster, encode};
use windrow_policy::PolicySpec;
use windrow_sync::Interrupt;

use super::events::failure;
use super::messages::{FromWorker, Hello, Ready, Specified, ToWorker};
use super::pool::{PoolGuard, WorkerPool};
use super::setup::{Recipes, WorkerSetup};
use super::slot::{WorkerProcess, WorkerSlot};
use super::weights::WeightSender;
use crate::error::BuildError;
use crate::shared::Shared;
use crate::worker::factory::WorkerFactory;

/// Processes that make environments and policies, before there is memory for what they do.
pub(crate) struct Handshake {
    roster: Roster<FromWorker>,
    recipes: Recipes,
    specified: Vec<Specified>,
}

impl Handshake {
    /// Starts a process for each of `makers`, and waits until all have made their environments.
    ///
    /// # Errors
    /// [`BuildError::Env`] and [`BuildError::Policy`] for code that cannot be sent; the first error
    /// of a worker; [`BuildError::WaitInterrupted`].
    pub(crate) fn start(
        makers: &[WorkerFactory],
        program: Program,
        interrupt: &Interrupt,
    ) -> Result<Self, BuildError> {
        let policy = makers.first().map(|maker| {
            let bytes = maker.policy.to_bytes();
            bytes.map_err(|error| maker.policy_error(error))
        });
        let policy = policy.transpose()?.unwrap_or_default();
        let recipes = Recipes {
            hellos: makers.iter().map(hello).collect::<Result<_, _>>()?,
            policy: encode(&ToWorker::Policy(policy))?,
        };
        let mut roster = Roster::new(program, makers.len())?;
        for worker in 0..makers.len() {
            roster.spawn(worker, recipes.first(worker))?;
        }
        let specified = gather(&mut roster, interrupt, |message| match message {
            FromWorker::Specified(specified) => Ok(*specified),
            other => Err(other),
        })?;
        Ok(Self {
            roster,
            recipes,
            specified,
        })
    }

    /// The report of each worker: specs and number of its environments.
    pub(crate) fn specs(&self) -> impl ExactSizeIterator<Item = (&EnvSpec, usize)> {
        self.specified
            .iter()
            .map(|made| (&made.spec, made.num_envs))
    }

    /// Has all workers bind their policies to environments of `spec`; what the policies say about
    /// themselves.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn bind(
        &mut self,
        spec: &EnvSpec,
        interrupt: &Interrupt,
    ) -> Result<Vec<PolicySpec>, BuildError> {
        for worker in 0..self.specified.len() {
            let bind = Frame::of(&ToWorker::Bind(Box::new(spec.clone())))?;
            self.roster.send(worker, bind)?;
        }
        gather(&mut self.roster, interrupt, |message| match message {
            FromWorker::Bound(policy) => Ok(*policy),
            other => Err(other),
        })
    }

    /// Shows all workers the memory of the collector, and lets them begin.
    ///
    /// # Errors
    /// [`BuildError::Process`] when the system gives too little memory or too few descriptors; that
    /// of a worker that has failed meanwhile.
    pub(crate) fn finish(
        mut self,
        spec: &EnvSpec,
        ready: Ready,
        shared: &Arc<Shared>,
        weights: Arc<WeightSender>,
        bound: &PolicySpec,
    ) -> Result<PoolGuard, BuildError> {
        let num_envs = self.specified.first().map_or(1, |made| made.num_envs);
        let (control, lanes) = ControlBlock::create(ControlSpec {
            fingerprint: shared.ring.layout().fingerprint(),
            workers: self.specified.len(),
            envs: num_envs,
        })?;
        let setup = WorkerSetup {
            recipes: self.recipes,
            spec: spec.clone(),
            num_envs,
            ready,
            weights,
        };
        for worker in 0..self.specified.len() {
            let ready = setup.ready(bound, &control, shared)?;
            self.roster.send(worker, ready)?;
        }
        while let Some((worker, event)) = self.roster.try_next() {
            if let Some(error) = failure(worker, event) {
                return Err(error);
            }
        }
        let processes = self.roster.pids().iter().zip(&self.specified);
        let slots = processes.zip(lanes).map(|((pid, made), lane)| {
            let process = pid.map(|pid| WorkerProcess::new(pid).specified(made));
            WorkerSlot::new(lane, process)
        });
        let slots = slots.collect();
        // From here on, the pool handles faults and deaths.
        let (supervisor, events) = self.roster.into_parts();
        let pool = WorkerPool::new(supervisor, Arc::clone(shared), setup, control, slots);
        Ok(PoolGuard::new(pool, events))
    }
}

/// Waits until each worker has sent a message of which `pick` makes something.
fn gather<T>(
    roster: &mut Roster<FromWorker>,
    interrupt: &Interrupt,
    pick: fn(FromWorker) -> Result<T, FromWorker>,
) -> Result<Vec<T>, BuildError> {
    roster.gather(interrupt, |worker, event| {
        let event = match event {
            Event::Message(message) => match pick(message) {
                Ok(picked) => return Ok(Some(picked)),
                Err(other) => Event::Message(other),
            },
            event => event,
        };
        failure(worker, event).map_or(Ok(None), Err)
    })
}

/// The recipes and options from which the worker of `maker` makes its parts, in the form that is
/// sent.
fn hello(maker: &WorkerFactory) -> Result<Vec<u8>, BuildError> {
    let worker = maker.worker;
    let unwritable = EnvError::Unwritable {
        factory: "a function or closure",
    };
    let env = maker.env.recipe().ok_or(unwritable);
    let env = env.and_then(|env| env.to_bytes());
    let hello = Hello {
        worker,
        config: (*maker.config).clone(),
        env: env.map_err(|source| BuildError::Env { worker, source })?,
    };
    Ok(encode(&ToWorker::Hello(Box::new(hello)))?)
}
