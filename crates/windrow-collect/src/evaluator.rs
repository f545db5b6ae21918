//! Evaluation of a policy beside training.

mod builder;
mod choices;
mod recipe;
mod report;
mod requests;
mod run;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use windrow_env::EnvFactory;
use windrow_policy::Weights;
use windrow_sync::{Interrupt, unpoisoned};

#[cfg(target_os = "linux")]
use crate::error::{ControlError, NextError};
use crate::error::{EvaluateError, Stuck, WorkerError};
pub use builder::EvaluatorBuilder;
pub use choices::BusyPolicy;
pub use report::Evaluation;
use requests::{EvaluatorRequests, Reply};

/// Plays whole episodes with environments and a policy of its own, in its own thread or in a
/// [process](EvaluatorBuilder::placement).
///
/// An evaluation resets all environments, loads the weights that it was given, and collects exactly
/// as many whole episodes as were asked for. Which episodes count is fixed beforehand: with `n`
/// episodes and `p` environments, the first `n / p` of each, and one more of the first `n % p`
/// environments. Taking the first `n` episodes that end would favour short ones. An environment
/// whose episodes do not end needs [`max_steps`](EvaluatorBuilder::max_steps).
///
/// With a [seed](EvaluatorBuilder::seed), every evaluation begins from it: weights are compared on
/// the same episodes, and a skipped evaluation changes nothing for the next. Without one, each
/// evaluation has other episodes.
///
/// The evaluator does not disturb training: it copies weights when they are given, shares nothing
/// else, and its thread sleeps between evaluations. All methods may be called from any thread.
///
/// ```
/// use windrow_collect::Evaluator;
/// use windrow_policy::{Head, NetworkPolicy, Policy, nn::Sequential};
///
/// let net = Sequential::new().linear(4, 16).tanh().linear(16, 2);
/// let policy = NetworkPolicy::new(net, Head::Categorical);
/// let evaluator = Evaluator::builder("CartPole-v1")
///     .policy(policy.clone())
///     .num_trajectories(5)
///     .num_envs(2)
///     .seed(0)
///     .build()?;
///
/// // Beside training: asked for now, read later.
/// assert!(evaluator.trigger_eval(Some(&policy.weights()), Some(1000))?);
/// let result = evaluator.wait(None).unwrap()?;
/// assert_eq!((result.num_episodes, result.step, result.policy_version), (5, 1000, 1));
/// // Returns of CartPole are lengths.
/// assert_eq!(result.reward, result.episode_length);
///
/// // Between two updates: waits for the result.
/// let same = evaluator.evaluate(None, None)?;
/// assert_eq!(same.returns, result.returns);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Evaluator {
    shared: Arc<EvaluatorRequests>,
    thread: Mutex<Option<JoinHandle<()>>>,
    busy_policy: BusyPolicy,
    patience: Duration,
    /// How long it may take to kill what has not ended then.
    grace: Duration,
    /// Reports environments that do not return while a call waits for them.
    reports: Interrupt,
}

