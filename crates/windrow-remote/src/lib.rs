//! Policies and weights that a server in another process, or on another machine, has.
//!
//! A [`RemoteServer`] evaluates one policy for many clients, in joint batches, and keeps its
//! weights. A [`RemotePolicy`] is a policy like any other, so every collector can run it;
//! [`RemoteWeights`] sends new weights and fetches the newest.
//!
//! ```
//! use windrow_policy::{Head, NetworkPolicy, Policy, PolicyRecipe, nn::Sequential};
//! use windrow_remote::{Remote, RemoteServer};
//!
//! let net = NetworkPolicy::new(Sequential::new().linear(4, 64).tanh().linear(64, 2), Head::Categorical);
//! let weights = net.weights();
//! let server = RemoteServer::builder(PolicyRecipe::of(net)).start()?;
//!
//! // In another process: a policy for a collector, and a way for the learner's weights.
//! let remote = Remote::new(server.address().clone());
//! let policy = remote.policy()?;
//! assert_eq!(remote.weights()?.publish(&weights)?, 1);
//! # let _ = policy;
//! # Ok::<(), windrow_remote::RemoteError>(())
//! ```
//!
//! Requests carry the number of their producer and their own: one that is sent again, since its
//! answer was lost, is done once. The README describes the protocol, and who is let in.
#![cfg(unix)]
#![forbid(unsafe_code)]

/// The program of the README, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod client;
mod error;
mod limits;
mod policy;
mod protocol;
mod remote;
mod rows;
mod security;
mod server;
mod weights;
mod written;

pub use error::RemoteError;
pub use limits::Limits;
pub use policy::RemotePolicy;
pub use remote::Remote;
pub use security::{Tls, Token};
pub use server::{RemoteServer, RemoteServerBuilder, RemoteStats};
pub use weights::RemoteWeights;
pub use windrow_peer::net::{Address, AddressError};
pub use written::register;
