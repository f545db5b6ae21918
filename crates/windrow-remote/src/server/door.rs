//! The door: one thread that accepts connections, and who is in and before it.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use socket2::Socket;

use super::{Shared, connection, count, lock};
use crate::protocol::Parting;
use windrow_peer::net::{Listener, Strangers, has_gone};
use windrow_sync::catch_panic;

/// Gives each connection to `listener` a thread, until the other end of `stop` is shut down.
pub(super) fn accept(shared: &Arc<Shared>, listener: &Listener, stop: &UnixStream) {
    const PAUSE: Duration = Duration::from_millis(20);
    loop {
        match listener.accept(stop) {
            Ok(None) => return,
            Ok(Some(socket)) => begin(shared, socket),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                count(&shared.counters.connections);
                count(&shared.counters.refused);
            }
            // No descriptor was left, or the client has gone: a moment later there may be one.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn begin(shared: &Arc<Shared>, socket: Socket) {
    count(&shared.counters.connections);
    let socket = Arc::new(socket);
    if !lock(&shared.door).knock(&socket) {
        count(&shared.counters.refused);
        return;
    }
    let guard = Guard(Arc::clone(shared), socket);
    let thread = std::thread::Builder::new().name("windrow-client".to_owned());
    // Without a thread the connection is dropped, and the client tries again.
    let _ = thread.spawn(move || {
        // A panic ends only this connection.
        if catch_panic(|| connection::serve(&guard.0, &guard.1)).is_err() {
            count(&guard.0.counters.panicked);
        }
    });
}

/// Counts a connection until it is closed.
struct Guard(Arc<Shared>, Arc<Socket>);

impl Drop for Guard {
    fn drop(&mut self) {
        lock(&self.0.door).leave(&self.1);
        self.0.closed.notify_all();
    }
}

/// The connections of a server, each with a thread: clients, and strangers before the door.
pub(super) struct Door {
    strangers: Strangers,
    clients: Vec<Arc<Socket>>,
    /// Most clients.
    connections: usize,
}

impl Door {
    /// Fewest connections that may stand before the door, however few clients there may be.
    const STRANGERS: usize = 64;

    /// A door for `connections` clients.
    pub(super) fn new(connections: usize) -> Self {
        Self {
            strangers: Strangers::new(connections.max(Self::STRANGERS)),
            clients: Vec::new(),
            connections,
        }
    }

    /// Gives a new connection a place before the door. Returns `false` if there is none, because
    /// too many connections that were displaced still have their threads.
    pub(super) fn knock(&mut self, socket: &Arc<Socket>) -> bool {
        self.strangers.enter(socket)
    }

    /// Lets `socket` in. Clients that have gone do not count, even while a policy acts for them.
    ///
    /// # Errors
    /// When there are as many clients as places, or another connection has taken the place before
    /// the door.
    pub(super) fn admit(&mut self, socket: &Arc<Socket>) -> Result<(), Parting> {
        let connections = self.connections;
        let is_full = self.clients.len() >= connections;
        let here =
            |clients: &[Arc<Socket>]| clients.iter().filter(|client| !has_gone(client)).count();
        if is_full && here(&self.clients) >= connections {
            return Err(Parting::Again(format!(
                "there are {connections} clients, and no room for more"
            )));
        }
        if !self.strangers.leave(socket) {
            let reason = "it took so long to say who it is that others got its place";
            return Err(Parting::Again(reason.to_owned()));
        }
        self.clients.push(Arc::clone(socket));
        Ok(())
    }

    pub(super) fn leave(&mut self, socket: &Arc<Socket>) {
        self.strangers.leave(socket);
        self.clients.retain(|other| !Arc::ptr_eq(other, socket));
    }

    /// Whether no client is in. Strangers do not count, since a server waits for none.
    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Closes strangers, and ends reading, writing or both for all clients, so that no thread waits
    /// there any more.
    pub(super) fn shut(&mut self, how: Shutdown) {
        self.strangers.end();
        for socket in &self.clients {
            let _ = socket.shutdown(how);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn pair() -> (Arc<Socket>, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        (Arc::new(OwnedFd::from(here).into()), there)
    }

    #[test]
    fn a_client_needs_a_place_of_its_own_and_one_inside() {
        let mut door = Door::new(2);
        let pairs: Vec<_> = (0..Door::STRANGERS + 2).map(|_| pair()).collect();
        for (socket, _) in &pairs[..Door::STRANGERS] {
            assert!(door.knock(socket));
        }
        door.admit(&pairs[0].0).unwrap();
        let newest = &pairs[Door::STRANGERS..];
        assert!(newest.iter().all(|(socket, _)| door.knock(socket)));
        let late = door.admit(&pairs[1].0).unwrap_err();
        assert!(
            matches!(&late, Parting::Again(why) if why.contains("others got its place")),
            "{late:?}"
        );
        door.admit(&newest[0].0).unwrap();
        let full = door.admit(&newest[1].0).unwrap_err();
        assert!(
            matches!(&full, Parting::Again(why) if why.contains("there are 2 clients")),
            "{full:?}"
        );
        for (socket, _) in &pairs {
            door.leave(socket);
        }
        assert!(door.is_empty());
    }

    #[test]
    fn a_client_that_has_gone_keeps_no_place_even_while_its_thread_is_busy() {
        let mut door = Door::new(1);
        let (busy, client) = pair();
        let (next, _other) = pair();
        assert!(door.knock(&busy) && door.knock(&next));
        door.admit(&busy).unwrap();
        assert!(door.admit(&next).is_err());
        // What it sent before it went is still unread.
        std::io::Write::write_all(&mut &client, b"a request").unwrap();
        drop(client);
        door.admit(&next).unwrap();
    }

    #[test]
    fn nobody_is_let_in_once_the_door_is_shut() {
        let mut door = Door::new(1);
        let (socket, _other) = pair();
        assert!(door.knock(&socket));
        door.shut(Shutdown::Read);
        assert!(door.is_empty() && door.admit(&socket).is_err());
    }
}
