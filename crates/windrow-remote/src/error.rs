use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tensordict::TensorError;
use windrow_policy::PolicyError;

/// What can go wrong between a client and a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// A text that is no address.
    #[error(transparent)]
    Address(#[from] windrow_peer::net::AddressError),
    /// An address that others can reach, without a token or certificates of both sides.
    #[error(
        "{address} can be reached {by}: give a token, or TLS on both sides; or choose a Unix socket"
    )]
    Open {
        /// The address.
        address: String,
        /// Who can reach it.
        by: &'static str,
    },
    /// A token that cannot be one.
    #[error("expected a token of at least {least} visible ASCII characters, got {got}")]
    Token {
        /// Fewest characters.
        least: usize,
        /// What came.
        got: String,
    },
    /// A file with a secret that cannot be read.
    #[error("failed to read {path}: {error}", path = path.display())]
    File {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Certificates or keys that cannot be used.
    #[error("TLS: {what}: {reason}")]
    Tls {
        /// Which of them.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A choice that is out of its range.
    #[error("expected {name} to be {expected}, got {got}")]
    Setting {
        /// The choice.
        name: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What was given.
        got: String,
    },
    /// The server cannot listen.
    #[error("failed to listen at {address}: {error}")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        error: io::Error,
    },
    /// A thread could not be started.
    #[error("failed to start a thread for connections")]
    Thread(#[source] io::Error),
    /// The server does not let this client in, or this client does not trust the server.
    #[error("{address} refused the connection: {reason}")]
    Refused {
        /// The server.
        address: String,
        /// Why.
        reason: String,
    },
    /// The request failed, and nothing was changed by it; the server goes on.
    #[error("{address}: {reason}")]
    Failed {
        /// The server.
        address: String,
        /// Why.
        reason: String,
    },
    /// Another server answers at the address, or the server has forgotten this client, which was
    /// silent for long. Whether the last request was done is unknown; the next one begins anew.
    #[error(
        "{address} does not know this client any more, since it was started again or the client was silent for long: whether its last request was done is unknown"
    )]
    Forgotten {
        /// The server.
        address: String,
    },
    /// The server ended and said so.
    #[error("the server at {address} has ended: {reason}")]
    Ended {
        /// The server.
        address: String,
        /// Why.
        reason: String,
    },
    /// There was no answer in time. Whether the request was done is unknown.
    #[error(
        "no answer from {address} within {waited:?}: {last}; whether the request was done is unknown"
    )]
    Timeout {
        /// The server.
        address: String,
        /// How long the client tried.
        waited: Duration,
        /// What the last attempt came to.
        last: String,
    },
    /// A message that is larger than both sides allow.
    #[error("{what} has {got} bytes, more than the limit of {limit}")]
    Limit {
        /// The message.
        what: &'static str,
        /// Most bytes.
        limit: usize,
        /// Its bytes.
        got: usize,
    },
    /// Weights that cannot be written or read as safetensors.
    #[error(transparent)]
    Weights(#[from] TensorError),
    /// An error of the policy that the server evaluates.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl From<RemoteError> for PolicyError {
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::Policy(error) => error,
            error => Self::failed(error),
        }
    }
}