impl Evaluator {
    /// An evaluator in the environments that `env` makes: a function such as `CartPole::v1`, or an
    /// id such as `"CartPole-v1"`.
    ///
    /// ```
    /// use windrow_collect::Evaluator;
    /// use windrow_policy::RandomPolicy;
    ///
    /// let evaluator = Evaluator::builder("CartPole-v1").policy(RandomPolicy::new()).build()?;
    /// assert_eq!(evaluator.evaluate(None, None)?.num_episodes, 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn builder(env: impl EnvFactory + Send + Sync + 'static) -> EvaluatorBuilder {
        EvaluatorBuilder::new(Arc::new(env))
    }

    /// Evaluates after all pending evaluations, and waits for the result, whatever the [busy
    /// policy](EvaluatorBuilder::busy_policy).
    ///
    /// Without `weights`, the weights that were given last act, or the policy's own. Without
    /// `step`, the result has the number of requests that were accepted before.
    ///
    /// Functions that the evaluator calls, such as [`on_result`](EvaluatorBuilder::on_result), must
    /// not call this: the evaluator would wait for itself.
    ///
    /// # Errors
    /// [`EvaluateError::Weights`] when the weights do not fit; the old ones then stay.
    /// [`EvaluateError::Next`] when an environment or the policy failed or panicked, their process
    /// ended, or the metrics panicked; after these, the next request makes environments and policy
    /// anew, which may fail as [`EvaluateError::Build`]. [`EvaluateError::Metrics`] when the
    /// metrics failed; [`EvaluateError::ShutDown`] after a shutdown or during one.
    ///
    /// ```
    /// use windrow_collect::Evaluator;
    /// use windrow_policy::RandomPolicy;
    ///
    /// let evaluator = Evaluator::builder("Pendulum-v1")
    ///     .policy(RandomPolicy::new())
    ///     .num_trajectories(3)
    ///     .max_steps(50)
    ///     .build()?;
    /// let result = evaluator.evaluate(None, Some(7))?;
    /// assert_eq!((result.step, result.lengths), (7, vec![50; 3]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn evaluate(
        &self,
        weights: Option<&Weights>,
        step: Option<u64>,
    ) -> Result<Evaluation, EvaluateError> {
        let (reply, result) = channel();
        self.shared
            .submit(weights, step, Reply::To(reply), BusyPolicy::Queue)?;
        // Disconnected when the request was dropped by a shutdown.
        let shut_down = Err(EvaluateError::ShutDown);
        if self.reports.is_never() {
            return result.recv().unwrap_or(shut_down);
        }
        loop {
            match result.recv_timeout(Interrupt::SLICE) {
                Err(RecvTimeoutError::Timeout) => self.report_silent(),
                received => return received.unwrap_or(shut_down),
            }
        }
    }

    /// Asks for an evaluation, and returns at once whether it was accepted. The evaluator keeps the
    /// result until [`poll`](Self::poll) or [`wait`](Self::wait) returns it. `weights` and `step`
    /// are as for [`evaluate`](Self::evaluate).
    ///
    /// While an evaluation is running or queued, the [busy policy](EvaluatorBuilder::busy_policy)
    /// decides. A request that is not accepted copies nothing and is not counted.
    ///
    /// # Errors
    /// [`EvaluateError::ShutDown`] after a shutdown; [`EvaluateError::Busy`] while busy, with
    /// [`BusyPolicy::Error`]. Later errors are the result of the request.
    ///
    /// ```
    /// use windrow_collect::Evaluator;
    /// use windrow_policy::RandomPolicy;
    ///
    /// let evaluator = Evaluator::builder("CartPole-v1").policy(RandomPolicy::new()).build()?;
    /// assert!(evaluator.trigger_eval(None, Some(1))?);
    /// let result = evaluator.wait(None).unwrap()?;
    /// assert_eq!(result.step, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trigger_eval(
        &self,
        weights: Option<&Weights>,
        step: Option<u64>,
    ) -> Result<bool, EvaluateError> {
        self.shared
            .submit(weights, step, Reply::Unread, self.busy_policy)
    }

    /// The oldest result of [`trigger_eval`](Self::trigger_eval) that was not read yet; waits for
    /// it up to `timeout`. `None` after that, and at once when none is pending.
    ///
    /// After a shutdown, unread results can still be read; the next call returns
    /// [`EvaluateError::ShutDown`], once.
    ///
    /// # Errors
    /// Those of [`evaluate`](Self::evaluate).
    ///
    /// ```
    /// use std::time::Duration;
    /// use windrow_collect::Evaluator;
    /// use windrow_policy::RandomPolicy;
    ///
    /// let evaluator = Evaluator::builder("CartPole-v1").policy(RandomPolicy::new()).build()?;
    /// assert!(evaluator.poll(Duration::ZERO).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll(&self, timeout: Duration) -> Option<Result<Evaluation, EvaluateError>> {
        self.wait(Some(timeout))
    }

    /// As [`poll`](Self::poll); without a time-out, waits for as long as an evaluation is pending.
    ///
    /// # Errors
    /// Those of [`evaluate`](Self::evaluate).
    ///
    /// ```
    /// use windrow_collect::Evaluator;
    /// use windrow_policy::RandomPolicy;
    ///
    /// let evaluator = Evaluator::builder("CartPole-v1").policy(RandomPolicy::new()).build()?;
    /// evaluator.trigger_eval(None, None)?;
    /// assert!(evaluator.wait(None).is_some());
    /// assert!(evaluator.wait(None).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Result<Evaluation, EvaluateError>> {
        // A time beyond the clock's range is no limit.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if self.reports.is_never() {
            return self.shared.take(deadline);
        }
        loop {
            let slice = Instant::now() + Interrupt::SLICE;
            let until = deadline.map_or(slice, |deadline| deadline.min(slice));
            let taken = self.shared.take(Some(until));
            if taken.is_some() {
                return taken;
            }
            self.report_silent();
            if deadline == Some(until) {
                return None;
            }
            if !self.shared.is_expecting() {
                // The result may have arrived in between.
                return self.shared.take(Some(until));
            }
        }
    }

    /// Reports environments in the evaluator's thread that do not return.
    fn report_silent(&self) {
        if let Some(handle) = self.shared.handle() {
            handle.report_silent(&self.reports);
        }
    }

    /// Takes the oldest error out of the unread results of [`trigger_eval`](Self::trigger_eval).
    /// For programs that read results by [`on_result`](EvaluatorBuilder::on_result) only, which is
    /// not called with errors.
    ///
    /// ```
    /// use windrow_collect::{EvaluateError, Evaluator};
    /// use windrow_policy::RandomPolicy;
    ///
    /// let evaluator = Evaluator::builder("CartPole-v1")
    ///     .policy(RandomPolicy::new())
    ///     .metrics(|_| Err("there are none"))
    ///     .build()?;
    /// evaluator.trigger_eval(None, Some(3))?;
    /// while evaluator.pending() {
    ///     std::thread::yield_now(); // or train
    /// }
    /// let error = evaluator.take_error().unwrap();
    /// assert!(matches!(error, EvaluateError::Metrics { step: 3, .. }));
    /// assert!(evaluator.take_error().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_error(&self) -> Option<EvaluateError> {
        self.shared.take_error()
    }

    /// The errors of environments that were lost and replaced since the last call of this function;
    /// see [`EvaluatorBuilder::on_loss`].
    ///
    /// ```
    /// use windrow_collect::Evaluator;
    /// use windrow_policy::RandomPolicy;
    ///
    /// let evaluator = Evaluator::builder("CartPole-v1").policy(RandomPolicy::new()).build()?;
    /// evaluator.evaluate(None, None)?;
    /// assert!(evaluator.take_losses().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_losses(&self) -> Vec<WorkerError> {
        let handle = self.shared.handle();
        handle.map_or_else(Vec::new, |handle| handle.take_losses())
    }

    /// Sends `request` to the [process](EvaluatorBuilder::placement) of the environments and
    /// returns its answer, as [`Handle::call_worker`](crate::Handle::call_worker) does. A call from
    /// [`on_result`](EvaluatorBuilder::on_result) comes between two evaluations.
    ///
    /// # Errors
    /// Those of [`Handle::call_worker`](crate::Handle::call_worker); [`ControlError::Next`] also
    /// before environments were made.
    #[doc(hidden)]
    #[cfg(target_os = "linux")]
    pub fn call_worker(&self, request: Vec<u8>) -> Result<Vec<u8>, ControlError> {
        let handle = self.shared.handle().ok_or(NextError::ShutDown)?;
        handle.call_worker(0, request)
    }

    /// Whether an evaluation is running or queued.
    ///
    /// ```
    /// use windrow_collect::Evaluator;
    /// use windrow_policy::RandomPolicy;
    ///
    /// let evaluator = Evaluator::builder("CartPole-v1").policy(RandomPolicy::new()).build()?;
    /// evaluator.trigger_eval(None, None)?;
    /// while evaluator.pending() {
    ///     std::thread::yield_now(); // or train
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pending(&self) -> bool {
        self.shared.pending()
    }

    /// Gives the next weights the version `version`, and later ones the versions after it, so that
    /// results have the versions of a collector. Without this call, versions begin with 1; the
    /// policy's own weights have version 0.
    ///
    /// ```
    /// use windrow_collect::Evaluator;
    /// use windrow_policy::{Head, NetworkPolicy, Policy, nn::Sequential};
    ///
    /// let policy = NetworkPolicy::new(Sequential::new().linear(4, 2), Head::Categorical);
    /// let evaluator = Evaluator::builder("CartPole-v1").policy(policy.clone()).build()?;
    /// evaluator.set_next_version(40);
    /// let weights = policy.weights();
    /// assert_eq!(evaluator.evaluate(Some(&weights), None)?.policy_version, 40);
    /// assert_eq!(evaluator.evaluate(Some(&weights), None)?.policy_version, 41);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_next_version(&self, version: i64) {
        self.shared.set_next_version(version);
    }

    /// Ends the running evaluation at its next step, drops queued ones, and waits for the thread up
    /// to the [shutdown time-out](EvaluatorBuilder::shutdown_timeout). Nothing is pending
    /// afterwards, and calls that wait return an error. Another shutdown does nothing, and waits no
    /// longer than the first time-out. A process that has not ended then is killed: none is left
    /// behind.
    ///
    /// # Errors
    /// [`Stuck`] when an environment or the policy in the thread, or a callback, did not return in
    /// time. The thread ends when it does.
    ///
    /// ```
    /// use windrow_collect::{EvaluateError, Evaluator};
    /// use windrow_policy::RandomPolicy;
    ///
    /// let evaluator = Evaluator::builder("CartPole-v1").policy(RandomPolicy::new()).build()?;
    /// evaluator.shutdown()?;
    /// assert!(matches!(evaluator.evaluate(None, None), Err(EvaluateError::ShutDown)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown(&self) -> Result<(), Stuck> {
        self.shutdown_within(self.patience)
    }

    /// As [`shutdown`](Self::shutdown), with another time-out.
    ///
    /// # Errors
    /// Those of [`shutdown`](Self::shutdown).
    pub fn shutdown_within(&self, timeout: Duration) -> Result<(), Stuck> {
        let deadline = self.shared.stop(timeout);
        let deadline = deadline.and_then(|deadline| deadline.checked_add(self.grace));
        if !self.shared.ended_by(deadline) {
            return Err(Stuck {
                stuck: 1,
                threads: 1,
                waited: timeout,
            });
        }
        let thread = unpoisoned(self.thread.lock()).take();
        if let Some(thread) = thread {
            // The thread returns no error: panics of user code became results.
            let _ = thread.join();
        }
        Ok(())
    }
}

impl Drop for Evaluator {
    fn drop(&mut self) {
        // No caller is left to get an error.
        let _ = self.shutdown();
    }
}

impl std::fmt::Debug for Evaluator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evaluator")
            .field("pending", &self.pending())
            .field("busy_policy", &self.busy_policy)
            .finish_non_exhaustive()
    }
}
