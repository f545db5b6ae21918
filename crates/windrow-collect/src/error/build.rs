use windrow_env::EnvError;
use windrow_peer::ProcessError;
use windrow_policy::PolicyError;
use windrow_slab::SlabError;
use windrow_sync::Interrupted;

use super::argument::ArgumentError;
use super::kind::ErrorKind;
use super::worker::{SentError, WorkerError};

/// An error of building a collector or an evaluator: of its arguments, or of making environments,
/// policies, workers or memory.
///
/// It is also the [fault](crate::WorkerFault::Remake) of a worker that could not be made anew after
/// a loss.
///
/// ```
/// use windrow_collect::{BuildError, Collector, ErrorKind};
///
/// let error = Collector::builder("CartPol-v1").frames_per_batch(100).build().unwrap_err();
/// assert!(matches!(error, BuildError::Env { worker: 0, .. }));
/// assert_eq!(error.kind(), ErrorKind::Argument);
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An argument is wrong, or arguments do not go together.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// The environments of a worker could not be made.
    #[error("failed to make the environments of worker {worker}")]
    Env {
        /// Number of the worker.
        worker: usize,
        /// The error of the factory.
        source: EnvError,
    },
    /// The policy of a worker could not be made, or does not fit its environments.
    #[error("failed to set up the policy of worker {worker}")]
    Policy {
        /// Number of the worker.
        worker: usize,
        /// The error of the policy.
        source: PolicyError,
    },
    /// Workers have different numbers of environments.
    #[error(
        "all workers must have as many environments: worker 0 has {expected}, worker {worker} has {got}"
    )]
    UnequalEnvs {
        /// Number of the worker.
        worker: usize,
        /// Environments of worker 0.
        expected: usize,
        /// Its environments.
        got: usize,
    },
    /// The policies of two workers write different columns.
    #[error(
        "the policies of all workers must write the same columns: worker 0 writes {expected}, worker {worker} {got}"
    )]
    UnequalPolicies {
        /// Number of the worker.
        worker: usize,
        /// Columns of worker 0.
        expected: String,
        /// Its columns.
        got: String,
    },
    /// A policy that replaces a lost one writes other columns.
    #[error("a policy that was made anew writes other columns: expected {expected}, got {got}")]
    OtherColumns {
        /// Columns of the lost policy.
        expected: String,
        /// Columns of the new one.
        got: String,
    },
    /// The policy declares another action than the environment takes.
    #[error("the policy writes another action than {env} takes: expected {expected}, got {got}")]
    PolicyColumns {
        /// The environment.
        env: String,
        /// Name, element type and shape of the environment's action.
        expected: String,
        /// What the policy declares in its place.
        got: String,
    },
    /// The policy writes an entry that frames have already, or an observation of another type or
    /// shape.
    #[error(
        "the policy writes {got}, where frames of {env} have {expected}: let it write that under another name"
    )]
    PolicyWrites {
        /// The environment.
        env: String,
        /// What frames have.
        expected: String,
        /// Name, element type and shape of what the policy writes.
        got: String,
    },
    /// There is no memory for a batch of so many frames.
    #[error("frames_per_batch={frames_per_batch} is too much")]
    BatchMemory {
        /// Frames asked for in a batch.
        frames_per_batch: u64,
        /// How much it takes.
        source: SlabError,
    },
    /// Memory could not be laid out.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// A worker panicked, was interrupted or died while its environments and policy were made.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The report of a worker process that could not make its environments or policy.
    #[error("{message}")]
    Remote {
        /// Its cause, roughly.
        kind: ErrorKind,
        /// The message that it has there.
        message: String,
        /// What that process has sent of the error beside the message.
        sent: Option<SentError>,
    },
    /// Worker processes, or the memory that they share, cannot be had.
    #[error("failed to run worker processes")]
    Process(#[from] ProcessError),
    /// The program cannot be run again as a worker.
    #[error(
        "placement processes runs this program again as its workers: call windrow::worker_main first in main, or choose placement threads"
    )]
    NoWorkerMain,
    /// The operating system refuses a thread.
    #[error("failed to start a thread")]
    Thread(#[source] std::io::Error),
    /// The builder's [interrupt](crate::CollectorBuilder::interrupt) has ended the wait for
    /// environments.
    #[error(transparent)]
    WaitInterrupted(#[from] Interrupted),
}

impl BuildError {
    /// Its cause, roughly.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Argument(_)
            | Self::Env { .. }
            | Self::Policy { .. }
            | Self::UnequalEnvs { .. }
            | Self::UnequalPolicies { .. }
            | Self::OtherColumns { .. }
            | Self::PolicyColumns { .. }
            | Self::PolicyWrites { .. }
            | Self::NoWorkerMain => ErrorKind::Argument,
            Self::BatchMemory { .. } => ErrorKind::Memory,
            Self::Slab(error) => ErrorKind::of_slab(error),
            Self::Process(error) => ErrorKind::of_process(error),
            Self::Remote { kind, .. } => *kind,
            Self::Worker(_) | Self::Thread(_) | Self::WaitInterrupted(_) => ErrorKind::Failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn what_asks_for_too_much_memory_is_of_that_kind() {
        let error = BuildError::Process(ProcessError::NoMemory {
            what: "weights",
            bytes: 8,
            source: io::ErrorKind::OutOfMemory.into(),
        });
        assert_eq!(error.kind(), ErrorKind::Memory);
        let slabs = [
            SlabError::TooLarge { frames: 1 },
            SlabError::NoRoom { bytes: 8 },
            SlabError::ManyWorkers { workers: 1 },
        ];
        for error in slabs {
            assert_eq!(BuildError::Slab(error).kind(), ErrorKind::Memory);
        }
        let error = BuildError::Process(ProcessError::ShutDown);
        assert_eq!(error.kind(), ErrorKind::Failure);
    }
}
