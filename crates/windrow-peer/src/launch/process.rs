//! The process of a worker, spawned by this one or forked by a nursery.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal, test_kill_process,
};

use super::Exit;
use super::nursery::Birth;
use crate::ProcessError;
use crate::refused::refused;

/// A worker process, which somebody has to wait for.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    /// Readable when it has ended.
    pidfd: OwnedFd,
    parent: Parent,
}

/// The process that waits for it.
#[derive(Debug)]
enum Parent {
    Here(std::process::Child),
    Nursery(Birth),
}

impl Process {
    /// A child of this process.
    pub(super) fn spawned(mut process: std::process::Child) -> Result<Self, ProcessError> {
        let pid = Pid::from_child(&process);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self {
                pid,
                pidfd,
                parent: Parent::Here(process),
            }),
            Err(error) => {
                // It has done nothing yet. Neither call fails for a child that was not waited for.
                let _ = process.kill();
                let _ = process.wait();
                Err(refused("watch a worker")(error))
            }
        }
    }

    /// A child of a nursery.
    pub(super) fn forked(pid: Pid, pidfd: OwnedFd, birth: Birth) -> Self {
        Self {
            pid,
            pidfd,
            parent: Parent::Nursery(birth),
        }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Kills it and all of its process group.
    pub(crate) fn kill(&self) {
        // When its nursery died, the system may have waited for it. Then its number may be another process's, but not as long as its
        // group has a process: where there is no process of this number, the group is still its own.
        if pidfd_send_signal(&self.pidfd, Signal::KILL).is_ok()
            || test_kill_process(self.pid) == Err(Errno::SRCH)
        {
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
    }

    /// Sends a signal to it alone.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Waits until it has ended, and takes leave of it. Further calls give the same status, or none.
    pub fn wait(&mut self) -> Exit {
        match &mut self.parent {
            Parent::Here(process) => process.wait().map_or(Exit::Untold, Exit::Status),
            Parent::Nursery(birth) => {
                let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
                // Should the system refuse to watch, nobody could wait.
                let _ = rustix::io::retry_on_intr(|| poll(&mut fds, None));
                birth.status()
            }
        }
    }
}

/// The process descriptor.
impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
