//! The process of a worker, spawned by this one or forked by a nursery, or the thread in its place.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal, test_kill_process,
};

use super::Exit;
use super::nursery::Birth;
use super::relay::RelayThread;
use crate::ProcessError;
use crate::refused::refused;

/// A worker process, which somebody has to wait for, or the thread in its place.
#[derive(Debug)]
pub struct Process(Kind);

#[derive(Debug)]
enum Kind {
    Process {
        pid: Pid,
        /// Readable when it has ended.
        pidfd: OwnedFd,
        parent: Parent,
    },
    Thread(RelayThread),
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
            Ok(pidfd) => Ok(Self(Kind::Process {
                pid,
                pidfd,
                parent: Parent::Here(process),
            })),
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
        Self(Kind::Process {
            pid,
            pidfd,
            parent: Parent::Nursery(birth),
        })
    }

    /// A thread of this process.
    pub(super) fn relayed(thread: RelayThread) -> Self {
        Self(Kind::Thread(thread))
    }

    /// Its number; 0 for a thread.
    #[must_use]
    pub fn id(&self) -> u32 {
        match &self.0 {
            Kind::Process { pid, .. } => pid.as_raw_nonzero().get().unsigned_abs(),
            Kind::Thread(_) => 0,
        }
    }

    /// Kills it and all of its process group, or asks the thread to end.
    pub(crate) fn kill(&self) {
        let (pid, pidfd) = match &self.0 {
            Kind::Process { pid, pidfd, .. } => (*pid, pidfd),
            Kind::Thread(thread) => return thread.stop(),
        };
        // When its nursery died, the system may have waited for it. Then its number may be another
        // process's, but not as long as its group has a process: where there is no process of this
        // number, the group is still its own.
        if pidfd_send_signal(pidfd, Signal::KILL).is_ok()
            || test_kill_process(pid) == Err(Errno::SRCH)
        {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    /// Sends a signal to it alone; a thread gets none.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Kind::Process { pidfd, .. } = &self.0 {
            let _ = pidfd_send_signal(pidfd, signal);
        }
    }

    /// Waits until it has ended, and takes leave of it. Further calls give the same status, or
    /// none.
    pub fn wait(&mut self) -> Exit {
        let (pidfd, parent) = match &mut self.0 {
            Kind::Process { pidfd, parent, .. } => (pidfd, parent),
            Kind::Thread(thread) => return thread.wait(),
        };
        match parent {
            Parent::Here(process) => process.wait().map_or(Exit::Untold, Exit::Status),
            Parent::Nursery(birth) => {
                let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
                // Should the system refuse to watch, nobody could wait.
                let _ = rustix::io::retry_on_intr(|| poll(&mut fds, None));
                birth.status()
            }
        }
    }
}

/// Kills the process group that `leader` leads, which nobody has waited for yet.
pub fn kill_group(leader: &std::process::Child) {
    // It fails where none of the group is left.
    let _ = kill_process_group(Pid::from_child(leader), Signal::KILL);
}

/// What is readable when it has ended.
impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Process { pidfd, .. } => pidfd.as_fd(),
            Kind::Thread(thread) => thread.as_fd(),
        }
    }
}
