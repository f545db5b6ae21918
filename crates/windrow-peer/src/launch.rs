//! Starting a program as a worker, and being one.

mod adopt;
mod exit;
mod nursery;
mod process;
mod relay;

use std::ffi::OsString;
use std::io::PipeReader;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::getpid;

use crate::ProcessError;
use crate::refused::{no_descriptors, refused};

pub use adopt::{ChildEnd, adopt, end_at_once};
pub use exit::Exit;
pub(crate) use nursery::{ForkState, PendingFork};
pub use nursery::{FromNursery, Nursery};
pub use process::{Process, kill_group};
pub use relay::{Program, Relay, RelayEnd};

/// The variable by which a program sees that it was started as a worker: the version of the
/// protocol, a colon, and the parent's process; then another colon and the nursery's process where
/// one has forked it.
const VARIABLE: &str = "WINDROW_WORKER";

/// Version of all that parent and worker say to each other.
const PROTOCOL: &str = "2";

/// The program that runs as a worker.
#[derive(Debug, Clone)]
pub struct WorkerProgram {
    /// Path of the program, or its name where it is found by `PATH`.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables that it gets beside those of this process.
    pub vars: Vec<(OsString, OsString)>,
    /// The nursery that forks the program's workers, and the request for each of them. A worker
    /// that it does not fork is started as without it.
    pub forked: Option<(Arc<Nursery>, Arc<[u8]>)>,
}

/// A worker that is starting.
#[derive(Debug)]
pub(crate) enum Start {
    Running(Child),
    Pending(PendingFork),
}

impl WorkerProgram {
    /// The program that runs now, without arguments: its `main` begins by looking whether it is a
    /// worker, as `windrow::worker_main` does.
    #[must_use]
    pub fn current() -> Self {
        // This very file, also where another has taken its path since.
        Self {
            program: "/proc/self/exe".into(),
            args: Vec::new(),
            vars: Vec::new(),
            forked: None,
        }
    }

    /// Asks the nursery for a worker, if there is one that takes the request; otherwise
    /// [spawns](Self::spawn) it.
    pub(crate) fn start(&self) -> Result<Start, ProcessError> {
        let forked = self.forked.as_ref();
        match forked.and_then(|(nursery, request)| nursery.ask(request)) {
            Some(expected) => Ok(Start::Pending(expected)),
            None => self.spawn().map(Start::Running),
        }
    }

    /// Starts it in a process group of its own, with a control socket as its standard input and a
    /// pipe as its standard error. What it prints goes where this process prints. The system kills
    /// it when the thread that calls this ends.
    ///
    /// # Errors
    /// [`ProcessError::Spawn`] when it cannot be started, [`ProcessError::Descriptors`] when there
    /// is no room for its descriptors.
    #[doc(hidden)]
    pub fn spawn(&self) -> Result<Child, ProcessError> {
        let ChildPipes {
            socket,
            stderr,
            theirs,
        } = ChildPipes::new()?;
        let parent = getpid().as_raw_nonzero();
        let [stdin, their_stderr] = theirs;
        let mut command = self.command();
        command
            .env(VARIABLE, format!("{PROTOCOL}:{parent}"))
            .stdin(Stdio::from(stdin))
            .stderr(Stdio::from(their_stderr));
        let process = self.run(&mut command)?;
        Ok(Child {
            process: Process::spawned(process)?,
            socket,
            stderr,
        })
    }

    /// The program in a process group of its own.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.vars.iter().map(|(name, value)| (name, value)))
            .process_group(0);
        command
    }

    fn run(&self, command: &mut Command) -> Result<std::process::Child, ProcessError> {
        command
            .spawn()
            .map_err(|source| match Errno::from_io_error(&source) {
                Some(Errno::MFILE) => no_descriptors("start a worker"),
                _ => ProcessError::Spawn {
                    program: self.program.clone(),
                    source,
                },
            })
    }
}

/// What parent and worker hold of control socket and standard error.
struct ChildPipes {
    socket: UnixStream,
    stderr: PipeReader,
    /// The worker's socket and standard error.
    theirs: [OwnedFd; 2],
}

impl ChildPipes {
    fn new() -> Result<Self, ProcessError> {
        let (socket, their_socket) =
            UnixStream::pair().map_err(refused("make a control socket"))?;
        let (stderr, their_stderr) = std::io::pipe().map_err(refused("make a pipe"))?;
        // Waits nowhere: the supervisor reads what is there. The worker's end is another one, and
        // waits as usual.
        rustix::io::ioctl_fionbio(&stderr, true).map_err(refused("prepare a pipe"))?;
        Ok(Self {
            socket,
            stderr,
            theirs: [their_socket.into(), their_stderr.into()],
        })
    }
}

/// A worker process, seen by its parent.
#[derive(Debug)]
pub struct Child {
    /// Its process; to be waited for, or it stays as a zombie.
    pub process: Process,
    /// This side of the control socket.
    pub socket: UnixStream,
    /// What it writes to its standard error; reading does not wait.
    pub stderr: PipeReader,
}
