//! One worker's lane: a message to it, and its answer.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use windrow_sync::mapped::Ordering;

use super::LiveWriter;
use super::words::LaneWords;
use crate::ProcessError;
use crate::codec::{LANE_BYTES, decode, encode_into};
use crate::shared::Item;

/// The parent's side of one worker's lane: one message of type `C`, then its answer of type `A`.
#[derive(Debug)]
pub struct Lane<C, A> {
    worker: usize,
    words: Item<LaneWords>,
    notes: LiveWriter,
    /// Number of the last message.
    sent: u32,
    /// Number of the last message whose answer was taken.
    answered: u32,
    types: PhantomData<fn(C) -> A>,
}

impl<C: Serialize, A: DeserializeOwned> Lane<C, A> {
    pub(super) fn new(worker: usize, words: Item<LaneWords>, notes: LiveWriter) -> Self {
        Self {
            worker,
            words,
            notes,
            sent: 0,
            answered: 0,
            types: PhantomData,
        }
    }

    /// The worker at the other end.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Whether all answers were taken, so that the next message may be sent.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.sent == self.answered
    }

    /// Sends a message and wakes the worker if it sleeps. It may be sent before the worker has
    /// started.
    ///
    /// # Errors
    /// [`ProcessError::Unanswered`] between a message and its answer, [`ProcessError::Message`] for
    /// one of more than [`LANE_BYTES`].
    pub fn send(&mut self, message: &C) -> Result<(), ProcessError> {
        if !self.is_free() {
            let (worker, sent) = (self.worker, self.sent);
            return Err(ProcessError::Unanswered { worker, sent });
        }
        let command = &self.words.command;
        let mut place = [0; LANE_BYTES];
        let len = encode_into(message, &mut place)?;
        command.message.store(&place, len);
        self.sent = self.sent.wrapping_add(1);
        command.seq.store(self.sent, Ordering::Release);
        command.bell.ring();
        Ok(())
    }

    /// The answer, once, if it is there. It may also be taken after the worker's death, when it was
    /// sent before.
    ///
    /// # Errors
    /// [`ProcessError::Message`] for an answer that no worker of this build sends.
    pub fn try_receive(&mut self) -> Option<Result<A, ProcessError>> {
        let answer = &self.words.answer;
        if self.is_free() || answer.seq.load(Ordering::Acquire) != self.sent {
            return None;
        }
        self.answered = self.sent;
        Some(answer.message.load(decode))
    }

    /// Asks this worker to end; see [`ControlBlock::close`](crate::ControlBlock::close).
    pub fn close(&self) {
        self.words.close();
    }

    /// Prepares the lane for a successor: takes back what was not answered, opens a closed lane,
    /// and clears the worker's place and episodes. Only for a worker that is known to have ended:
    /// it could otherwise still write.
    pub fn reset(&mut self) {
        // A worker goes on behind the message that was answered last.
        self.words.answer.seq.store(self.sent, Ordering::Release);
        self.words.command.closed.store(0, Ordering::Release);
        self.answered = self.sent;
        self.notes.clear();
    }
}

/// The worker's side of its lane.
pub struct WorkerLane<C, A> {
    worker: usize,
    words: Item<LaneWords>,
    ring: Box<dyn Fn() + Send>,
    /// Number of the message received last.
    received: u32,
    /// Number of the message answered last.
    answered: u32,
    types: PhantomData<fn(A) -> C>,
}

impl<C, A> fmt::Debug for WorkerLane<C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerLane")
            .field("worker", &self.worker)
            .field("received", &self.received)
            .field("answered", &self.answered)
            .finish_non_exhaustive()
    }
}

impl<C: DeserializeOwned, A: Serialize> WorkerLane<C, A> {
    pub(super) fn new(worker: usize, words: Item<LaneWords>, ring: Box<dyn Fn() + Send>) -> Self {
        let answered = words.answer.seq.load(Ordering::Acquire);
        Self {
            worker,
            words,
            ring,
            received: answered,
            answered,
            types: PhantomData,
        }
    }

    /// Waits for the next message: lets others run a few times, then sleeps, for as long as it
    /// takes. `None` once the parent has closed the lane, for ever, and for a message that no
    /// parent of this build sends.
    ///
    /// A message that the predecessor in this lane left unanswered does not come again:
    /// [`Lane::reset`] took it back.
    pub fn receive(&mut self) -> Option<C> {
        let command = &self.words.command;
        loop {
            let rings = command.bell.count();
            if self.is_closed() {
                return None;
            }
            let seq = command.seq.load(Ordering::Acquire);
            if seq != self.received {
                self.received = seq;
                return command.message.load(decode).ok();
            }
            command.bell.wait(rings, None);
        }
    }

    /// Closes this lane, from any thread: [`receive`](Self::receive) then gives `None`.
    pub fn closer(&self) -> impl Fn() + Send + 'static {
        let words = self.words.clone();
        move || words.close()
    }

    /// Whether the parent has closed the lane: cheap, for a worker that wants to end within a part.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.words.command.closed.load(Ordering::Acquire) != 0
    }

    /// Answers the message received last, and wakes the parent.
    ///
    /// # Errors
    /// [`ProcessError::NotAsked`] when there is nothing to answer, [`ProcessError::Message`] for an
    /// answer of more than [`LANE_BYTES`].
    pub fn send(&mut self, message: &A) -> Result<(), ProcessError> {
        self.write(message)?;
        self.publish();
        (self.ring)();
        Ok(())
    }

    /// The first step of an answer: nobody sees it yet.
    fn write(&mut self, message: &A) -> Result<(), ProcessError> {
        if self.received == self.answered {
            let worker = self.worker;
            return Err(ProcessError::NotAsked { worker });
        }
        let mut place = [0; LANE_BYTES];
        let len = encode_into(message, &mut place)?;
        self.words.answer.message.store(&place, len);
        Ok(())
    }

    /// The second step: the parent may see it.
    fn publish(&mut self) {
        self.answered = self.received;
        let seq = &self.words.answer.seq;
        seq.store(self.answered, Ordering::Release);
    }
}

/// How far a worker comes with an answer before it dies, in models.
#[cfg(loom)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dies {
    /// Before the answer's first word.
    Before,
    /// When it has written the answer, before it says so.
    Written,
    /// When it has said so, before it rings.
    Published,
}

#[cfg(loom)]
impl<C: DeserializeOwned, A: Serialize> WorkerLane<C, A> {
    /// Sends as far as `dies` says.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn die_sending(mut self, message: &A, dies: Dies) -> Result<(), ProcessError> {
        if dies != Dies::Before {
            self.write(message)?;
        }
        if dies == Dies::Published {
            self.publish();
        }
        Ok(())
    }
}
