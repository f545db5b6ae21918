//! The rollout loop and the collectors around it.
#![forbid(unsafe_code)]

mod actor;
mod builder;
mod collector;
mod cursor;
mod error;
pub mod postproc;
mod rollout;
mod schedule;
mod stats;
mod worker;

pub use builder::CollectorBuilder;
pub use collector::Collector;
pub use error::{CollectError, WorkerError, WorkerFault};
pub use stats::Stats;
