//! The kinds of errors, for callers that treat all of one kind alike.

use serde::{Deserialize, Serialize};
use tensordict::TensorError;
use windrow_peer::ProcessError;
use windrow_slab::SlabError;

use super::CollectError;

/// The cause of an error, roughly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is wrong, or arguments do not go together.
    Argument,
    /// Memory ran out.
    Memory,
    /// A file could not be written.
    File,
    /// The collector is in another state, or code that it runs failed.
    Failure,
}

impl CollectError {
    /// Its cause, roughly.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. }
            | Self::NotPositive { .. }
            | Self::Count { .. }
            | Self::OutOfRange { .. }
            | Self::Needs { .. }
            | Self::Entries { .. }
            | Self::EnvFactories { .. }
            | Self::TooFewFrames { .. }
            | Self::UnequalFrames { .. }
            | Self::UnequalEnvs { .. }
            | Self::UnequalPolicies { .. }
            | Self::OtherColumns { .. }
            | Self::NoSuchWorker { .. }
            | Self::NoWeightSource
            | Self::RunsAhead
            | Self::NoShape
            | Self::NoWorkerMain
            | Self::Register(_)
            | Self::Policies { .. }
            | Self::IndivisibleTotal { .. }
            | Self::IndivisibleBatch { .. }
            | Self::Env { .. }
            | Self::Policy(_)
            | Self::PolicyColumns { .. }
            | Self::PolicyWrites { .. }
            | Self::ProfileRollouts { .. }
            | Self::ProfileWorkers
            | Self::ProfilePath { .. }
            | Self::State(_) => ErrorKind::Argument,
            Self::Remote { kind, .. } => *kind,
            Self::BatchMemory { .. }
            | Self::Process(ProcessError::NoMemory { .. })
            | Self::Slab(SlabError::NoMemory { .. })
            | Self::Tensor(TensorError::NoMemory { .. } | TensorError::TooLarge { .. }) => {
                ErrorKind::Memory
            }
            Self::ProfileFile { .. } => ErrorKind::File,
            Self::Slab(_)
            | Self::ProfileTooLate
            | Self::ProfileMemory { .. }
            | Self::Profiler { .. }
            | Self::Stuck { .. }
            | Self::Worker(_)
            | Self::Interrupted(_)
            | Self::SeveralWorkers(_)
            | Self::Busy { .. }
            | Self::NoReplayBuffer
            | Self::Started
            | Self::WaitInterrupted(_)
            | Self::NoAnswer { .. }
            | Self::WaitsForItself
            | Self::Start(_)
            | Self::Sink(_)
            | Self::SinkWaits { .. }
            | Self::Panic(_)
            | Self::Tensor(_)
            | Self::Postproc { .. }
            | Self::Stage(_)
            | Self::Process(_)
            | Self::Metrics { .. }
            | Self::ShutDown => ErrorKind::Failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn memory_that_processes_share_is_memory() {
        let error = CollectError::Process(ProcessError::NoMemory {
            what: "weights",
            bytes: 8,
            source: io::ErrorKind::OutOfMemory.into(),
        });
        assert_eq!(error.kind(), ErrorKind::Memory);
        let error = CollectError::Process(ProcessError::ShutDown);
        assert_eq!(error.kind(), ErrorKind::Failure);
    }
}
