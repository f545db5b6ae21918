//! Worker processes while their collector is being built: they make environments and policies, and agree.

use std::sync::Arc;

use windrow_env::{EnvError, EnvSpec};
use windrow_peer::{ControlBlock, ControlSpec, Frame, Supervisor, WorkerProgram, encode};
use windrow_policy::PolicySpec;
use windrow_sync::Interrupt;
use windrow_sync::mpsc::{Receiver, channel};

use super::agreement::Agreement;
use super::crew::{Crew, Report};
use super::employer::Employer;
use super::messages::{Hello, Ready, Specified, ToWorker};
use super::program::is_prepared;
use super::watch::Watch;
use super::weights::WeightSender;
use crate::CollectError;
use crate::shared::Shared;
use crate::worker::making::Maker;

/// Processes that make environments and policies, before there is memory for what they do.
pub(crate) struct Hiring {
    crew: Employer,
    reports: Receiver<(usize, Report)>,
    specified: Vec<Specified>,
}

impl Hiring {
    /// Starts a process for each of `makers`, and waits until all have made their environments.
    ///
    /// # Errors
    /// [`CollectError::NoWorkerMain`] when `program` is `None` and this program does not serve as a worker;
    /// [`CollectError::Env`] and [`CollectError::Policy`] for code that cannot be sent; the first error of a worker;
    /// [`CollectError::WaitInterrupted`].
    pub(crate) fn start(
        makers: &[Maker],
        program: Option<&WorkerProgram>,
        interrupt: &Interrupt,
    ) -> Result<Self, CollectError> {
        let hellos = makers.iter().map(hello).collect::<Result<Vec<_>, _>>()?;
        let policy = makers.first().map(|maker| maker.policy.to_bytes());
        let policy = encode(&ToWorker::Policy(policy.transpose()?.unwrap_or_default()))?;
        let program = match program {
            Some(program) => program.clone(),
            None if is_prepared() => WorkerProgram::current(),
            None => return Err(CollectError::NoWorkerMain),
        };
        let (sender, reports) = channel();
        let crew = Arc::new(Crew::new(sender));
        let watch = Watch::new(&crew, hellos, policy);
        crew.supervised_by(Supervisor::start(program, makers.len(), watch)?);
        let mut hiring = Self {
            crew: Employer::new(crew),
            reports,
            specified: Vec::new(),
        };
        for worker in 0..makers.len() {
            hiring.crew.supervisor()?.spawn(worker)?;
        }
        hiring.specified = hiring.gather(makers.len(), interrupt, |report| match report {
            Report::Specified(specified) => Some(*specified),
            _ => None,
        })?;
        Ok(hiring)
    }

    /// What each worker has made.
    pub(crate) fn specs(&self) -> impl ExactSizeIterator<Item = (&EnvSpec, usize)> {
        self.specified
            .iter()
            .map(|made| (&made.spec, made.num_envs))
    }

    /// Has all workers bind their policies to environments of `spec`; what the policies say about themselves.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn bind(
        &self,
        spec: &EnvSpec,
        interrupt: &Interrupt,
    ) -> Result<Vec<PolicySpec>, CollectError> {
        let workers = self.specified.len();
        for worker in 0..workers {
            let bind = Frame::of(&ToWorker::Bind(Box::new(spec.clone())))?;
            self.crew.supervisor()?.send(worker, bind)?;
        }
        self.gather(workers, interrupt, |report| match report {
            Report::Bound(policy) => Some(policy),
            _ => None,
        })
    }

    /// Shows all workers the memory of the collector, and lets them begin.
    ///
    /// # Errors
    /// [`CollectError::Process`] when the system gives too little memory or too few descriptors.
    pub(crate) fn seat(
        self,
        spec: &EnvSpec,
        ready: Ready,
        shared: &Arc<Shared>,
        weights: Arc<WeightSender>,
        bound: &PolicySpec,
    ) -> Result<Employer, CollectError> {
        let workers = self.specified.len();
        let num_envs = self.specified.first().map_or(1, |made| made.num_envs);
        let (control, lanes) = ControlBlock::create(ControlSpec {
            fingerprint: shared.ring.layout().fingerprint(),
            workers,
            envs: num_envs,
        })?;
        let agreement = Agreement {
            spec: spec.clone(),
            num_envs,
            ready,
            weights,
        };
        for worker in 0..workers {
            let ready = agreement.ready(bound, &control, shared)?;
            self.crew.supervisor()?.send(worker, ready)?;
        }
        self.crew
            .begin(Arc::clone(shared), agreement, control, lanes);
        // From here on, the crew sees to faults and deaths. These came before.
        while let Ok((_, report)) = self.reports.try_recv() {
            if let Report::Failed(error) = report {
                return Err(error);
            }
        }
        Ok(self.crew)
    }

    /// One report of each worker.
    fn gather<T>(
        &self,
        workers: usize,
        interrupt: &Interrupt,
        pick: fn(Report) -> Option<T>,
    ) -> Result<Vec<T>, CollectError> {
        let mut all: Vec<Option<T>> = (0..workers).map(|_| None).collect();
        while all.iter().any(Option::is_none) {
            match interrupt.receive(&self.reports)? {
                Some((_, Report::Failed(error))) => return Err(error),
                Some((worker, report)) => all[worker] = pick(report),
                None => return Err(CollectError::ShutDown),
            }
        }
        Ok(all.into_iter().flatten().collect())
    }
}

/// What the worker of `maker` is to make, as it travels.
fn hello(maker: &Maker) -> Result<Vec<u8>, CollectError> {
    let worker = maker.worker;
    let unwritable = EnvError::Unwritable {
        factory: "a function or closure",
    };
    let env = maker.env.recipe().ok_or(unwritable);
    // Found here and not when it is sent: a recipe of a factory names the factory.
    let env = env.and_then(|env| env.to_json().map(|_| env));
    let hello = Hello {
        worker,
        config: (*maker.config).clone(),
        env: env.map_err(|source| CollectError::Env { worker, source })?,
    };
    Ok(encode(&ToWorker::Hello(Box::new(hello)))?)
}
