//! Being a worker: the parent's socket, and an end together with the parent.

use std::env;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpgrp, getpid, getppid, kill_current_process_group, kill_process,
    pidfd_open, set_parent_process_death_signal,
};
use rustix::stdio::{dup2_stdin, stdin};
use windrow_slab::SharedFile;

use super::{PROTOCOL, VARIABLE};
use crate::ProcessError;
use crate::refused::refused;

/// What a worker process has of its parent.
#[derive(Debug)]
pub struct ChildEnd {
    socket: OwnedFd,
}

impl ChildEnd {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// The control socket, for [`FrameReader::read`](crate::FrameReader::read) and
    /// [`send`](crate::send). It waits.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends and receives no more: who waits at the socket, in this process, waits no longer.
    pub fn shut_down(&self) {
        // It fails where the other side is gone.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// The memory behind a descriptor that came by this socket. The parent is trusted to have sent
    /// memory that both sides use by the same protocol: it has started this process, and could do
    /// with it what it likes.
    ///
    /// # Errors
    /// [`ProcessError::System`] when it is no shared memory.
    pub fn shared_file(&self, fd: OwnedFd) -> Result<SharedFile, ProcessError> {
        // SAFETY: the parent made the file for the protocol that it and this process run, as said
        // above.
        unsafe { SharedFile::from_fd(fd) }.map_err(refused("open shared memory"))
    }
}

/// Makes this process a worker if it was started as one; `None` if it was not. To be called first
/// in `main`, before other threads are started, and once.
///
/// Takes the control socket from the standard input, which then is empty. From now on this process,
/// and its process group with it, is killed as soon as its parent ends or closes the socket,
/// whatever it is doing. A parent that wants it to end by itself shuts its side of the socket down:
/// [`FrameReader::read`](crate::FrameReader::read) then gives `None`.
///
/// Programs that this process starts are no workers, whatever variables they inherit.
///
/// # Errors
/// [`ProcessError::Handshake`] when the parent speaks another version of the protocol.
pub fn adopt() -> Result<Option<ChildEnd>, ProcessError> {
    let Some(variable) = env::var_os(VARIABLE) else {
        return Ok(None);
    };
    let variable = variable.to_string_lossy();
    let mut parts = variable.split(':');
    let protocol = parts.next().unwrap_or_default();
    let mut process = || parts.next()?.parse().ok().and_then(Pid::from_raw);
    let parent = process();
    // A nursery ends with the parent, and the worker with the nursery.
    let forker = process().or(parent);
    // The socket says who made it. A program that merely inherits the variable has another standard
    // input.
    if parent.is_none() || socket_peercred(stdin()).ok().map(|peer| peer.pid) != parent {
        return Ok(None);
    }
    if protocol != PROTOCOL {
        return Err(ProcessError::Handshake {
            what: "its parent speaks another version of the protocol",
            expected: PROTOCOL.to_owned(),
            got: protocol.to_owned(),
        });
    }
    forget_variable();
    // Before anything else: from now on the system kills this process with its parent, or it is
    // orphaned already.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(refused("ask for an end with the parent"))?;
    let watched = pidfd_open(getppid().unwrap_or(Pid::INIT), PidfdFlags::empty());
    if getppid() != forker {
        end_at_once();
    }
    let watched = watched.map_err(refused("watch the parent"))?;
    let socket = fcntl_dupfd_cloexec(stdin(), 3).map_err(refused("take the control socket"))?;
    let nothing = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(refused("open /dev/null"))?;
    dup2_stdin(nothing).map_err(refused("empty the standard input"))?;
    watch(
        watched,
        socket
            .try_clone()
            .map_err(refused("watch the control socket"))?,
    )?;
    Ok(Some(ChildEnd::new(socket)))
}

/// Removes the variable where nobody can be reading it; elsewhere it stays, which harms nobody.
fn forget_variable() {
    let threads = fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads == 1 {
        // SAFETY: this thread is the only one of the process, so no other reads or writes the
        // environment meanwhile.
        unsafe { env::remove_var(VARIABLE) };
    }
}

/// Starts the thread that ends this process when the parent has ended or has closed the socket.
fn watch(parent: OwnedFd, socket: OwnedFd) -> Result<(), ProcessError> {
    let watch = move || {
        // The signal comes to the thread that asked for it. The one that called `adopt` may end,
        // this one does not.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        // No event of the socket is asked for, so what is reported is its end: a parent that merely
        // shuts down its side is not.
        let mut fds = [
            PollFd::new(&parent, PollFlags::IN),
            PollFd::new(&socket, PollFlags::empty()),
        ];
        // Should the system refuse to watch, nobody would.
        while let Ok(0) | Err(Errno::INTR) = poll(&mut fds, None) {}
        end_at_once();
    };
    thread::Builder::new()
        .name("windrow-parent".to_owned())
        .spawn(watch)
        .map_err(refused("start a thread that watches the parent"))?;
    Ok(())
}

/// Ends this process and those that it started, without running anything more: code at the exit
/// could wait for the parent.
pub fn end_at_once() -> ! {
    if getpgrp() == getpid() {
        let _ = kill_current_process_group(Signal::KILL);
    }
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::abort()
}
