mod kind;
mod worker;
mod written;

use std::path::PathBuf;
use std::time::Duration;

use tensordict::TensorError;
use windrow_env::EnvError;
use windrow_peer::ProcessError;
use windrow_policy::PolicyError;
use windrow_slab::{SinkError, SlabError, either};
use windrow_sync::{Interrupted, error_chain};

pub use kind::ErrorKind;
pub use worker::{FaultKind, SentError, WorkerError, WorkerFault};
pub(crate) use worker::{IsInterruption, Place};
#[cfg(target_os = "linux")]
pub(crate) use worker::{SendErrors, last_words, message_to_send, sent};

/// An error of building or running a collector or an evaluator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectError {
    /// A required argument was not given.
    #[error("{name} is missing")]
    Missing {
        /// The argument.
        name: &'static str,
    },
    /// A number that must be positive is zero.
    #[error("{name} must be a positive number, got 0")]
    NotPositive {
        /// The argument.
        name: &'static str,
    },
    /// A count is zero or too large.
    #[error("{name} must be within 1 to {most}, got {got}")]
    Count {
        /// The argument.
        name: &'static str,
        /// The largest legal count.
        most: usize,
        /// The count that was given.
        got: usize,
    },
    /// A number lies outside its range.
    #[error("{name} must be within {expected}, got {got}")]
    OutOfRange {
        /// The argument.
        name: &'static str,
        /// The range.
        expected: &'static str,
        /// The number that was given.
        got: f64,
    },
    /// An argument needs another one, which was not given.
    #[error("{name} needs {needs}")]
    Needs {
        /// The argument.
        name: &'static str,
        /// The other one.
        needs: &'static str,
    },
    /// A list does not have one entry for each worker.
    #[error("{name} has {got} entries for {workers} workers")]
    Entries {
        /// The argument.
        name: &'static str,
        /// Workers.
        workers: usize,
        /// Entries that were given.
        got: usize,
    },
    /// There is neither one environment factory for all workers nor one for each.
    #[error(
        "num_workers={workers}, but there are {factories} environment factories: give one for each worker, or one for all"
    )]
    EnvFactories {
        /// Workers.
        workers: usize,
        /// Factories that were given.
        factories: usize,
    },
    /// A batch has fewer steps than workers.
    #[error(
        "frames_per_batch={frames} leaves workers without a frame: {workers} workers of {num_envs} environments need {} or more",
        workers * num_envs
    )]
    TooFewFrames {
        /// Frames asked for in a batch.
        frames: usize,
        /// Workers that share it.
        workers: usize,
        /// Environments of each worker.
        num_envs: usize,
    },
    /// Any worker may fill any part, and so all parts have as many frames.
    #[error(
        "frames_per_batch must have equal entries where batches do not wait for all workers, got {frames:?}"
    )]
    UnequalFrames {
        /// Frames asked for of each worker.
        frames: Vec<usize>,
    },
    /// Workers have different numbers of environments.
    #[error(
        "all workers must have as many environments: worker 0 has {expected}, worker {worker} has {got}"
    )]
    UnequalEnvs {
        /// Number of the worker.
        worker: usize,
        /// Environments of worker 0.
        expected: usize,
        /// Its environments.
        got: usize,
    },
    /// The policies of two workers write different columns.
    #[error(
        "the policies of all workers must write the same columns: worker 0 writes {expected}, worker {worker} {got}"
    )]
    UnequalPolicies {
        /// Number of the worker.
        worker: usize,
        /// Columns of worker 0.
        expected: String,
        /// Its columns.
        got: String,
    },
    /// A policy that replaces a lost one writes other columns.
    #[error("a policy that was made anew writes other columns: expected {expected}, got {got}")]
    OtherColumns {
        /// Columns of the lost policy.
        expected: String,
        /// Columns of the new one.
        got: String,
    },
    /// A worker was named that the collector does not have.
    #[error("there is no worker {worker}: the collector has {workers}")]
    NoSuchWorker {
        /// The number that was given.
        worker: usize,
        /// Workers of the collector.
        workers: usize,
    },
    /// Weights are to be fetched, and the collector was built without a source of weights.
    #[error("no weights were given, and the collector was built without a weight_source")]
    NoWeightSource,
    /// A batch outside the count was asked for, and workers collect ahead.
    #[error("rollout needs a collector whose workers do not run ahead")]
    RunsAhead,
    /// The shape of a batch depends on the lengths of trajectories.
    #[error("a batch of whole trajectories has no shape before they are collected")]
    NoShape,
    /// An evaluator has no policy, or several.
    #[error("an evaluator needs one policy or one policy_factory, got {got} of them")]
    Policies {
        /// Policies and factories that were given.
        got: usize,
    },
    /// Batches of this size do not add up to the total.
    #[error(
        "total_frames={total} is not a multiple of frames_per_batch={per_batch}: use {}, or set allow_partial_batch for a short last batch",
        either(below, above)
    )]
    IndivisibleTotal {
        /// Frames asked for in all.
        total: u64,
        /// Frames asked for in a batch.
        per_batch: usize,
        /// The nearest legal total below (at least one batch).
        below: u64,
        /// The nearest legal total above.
        above: u64,
    },
    /// A batch cannot be shared out evenly over the environments.
    #[error(
        "{name}={frames} cannot be split over {num_envs} environments that step together: use {}",
        either(below, above)
    )]
    IndivisibleBatch {
        /// The argument.
        name: &'static str,
        /// Frames asked for.
        frames: u64,
        /// Environments that step together.
        num_envs: usize,
        /// The nearest legal number below (at least one step).
        below: u64,
        /// The nearest legal number above.
        above: u64,
    },
    /// The environments of a worker could not be made.
    #[error("failed to make the environments of worker {worker}")]
    Env {
        /// Number of the worker.
        worker: usize,
        /// The error of the factory.
        source: EnvError,
    },
    /// The policy does not fit the environment, or refused new weights.
    #[error("policy")]
    Policy(#[from] PolicyError),
    /// The policy declares another action than the environment takes.
    #[error("the policy writes another action than {env} takes: expected {expected}, got {got}")]
    PolicyColumns {
        /// The environment.
        env: String,
        /// Name, element type and shape of the environment's action.
        expected: String,
        /// What the policy declares in its place.
        got: String,
    },
    /// The policy writes an entry that frames have already, or an observation of another type or shape.
    #[error(
        "the policy writes {got}, where frames of {env} have {expected}: let it write that under another name"
    )]
    PolicyWrites {
        /// The environment.
        env: String,
        /// What frames have.
        expected: String,
        /// Name, element type and shape of what the policy writes.
        got: String,
    },
    /// Memory could not be laid out or lent.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// There is no memory for a batch of so many frames.
    #[error("frames_per_batch={frames_per_batch} is too much")]
    BatchMemory {
        /// Frames asked for in a batch.
        frames_per_batch: u64,
        /// How much it takes.
        source: SlabError,
    },
    /// A profile was asked for after workers had begun.
    #[error(
        "a profile records workers from their start: enable_profile must be called before the first batch is asked for"
    )]
    ProfileTooLate,
    /// The profile would record nothing.
    #[error(
        "num_rollouts={num_rollouts} must be greater than warmup_rollouts={warmup_rollouts}, or nothing is recorded"
    )]
    ProfileRollouts {
        /// Rollouts for which a worker is profiled.
        num_rollouts: usize,
        /// Those of them that are not recorded.
        warmup_rollouts: usize,
    },
    /// A profile was asked for of no worker.
    #[error("a profile needs a worker: expected at least one in workers, got none")]
    ProfileWorkers,
    /// Several workers would write their profiles to one file.
    #[error(
        "{workers} workers cannot write their profiles to one file: expected {{worker_idx}} in save_path, got {}",
        path.display()
    )]
    ProfilePath {
        /// Profiled workers.
        workers: usize,
        /// The path that was given.
        path: PathBuf,
    },
    /// A profile would be too large.
    #[error(
        "no memory for {spans} spans of worker {worker}: profile fewer rollouts, or shorter ones"
    )]
    ProfileMemory {
        /// Number of the worker.
        worker: usize,
        /// Spans that were to be recorded.
        spans: usize,
    },
    /// A worker's profile could not be written.
    #[error("failed to write the profile of worker {worker} to {}", path.display())]
    ProfileFile {
        /// Number of the worker.
        worker: usize,
        /// The path of the file.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The [profiler](crate::Profiler) beside windrow's failed.
    #[error("the profiler of worker {worker} failed")]
    Profiler {
        /// Number of the worker.
        worker: usize,
        /// The error of the profiler.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Some threads were still busy when the time for a shutdown was over. They end when they return from the environment,
    /// policy, hook or sink that they run.
    #[error("{stuck} of {threads} threads were still busy {:.1} s after the shutdown",
        waited.as_secs_f64())]
    Stuck {
        /// Threads that did not end: those of workers, and the one that `start` began.
        stuck: usize,
        /// Threads in all.
        threads: usize,
        /// How long was waited.
        waited: Duration,
    },
    /// A worker failed.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The call was [interrupted](crate::CollectorBuilder::interruptions), which does not count as a fault of environments or
    /// policy. The next call goes on.
    #[error(transparent)]
    Interrupted(WorkerError),
    /// Several workers failed.
    #[error("{} workers failed: {}", .0.len(), list(.0))]
    SeveralWorkers(Vec<WorkerError>),
    /// An evaluation was asked for while another is pending, and the busy policy says that this is an error.
    #[error(
        "the evaluator {}, and {queued} more are queued: wait for its result, or choose to skip or to queue",
        running.map_or_else(|| "is about to start one".to_owned(), |step| format!("runs the evaluation of step {step}"))
    )]
    Busy {
        /// Step of the evaluation that is running.
        running: Option<u64>,
        /// Evaluations that wait for it.
        queued: usize,
    },
    /// A collector without a replay buffer cannot be started.
    #[error("start needs a replay_buffer that the collector writes to")]
    NoReplayBuffer,
    /// The collector was started, and runs by itself.
    #[error(
        "the collector was started and writes to its replay buffer by itself: batches cannot be asked for, nor states loaded, and it cannot be started again"
    )]
    Started,
    /// The collector's [interrupt](crate::CollectorBuilder::interrupt) has ended a wait. After one for a batch, the next call
    /// waits on for the same batch.
    #[error(transparent)]
    WaitInterrupted(#[from] Interrupted),
    /// A worker process that was asked something has ended, or never was.
    #[error("worker {worker} cannot answer: its process has ended, or there is no such worker")]
    NoAnswer {
        /// The worker.
        worker: usize,
    },
    /// A hook of the collector's own thread has asked for something that waits for this thread.
    #[error(
        "the collector cannot be asked for this from within its own thread: it would wait for itself"
    )]
    WaitsForItself,
    /// The thread of a started collector could not be created.
    #[error("failed to start the thread of the collector")]
    Start(#[source] std::io::Error),
    /// The replay buffer did not take a batch.
    #[error("failed to write to the replay buffer")]
    Sink(#[from] SinkError),
    /// The replay buffer has kept a write waiting for too long.
    #[error(
        "the replay buffer has kept a write waiting for {:.1} s: its limiter waits for samples to be drawn",
        waited.as_secs_f64()
    )]
    SinkWaits {
        /// How long was waited.
        waited: Duration,
    },
    /// A hook, the postprocessing or the replay buffer panicked in the thread of a started collector.
    #[error("panicked in the thread of the collector: {0}")]
    Panic(String),
    /// A batch or a state could not be put together.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The user's post-processing failed.
    #[error("postproc failed on batch {batch}")]
    Postproc {
        /// Number of the batch since the start.
        batch: u64,
        /// Its error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A function that the last stage has called failed, or was interrupted: see
    /// [`LastStage`](crate::LastStage).
    #[error(transparent)]
    Stage(Box<dyn std::error::Error + Send + Sync>),
    /// The user's metrics of an evaluation failed.
    #[error("the metrics of the evaluation of step {step} failed")]
    Metrics {
        /// The step of training that the evaluation was asked for.
        step: u64,
        /// Their error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A saved state does not fit the collector.
    #[error("failed to load the state: {0}")]
    State(String),
    /// What a worker process has reported while the collector was built.
    #[error("{message}")]
    Remote {
        /// Its cause, roughly.
        kind: ErrorKind,
        /// The message that it has there.
        message: String,
        /// What that process has sent of the error beside the message.
        sent: Option<SentError>,
    },
    /// Worker processes, or the memory that they share, cannot be had.
    #[error("worker processes")]
    Process(#[from] ProcessError),
    /// The names of the program's own environments and policies could not be registered.
    #[error("failed to register environments and policies")]
    Register(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The program cannot be run again as a worker.
    #[error(
        "placement processes runs this program again as its workers: call windrow::worker_main first in main, or choose placement threads"
    )]
    NoWorkerMain,
    /// The collector or evaluator was shut down.
    #[error("the collector or evaluator was shut down; build a new one")]
    ShutDown,
}

fn list(errors: &[WorkerError]) -> String {
    let texts: Vec<String> = errors.iter().map(|error| error_chain(error)).collect();
    texts.join("; ")
}
