//! A warm process that forks workers.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, PipeReader, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Mutex;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use windrow_sync::unpoisoned;

use super::{Child, ChildPipes, Exit, Process, WorkerProgram};
use crate::ProcessError;
use crate::refused::refused;
use crate::wire::{Frame, FrameReader, Incoming, send_now};

/// What a nursery says of one worker, on the socket that came with the request for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromNursery {
    /// The worker runs as this process, whose descriptor goes with the message.
    Born(#[serde(with = "postcard::fixint::le")] i32),
    /// The worker has ended and was waited for, with this status as `wait` gives it.
    Ended(#[serde(with = "postcard::fixint::le")] i32),
}

/// How long a nursery may take to report the status of a worker that has ended.
const PATIENCE: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// A process that has loaded what workers need, and forks them: a worker then starts within
/// milliseconds, and shares that memory.
///
/// It is started when it is needed first, and again when it is needed and was killed. One that has
/// ended by itself cannot do its work: it is not asked again. It lives as long as this value, and
/// as long as one of its workers, but no longer than this process.
#[derive(Debug)]
pub struct Nursery {
    program: WorkerProgram,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Asleep,
    Warm(Warm),
    Unfit,
}

#[derive(Debug)]
struct Warm {
    process: std::process::Child,
    socket: UnixStream,
}

impl Nursery {
    /// A nursery that runs `program`, with `args` and with `vars` beside the variables of this
    /// process. Its standard input is the socket by which it is asked.
    #[must_use]
    pub fn new(
        program: impl Into<PathBuf>,
        args: Vec<OsString>,
        vars: Vec<(OsString, OsString)>,
    ) -> Self {
        let program = WorkerProgram {
            program: program.into(),
            args,
            vars,
            forked: None,
        };
        Self {
            program,
            state: Mutex::new(State::Asleep),
        }
    }

    /// Asks for a worker, without waiting for it. `None` where it has to be started otherwise.
    pub(super) fn ask(&self, request: &[u8]) -> Option<PendingFork> {
        // What the system refuses here, it says again when the worker is spawned.
        self.try_ask(request).ok().flatten()
    }

    fn try_ask(&self, request: &[u8]) -> Result<Option<PendingFork>, ProcessError> {
        let ChildPipes {
            socket,
            stderr,
            theirs: [their_socket, their_stderr],
        } = ChildPipes::new()?;
        let (birth, their_birth) =
            UnixStream::pair().map_err(refused("make a socket to a nursery"))?;
        let fds = vec![
            their_socket,
            standard_output()?,
            their_stderr,
            open(".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                .map_err(refused("open the working directory"))?,
            file_with(request)?,
            their_birth.into(),
        ];
        let body = Vec::new();
        let frame = Frame { body, fds };
        // Nothing panics under this lock.
        let mut state = unpoisoned(self.state.lock());
        let asked = state.ask(&self.program, &frame)?;
        Ok(asked.then(|| PendingFork {
            birth: Birth(birth),
            reader: FrameReader::default(),
            socket,
            stderr,
        }))
    }
}

impl State {
    /// Sends `frame` to the nursery; whether it has taken it.
    fn ask(&mut self, program: &WorkerProgram, frame: &Frame) -> Result<bool, ProcessError> {
        for _ in 0..2 {
            let Some(warm) = self.warm(program)? else {
                return Ok(false);
            };
            // Its other workers go on while it stands still, but a new one would not come.
            if stands_still(warm.process.id()) {
                return Ok(false);
            }
            if let Ok(taken) = send_now(warm.socket.as_fd(), frame) {
                return Ok(taken);
            }
            // It has closed its end: it is ending.
            let _ = warm.process.wait();
        }
        Ok(false)
    }

    fn warm(&mut self, program: &WorkerProgram) -> Result<Option<&mut Warm>, ProcessError> {
        if let Self::Warm(warm) = self {
            match warm.process.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) if status.code().is_some() => *self = Self::Unfit,
                // Killed, or waited for by another part of this program.
                Ok(Some(_)) | Err(_) => *self = Self::Asleep,
            }
        }
        if matches!(self, Self::Asleep) {
            *self = Self::Warm(Warm::start(program)?);
        }
        Ok(match self {
            Self::Warm(warm) => Some(warm),
            Self::Asleep | Self::Unfit => None,
        })
    }
}

