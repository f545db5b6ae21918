//! The kinds of errors, for callers that treat all of one kind alike.

use serde::{Deserialize, Serialize};
use tensordict::TensorError;
use windrow_peer::ProcessError;
use windrow_slab::SlabError;

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

impl ErrorKind {
    pub(super) fn of_slab(error: &SlabError) -> Self {
        match error {
            SlabError::NoMemory { .. }
            | SlabError::TooLarge { .. }
            | SlabError::NoRoom { .. }
            | SlabError::ManyWorkers { .. } => Self::Memory,
            _ => Self::Failure,
        }
    }

    pub(super) fn of_tensor(error: &TensorError) -> Self {
        match error {
            TensorError::NoMemory { .. } | TensorError::TooLarge { .. } => Self::Memory,
            _ => Self::Failure,
        }
    }

    pub(super) fn of_process(error: &ProcessError) -> Self {
        match error {
            ProcessError::NoMemory { .. } => Self::Memory,
            _ => Self::Failure,
        }
    }
}
