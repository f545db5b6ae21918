#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

/// The target of the events of this crate.
const TARGET: &str = "windrow_collect";

mod build;
mod config;
mod deliver;
mod error;
mod evaluator;
mod placement;
pub mod postproc;
mod probe;
#[cfg(target_os = "linux")]
mod process;
mod shared;
mod trajectories;
mod worker;

pub use build::collectors::{
    AsyncBatchedCollector, AsyncCollector, MultiAsyncCollector, MultiCollector, MultiSyncCollector,
};
pub use config::builder::CollectorBuilder;
pub use config::hooks::Hooks;
#[cfg(all(target_os = "linux", feature = "remote"))]
pub use config::launcher::{CommandLauncher, Invitation, Launched, Launcher};
pub use config::options::CollectorConfig;
pub use config::plan::{CatResults, Delivery, FramesPerBatch, Inference, OnLoss, Placement};
pub use deliver::collector::{Collector, Paused};
pub use deliver::handle::Handle;
pub use deliver::sink_writer::SinkWriter;
pub use deliver::stage::LastStage;
pub use deliver::stream::BatchStream;
#[cfg(target_os = "linux")]
pub use error::WorkerMainError;
pub use error::{
    ArgumentError, BuildError, ControlError, ErrorKind, EvaluateError, FaultKind, NextError,
    ProfileError, ResumeError, SentError, Stuck, WorkerError, WorkerFault,
};
pub use evaluator::{BusyPolicy, Evaluation, Evaluator, EvaluatorBuilder};
pub use probe::{
    Phase, PhaseProfile, ProfileConfig, ProfileSummary, Profiler, ProfilerRecipe, WorkerProfile,
};
#[cfg(target_os = "linux")]
pub use process::{MemberError, Parallel, ParallelEnvs, ParallelHandle, WorkerMain, worker_main};
#[doc(hidden)]
pub use shared::publisher::WeightUpdate;
pub use shared::stats::{PolicyLag, Stats, WorkerStats};
pub use trajectories::{TrajFormat, TrajectoryBatcher};
#[cfg(target_os = "linux")]
pub use windrow_peer::{Nursery, ProcessError, WorkerProgram};
pub use windrow_sync::{Interrupt, Interrupted};
