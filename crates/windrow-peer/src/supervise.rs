//! One thread that watches over a set of worker processes.

mod children;
mod running;
mod stderr;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use windrow_sync::unpoisoned;

use crate::refused::refused;
use crate::{Exit, Frame, ProcessError, Program};
use children::Children;

/// What happens to a worker. `M` is what it sends: frames, or the messages in them.
#[derive(Debug)]
pub enum Event<M = Frame> {
    /// It runs, as this process; 0 for a [relay](crate::Relay). Nothing is said of one that a
    /// nursery is about to fork when the supervisor is shut down: it never begins.
    Started(u32),
    /// It could not be started, or has sent something else than messages.
    Failed(ProcessError),
    /// It has sent a message.
    Message(M),
    /// It has ended: once for each that started, after all its messages. It writes nothing any
    /// more, neither to shared memory. What it forked has been killed, too, but may still be about
    /// to end.
    Died(Death),
}

/// Handles what happens to workers, in the supervisor's thread, which does nothing else meanwhile:
/// it must not wait for workers, nor for a thread that waits for the shutdown.
pub(crate) type Handler<M> = Box<dyn FnMut(usize, Event<M>) + Send>;

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
    /// Why its frames could not be read to the end, if so; the supervisor kills a worker that sends
    /// something else than frames.
    pub fault: Option<ProcessError>,
}

/// Starts worker processes, watches them, carries frames to and from them, and ends them.
///
/// It passes on to the standard error of this process, line by line, what workers write to theirs.
#[derive(Debug)]
pub struct Supervisor {
    inbox: Arc<Inbox>,
    workers: usize,
    id: ThreadId,
    thread: Mutex<Option<JoinHandle<Result<(), ProcessError>>>>,
}

/// Requests of other threads.
#[derive(Debug)]
struct Inbox {
    state: Mutex<Asked>,
    /// Readable when there are new requests.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct Asked {
    requests: VecDeque<Request>,
    /// When workers are to be killed, once there is a shutdown.
    deadline: Option<Instant>,
    /// Nobody takes requests any more.
    ended: bool,
}

#[derive(Debug)]
enum Request {
    Spawn(usize),
    Kill(usize),
    AskForStack(usize),
    Send(usize, Frame),
}

impl Inbox {
    fn with<R>(&self, change: impl FnOnce(&mut Asked) -> R) -> R {
        // Nothing panics under this lock.
        let mut state = unpoisoned(self.state.lock());
        let out = change(&mut state);
        drop(state);
        // Fails only where the count is so high that the thread wakes anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        out
    }

    /// Takes the new requests, and resets `wake`.
    fn take(&self) -> (VecDeque<Request>, Option<Instant>) {
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        let mut state = unpoisoned(self.state.lock());
        (std::mem::take(&mut state.requests), state.deadline)
    }
}

impl Supervisor {
    /// Starts the thread, which passes to `handler` what happens to each worker; it starts no
    /// worker yet. While the handler runs, the thread does nothing else: the handler must not wait
    /// for workers, nor for a thread that waits for the shutdown.
    ///
    /// # Errors
    /// [`ProcessError::System`] or [`ProcessError::Descriptors`] when the system gives no thread or
    /// no descriptor.
    pub fn start(
        program: impl Into<Program>,
        workers: usize,
        handler: impl FnMut(usize, Event) + Send + 'static,
    ) -> Result<Self, ProcessError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake =
            eventfd(0, flags).map_err(refused("make a descriptor to wake the supervisor"))?;
        let state = Mutex::default();
        let inbox = Arc::new(Inbox { state, wake });
        let children = Children::new(
            program.into(),
            workers,
            Arc::clone(&inbox),
            Box::new(handler),
        );
        let thread = thread::Builder::new()
            .name("windrow-workers".to_owned())
            .spawn(move || children.run())
            .map_err(refused("start the thread of the supervisor"))?;
        Ok(Self {
            inbox,
            workers,
            id: thread.thread().id(),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Asks for a process for `worker`; an event says how that went. Ignored while the worker has
    /// one.
    ///
    /// # Errors
    /// [`ProcessError::NoSuch`], and [`ProcessError::ShutDown`] after a shutdown.
    pub fn spawn(&self, worker: usize) -> Result<(), ProcessError> {
        self.ask(worker, Request::Spawn(worker))
    }

    /// Kills the worker's process group. Its death is reported as every other. Ignored while the
    /// worker has no process.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    pub fn kill(&self, worker: usize) -> Result<(), ProcessError> {
        self.ask(worker, Request::Kill(worker))
    }

    /// Sends SIGUSR2 to the worker's process, for a worker that answers it with its stack on its
    /// standard error. It ends any other one. Ignored while the worker has no process.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    pub fn ask_for_stack(&self, worker: usize) -> Result<(), ProcessError> {
        self.ask(worker, Request::AskForStack(worker))
    }

    /// Sends a frame, behind those that the worker has not read yet; never waits for the worker.
    /// Frames for a worker that was not asked for, could not be started or has ended are dropped.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn); [`ProcessError::TooLong`] and [`ProcessError::Attached`].
    pub fn send(&self, worker: usize, frame: Frame) -> Result<(), ProcessError> {
        frame.check()?;
        self.ask(worker, Request::Send(worker, frame))
    }

    fn ask(&self, worker: usize, request: Request) -> Result<(), ProcessError> {
        if worker >= self.workers {
            return Err(ProcessError::NoSuch {
                what: "worker",
                index: worker,
                count: self.workers,
            });
        }
        self.inbox.with(|asked| {
            if asked.ended || asked.deadline.is_some() {
                return Err(ProcessError::ShutDown);
            }
            asked.requests.push_back(request);
            Ok(())
        })
    }

    /// Ends all workers: each reads what was sent to it and then the end of its socket, and has
    /// until `within` from now to end by itself; then its process group is killed. Returns when all
    /// deaths have been reported and the thread has ended; at once within the handler. Further
    /// calls wait for the same end, or for an earlier one; the first caller gets the error.
    ///
    /// # Errors
    /// [`ProcessError::Unkillable`], [`ProcessError::Panicked`] when the handler panicked, and
    /// [`ProcessError::System`] when the supervisor could not watch its workers any more and killed
    /// them.
    pub fn shutdown(&self, within: Duration) -> Result<(), ProcessError> {
        /// As good as never, and not too far for a clock.
        const LONGEST: Duration = Duration::from_secs(1 << 30);
        let deadline = Instant::now() + within.min(LONGEST);
        self.inbox.with(|asked| {
            let earliest = asked
                .deadline
                .map_or(deadline, |before| before.min(deadline));
            asked.deadline = Some(earliest);
        });
        if thread::current().id() == self.id {
            return Ok(());
        }
        // Held while the first caller joins, so that all others wait.
        let mut thread = unpoisoned(self.thread.lock());
        match thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(ProcessError::Panicked),
        }
    }
}

/// Shuts down, with half a second for the workers to end by themselves.
impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = self.shutdown(Duration::from_millis(500));
    }
}
