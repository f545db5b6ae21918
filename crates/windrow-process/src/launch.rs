//! Starting a program as a worker, and being one.

mod adopt;
mod exit;

use std::ffi::OsString;
use std::io::PipeReader;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use crate::ProcessError;
use crate::refused::{no_descriptors, refused};

pub use adopt::{ChildEnd, adopt};
pub use exit::Exit;

/// The variable by which a program sees that it was started as a worker: the version of the protocol, a colon, and the parent's process.
const VARIABLE: &str = "WINDROW_WORKER";

/// Version of all that parent and worker say to each other.
const PROTOCOL: &str = "1";

/// The program that runs as a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerProgram {
    /// Path of the program, or its name where it is found by `PATH`.
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
        // This very file, also where another has taken its path since.
        Self {
            program: "/proc/self/exe".into(),
            args: Vec::new(),
            vars: Vec::new(),
        }
    }

    /// Starts it in a process group of its own, with a control socket as its standard input and a pipe as its standard error. What it
    /// prints goes where this process prints. The system kills it when the thread that calls this ends.
    ///
    /// # Errors
    /// [`ProcessError::Spawn`] when it cannot be started, [`ProcessError::Descriptors`] when there is no room for its descriptors.
    pub fn spawn(&self) -> Result<Child, ProcessError> {
        let (socket, theirs) = UnixStream::pair().map_err(refused("make a control socket"))?;
        let (stderr, their_stderr) = std::io::pipe().map_err(refused("make a pipe"))?;
        // Waits nowhere: the supervisor reads what is there. The worker's end is another one, and waits as usual.
        rustix::io::ioctl_fionbio(&stderr, true).map_err(refused("prepare a pipe"))?;
        let parent = getpid().as_raw_nonzero();
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.vars.iter().map(|(name, value)| (name, value)))
            .env(VARIABLE, format!("{PROTOCOL}:{parent}"))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stderr(Stdio::from(their_stderr))
            .process_group(0);
        let mut process = command.spawn().map_err(|source| {
            match Errno::from_io_error(&source) == Some(Errno::MFILE) {
                true => no_descriptors("start a worker"),
                false => ProcessError::Spawn {
                    program: self.program.clone(),
                    source,
                },
            }
        })?;
        match pidfd_open(Pid::from_child(&process), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Child {
                process,
                pidfd,
                socket,
                stderr,
            }),
            Err(error) => {
                // It has done nothing yet. Neither call fails for a child that was not waited for.
                let _ = process.kill();
                let _ = process.wait();
                Err(refused("watch a worker")(error))
            }
        }
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
    /// What it writes to its standard error; reading does not wait.
    pub stderr: PipeReader,
}
