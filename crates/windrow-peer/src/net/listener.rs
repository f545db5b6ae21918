//! Where connections come in.

use std::fs;
use std::io;
use std::net::{Shutdown, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Socket, TcpKeepalive};

use super::Address;
use super::stream::connect;

/// Accepts connections to an address.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    /// That of a Unix socket.
    file: Option<SocketFile>,
}

/// The file of a socket, removed in the end.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// Who may connect.
    user: u32,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another server may have put its own there.
        if fs::metadata(&self.path)
            .is_ok_and(|now| (now.dev(), now.ino()) == (self.device, self.inode))
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A child of fork may have a copy, at which clients would wait.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Listener {
    /// Listens at `address`.
    ///
    /// # Errors
    /// Those of the system, such as that another server listens there.
    pub fn open(address: &Address) -> io::Result<Self> {
        let (socket, file): (Socket, _) = match address {
            Address::Tcp { host, port } => {
                let found = Address::resolve(host, *port)?;
                (TcpListener::bind(&found[..])?.into(), None)
            }
            Address::Unix(path) => {
                let (listener, file) = open_file(path)?;
                (OwnedFd::from(listener).into(), Some(file))
            }
        };
        socket.set_nonblocking(true)?;
        Ok(Self { socket, file })
    }

    /// The address, with the port that the system chose.
    ///
    /// # Errors
    /// Those of the system.
    pub fn address(&self, asked: &Address) -> io::Result<Address> {
        match (self.socket.local_addr()?.as_socket(), asked) {
            (Some(bound), Address::Tcp { host, .. }) => Ok(Address::Tcp {
                host: host.clone(),
                port: bound.port(),
            }),
            _ => Ok(asked.clone()),
        }
    }

    /// The next connection; `None` once the other end of `stop` is shut down.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] for a connection of another user; those of the system,
    /// of which the next may come to more.
    pub fn accept(&self, stop: &UnixStream) -> io::Result<Option<Socket>> {
        self.accept_within(stop, None)
    }

    /// As [`accept`](Self::accept), for `timeout` at most.
    ///
    /// # Errors
    /// As [`accept`](Self::accept); [`io::ErrorKind::TimedOut`].
    pub fn accept_within(
        &self,
        stop: &UnixStream,
        timeout: Option<Duration>,
    ) -> io::Result<Option<Socket>> {
        let waits = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut ready = [waits(stop.as_fd()), waits(self.socket.as_fd())];
        // A duration that the system cannot represent is no limit.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        if poll(&mut ready, timeout.as_ref())? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if !ready[0].revents().is_empty() {
            return Ok(None);
        }
        let (socket, _) = self.socket.accept()?;
        // Some systems hand on the listener's mode.
        socket.set_nonblocking(false)?;
        match &self.file {
            Some(file) => {
                let user = peer_user(&socket)?;
                if user != file.user && user != 0 {
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
            }
            None => {
                // A machine that vanishes closes nothing.
                let alive = TcpKeepalive::new().with_time(Duration::from_secs(60));
                socket.set_tcp_keepalive(&alive)?;
                socket.set_tcp_nodelay(true)?;
            }
        }
        Ok(Some(socket))
    }
}

fn open_file(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    /// How long another server may take to show that it listens.
    const PATIENCE: Duration = Duration::from_secs(1);
    // A server that was killed leaves its file; one that listens is left alone.
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket
        && connect(&Address::unix(path), Instant::now() + PATIENCE)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    // Until then, the user of each connection is checked.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    let file = fs::metadata(path)?;
    let file = SocketFile {
        path: path.to_owned(),
        device: file.dev(),
        inode: file.ino(),
        user: file.uid(),
    };
    Ok((listener, file))
}

#[cfg(target_os = "linux")]
fn peer_user(socket: &Socket) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

#[cfg(not(target_os = "linux"))]
fn peer_user(socket: &Socket) -> io::Result<u32> {
    Ok(nix::unistd::getpeereid(socket)?.0.as_raw())
}

/// The event of a socket whose other side has closed it, even if bytes that it sent before are
/// unread.
#[cfg(target_os = "linux")]
const GONE: PollFlags = PollFlags::RDHUP;
#[cfg(not(target_os = "linux"))]
const GONE: PollFlags = PollFlags::HUP;

/// Waits until the other side of `socket` has closed it, or the other end of `stop` is shut down,
/// which it then returns.
pub fn wait_for_end(socket: &Socket, stop: Option<&UnixStream>) -> bool {
    let mut ends = vec![PollFd::new(socket, GONE)];
    ends.extend(stop.map(|stop| PollFd::new(stop, PollFlags::IN)));
    // Should the system refuse to watch, nobody would.
    while let Err(Errno::INTR) = poll(&mut ends, None) {}
    ends.get(1).is_some_and(|stop| !stop.revents().is_empty())
}

/// Whether `socket` has bytes that nobody has read.
#[must_use]
pub fn has_bytes(socket: &Socket) -> bool {
    let mut state = [PollFd::new(socket, PollFlags::IN)];
    let polled = poll(&mut state, Some(&Timespec::default()));
    polled.is_ok_and(|ready| ready > 0)
}

/// Whether the other side of `socket` has closed it, even if bytes that it sent before are unread.
#[must_use]
pub fn has_gone(socket: &Socket) -> bool {
    let mut state = [PollFd::new(socket, GONE)];
    let polled = poll(&mut state, Some(&Timespec::default()));
    polled.is_ok_and(|ready| ready > 0)
}
