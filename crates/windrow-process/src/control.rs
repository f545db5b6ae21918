//! The control block: a header, and for each worker its lane, its place and its episodes.

mod lane;

use std::os::fd::{BorrowedFd, OwnedFd};

pub use lane::{Lane, MESSAGE_WORDS, Message, WorkerLane};

use crate::ProcessError;

/// What parent and workers agree on before they share a [`ControlBlock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlSpec {
    /// A number that both sides compute from what they must agree on, such as the layout of slabs.
    pub fingerprint: u64,
    /// Workers.
    pub workers: usize,
    /// Environments of each worker.
    pub envs: usize,
}

/// Where a worker is, as it says itself while it runs; the parent reads it when the worker is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// What the worker is doing; the numbers are the caller's.
    pub phase: u32,
    /// Step within the part.
    pub step: u32,
    /// Environment at work.
    pub env: u32,
    /// Grows with each change of the other three.
    pub beat: u32,
}

/// The episode that an environment is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Episode {
    /// Id of its trajectory.
    pub id: u64,
    /// Frame with which it began.
    pub began: u64,
}

/// Memory that a parent shares with its workers: one lane for each of them, their places and their episodes.
#[derive(Debug)]
pub struct ControlBlock {}

impl ControlBlock {
    /// A block in memory that only those who get its descriptor can see, and the parent's side of each lane.
    ///
    /// # Errors
    /// [`ProcessError::NoMemory`] or [`ProcessError::Descriptors`] when the system has too little of either.
    pub fn create(_spec: ControlSpec) -> Result<(Self, Vec<Lane>), ProcessError> {
        todo!()
    }

    /// The worker's view of the block behind `fd`.
    ///
    /// # Errors
    /// [`ProcessError::Foreign`] when it is no control block, or one with another `fingerprint`.
    pub fn open(_fd: OwnedFd, _fingerprint: u64) -> Result<Self, ProcessError> {
        todo!()
    }

    /// The descriptor to send to a worker.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        todo!()
    }

    /// What both sides agreed on.
    #[must_use]
    pub fn spec(&self) -> ControlSpec {
        todo!()
    }

    /// The worker's side of its lane; `ring` is called after each answer and wakes the parent.
    ///
    /// # Errors
    /// [`ProcessError::NoSuch`] for a worker that the block does not have.
    pub fn worker_lane(
        &self,
        _worker: usize,
        _ring: impl Fn() + Send + 'static,
    ) -> Result<WorkerLane, ProcessError> {
        todo!()
    }

    /// Where the worker notes its place and its episodes.
    ///
    /// # Errors
    /// [`ProcessError::NoSuch`] for a worker that the block does not have.
    pub fn live_writer(&self, _worker: usize) -> Result<LiveWriter, ProcessError> {
        todo!()
    }

    /// Where the worker was last; parts of two places may be mixed while it runs.
    ///
    /// # Errors
    /// [`ProcessError::NoSuch`] for a worker that the block does not have.
    pub fn place(&self, _worker: usize) -> Result<Place, ProcessError> {
        todo!()
    }

    /// The episode that an environment of the worker was in last.
    ///
    /// # Errors
    /// [`ProcessError::NoSuch`] for a worker or an environment that the block does not have.
    pub fn episode(&self, _worker: usize, _env: usize) -> Result<Episode, ProcessError> {
        todo!()
    }

    /// Asks all workers to end: their [`receive`](WorkerLane::receive) gives `None` from now on, also where a message waits.
    /// Returns at once. [`Lane::reset`] takes it back for one lane.
    pub fn close(&self) {
        todo!()
    }
}

/// The worker's notes about itself: plain stores, cheap enough for each step.
#[derive(Debug, Clone)]
pub struct LiveWriter {}

impl LiveWriter {
    /// The worker does something else now.
    pub fn phase(&self, _phase: u32) {
        todo!()
    }

    /// The worker begins this step of its part.
    pub fn step(&self, _step: u32) {
        todo!()
    }

    /// The worker turns to this environment.
    pub fn env(&self, _env: u32) {
        todo!()
    }

    /// An environment begins an episode. Ignored for an environment that the block does not have.
    pub fn episode(&self, _env: usize, _episode: Episode) {
        todo!()
    }
}
