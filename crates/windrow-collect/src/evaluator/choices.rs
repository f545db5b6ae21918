//! The options of an evaluator.

use tensordict::TensorDict;

use super::report::Evaluation;

/// The result of metrics.
type Numbers = Result<Vec<(String, f64)>, Box<dyn std::error::Error + Send + Sync>>;

/// Computes numbers from trajectories.
pub(super) type Metrics = Box<dyn FnMut(&TensorDict) -> Numbers + Send>;

/// Writes recordings of the evaluation of a step.
pub(super) type WriteRecordings =
    Box<dyn FnMut(u64) -> Result<(), Box<dyn std::error::Error + Send + Sync>> + Send>;

/// Called with every result.
pub(super) type OnResult = Box<dyn FnMut(&Evaluation) + Send>;

/// The answer of [`Evaluator::trigger_eval`](crate::Evaluator::trigger_eval) while an evaluation is
/// running or queued.
///
/// ```
/// use windrow_collect::{BusyPolicy, Evaluator};
/// use windrow_policy::RandomPolicy;
///
/// let evaluator = Evaluator::builder("CartPole-v1")
///     .policy(RandomPolicy::new())
///     .busy_policy(BusyPolicy::Queue)
///     .build()?;
/// for step in 0..3 {
///     assert!(evaluator.trigger_eval(None, Some(step))?);
/// }
/// for step in 0..3 {
///     assert_eq!(evaluator.wait(None).unwrap()?.step, step);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BusyPolicy {
    /// The request is dropped, and the call returns false.
    #[default]
    Skip,
    /// The call fails.
    Error,
    /// The request waits for its turn. Each that waits holds a copy of its weights.
    Queue,
}