impl Warm {
    /// In a process group of its own, so that Ctrl-C reaches this process alone.
    fn start(program: &WorkerProgram) -> Result<Self, ProcessError> {
        let (socket, theirs) = UnixStream::pair().map_err(refused("make a socket to a nursery"))?;
        let mut command = program.command();
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        let process = program.run(&mut command)?;
        Ok(Self { process, socket })
    }
}

/// Whether a process was stopped by a signal or by a debugger.
fn stands_still(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes());
    matches!(state, Some([b'T' | b't', ..]))
}

/// Where this process prints.
fn standard_output() -> Result<OwnedFd, ProcessError> {
    let output = io::stdout().as_fd().try_clone_to_owned();
    output.or_else(|_| {
        // It was closed.
        open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(refused("open /dev/null"))
    })
}

/// A file without a name that holds `bytes`.
fn file_with(bytes: &[u8]) -> Result<OwnedFd, ProcessError> {
    let file = memfd_create(c"windrow-request", MemfdFlags::CLOEXEC)
        .map_err(refused("make a file for a request"))?;
    let mut file = File::from(file);
    file.write_all(bytes)
        .map_err(refused("write a request to a nursery"))?;
    Ok(file.into())
}

/// The socket on which a nursery reports on one worker. The nursery kills the worker and waits for
/// it when this is shut down.
#[derive(Debug)]
pub(super) struct Birth(UnixStream);

impl Birth {
    /// The status of the worker, which has ended.
    pub(super) fn status(&self) -> Exit {
        self.reported().unwrap_or(Exit::Orphaned)
    }

    fn reported(&self) -> Option<Exit> {
        self.0.shutdown(Shutdown::Write).ok()?;
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut fds, Some(&PATIENCE))).ok()?;
        let mut frames = Vec::new();
        let mut reader = FrameReader::default();
        reader.read_available(self.0.as_fd(), &mut frames).ok()?;
        match frames.pop()?.parse() {
            Ok(FromNursery::Ended(status)) => Some(Exit::Status(ExitStatus::from_raw(status))),
            _ => None,
        }
    }
}

/// Also where a child of fork has a copy of the socket.
impl Drop for Birth {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// A worker that a nursery is about to fork. Dropped, it never begins.
#[derive(Debug)]
pub(crate) struct PendingFork {
    birth: Birth,
    reader: FrameReader,
    socket: UnixStream,
    stderr: PipeReader,
}

/// The state of a fork.
#[derive(Debug)]
pub(crate) enum ForkState {
    /// Nothing yet.
    Pending(PendingFork),
    /// It runs.
    Born(Child),
    /// The nursery cannot fork it, or has ended.
    Refused,
}

impl PendingFork {
    /// What to watch: readable when there is something to [`state`](Self::state) at.
    pub(crate) fn birth(&self) -> BorrowedFd<'_> {
        self.birth.0.as_fd()
    }

    pub(crate) fn state(mut self) -> ForkState {
        let mut frames = Vec::new();
        let stream = self
            .reader
            .read_available(self.birth.0.as_fd(), &mut frames);
        match (frames.pop().map(born), stream) {
            (Some(Some((pid, pidfd))), _) => ForkState::Born(Child {
                process: Process::forked(pid, pidfd, self.birth),
                socket: self.socket,
                stderr: self.stderr,
            }),
            (None, Ok(Incoming::Open | Incoming::More)) => ForkState::Pending(self),
            _ => ForkState::Refused,
        }
    }
}

/// The process in a nursery's report.
fn born(mut frame: Frame) -> Option<(Pid, OwnedFd)> {
    match frame.parse() {
        Ok(FromNursery::Born(pid)) => Some((Pid::from_raw(pid)?, frame.fds.pop()?)),
        _ => None,
    }
}
