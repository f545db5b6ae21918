//! Why workers end early.

#[cfg(feature = "remote")]
use std::error::Error;

use windrow_peer::ProcessError;
#[cfg(feature = "remote")]
use windrow_peer::net::{FrameError, GreetingError};
use windrow_slab::SlabError;

use super::weights::ReceiveError;

/// Why a worker, or the relay in its place, ends before its time.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Slab(#[from] SlabError),
    #[error(transparent)]
    Weights(#[from] ReceiveError),
    #[cfg(feature = "remote")]
    #[error("lost the connection to the worker")]
    Connection(#[from] FrameError),
    #[cfg(feature = "remote")]
    #[error("lost the worker: {how}")]
    Lost {
        how: String,
        #[source]
        source: FrameError,
    },
    #[cfg(feature = "remote")]
    #[error("the greeting of collector and worker failed: are both programs of the same build?")]
    Greeting(#[from] GreetingError),
    #[cfg(feature = "remote")]
    #[error("the worker has sent {what} of a kind that this collector does not read")]
    Refused { what: &'static str },
    #[cfg(feature = "remote")]
    #[error(
        "the worker describes environments that are too large or too many: expected at most {elements} elements of an observation and an action, and at most {envs} environments"
    )]
    Vast { elements: usize, envs: usize },
    #[cfg(feature = "remote")]
    #[error("failed to start the worker")]
    Launch(#[source] Box<dyn Error + Send + Sync>),
    #[cfg(feature = "remote")]
    #[error("the worker was started, but {how}")]
    NeverCame { how: String },
    #[error("the collector sent another message than the one that is due")]
    Order,
    #[error("the collector has ended")]
    Ended,
}
