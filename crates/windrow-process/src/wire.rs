//! Frames over a Unix stream socket.

use std::os::fd::{BorrowedFd, OwnedFd};

use serde::{Serialize, de::DeserializeOwned};

use crate::ProcessError;

/// Most bytes of a frame's body.
pub const MAX_BODY: usize = 64 << 20;

/// Most descriptors that a frame carries.
pub const MAX_FDS: usize = 16;

/// What travels by a control socket at once.
#[derive(Debug, Default)]
pub struct Frame {
    /// What it is; the numbers are the caller's.
    pub kind: u8,
    /// Its content.
    pub body: Vec<u8>,
    /// Descriptors that go with it; the receiver owns copies.
    pub fds: Vec<OwnedFd>,
}

impl Frame {
    /// A frame with `value` as JSON.
    ///
    /// # Errors
    /// [`ProcessError::Body`] when the value cannot be written as JSON.
    pub fn json(_kind: u8, _value: &impl Serialize) -> Result<Self, ProcessError> {
        todo!()
    }

    /// The value that was written with [`json`](Self::json).
    ///
    /// # Errors
    /// [`ProcessError::Body`] when the body holds something else.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ProcessError> {
        todo!()
    }
}

/// Sends a frame and waits until the socket has taken all of it.
///
/// # Errors
/// [`ProcessError::TooLong`] and [`ProcessError::Attached`] before anything is sent; [`ProcessError::System`] when the other side is
/// gone.
pub fn send(_socket: BorrowedFd<'_>, _frame: &Frame) -> Result<(), ProcessError> {
    todo!()
}

/// Whether more may come from a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// More may come.
    Open,
    /// The other side has ended, after a whole frame.
    Ended,
}

/// Puts frames together from what a socket gives.
#[derive(Debug, Default)]
pub struct FrameReader {}

impl FrameReader {
    /// Waits for a frame; `None` when the other side has ended after a whole one.
    ///
    /// # Errors
    /// [`ProcessError::CutShort`] when it ended within a frame; [`ProcessError::TooLong`] and [`ProcessError::Attached`] for what is
    /// not a frame; [`ProcessError::Descriptors`] when descriptors came and there was no room for them.
    pub fn read(&mut self, _socket: BorrowedFd<'_>) -> Result<Option<Frame>, ProcessError> {
        todo!()
    }

    /// Adds to `frames` those that are there, without waiting.
    ///
    /// # Errors
    /// As [`read`](Self::read). The frames before the error are in `frames`.
    pub fn read_available(
        &mut self,
        _socket: BorrowedFd<'_>,
        _frames: &mut Vec<Frame>,
    ) -> Result<Stream, ProcessError> {
        todo!()
    }
}

/// Frames that wait until a socket takes them.
#[derive(Debug, Default)]
pub struct FrameWriter {}

impl FrameWriter {
    /// Puts a frame behind the others.
    ///
    /// # Errors
    /// [`ProcessError::TooLong`] and [`ProcessError::Attached`].
    pub fn push(&mut self, _frame: Frame) -> Result<(), ProcessError> {
        todo!()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        todo!()
    }

    /// Writes what the socket takes now, without waiting; see [`is_empty`](Self::is_empty) for whether it took all.
    ///
    /// # Errors
    /// [`ProcessError::System`] when the other side is gone.
    pub fn write_available(&mut self, _socket: BorrowedFd<'_>) -> Result<(), ProcessError> {
        todo!()
    }
}
