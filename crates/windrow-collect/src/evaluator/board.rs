//! What the evaluator's users and its thread tell each other.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use windrow_policy::Weights;

use super::choices::BusyPolicy;
use super::report::Evaluation;
use crate::{CollectError, Handle};

pub(super) type Outcome = Result<Evaluation, CollectError>;

/// Where a result goes.
#[derive(Debug)]
pub(super) enum Reply {
    /// To whoever reads next.
    Unread,
    /// To the one who waits for it.
    To(Sender<Outcome>),
}

/// What the thread is to do.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) weights: Option<Snapshot>,
    pub(super) step: u64,
}

/// Weights that nobody else can change, and their number.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) version: i64,
    pub(super) weights: Weights,
}

/// The board, and a bell that rings whenever it has changed.
#[derive(Debug)]
pub(super) struct Shared {
    board: Mutex<Board>,
    changed: Condvar,
}

#[derive(Debug)]
struct Board {
    queue: VecDeque<(Job, Reply)>,
    /// Step and destination of what the thread is at. Kept here and not by the thread, so that a shutdown need not wait
    /// for a thread that is stuck to let go of it.
    running: Option<(u64, Reply)>,
    unread: VecDeque<Outcome>,
    /// Requests accepted so far.
    accepted: u64,
    next_version: i64,
    /// Stops the collector that is in use.
    handle: Option<Handle>,
    is_shut_down: bool,
    /// By when the thread has to be gone after a shutdown; `None` where that may take as long as it takes.
    deadline: Option<Instant>,
    /// Whether a reader was told of the shutdown.
    told: bool,
    /// Whether the thread is gone.
    gone: bool,
}

impl Board {
    fn pending(&self) -> bool {
        self.running.is_some() || !self.queue.is_empty()
    }

    /// Whether there will be something to read.
    fn expecting(&self) -> bool {
        let queued = self.queue.iter().map(|(_, reply)| reply);
        let mut replies = self.running.iter().map(|(_, reply)| reply).chain(queued);
        replies.any(|reply| matches!(reply, Reply::Unread))
    }

    fn busy(&self) -> CollectError {
        CollectError::Busy {
            running: self.running.as_ref().map(|(step, _)| *step),
            queued: self.queue.len(),
        }
    }
}

