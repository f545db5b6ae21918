use windrow_slab::either;

use super::kind::ErrorKind;

/// An argument that is wrong, or arguments that do not go together: found before anything is made
/// of them.
///
/// ```
/// use windrow_collect::postproc::MultiStep;
/// use windrow_collect::{ArgumentError, BuildError, Collector};
///
/// let error = MultiStep::new(0.99, 0).unwrap_err();
/// assert_eq!(error.to_string(), "n_steps must be a positive number, got 0");
///
/// let error = Collector::builder("CartPole-v1").build().unwrap_err();
/// assert!(matches!(
///     error,
///     BuildError::Argument(ArgumentError::Missing { name: "frames_per_batch" })
/// ));
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
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
    /// An argument, or a call, needs something that was not given or chosen.
    #[error("{name} needs {needs}")]
    Needs {
        /// The argument.
        name: &'static str,
        /// What it needs.
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
    /// An evaluator has no policy, or several.
    #[error("an evaluator needs one policy or one policy_factory, got {got} of them")]
    Policies {
        /// Policies and factories that were given.
        got: usize,
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
}

impl ArgumentError {
    /// [`ErrorKind::Argument`].
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Argument
    }

    /// # Errors
    /// [`NotPositive`](Self::NotPositive) for 0. An argument that was not given is `None`, which is
    /// legal.
    pub(crate) fn check_positive(
        name: &'static str,
        number: impl Into<Option<usize>>,
    ) -> Result<(), Self> {
        match number.into() {
            Some(0) => Err(Self::NotPositive { name }),
            _ => Ok(()),
        }
    }
}
