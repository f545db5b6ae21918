use windrow_peer::ProcessError;

use super::kind::ErrorKind;

/// An error of [`worker_main`](crate::worker_main).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerMainError {
    /// The names of the program's own environments and policies could not be registered.
    #[error("failed to register environments and policies")]
    Register(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The program was started as a worker elsewhere, without an invitation.
    #[cfg(feature = "remote")]
    #[error("a worker elsewhere needs the invitation of its collector on the standard input")]
    Invitation(#[source] std::io::Error),
    /// This process was started as a worker, and cannot serve as one: such as one of another build.
    #[error("failed to serve as a worker process")]
    Process(#[from] ProcessError),
}

impl WorkerMainError {
    /// Its cause, roughly.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Register(_) => ErrorKind::Argument,
            #[cfg(feature = "remote")]
            Self::Invitation(_) => ErrorKind::Argument,
            Self::Process(error) => ErrorKind::of_process(error),
        }
    }
}
