//! The door: one thread that accepts connections, and how many are in and before it.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tonic::Status;

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
    let Some(caller) = lock(&shared.door).knock(shared.choices.connections) else {
        count(&shared.counters.refused);
        return;
    };
    let guard = Guard(Arc::clone(shared), caller);
    let thread = std::thread::Builder::new().name("windrow-client".to_owned());
    // Without a thread the connection is dropped, and the client tries again.
    let _ = thread.spawn(move || connection::serve(&guard.0, &guard.1, raw));
}

/// Counts a connection until it is closed.
struct Guard(Arc<Shared>, Arc<Caller>);

impl Drop for Guard {
    fn drop(&mut self) {
        lock(&self.0.door).leave(&self.1);
        self.0.closed.notify_all();
    }
}

/// State that the streams of one connection share.
#[derive(Default)]
pub(super) struct Caller {
    /// The client of this connection, once it was accepted.
    producer: OnceLock<u128>,
    pub(super) greeted: Notify,
    /// Tells that its place is needed.
    pub(super) sent_away: Notify,
}

/// Connections, each with a thread: those that were let in, and those that have not said who they are. The latter have places of their
/// own, so that silence takes none away from clients.
#[derive(Default)]
pub(super) struct Door {
    pub(super) open: usize,
    clients: usize,
    /// The oldest first.
    strangers: VecDeque<Arc<Caller>>,
}

impl Door {
    /// Fewest connections that may stand before the door, however few clients there may be.
    const STRANGERS: usize = 64;

    /// A new connection where `connections` clients may be in; `None` while those that were sent away still have their threads.
    pub(super) fn knock(&mut self, connections: usize) -> Option<Arc<Caller>> {
        let most = connections.max(Self::STRANGERS);
        if self.open >= connections + 2 * most {
            return None;
        }
        if self.strangers.len() >= most
            && let Some(oldest) = self.strangers.pop_front()
        {
            oldest.sent_away.notify_one();
        }
        let caller = Arc::new(Caller::default());
        self.open += 1;
        self.strangers.push_back(Arc::clone(&caller));
        Some(caller)
    }

    /// Lets `caller` in as `producer`, where `connections` clients may be in.
    ///
    /// # Errors
    /// When all places are taken, its own is needed by others, or it has been let in as somebody else.
    pub(super) fn admit(
        &mut self,
        caller: &Arc<Caller>,
        producer: u128,
        connections: usize,
    ) -> Result<(), Status> {
        if let Some(known) = caller.producer.get() {
            return match *known == producer {
                true => Ok(()),
                false => Err(Status::invalid_argument(
                    "expected one client for each connection, got a greeting of another",
                )),
            };
        }
        if self.clients >= connections {
            let reason = format!("there are {connections} clients, and no room for more");
            return Err(Status::resource_exhausted(reason));
        }
        if !self.forget(caller) {
            let reason = "it took so long to say who it is that others got its place";
            return Err(Status::unavailable(reason));
        }
        self.clients += 1;
        caller.producer.get_or_init(|| producer);
        Ok(())
    }

    pub(super) fn leave(&mut self, caller: &Arc<Caller>) {
        self.open -= 1;
        self.forget(caller);
        self.clients -= usize::from(caller.producer.get().is_some());
    }

    /// Takes `caller` off those that have not said who they are; whether it was one.
    fn forget(&mut self, caller: &Arc<Caller>) -> bool {
        let place = self
            .strangers
            .iter()
            .position(|other| Arc::ptr_eq(other, caller));
        place.is_some_and(|place| self.strangers.remove(place).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::first;

    #[test]
    fn the_oldest_of_those_that_say_nothing_goes_for_one_that_comes() {
        let mut door = Door::default();
        let knocked: Vec<_> = (0..Door::STRANGERS)
            .map(|_| door.knock(2).unwrap())
            .collect();
        door.admit(&knocked[0], 7, 2).unwrap();
        let newest = [(); 2].map(|()| door.knock(2).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let is_sent_away = |caller: &Caller| {
            let told = caller.sent_away.notified();
            let now = std::future::ready(());
            runtime
                .block_on(async { first(pin!(told), pin!(now)).await })
                .is_ok()
        };
        assert!(!is_sent_away(&knocked[0]) && is_sent_away(&knocked[1]));
        assert!(!is_sent_away(&knocked[2]));
        let late = door.admit(&knocked[1], 8, 2).unwrap_err();
        assert!(late.message().contains("others got its place"), "{late}");
        door.admit(&newest[0], 8, 2).unwrap();
        let full = door.admit(&newest[1], 9, 2).unwrap_err();
        assert!(full.message().contains("there are 2 clients"), "{full}");
        for caller in knocked.iter().chain(&newest) {
            door.leave(caller);
        }
        assert_eq!((door.open, door.clients, door.strangers.len()), (0, 0, 0));
    }

    #[test]
    fn a_connection_has_one_client() {
        let mut door = Door::default();
        let caller = door.knock(1).unwrap();
        door.admit(&caller, 1, 1).unwrap();
        door.admit(&caller, 1, 1).unwrap();
        let other = door.admit(&caller, 2, 1).unwrap_err();
        assert!(
            other.message().contains("one client for each connection"),
            "{other}"
        );
    }

    #[test]
    fn threads_have_a_limit_also_where_those_sent_away_are_slow_to_go() {
        let mut door = Door::default();
        let let_in = (0..1000).filter(|_| door.knock(1).is_some()).count();
        assert_eq!((let_in, door.open), (1 + 2 * Door::STRANGERS, let_in));
    }
}
