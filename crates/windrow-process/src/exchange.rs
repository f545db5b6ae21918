//! Versioned weights in shared memory: the publisher never waits, a reader never sees half of them.

use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::ProcessError;

/// Who is to see what is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Every worker.
    All,
    /// This one.
    Worker(usize),
}

/// The publisher's side: buffers of one size, of which each worker sees the newest that was published for it.
#[derive(Debug)]
pub struct Exchange {}

impl Exchange {
    /// Room for the weights of `workers` workers, `bytes` bytes each time.
    ///
    /// # Errors
    /// [`ProcessError::NoMemory`] or [`ProcessError::Descriptors`] when the system has too little of either.
    pub fn create(_workers: usize, _bytes: usize) -> Result<Self, ProcessError> {
        todo!()
    }

    /// The descriptor to send to a worker.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        todo!()
    }

    /// Has `write` fill a free buffer, then makes it the newest of `to`. Versions are the caller's; a reader compares them for
    /// equality only. The buffer is aligned to 64 bytes, and holds anything before.
    ///
    /// # Errors
    /// [`ProcessError::NoMemory`] when a buffer more is needed and cannot be had; [`ProcessError::NoSuch`] for an unknown worker.
    pub fn publish(
        &self,
        _to: Target,
        _version: i64,
        _write: impl FnOnce(&mut [u8]),
    ) -> Result<(), ProcessError> {
        todo!()
    }

    /// Gives back the buffer that a worker was reading when it died.
    pub fn unpin_dead(&self, _worker: usize) {
        todo!()
    }
}

/// A worker's side of an [`Exchange`].
#[derive(Debug)]
pub struct ExchangeReader {}

impl ExchangeReader {
    /// The view of `worker`, which is its only one.
    ///
    /// # Errors
    /// [`ProcessError::Foreign`] when `fd` is no exchange; [`ProcessError::NoSuch`] for an unknown worker.
    pub fn open(_fd: OwnedFd, _worker: usize) -> Result<Self, ProcessError> {
        todo!()
    }

    /// The newest weights, unless they are of the version `held`. They stay as they are until the guard is dropped.
    ///
    /// # Errors
    /// [`ProcessError::System`] when a buffer that this worker has not seen before cannot be mapped.
    pub fn newest(&mut self, _held: Option<i64>) -> Result<Option<Pinned<'_>>, ProcessError> {
        todo!()
    }
}

/// Weights that nobody changes as long as this lives.
#[derive(Debug)]
pub struct Pinned<'a> {
    of: PhantomData<&'a mut ExchangeReader>,
}

impl Pinned<'_> {
    /// The version under which they were published.
    #[must_use]
    pub fn version(&self) -> i64 {
        todo!()
    }

    /// The bytes, aligned to 64.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        todo!()
    }
}
