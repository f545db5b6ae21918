use tensordict::TensorError;

use super::build::BuildError;
use super::control::ControlError;
use super::kind::ErrorKind;
use super::next::NextError;
use super::worker::WorkerError;

/// An error of an [evaluation](crate::Evaluator).
///
/// ```
/// use windrow_collect::{BuildError, EvaluateError, Evaluator};
/// use windrow_policy::RandomPolicy;
///
/// let evaluator = Evaluator::builder("CartPol-v1").policy(RandomPolicy::new()).lazily().build()?;
/// let error = evaluator.evaluate(None, None).unwrap_err();
/// assert!(matches!(error, EvaluateError::Build(BuildError::Env { .. })));
/// evaluator.shutdown()?;
/// assert!(matches!(evaluator.evaluate(None, None), Err(EvaluateError::ShutDown)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// Environments and policy could not be made: with the first evaluation, or anew after a
    /// failure.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The weights do not fit. The old weights stay.
    #[error(transparent)]
    Weights(#[from] ControlError),
    /// Playing the episodes failed.
    #[error(transparent)]
    Next(#[from] NextError),
    /// Episodes could not be put together.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The user's metrics of an evaluation failed.
    #[error("the metrics of the evaluation of step {step} failed")]
    Metrics {
        /// The step of training that the evaluation was asked for.
        step: u64,
        /// Their error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What was recorded during an evaluation could not be written.
    #[error("recordings of the evaluation of step {step} could not be written")]
    Recordings {
        /// The step of training that the evaluation was asked for.
        step: u64,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An evaluation was asked for while another is pending, and the busy policy says that this is
    /// an error.
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
    /// The evaluator was shut down.
    #[error("the evaluator was shut down; build a new one")]
    ShutDown,
}

impl EvaluateError {
    /// Its cause, roughly.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Build(error) => error.kind(),
            Self::Weights(error) => error.kind(),
            Self::Next(error) => error.kind(),
            Self::Tensor(error) => ErrorKind::of_tensor(error),
            Self::Metrics { .. } | Self::Recordings { .. } | Self::Busy { .. } | Self::ShutDown => {
                ErrorKind::Failure
            }
        }
    }
}

/// Its environments or policy failed, or the metrics panicked.
impl From<WorkerError> for EvaluateError {
    fn from(error: WorkerError) -> Self {
        Self::Next(error.into())
    }
}
