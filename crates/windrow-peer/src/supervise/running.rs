//! One worker process and what is to be read from it and written to it.

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;
use rustix::process::Signal;

use super::stderr::Stderr;
use super::{Death, Event, Handler};
use crate::ProcessError;
use crate::launch::{Child, Exit, Process};
use crate::wire::{Frame, FrameReader, FrameWriter, Incoming};

/// A worker that has a process.
#[derive(Debug)]
pub(super) struct Running {
    worker: usize,
    process: Process,
    socket: UnixStream,
    /// Whether frames may still come.
    stream: Incoming,
    reader: FrameReader,
    writer: FrameWriter,
    /// Whether this side of the socket was shut down.
    closed: bool,
    stderr: Stderr,
    fault: Option<ProcessError>,
    /// Once it has ended and was waited for; its number may be another's since.
    ended: Option<Exit>,
}

/// What a descriptor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Process,
    Socket,
    Stderr,
    /// Of a worker without a process yet.
    Nursery,
}

impl Running {
    pub(super) fn new(worker: usize, child: Child) -> Self {
        Self {
            worker,
            process: child.process,
            socket: child.socket,
            stream: Incoming::Open,
            reader: FrameReader::default(),
            writer: FrameWriter::default(),
            closed: false,
            stderr: Stderr::new(child.stderr),
            fault: None,
            ended: None,
        }
    }

    pub(super) fn worker(&self) -> usize {
        self.worker
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// What to watch, and for what. What has ended is left out, or the thread would find it again
    /// and again.
    pub(super) fn sources(&self) -> impl Iterator<Item = (Source, BorrowedFd<'_>, PollFlags)> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.stream != Incoming::Ended);
        flags.set(PollFlags::OUT, !self.writer.is_empty());
        let socket = (!flags.is_empty()).then(|| (Source::Socket, self.socket.as_fd(), flags));
        let stderr = self.stderr.pipe();
        let stderr = stderr.map(|pipe| (Source::Stderr, pipe, PollFlags::IN));
        [
            Some((Source::Process, self.process.as_fd(), PollFlags::IN)),
            socket,
            stderr,
        ]
        .into_iter()
        .flatten()
    }

    /// Puts a frame behind those that wait.
    pub(super) fn push(&mut self, frame: Frame) {
        if !self.closed {
            // Its limits were checked when it was asked for.
            let _ = self.writer.push(frame);
        }
    }

    /// Writes what the worker takes; then, when `closing`, shuts this side of the socket down.
    pub(super) fn write(&mut self, closing: bool) {
        if self.writer.write_available(self.socket.as_fd()).is_err() {
            // It reads no more; it has ended, or will be found to have closed the socket.
            self.writer = FrameWriter::default();
        }
        if closing && !self.closed && self.writer.is_empty() {
            self.closed = true;
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }

    /// Reads and reports frames that are there; whether there may be more of them already.
    pub(super) fn read_frames(&mut self, handler: &mut Handler<Frame>) -> bool {
        if self.stream == Incoming::Ended {
            return false;
        }
        let mut frames = Vec::new();
        let socket = self.socket.as_fd();
        match self.reader.read_available(socket, &mut frames) {
            Ok(stream) => self.stream = stream,
            Err(fault) => {
                self.stream = Incoming::Ended;
                self.fault = Some(fault);
                self.kill();
            }
        }
        for frame in frames {
            handler(self.worker, Event::Message(frame));
        }
        self.stream == Incoming::More
    }

    /// Reads and passes on some of what the worker wrote to its standard error.
    pub(super) fn read_stderr(&mut self) {
        self.stderr.read();
    }

    /// Kills the worker and what it started, as long as they are in its group.
    pub(super) fn kill(&self) {
        self.process.kill();
    }

    /// Asks the worker, and nothing that it started, for its stack.
    pub(super) fn ask_for_stack(&self) {
        self.process.signal(Signal::USR2);
    }

    /// Kills the worker, or what is left of its group, and waits until it has ended.
    pub(super) fn end(&mut self) -> Exit {
        self.kill();
        match self.ended {
            Some(exit) => exit,
            None => *self.ended.insert(self.process.wait()),
        }
    }

    /// Reports what a worker that has ended has left unread, then its death.
    pub(super) fn report_end(mut self, handler: &mut Handler<Frame>) {
        let (pid, exit) = (self.pid(), self.end());
        while self.read_frames(handler) {}
        let death = Death {
            pid,
            exit,
            stderr_tail: self.stderr.finish(),
            fault: self.fault,
        };
        handler(self.worker, Event::Died(death));
    }
}
