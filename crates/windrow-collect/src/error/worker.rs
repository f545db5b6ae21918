//! Errors of workers.

use windrow_env::VecEnvError;
use windrow_policy::PolicyError;
use windrow_slab::SlabError;

use crate::CollectError;

/// A worker failed: which one, where it stood, and why.
#[derive(Debug, thiserror::Error)]
#[error("worker {worker}{}: {fault}", at(*place))]
pub struct WorkerError {
    worker: usize,
    place: Option<Place>,
    #[source]
    fault: Box<WorkerFault>,
}

/// Where an environment stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) env: usize,
    pub(crate) episode: u64,
    pub(crate) step: u64,
}

impl WorkerError {
    pub(crate) fn new(worker: usize, place: Option<Place>, fault: WorkerFault) -> Self {
        Self {
            worker,
            place,
            fault: Box::new(fault),
        }
    }

    /// Number of the worker.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Number of the environment over all workers, if one of them failed.
    #[must_use]
    pub fn env(&self) -> Option<usize> {
        self.place.map(|place| place.env)
    }

    /// Episode of that environment, counted from 0.
    #[must_use]
    pub fn episode(&self) -> Option<u64> {
        self.place.map(|place| place.episode)
    }

    /// Step within the episode, counted from 0.
    #[must_use]
    pub fn step(&self) -> Option<u64> {
        self.place.map(|place| place.step)
    }

    /// What happened.
    #[must_use]
    pub fn fault(&self) -> &WorkerFault {
        &self.fault
    }
}

fn at(place: Option<Place>) -> String {
    place.map_or_else(String::new, |Place { env, episode, step }| {
        format!(", environment {env}, episode {episode}, step {step}")
    })
}

/// What failed in a worker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerFault {
    /// An environment.
    #[error("{}", .0.source)]
    Env(#[source] VecEnvError),
    /// The policy.
    #[error("policy: {0}")]
    Policy(#[source] PolicyError),
    /// The memory that it fills.
    #[error("{0}")]
    Slab(#[source] SlabError),
    /// The thread that it should run in.
    #[error("failed to start its thread: {0}")]
    Start(#[source] std::io::Error),
    /// Environment or policy panicked.
    #[error("panicked: {0}")]
    Panic(String),
    /// Environments or policy could not be made anew after a loss.
    #[error("failed to start over: {0}")]
    Remake(#[source] Box<CollectError>),
}

impl WorkerFault {
    /// The environment that failed, among the worker's own.
    pub(crate) fn env(&self) -> Option<usize> {
        match self {
            Self::Env(error) => Some(error.env),
            Self::Policy(_) | Self::Slab(_) | Self::Start(_) | Self::Panic(_) | Self::Remake(_) => {
                None
            }
        }
    }

    /// The fault behind a panic.
    pub(crate) fn panic(payload: &(dyn std::any::Any + Send)) -> Self {
        Self::Panic(said(payload))
    }
}

/// The message of a panic.
pub(crate) fn said(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "with a payload that is not a string".to_owned())
}

impl From<SlabError> for WorkerFault {
    fn from(error: SlabError) -> Self {
        Self::Slab(error)
    }
}

impl From<VecEnvError> for WorkerFault {
    fn from(error: VecEnvError) -> Self {
        Self::Env(error)
    }
}

impl From<PolicyError> for WorkerFault {
    fn from(error: PolicyError) -> Self {
        Self::Policy(error)
    }
}
