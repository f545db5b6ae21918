//! Starting a program as a worker, and being one.

use std::ffi::OsString;
use std::fmt;
use std::io::PipeReader;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::ProcessError;

/// The program that runs as a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerProgram {
    /// Path of the program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables that it gets beside those of this process.
    pub vars: Vec<(OsString, OsString)>,
}

impl WorkerProgram {
    /// The program that runs now, without arguments: its `main` begins with [`adopt`].
    #[must_use]
    pub fn current() -> Self {
        todo!()
    }

    /// Starts it in a process group of its own, with a control socket as its standard input and a pipe as its standard error.
    /// The system kills it when the thread that calls this ends.
    ///
    /// # Errors
    /// [`ProcessError::Spawn`] when it cannot be started, [`ProcessError::Descriptors`] when there is no room for its descriptors.
    pub fn spawn(&self) -> Result<Child, ProcessError> {
        todo!()
    }
}

/// A worker process, seen by its parent.
#[derive(Debug)]
pub struct Child {
    /// Its process; to be waited for, or it stays as a zombie.
    pub process: std::process::Child,
    /// Readable when it has ended.
    pub pidfd: OwnedFd,
    /// This side of the control socket.
    pub socket: UnixStream,
    /// What it writes to its standard error.
    pub stderr: PipeReader,
}

/// What a worker process has of its parent.
#[derive(Debug)]
pub struct ChildEnd {}

impl ChildEnd {
    /// The control socket, for [`FrameReader::read`](crate::FrameReader::read) and [`send`](crate::send). It blocks.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        todo!()
    }
}

/// Makes this process a worker if it was started as one; `None` if it was not. To be called first in `main`, before other threads are
/// started.
///
/// Takes the control socket from the standard input, which then is empty. From now on this process ends as soon as its parent
/// ends or closes the socket, whatever it is doing.
///
/// # Errors
/// [`ProcessError::Handshake`] when the parent is of another version or the standard input is no socket.
pub fn adopt() -> Result<Option<ChildEnd>, ProcessError> {
    todo!()
}

/// How a process ended, in words: `exit status 3`, `signal 9 (SIGKILL)`, `signal 6 (SIGABRT), core dumped`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit(pub ExitStatus);

impl fmt::Display for Exit {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}
