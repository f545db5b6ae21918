use std::time::Duration;

use tensordict::{NestedKey, TensorError};
use windrow_policy::PolicyError;
use windrow_sync::{Interrupted, error_chain};

use super::argument::ArgumentError;
use super::kind::ErrorKind;
use super::next::NextError;
use super::profile::ProfileError;
use super::resume::ResumeError;
use super::worker::WorkerError;

/// An error of controlling a collector: of starting, pausing and ending it, and of its weights,
/// states and profiles.
///
/// ```
/// use windrow_collect::{Collector, ControlError, NextError};
/// use windrow_policy::Weights;
///
/// let mut collector = Collector::builder("CartPole-v1").frames_per_batch(100).build()?;
/// assert!(matches!(collector.start(), Err(ControlError::NoReplayBuffer)));
/// collector.shutdown()?;
/// let late = collector.update_policy_weights(&Weights::new([]));
/// assert!(matches!(late, Err(ControlError::Next(NextError::ShutDown))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Collecting has failed, or is not in the state for this call: the collector was shut down, or
    /// was started and collects by itself.
    #[error(transparent)]
    Next(#[from] NextError),
    /// The call does not go together with what the collector was built with.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// The weights are not the policy's, or could not be brought to the workers. The old weights
    /// stay.
    #[error("failed to update the weights of the policy")]
    Weights(#[from] PolicyError),
    /// Weights are to be fetched, and the collector was built without a source of weights.
    #[error("no weights were given, and the collector was built without a weight_source")]
    NoWeightSource,
    /// A worker was named that the collector does not have.
    #[error("there is no worker {worker}: the collector has {workers}")]
    NoSuchWorker {
        /// The number that was given.
        worker: usize,
        /// Workers of the collector.
        workers: usize,
    },
    /// Weights were not published within the collector's `step_timeout`, since parts that workers
    /// fill would be older after it than `max_lag` allows.
    #[error(
        "new weights have waited {:.1} s for parts of {}, which would be older than max_lag allows",
        waited.as_secs_f64(), workers_of(workers)
    )]
    PartsWait {
        /// The workers.
        workers: Vec<usize>,
        /// How long was waited.
        waited: Duration,
    },
    /// A worker process that was asked something has ended, or never was.
    #[error("worker {worker} cannot answer: its process has ended, or there is no such worker")]
    NoAnswer {
        /// The worker.
        worker: usize,
    },
    /// A collector without a replay buffer cannot be started.
    #[error("start needs a replay_buffer that the collector writes to")]
    NoReplayBuffer,
    /// The thread of a started collector could not be created.
    #[error("failed to start the thread of the collector")]
    Start(#[source] std::io::Error),
    /// The replay buffer has kept a write waiting for too long.
    #[error(
        "the replay buffer has kept a write waiting for {:.1} s: its limiter waits for samples to be drawn",
        waited.as_secs_f64()
    )]
    SinkWaits {
        /// How long was waited.
        waited: Duration,
    },
    /// A hook of the collector's own thread has asked for something that waits for this thread.
    #[error(
        "the collector cannot be asked for this from within its own thread: it would wait for itself"
    )]
    WaitsForItself,
    /// The collector's [interrupt](crate::CollectorBuilder::interrupt) has ended the wait of this
    /// call.
    #[error(transparent)]
    WaitInterrupted(#[from] Interrupted),
    /// A number of a saved state cannot be used.
    #[error("failed to load the state: {key:?} must be within 0 to 2^62, got {got}")]
    State {
        /// The name of the number.
        key: NestedKey,
        /// Its value.
        got: i64,
    },
    /// Simulators of a saved state do not fit, or cannot be saved.
    #[error("failed with the state of simulators")]
    Simulators(#[from] ResumeError),
    /// A saved state lacks an entry, or has one of another type, or a state could not be put
    /// together.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A profile cannot be recorded.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Some threads were still busy when the time for a shutdown was over.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// Several workers failed.
    #[error("{} workers failed: {}", .0.len(), list(.0))]
    SeveralWorkers(Vec<WorkerError>),
}

impl ControlError {
    /// Its cause, roughly.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Next(error) => error.kind(),
            Self::Tensor(error) => ErrorKind::of_tensor(error),
            Self::Profile(error) => error.kind(),
            Self::Argument(_)
            | Self::Weights(_)
            | Self::NoWeightSource
            | Self::NoSuchWorker { .. }
            | Self::State { .. }
            | Self::Simulators(_) => ErrorKind::Argument,
            Self::NoAnswer { .. }
            | Self::NoReplayBuffer
            | Self::Start(_)
            | Self::SinkWaits { .. }
            | Self::PartsWait { .. }
            | Self::WaitsForItself
            | Self::WaitInterrupted(_)
            | Self::Stuck(_)
            | Self::SeveralWorkers(_) => ErrorKind::Failure,
        }
    }
}

/// The workers by their numbers.
fn workers_of(workers: &[usize]) -> String {
    let numbers: Vec<_> = workers.iter().map(ToString::to_string).collect();
    match &numbers[..] {
        [] => "workers".to_owned(),
        [one] => format!("worker {one}"),
        several => format!("workers {}", several.join(", ")),
    }
}

/// Some threads were still busy when the time for a shutdown was over. They end when they return
/// from the environment, policy, hook or sink that they run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{stuck} of {threads} threads were still busy {:.1} s after the shutdown",
    waited.as_secs_f64())]
#[non_exhaustive]
pub struct Stuck {
    /// Threads that did not end: those of workers, and the one that `start` began.
    pub stuck: usize,
    /// Threads in all.
    pub threads: usize,
    /// How long was waited.
    pub waited: Duration,
}

fn list(errors: &[WorkerError]) -> String {
    let texts: Vec<String> = errors.iter().map(|error| error_chain(error)).collect();
    texts.join("; ")
}
