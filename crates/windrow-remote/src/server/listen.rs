//! The door: one thread that accepts connections.

use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::{Shared, connection, count, lock};
use crate::Address;
use crate::transport::first;

pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, Socket),
}

/// The file of a socket, removed in the end.
pub(super) struct Socket {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// Who may connect.
    pub(super) user: u32,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another server may have put its own there.
        if fs::metadata(&self.path)
            .is_ok_and(|now| (now.dev(), now.ino()) == (self.device, self.inode))
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A connection, before anything was read.
pub(super) enum Raw {
    Tcp(TcpStream),
    Unix(UnixStream, u32),
}

impl Listener {
    pub(super) fn open(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp { host, port } => {
                let found = Address::resolve(host, *port)?;
                let listener = TcpListener::bind(&found[..])?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            Address::Unix(path) => {
                // A server that was killed leaves its file; one that listens is left alone.
                let is_socket =
                    fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
                if is_socket
                    && UnixStream::connect(path)
                        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
                {
                    fs::remove_file(path)?;
                }
                let listener = UnixListener::bind(path)?;
                // Until then, the user of each connection is checked.
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                listener.set_nonblocking(true)?;
                let file = fs::metadata(path)?;
                let socket = Socket {
                    path: path.clone(),
                    device: file.dev(),
                    inode: file.ino(),
                    user: file.uid(),
                };
                Ok(Self::Unix(listener, socket))
            }
        }
    }

    /// The address, with the port that the system chose.
    pub(super) fn address(&self, asked: &Address) -> io::Result<Address> {
        match (self, asked) {
            (Self::Tcp(listener), Address::Tcp { host, .. }) => Ok(Address::Tcp {
                host: host.clone(),
                port: listener.local_addr()?.port(),
            }),
            _ => Ok(asked.clone()),
        }
    }

    /// Accepts connections until the server is to stop.
    pub(super) fn accept(self, shared: &Arc<Shared>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let Ok(runtime) = runtime else {
            return;
        };
        let mut stop = shared.stop.subscribe();
        runtime.block_on(async {
            let accepting = async {
                match self {
                    Self::Tcp(listener) => {
                        let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                            return;
                        };
                        loop {
                            let accepted = listener.accept().await;
                            let raw =
                                accepted.and_then(|(stream, _)| stream.into_std().map(Raw::Tcp));
                            begin(shared, raw).await;
                        }
                    }
                    Self::Unix(listener, socket) => {
                        let Ok(listener) = tokio::net::UnixListener::from_std(listener) else {
                            return;
                        };
                        loop {
                            let accepted = listener.accept().await;
                            let raw = accepted.and_then(|(stream, _)| stream.into_std());
                            begin(shared, raw.map(|stream| Raw::Unix(stream, socket.user))).await;
                        }
                    }
                }
            };
            let stopped = stop.wait_for(|stop| *stop);
            // Whatever the result, nothing is accepted any more.
            let _ = first(pin!(stopped), pin!(accepting)).await;
        });
    }
}

/// Gives an accepted connection a thread.
async fn begin(shared: &Arc<Shared>, accepted: io::Result<Raw>) {
    const PAUSE: Duration = Duration::from_millis(20);
    let Ok(raw) = accepted else {
        // No descriptor was left, or the client has gone: a moment later there may be one.
        return tokio::time::sleep(PAUSE).await;
    };
    count(&shared.counters.connections);
    {
        let mut open = lock(&shared.open);
        if *open >= shared.choices.connections {
            count(&shared.counters.refused);
            return;
        }
        *open += 1;
    }
    let guard = Guard(Arc::clone(shared));
    let thread = std::thread::Builder::new().name("windrow-client".to_owned());
    // Without a thread the connection is dropped, and the client tries again.
    let _ = thread.spawn(move || connection::serve(&guard.0, raw));
}

/// Counts a connection until it is closed.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        *lock(&self.0.open) -= 1;
        self.0.closed.notify_all();
    }
}
