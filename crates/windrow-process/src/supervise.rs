//! One thread that watches over a set of worker processes.

use std::time::Duration;

use crate::{Exit, Frame, ProcessError, WorkerProgram};

/// Whom a [`Supervisor`] tells what happens. It calls these in its own thread, and does nothing else meanwhile.
pub trait Events: Send {
    /// A worker that was asked for runs, as this process, or could not be started.
    fn started(&mut self, worker: usize, pid: Result<u32, ProcessError>);

    /// A worker sent a frame.
    fn frame(&mut self, worker: usize, frame: Frame);

    /// A worker has ended: once for each that started, after all its frames. It writes nothing any more, neither to shared memory.
    fn died(&mut self, worker: usize, death: Death);
}

/// How a worker ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Death {
    /// Its process.
    pub pid: u32,
    /// Its status.
    pub exit: Exit,
    /// The last 8 KiB that it wrote to its standard error.
    pub stderr_tail: String,
    /// Why its frames could not be read to the end, if so; the supervisor kills a worker that sends no frames.
    pub fault: Option<ProcessError>,
}

/// Starts worker processes, watches them, carries frames to and from them, and ends them.
#[derive(Debug)]
pub struct Supervisor {}

impl Supervisor {
    /// Starts the thread; it starts no worker yet.
    ///
    /// # Errors
    /// [`ProcessError::System`] or [`ProcessError::Descriptors`] when the system gives no thread or no descriptor.
    pub fn start(
        _program: WorkerProgram,
        _workers: usize,
        _events: impl Events + 'static,
    ) -> Result<Self, ProcessError> {
        todo!()
    }

    /// Asks for a process for `worker`; [`Events::started`] tells how that went. Ignored while the worker has one.
    ///
    /// # Errors
    /// [`ProcessError::NoSuch`], and [`ProcessError::ShutDown`] after a shutdown.
    pub fn spawn(&self, _worker: usize) -> Result<(), ProcessError> {
        todo!()
    }

    /// Kills the worker's process group. Its death is reported as every other. Ignored while the worker has no process.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    pub fn kill(&self, _worker: usize) -> Result<(), ProcessError> {
        todo!()
    }

    /// Sends a frame, behind those that the worker has not read yet; never waits for the worker. Frames for a worker without a process are
    /// dropped.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn); [`ProcessError::TooLong`] and [`ProcessError::Attached`].
    pub fn send(&self, _worker: usize, _frame: Frame) -> Result<(), ProcessError> {
        todo!()
    }

    /// Ends all workers: each reads what was sent to it and then the end of its socket, and has until `within` from now to end by itself;
    /// then its process group is killed. Returns when all deaths have been reported and the thread has ended; at once within an
    /// event. Further calls wait for the same end.
    ///
    /// # Errors
    /// [`ProcessError::Unkillable`], and [`ProcessError::Panicked`] when an event's handler panicked.
    pub fn shutdown(&self, _within: Duration) -> Result<(), ProcessError> {
        todo!()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = self.shutdown(Duration::from_millis(500));
    }
}
