//! The requests and results that the evaluator's callers and its thread exchange.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use windrow_policy::Weights;
use windrow_sync::unpoisoned;

use super::choices::BusyPolicy;
use super::report::Evaluation;
use crate::deliver::collector::Collector;
use crate::deliver::handle::Handle;
use crate::error::EvaluateError;

pub(super) type Outcome = Result<Evaluation, EvaluateError>;

/// Where a result goes.
#[derive(Debug)]
pub(super) enum Reply {
    /// To the next call that reads.
    Unread,
    /// To the call that waits for it.
    To(Sender<Outcome>),
}

/// A request for an evaluation.
#[derive(Debug)]
pub(super) struct EvaluationJob {
    pub(super) weights: Option<Snapshot>,
    pub(super) step: u64,
}

/// Weights that no other code can change, and their version.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) version: i64,
    pub(super) weights: Weights,
}

/// The evaluator's state, and a condition variable that is notified of each change.
#[derive(Debug)]
pub(super) struct EvaluatorRequests {
    state: Mutex<EvaluatorState>,
    changed: Condvar,
}

#[derive(Debug)]
struct EvaluatorState {
    queue: VecDeque<(EvaluationJob, Reply)>,
    /// Step and destination of the running request. The state holds them, not the thread, so that a
    /// shutdown can drop them while the thread is stuck.
    running: Option<(u64, Reply)>,
    unread: VecDeque<Outcome>,
    /// Requests accepted so far.
    accepted: u64,
    next_version: i64,
    /// Stops the collector that is in use.
    handle: Option<Handle>,
    is_shut_down: bool,
    /// Whether the thread is ending its collector, for which it may wait until the deadline.
    is_ending: bool,
    /// When a shutdown stops waiting for the thread; `None` for no limit.
    deadline: Option<Instant>,
    /// Whether a read has returned the error of the shutdown.
    shutdown_reported: bool,
    /// Whether the thread has ended.
    thread_ended: bool,
}

impl EvaluatorState {
    fn pending(&self) -> bool {
        self.running.is_some() || !self.queue.is_empty()
    }

    /// Whether a pending request will leave a result to read.
    fn expecting(&self) -> bool {
        let queued = self.queue.iter().map(|(_, reply)| reply);
        let mut replies = self.running.iter().map(|(_, reply)| reply).chain(queued);
        replies.any(|reply| matches!(reply, Reply::Unread))
    }

    fn busy(&self) -> EvaluateError {
        EvaluateError::Busy {
            running: self.running.as_ref().map(|(step, _)| *step),
            queued: self.queue.len(),
        }
    }
}

/// For callers.
impl EvaluatorRequests {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(EvaluatorState {
                queue: VecDeque::new(),
                running: None,
                unread: VecDeque::new(),
                accepted: 0,
                next_version: 1,
                handle: None,
                is_shut_down: false,
                is_ending: false,
                deadline: None,
                shutdown_reported: false,
                thread_ended: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Queues a request, unless the evaluator is busy and `when_busy` forbids it; returns whether
    /// it did.
    ///
    /// # Errors
    /// [`EvaluateError::ShutDown`], or [`EvaluateError::Busy`] with [`BusyPolicy::Error`].
    pub(super) fn submit(
        &self,
        weights: Option<&Weights>,
        step: Option<u64>,
        reply: Reply,
        when_busy: BusyPolicy,
    ) -> Result<bool, EvaluateError> {
        let mut state = self.lock();
        if state.is_shut_down {
            return Err(EvaluateError::ShutDown);
        }
        if state.pending() {
            match when_busy {
                BusyPolicy::Skip => return Ok(false),
                BusyPolicy::Error => return Err(state.busy()),
                BusyPolicy::Queue => {}
            }
        }
        // Copied under the lock, so that a refused request costs nothing and no request overtakes
        // another.
        let weights = weights.map(|weights| {
            let version = state.next_version;
            state.next_version += 1;
            Snapshot {
                version,
                weights: weights.detach(),
            }
        });
        let step = step.unwrap_or(state.accepted);
        state.accepted += 1;
        state
            .queue
            .push_back((EvaluationJob { weights, step }, reply));
        drop(state);
        self.changed.notify_all();
        Ok(true)
    }

    /// The oldest unread result; waits for one until `deadline` if one is pending.
    pub(super) fn take(&self, deadline: Option<Instant>) -> Option<Outcome> {
        let mut state = self.lock();
        loop {
            if let Some(result) = state.unread.pop_front() {
                return Some(result);
            }
            if state.is_shut_down {
                let shutdown_reported = std::mem::replace(&mut state.shutdown_reported, true);
                return (!shutdown_reported).then_some(Err(EvaluateError::ShutDown));
            }
            if !state.expecting() {
                return None;
            }
            state = self.wait(state, deadline)?;
        }
    }

    /// The oldest error that is unread.
    pub(super) fn take_error(&self) -> Option<EvaluateError> {
        let mut state = self.lock();
        let oldest = state.unread.iter().position(Result::is_err)?;
        state.unread.remove(oldest)?.err()
    }

    pub(super) fn pending(&self) -> bool {
        self.lock().pending()
    }

    /// True while a pending request will leave a result to read.
    pub(super) fn is_expecting(&self) -> bool {
        self.lock().expecting()
    }

    pub(super) fn set_next_version(&self, version: i64) {
        self.lock().next_version = version;
    }

    /// Shuts down, and returns when to stop waiting for the thread, if there is a limit. The first
    /// call sets this time.
    pub(super) fn stop(&self, patience: Duration) -> Option<Instant> {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_shut_down, true) {
            // A time beyond the clock's range is no limit.
            state.deadline = Instant::now().checked_add(patience);
        }
        let deadline = state.deadline;
        // Calls that wait for one of these find their channel disconnected.
        let forgotten = (std::mem::take(&mut state.queue), state.running.take());
        let handle = state.handle.take();
        drop(state);
        drop(forgotten);
        if let Some(handle) = handle {
            handle.stop_collection();
            handle.shutdown();
        }
        self.changed.notify_all();
        deadline
    }

    /// Waits until `deadline` for the thread to end; returns whether it has ended.
    pub(super) fn ended_by(&self, deadline: Option<Instant>) -> bool {
        let mut state = self.lock();
        loop {
            if state.thread_ended {
                return true;
            }
            match self.wait(state, deadline) {
                Some(changed) => state = changed,
                None => return false,
            }
        }
    }
}

/// For the thread.
impl EvaluatorRequests {
    /// Takes the next request, which then counts as running; `None` after a shutdown.
    pub(super) fn next(&self) -> Option<EvaluationJob> {
        let mut state = self.lock();
        loop {
            if state.is_shut_down {
                return None;
            }
            if let Some((job, reply)) = state.queue.pop_front() {
                state.running = Some((job.step, reply));
                return Some(job);
            }
            state = self.wait(state, None)?;
        }
    }

