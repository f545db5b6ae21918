//! The supervisor's thread.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::running::{Running, Source};
use super::{Event, Handler, Inbox, Request};
use crate::launch::{Child, ForkState, PendingFork, Start};
use crate::refused::refused;
use crate::{Frame, ProcessError, Program};

/// How long the system may take to end a worker that was killed. One that is longer in a call that
/// cannot be interrupted is left behind.
const PATIENCE: Duration = Duration::from_secs(10);

/// All workers, seen by the thread that watches over them.
pub(super) struct Children {
    program: Program,
    running: Vec<Option<Running>>,
    /// Workers that a nursery is about to fork, by their numbers, and the frames that wait for
    /// them.
    pending: BTreeMap<usize, (PendingFork, Vec<Frame>)>,
    inbox: Arc<Inbox>,
    handler: Handler<Frame>,
    /// When workers are killed, in a shutdown.
    deadline: Option<Instant>,
    /// When those that were killed are given up.
    patience: Option<Instant>,
}

impl Children {
    pub(super) fn new(
        program: Program,
        workers: usize,
        inbox: Arc<Inbox>,
        handler: Handler<Frame>,
    ) -> Self {
        Self {
            program,
            running: (0..workers).map(|_| None).collect(),
            pending: BTreeMap::new(),
            inbox,
            handler,
            deadline: None,
            patience: None,
        }
    }

    /// Until a shutdown, and until all workers have ended.
    pub(super) fn run(mut self) -> Result<(), ProcessError> {
        loop {
            self.take_requests();
            let closing = self.deadline.is_some();
            if closing {
                // They have nothing to bring to an end, and nobody knows of them yet.
                self.pending.clear();
            }
            for child in self.running.iter_mut().flatten() {
                child.write(closing);
            }
            if closing && self.running.iter().all(Option::is_none) {
                return Ok(());
            }
            self.check_deadline()?;
            match self.wait() {
                Ok(ready) => ready
                    .into_iter()
                    .for_each(|(worker, source)| self.serve(worker, source)),
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.abandon();
                    return Err(refused("watch the workers")(error));
                }
            }
        }
    }

    fn take_requests(&mut self) {
        let (requests, deadline) = self.inbox.take();
        self.deadline = deadline;
        for request in requests {
            match request {
                Request::Spawn(worker) => self.spawn(worker),
                Request::Kill(worker) => {
                    self.child(worker).iter().for_each(|child| child.kill());
                }
                Request::AskForStack(worker) => {
                    self.child(worker)
                        .iter()
                        .for_each(|child| child.ask_for_stack());
                }
                Request::Send(worker, frame) => {
                    if let Some((_, frames)) = self.pending.get_mut(&worker) {
                        frames.push(frame);
                    } else if let Some(child) = self.child(worker) {
                        child.push(frame);
                    }
                }
            }
        }
    }

    fn child(&mut self, worker: usize) -> Option<&mut Running> {
        self.running.get_mut(worker)?.as_mut()
    }

    fn spawn(&mut self, worker: usize) {
        let is_free = matches!(self.running.get(worker), Some(None));
        if !is_free || self.pending.contains_key(&worker) {
            return;
        }
        let start = match self.deadline {
            Some(_) => Err(ProcessError::ShutDown),
            None => self.program.start(),
        };
        let child = match start {
            Ok(Start::Pending(expected)) => {
                self.pending.insert(worker, (expected, Vec::new()));
                return;
            }
            Ok(Start::Running(child)) => Ok(child),
            Err(error) => Err(error),
        };
        self.started(worker, child);
    }

    /// A nursery has reported on a worker.
    fn check_fork(&mut self, worker: usize) {
        let Some((expected, frames)) = self.pending.remove(&worker) else {
            return;
        };
        let child = match expected.state() {
            ForkState::Pending(expected) => {
                self.pending.insert(worker, (expected, frames));
                return;
            }
            ForkState::Born(child) => Ok(child),
            ForkState::Refused => self.program.spawn(),
        };
        self.started(worker, child);
        if let Some(child) = self.child(worker) {
            frames.into_iter().for_each(|frame| child.push(frame));
        }
    }

    fn started(&mut self, worker: usize, child: Result<Child, ProcessError>) {
        let event = match child {
            Ok(child) => {
                let child = Running::new(worker, child);
                let pid = child.pid();
                if let Some(place) = self.running.get_mut(worker) {
                    *place = Some(child);
                }
                Event::Started(pid)
            }
            Err(error) => Event::Failed(error),
        };
        (self.handler)(worker, event);
    }

    /// Kills workers at the deadline, and gives up those that live on.
    fn check_deadline(&mut self) -> Result<(), ProcessError> {
        let now = Instant::now();
        if self.patience.is_none() && self.deadline.is_some_and(|deadline| deadline <= now) {
            self.running.iter().flatten().for_each(Running::kill);
            self.patience = Some(now + PATIENCE);
        }
        match self.patience {
            Some(patience) if patience <= now => {
                // Taken out: nobody waits for them.
                let left = self.running.iter_mut().filter_map(Option::take);
                let pids = left.map(|child| child.pid()).collect();
                Err(ProcessError::Unkillable { pids })
            }
            _ => Ok(()),
        }
    }

    /// Sleeps until something happens; what it was. Of one worker, its end comes last.
    fn wait(&self) -> Result<Vec<(usize, Source)>, Errno> {
        let mut names = Vec::new();
        let wake = self.inbox.wake.as_fd();
        let mut fds = vec![PollFd::from_borrowed_fd(wake, PollFlags::IN)];
        for (worker, (expected, _)) in &self.pending {
            names.push((*worker, Source::Nursery));
            fds.push(PollFd::from_borrowed_fd(expected.birth(), PollFlags::IN));
        }
        for child in self.running.iter().flatten() {
            for (source, fd, flags) in child.sources() {
                names.push((child.worker(), source));
                fds.push(PollFd::from_borrowed_fd(fd, flags));
            }
        }
        let until = self.patience.or(self.deadline);
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            // A moment more than is left, or the thread would wake a moment too early, and again.
            Timespec::try_from(left + Duration::from_millis(1))
        });
        poll(&mut fds, timeout.and_then(Result::ok).as_ref())?;
        let happened = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let ready = fds.iter().skip(1).zip(names);
        Ok(ready
            .filter_map(|(fd, name)| happened(fd).then_some(name))
            .collect())
    }

    fn serve(&mut self, worker: usize, source: Source) {
        if source == Source::Nursery {
            return self.check_fork(worker);
        }
        let Some(place) = self.running.get_mut(worker) else {
            return;
        };
        match (source, place.as_mut()) {
            // What it sent before is in socket and pipe now, and is read before the report.
            (Source::Process, _) => {
                if let Some(child) = place.take() {
                    child.report_end(&mut self.handler);
                }
            }
            (Source::Socket, Some(child)) => _ = child.read_frames(&mut self.handler),
            (Source::Stderr, Some(child)) => child.read_stderr(),
            (Source::Nursery, _) | (_, None) => {}
        }
    }

    /// Kills all workers and reports their deaths: this thread cannot watch them any more.
    fn abandon(&mut self) {
        self.running.iter().flatten().for_each(Running::kill);
        for child in self.running.iter_mut().filter_map(Option::take) {
            child.report_end(&mut self.handler);
        }
    }
}

/// Also when an event's handler panics: nobody asks any more, and no worker stays.
impl Drop for Children {
    fn drop(&mut self) {
        self.inbox.with(|asked| {
            asked.ended = true;
            asked.requests.clear();
        });
        for child in self.running.iter_mut().flatten() {
            child.end();
        }
    }
}
