//! Workers in processes of their own: what the collector keeps of them, and what they are.
//!
//! The collector's side: a [`Handshake`](handshake::Handshake) starts the processes and has them
//! agree, and then becomes a [`WorkerPool`](pool::WorkerPool), which gives them parts, takes what
//! they have filled, and handles their starts, faults and deaths; its
//! [`PoolGuard`](pool::PoolGuard) ends them. The worker's side: [`worker_main`] makes a
//! [`Worker`](crate::worker::Worker) with a [`ProcessLink`](link::ProcessLink).

mod channel;
mod child;
#[cfg(feature = "remote")]
pub(crate) mod elsewhere;
mod entry;
mod events;
pub(crate) mod handshake;
mod hang;
mod link;
mod live;
pub(crate) mod messages;
mod parallel;
pub(crate) mod pool;
pub(crate) mod program;
mod serve_error;
mod setup;
mod slot;
mod thread_state;
pub(crate) mod weights;

pub use entry::{WorkerMain, worker_main};
pub use parallel::{MemberError, Parallel, ParallelEnvs, ParallelHandle};
