//! What workers and the consumer share: control goes to the workers, reports come back.
//!
//! | to a worker | from a worker |
//! |---|---|
//! | the [`Schedule`](schedule::Schedule): steps of each part, random or not | [`Reports`](reports::Reports): progress, counters, lost workers, errors |
//! | [`Commands`](commands::Commands): restart, resume | its part, committed or given back |
//! | the newest weights | its recorder, when it is profiled |
//! | [running statistics](statistics), beside the frames of a part | what its environments have gathered, in the same place |
//! | [`Calls`](calls::Calls) of the program's own, where it is a process | their answers |
//!
//! The consumer holds [`Shared`]. A worker sees it through a [`WorkerLink`](link::WorkerLink) only.

pub(crate) mod calls;
pub(crate) mod commands;
pub(crate) mod heartbeat;
pub(crate) mod lifecycle;
pub(crate) mod link;
pub(crate) mod publisher;
pub(crate) mod reentrancy;
pub(crate) mod reports;
pub(crate) mod schedule;
pub(crate) mod service;
mod state;
pub(crate) mod statistics;
pub(crate) mod stats;
mod thread_link;

pub(crate) use state::Shared;
pub(crate) use thread_link::ThreadLink;
