//! One worker's lane: a message to it, and its answer.

use crate::ProcessError;

/// Words that a message carries.
pub const MESSAGE_WORDS: usize = 16;

/// What travels by a lane; its meaning is the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Message {
    /// What it is.
    pub kind: u32,
    /// Numbers that go with it.
    pub words: [u64; MESSAGE_WORDS],
}

/// The parent's side of one worker's lane: one message, then its answer.
#[derive(Debug)]
pub struct Lane {}

impl Lane {
    /// The worker at the other end.
    #[must_use]
    pub fn worker(&self) -> usize {
        todo!()
    }

    /// Whether the worker has answered all that was sent, so that the next message may be sent.
    #[must_use]
    pub fn is_free(&self) -> bool {
        todo!()
    }

    /// Sends a message and wakes the worker if it sleeps. It may be sent before the worker has started.
    ///
    /// # Errors
    /// [`ProcessError::Unanswered`] between a message and its answer.
    pub fn send(&mut self, _message: Message) -> Result<(), ProcessError> {
        todo!()
    }

    /// The answer, once, if it is there. It may also be taken after the worker's death, when it was sent before.
    pub fn try_receive(&mut self) -> Option<Message> {
        todo!()
    }

    /// Asks this worker to end; see [`ControlBlock::close`](crate::ControlBlock::close).
    pub fn close(&self) {
        todo!()
    }

    /// Prepares the lane for a successor: takes back what was not answered, opens a closed lane, and clears the worker's place and
    /// episodes. Only for a worker that is known to have ended: it could otherwise still write.
    pub fn reset(&mut self) {
        todo!()
    }
}

/// The worker's side of its lane.
pub struct WorkerLane {}

impl std::fmt::Debug for WorkerLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerLane").finish_non_exhaustive()
    }
}

impl WorkerLane {
    /// Waits for the next message: spins for a moment, then sleeps, for as long as it takes. `None` once the parent has closed the lane,
    /// for ever.
    ///
    /// A message that the predecessor in this lane left unanswered does not come again: [`Lane::reset`] took it back.
    pub fn receive(&mut self) -> Option<Message> {
        todo!()
    }

    /// Whether the parent has closed the lane: cheap, for a worker that wants to end within a part.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        todo!()
    }

    /// Answers the message received last, and wakes the parent.
    ///
    /// # Errors
    /// [`ProcessError::NotAsked`] when there is nothing to answer.
    pub fn send(&mut self, _message: Message) -> Result<(), ProcessError> {
        todo!()
    }
}