    /// Delivers the result of the running request, unless a shutdown has dropped the request.
    pub(super) fn deliver(&self, result: Outcome) {
        let mut state = self.lock();
        match state.running.take() {
            None => {}
            Some((_, Reply::Unread)) => state.unread.push_back(result),
            Some((_, Reply::To(waiting))) => {
                // The call waits until there is a result.
                let _ = waiting.send(result);
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// From now on a shutdown stops this collector. One that came before is seen by
    /// [`check`](Self::check).
    pub(super) fn stop_with(&self, handle: Handle) {
        let mut state = self.lock();
        if !state.is_shut_down {
            state.handle = Some(handle);
        }
    }

    /// The collector that a shutdown stops; none before there is one, and after a shutdown.
    pub(super) fn handle(&self) -> Option<Handle> {
        self.lock().handle.clone()
    }

    /// How long the thread may wait for what it ends.
    pub(super) fn patience(&self) -> Duration {
        let state = self.lock();
        match state.deadline {
            _ if !state.is_shut_down => <Collector>::PATIENCE,
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        }
    }

    pub(super) fn set_ending(&self, is_ending: bool) {
        self.lock().is_ending = is_ending;
    }

    /// Whether the thread may wait on.
    ///
    /// # Errors
    /// [`EvaluateError::ShutDown`] when there was a shutdown, and no patience is left where the
    /// thread ends its collector.
    pub(super) fn check_wait(&self) -> Result<(), EvaluateError> {
        let is_ending = self.lock().is_ending;
        match is_ending && !self.patience().is_zero() {
            true => Ok(()),
            false => self.check(),
        }
    }

    /// # Errors
    /// [`EvaluateError::ShutDown`] when there was a shutdown.
    pub(super) fn check(&self) -> Result<(), EvaluateError> {
        match self.lock().is_shut_down {
            true => Err(EvaluateError::ShutDown),
            false => Ok(()),
        }
    }
}

impl EvaluatorRequests {
    fn lock(&self) -> MutexGuard<'_, EvaluatorState> {
        // No change is interrupted by a panic.
        unpoisoned(self.state.lock())
    }

    /// Waits for a change; `None` when the deadline has passed.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, EvaluatorState>,
        deadline: Option<Instant>,
    ) -> Option<MutexGuard<'a, EvaluatorState>> {
        let Some(deadline) = deadline else {
            return Some(unpoisoned(self.changed.wait(state)));
        };
        let left = deadline.checked_duration_since(Instant::now())?;
        if left.is_zero() {
            return None;
        }
        let waited = self.changed.wait_timeout(state, left);
        Some(unpoisoned(waited).0)
    }
}

/// Records the end of the thread when it is dropped, also by a panic, so that no call waits for the
/// thread.
#[derive(Debug)]
pub(super) struct ThreadEnd<'a>(pub(super) &'a EvaluatorRequests);

impl Drop for ThreadEnd<'_> {
    fn drop(&mut self) {
        self.0.lock().thread_ended = true;
        // Only a shutdown or an unexpected panic ends the thread.
        self.0.stop(Duration::ZERO);
    }
}