/// For the users.
impl Shared {
    pub(super) fn new() -> Self {
        Self {
            board: Mutex::new(Board {
                queue: VecDeque::new(),
                running: None,
                unread: VecDeque::new(),
                accepted: 0,
                next_version: 1,
                handle: None,
                is_shut_down: false,
                deadline: None,
                told: false,
                gone: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Queues a request, unless the evaluator is busy and `when_busy` says otherwise; whether it did.
    ///
    /// # Errors
    /// [`CollectError::ShutDown`], or that the evaluator is busy.
    pub(super) fn submit(
        &self,
        weights: Option<&Weights>,
        step: Option<u64>,
        reply: Reply,
        when_busy: BusyPolicy,
    ) -> Result<bool, CollectError> {
        let mut board = self.lock();
        if board.is_shut_down {
            return Err(CollectError::ShutDown);
        }
        if board.pending() {
            match when_busy {
                BusyPolicy::Skip => return Ok(false),
                BusyPolicy::Error => return Err(board.busy()),
                BusyPolicy::Queue => {}
            }
        }
        // Copied under the lock, so that a request that is turned away costs nothing and none overtakes another.
        let weights = weights.map(|weights| {
            let version = board.next_version;
            board.next_version += 1;
            Snapshot {
                version,
                weights: weights.detach(),
            }
        });
        let step = step.unwrap_or(board.accepted);
        board.accepted += 1;
        board.queue.push_back((Job { weights, step }, reply));
        drop(board);
        self.changed.notify_all();
        Ok(true)
    }

    /// The oldest unread result; waits for one until `deadline` if one is to come.
    pub(super) fn take(&self, deadline: Option<Instant>) -> Option<Outcome> {
        let mut board = self.lock();
        loop {
            if let Some(result) = board.unread.pop_front() {
                return Some(result);
            }
            if board.is_shut_down {
                let told = std::mem::replace(&mut board.told, true);
                return (!told).then_some(Err(CollectError::ShutDown));
            }
            if !board.expecting() {
                return None;
            }
            board = self.wait(board, deadline)?;
        }
    }

    /// The oldest error that is unread.
    pub(super) fn take_error(&self) -> Option<CollectError> {
        let mut board = self.lock();
        let oldest = board.unread.iter().position(Result::is_err)?;
        board.unread.remove(oldest)?.err()
    }

    pub(super) fn pending(&self) -> bool {
        self.lock().pending()
    }

    pub(super) fn set_next_version(&self, version: i64) {
        self.lock().next_version = version;
    }

    /// Shuts down; by when the thread has to be gone, if there is a limit. The first call sets the time.
    pub(super) fn stop(&self, patience: Duration) -> Option<Instant> {
        let mut board = self.lock();
        if !std::mem::replace(&mut board.is_shut_down, true) {
            // A time beyond all clocks is no limit.
            board.deadline = Instant::now().checked_add(patience);
        }
        let deadline = board.deadline;
        // Whoever waits for one of these sees the other end disconnected.
        let forgotten = (std::mem::take(&mut board.queue), board.running.take());
        let handle = board.handle.take();
        drop(board);
        drop(forgotten);
        if let Some(handle) = handle {
            handle.stop_collection();
            handle.shutdown();
        }
        self.changed.notify_all();
        deadline
    }

    /// Waits for the thread to be gone until `deadline`; whether it is.
    pub(super) fn ended_by(&self, deadline: Option<Instant>) -> bool {
        let mut board = self.lock();
        loop {
            if board.gone {
                return true;
            }
            match self.wait(board, deadline) {
                Some(changed) => board = changed,
                None => return false,
            }
        }
    }
}

/// For the thread.
impl Shared {
    /// The next request, which is running from then on; `None` after a shutdown.
    pub(super) fn next(&self) -> Option<Job> {
        let mut board = self.lock();
        loop {
            if board.is_shut_down {
                return None;
            }
            if let Some((job, reply)) = board.queue.pop_front() {
                board.running = Some((job.step, reply));
                return Some(job);
            }
            board = self.wait(board, None)?;
        }
    }

    /// Hands over the result of the running request, unless nobody wants it any more.
    pub(super) fn deliver(&self, result: Outcome) {
        let mut board = self.lock();
        match board.running.take() {
            None => {}
            Some((_, Reply::Unread)) => board.unread.push_back(result),
            Some((_, Reply::To(waiting))) => {
                // Nobody stops waiting before there is an answer.
                let _ = waiting.send(result);
            }
        }
        drop(board);
        self.changed.notify_all();
    }

    /// From now on a shutdown stops this collector.
    ///
    /// # Errors
    /// [`CollectError::ShutDown`] when there was one already.
    pub(super) fn stop_with(&self, handle: Handle) -> Result<(), CollectError> {
        let mut board = self.lock();
        if board.is_shut_down {
            return Err(CollectError::ShutDown);
        }
        board.handle = Some(handle);
        Ok(())
    }

    /// # Errors
    /// [`CollectError::ShutDown`] when there was a shutdown.
    pub(super) fn check(&self) -> Result<(), CollectError> {
        if self.lock().is_shut_down {
            return Err(CollectError::ShutDown);
        }
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Board> {
        // Each change is whole before anything that could panic.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change; `None` when the deadline has passed.
    fn wait<'a>(
        &self,
        board: MutexGuard<'a, Board>,
        deadline: Option<Instant>,
    ) -> Option<MutexGuard<'a, Board>> {
        let Some(deadline) = deadline else {
            return Some(
                self.changed
                    .wait(board)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        };
        let left = deadline.checked_duration_since(Instant::now())?;
        if left.is_zero() {
            return None;
        }
        let waited = self.changed.wait_timeout(board, left);
        Some(waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// Notes that the thread is gone, however it went, so that nobody waits for it.
#[derive(Debug)]
pub(super) struct Presence<'a>(pub(super) &'a Shared);

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        self.0.lock().gone = true;
        // Nothing but a shutdown ends the thread, except a panic that no one expects.
        self.0.stop(Duration::ZERO);
    }
}
