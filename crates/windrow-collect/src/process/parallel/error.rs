//! What goes wrong in the process of a member.

use windrow_env::EnvError;

use crate::error::SentError;

/// A fault of one of the environments of [`Parallel`](super::Parallel), as the source of an
/// [`EnvError`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// The environment failed, and lives on: it may be reset.
    #[error("{message}")]
    Failed {
        /// The environment's own message.
        message: String,
        /// The error in the program's own form, if it has one.
        sent: Option<SentError>,
    },
    /// Its process has ended. The others can be closed, and do no more.
    #[error("its process {status}; close these environments and make others{words}")]
    Died {
        /// How it ended, in words that follow "its process": `ended with signal 9 (SIGKILL)`.
        status: String,
        /// What it was doing and the last lines of its standard error.
        words: String,
    },
    /// The environments were closed.
    #[error("the environments were closed: make others")]
    Closed,
    /// Another process has started the members, of which this one is a fork.
    #[error(
        "these environments belong to process {owner}, this is process {here}: make others in the process that uses them"
    )]
    Foreign {
        /// The process that started them.
        owner: u32,
        /// This process.
        here: u32,
    },
}

impl From<MemberError> for EnvError {
    fn from(error: MemberError) -> Self {
        Self::failed(error)
    }
}
