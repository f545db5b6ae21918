//! The rollout loop and the collectors around it.
#![forbid(unsafe_code)]

mod actor;
mod background;
mod build;
mod builder;
mod collector;
mod collectors;
mod consumer;
mod core;
mod cursor;
mod driver;
mod error;
mod evaluator;
mod handle;
mod outlet;
mod placement;
mod plan;
pub mod postproc;
mod probe;
mod profiling;
mod rollout;
mod schedule;
mod stats;
mod sync;
mod trajectories;
mod within;
mod worker;

pub use builder::CollectorBuilder;
pub use collector::{Collector, Paused};
pub use collectors::{AsyncCollector, MultiAsyncCollector, MultiCollector, MultiSyncCollector};
pub use error::{CollectError, WorkerError, WorkerFault};
pub use evaluator::{BusyPolicy, Evaluation, Evaluator, EvaluatorBuilder};
pub use handle::Handle;
pub use plan::{CatResults, Delivery, OnLoss, Placement};
pub use probe::{Phase, PhaseProfile, ProfileConfig, ProfileSummary, WorkerProfile};
pub use stats::{PolicyLag, Stats, WorkerStats};
pub use trajectories::{TrajFormat, TrajectoryBatcher};
