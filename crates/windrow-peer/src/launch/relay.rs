//! A thread of this process in the place of a worker that runs elsewhere.

use std::fmt;
use std::io::{PipeReader, PipeWriter};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::adopt::ChildEnd;
use super::process::Process;
use super::{Child, ChildPipes, Exit, Start, WorkerProgram};
use crate::ProcessError;
use crate::refused::refused;

/// What runs as a worker.
#[derive(Debug, Clone)]
pub enum Program {
    /// A process of this machine.
    Process(WorkerProgram),
    /// A thread of this process, which passes messages on to a worker elsewhere.
    Relay(Relay),
}

impl From<WorkerProgram> for Program {
    fn from(program: WorkerProgram) -> Self {
        Self::Process(program)
    }
}

impl Program {
    pub(crate) fn start(&self) -> Result<Start, ProcessError> {
        match self {
            Self::Process(program) => program.start(),
            Self::Relay(relay) => relay.spawn().map(Start::Running),
        }
    }

    pub(crate) fn spawn(&self) -> Result<Child, ProcessError> {
        match self {
            Self::Process(program) => program.spawn(),
            Self::Relay(relay) => relay.spawn(),
        }
    }
}

/// The function that such a thread runs.
#[derive(Clone)]
pub struct Relay(Arc<dyn Fn(RelayEnd) + Send + Sync>);

/// What it has in common with a worker process: the control socket and the standard error. The
/// worker has ended when the function returns, which it has to do soon after the other end of
/// `stop` was shut down.
#[derive(Debug)]
pub struct RelayEnd {
    /// The control socket.
    pub end: ChildEnd,
    /// What is written here appears as a worker's standard error.
    pub stderr: PipeWriter,
    /// Readable, and at its end, once the worker is to be killed.
    pub stop: UnixStream,
}

impl Relay {
    /// A worker in whose place `run` is called, in a thread of its own.
    pub fn new(run: impl Fn(RelayEnd) + Send + Sync + 'static) -> Self {
        Self(Arc::new(run))
    }

    fn spawn(&self) -> Result<Child, ProcessError> {
        let ChildPipes {
            socket,
            stderr,
            theirs: [their_socket, their_stderr],
        } = ChildPipes::new()?;
        let (stop, their_stop) = UnixStream::pair().map_err(refused("make a socket"))?;
        let (ended, ending) = std::io::pipe().map_err(refused("make a pipe"))?;
        let end = RelayEnd {
            end: ChildEnd::new(their_socket),
            stderr: their_stderr.into(),
            stop: their_stop,
        };
        let run = Arc::clone(&self.0);
        let run = move || {
            // Closed last, also when `run` panics.
            let _ending = ending;
            run(end);
        };
        let thread = thread::Builder::new()
            .name("windrow-relay".to_owned())
            .spawn(run)
            .map_err(refused("start the thread of a worker elsewhere"))?;
        Ok(Child {
            process: Process::relayed(RelayThread {
                stop,
                ended,
                thread: Some(thread),
            }),
            socket,
            stderr,
        })
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}

/// The thread, as its supervisor sees it.
#[derive(Debug)]
pub(super) struct RelayThread {
    stop: UnixStream,
    /// At its end once the thread has ended.
    ended: PipeReader,
    thread: Option<JoinHandle<()>>,
}

impl RelayThread {
    pub(super) fn stop(&self) {
        let _ = self.stop.shutdown(Shutdown::Both);
    }

    pub(super) fn wait(&mut self) -> Exit {
        // What it has written to its standard error says why it ended.
        let _ = self.thread.take().map(JoinHandle::join);
        Exit::Elsewhere
    }
}

impl AsFd for RelayThread {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::{Read, Write};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use crate::{Event, Frame, FrameReader, Supervisor, send};

    use super::*;

    /// Says `hello`, sends frames back until there are none, and then waits until it is killed.
    fn echo(mut end: RelayEnd) {
        let mut said = writeln!(end.stderr, "hello").is_ok();
        let socket = end.end.socket();
        while let Ok(Some(frame)) = FrameReader::default().read(socket) {
            if frame.body.is_empty() {
                let _ = end.stop.read(&mut [0]);
                return;
            }
            said &= send(socket, &frame).is_ok();
        }
        assert!(said);
    }

    #[test]
    fn a_thread_gets_messages_ends_and_is_killed_as_a_process_is() {
        let (sender, events) = channel();
        let supervisor =
            Supervisor::start(Program::Relay(Relay::new(echo)), 2, move |worker, event| {
                sender.send((worker, event)).unwrap()
            })
            .unwrap();
        for worker in 0..2 {
            supervisor.spawn(worker).unwrap();
            let (_, event) = events.recv().unwrap();
            assert!(matches!(event, Event::Started(0)), "{event:?}");
            supervisor.send(worker, Frame::from(vec![7, 8])).unwrap();
            match events.recv().unwrap() {
                (from, Event::Message(frame)) => {
                    assert_eq!((from, frame.body), (worker, vec![7, 8]));
                }
                other => panic!("{other:?}"),
            }
        }
        supervisor.send(0, Frame::default()).unwrap();
        supervisor.kill(0).unwrap();
        match events.recv().unwrap() {
            (0, Event::Died(death)) => {
                assert_eq!(
                    (death.exit, death.stderr_tail.as_str()),
                    (Exit::Elsewhere, "hello\n")
                );
            }
            other => panic!("{other:?}"),
        }
        supervisor.shutdown(Duration::from_secs(60)).unwrap();
        assert!(matches!(events.recv().unwrap(), (1, Event::Died(_))));
    }
}
