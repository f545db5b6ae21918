use tensordict::TensorError;
use windrow_policy::PolicyError;
use windrow_slab::{SinkError, SlabError};
use windrow_sync::Interrupted;

use super::kind::ErrorKind;
use super::profile::ProfileError;
use super::worker::WorkerError;

/// An error of collecting: of `next` and [`try_next`](crate::Collector::try_next), of streams, of
/// [`rollout`](crate::Collector::rollout) and [`fake_batch`](crate::Collector::fake_batch), and of
/// a collector that runs in the [background](crate::Collector::start).
///
/// Most end the collector. It goes on after [`Interrupted`](Self::Interrupted),
/// [`WaitInterrupted`](Self::WaitInterrupted), [`Started`](Self::Started),
/// [`Profile`](Self::Profile), [`RunsAhead`](Self::RunsAhead), [`NoShape`](Self::NoShape), and
/// [`Slab`](Self::Slab) where memory is used up, once batches are dropped.
///
/// ```
/// use windrow_collect::{Collector, NextError};
///
/// let mut collector = Collector::builder("CartPole-v1")
///     .frames_per_batch(100)
///     .postproc(|_batch| Err::<_, std::io::Error>(std::io::Error::other("no disk")))
///     .build()?;
/// let error = collector.next().unwrap().unwrap_err();
/// assert!(matches!(error, NextError::Postproc { batch: 0, .. }));
/// assert!(collector.next().is_none(), "it is over");
/// # Ok::<(), windrow_collect::BuildError>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NextError {
    /// A worker failed: its environment, its policy, or its process.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// A worker was [interrupted](crate::CollectorBuilder::interruptions), which does not count as
    /// a fault of environments or policy. The next call goes on.
    #[error(transparent)]
    Interrupted(WorkerError),
    /// The collector's [interrupt](crate::CollectorBuilder::interrupt) has ended the wait for a
    /// batch. The next call waits on for the same batch.
    #[error(transparent)]
    WaitInterrupted(#[from] Interrupted),
    /// The weights that the [source](crate::CollectorBuilder::weight_source) gave could not be
    /// published.
    #[error("failed to update the weights of the policy from the weight_source")]
    Weights(#[source] PolicyError),
    /// Memory could not be lent: such as when the batches that are kept take all of it.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// A batch could not be put together.
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
    /// The replay buffer did not take a batch.
    #[error("failed to write to the replay buffer")]
    Sink(#[source] SinkError),
    /// A hook, the postprocessing or the replay buffer panicked in the thread of a started
    /// collector.
    #[error("panicked in the thread of the collector: {0}")]
    Panic(String),
    /// The profile of a worker could not be recorded.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The operating system refuses the thread that wakes the task of a
    /// [stream](crate::BatchStream).
    #[error("failed to start the thread that wakes the task of a stream")]
    Watch(#[source] std::io::Error),
    /// The collector was started, and runs by itself.
    #[error(
        "the collector was started and writes to its replay buffer by itself: batches cannot be asked for, nor states loaded, and it cannot be started again"
    )]
    Started,
    /// A batch outside the count was asked for, and workers collect ahead.
    #[error("rollout needs a collector whose workers do not run ahead")]
    RunsAhead,
    /// The shape of a batch depends on the lengths of trajectories.
    #[error("a batch of whole trajectories has no shape before they are collected")]
    NoShape,
    /// The collector was shut down, or an earlier call has returned the error that has ended it.
    #[error(
        "the collector was shut down, or an error that an earlier call returned has ended it; build a new one"
    )]
    ShutDown,
}

impl NextError {
    /// Its cause, roughly.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Weights(_) | Self::RunsAhead | Self::NoShape => ErrorKind::Argument,
            Self::Slab(error) => ErrorKind::of_slab(error),
            Self::Tensor(error) => ErrorKind::of_tensor(error),
            Self::Profile(error) => error.kind(),
            Self::Worker(_)
            | Self::Interrupted(_)
            | Self::WaitInterrupted(_)
            | Self::Postproc { .. }
            | Self::Stage(_)
            | Self::Sink(_)
            | Self::Panic(_)
            | Self::Watch(_)
            | Self::Started
            | Self::ShutDown => ErrorKind::Failure,
        }
    }
}
