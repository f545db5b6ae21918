//! The door: one thread that accepts connections, and who is in and before it.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use socket2::Socket;

use super::{Shared, connection, count, lock};
use crate::protocol::Parting;
use windrow_peer::net::{Listener, has_gone};

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
    if !lock(&shared.door).knock(&socket, shared.choices.connections) {
        count(&shared.counters.refused);
        return;
    }
    let guard = Guard(Arc::clone(shared), socket);
    let thread = std::thread::Builder::new().name("windrow-client".to_owned());
    // Without a thread the connection is dropped, and the client tries again.
    let _ = thread.spawn(move || connection::serve(&guard.0, &guard.1));
}

/// Counts a connection until it is closed.
struct Guard(Arc<Shared>, Arc<Socket>);

impl Drop for Guard {
    fn drop(&mut self) {
        lock(&self.0.door).leave(&self.1);
        self.0.closed.notify_all();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It has not said who it is.
    Stranger,
    /// It took so long to say who it is that its place was needed.
    SentAway,
    Client,
}

/// Connections, each with a thread, the oldest first. Those that have not said who they are have
/// places of their own, so that silence takes none away from clients.
#[derive(Default)]
pub(super) struct Door {
    inside: Vec<(Arc<Socket>, Place)>,
}

impl Door {
    /// Fewest connections that may stand before the door, however few clients there may be.
    const STRANGERS: usize = 64;

    /// Whether there is a place for a new connection where `connections` clients may be in; none
    /// while those that were sent away still have their threads.
    pub(super) fn knock(&mut self, socket: &Arc<Socket>, connections: usize) -> bool {
        let most = connections.max(Self::STRANGERS);
        if self.inside.len() >= connections.saturating_add(most.saturating_mul(2)) {
            return false;
        }
        if self.count(Place::Stranger) >= most {
            let mut places = self.inside.iter_mut();
            if let Some((oldest, place)) = places.find(|(_, place)| *place == Place::Stranger) {
                *place = Place::SentAway;
                let _ = oldest.shutdown(Shutdown::Both);
            }
        }
        self.inside.push((Arc::clone(socket), Place::Stranger));
        true
    }

    /// Lets `socket` in where `connections` clients may be in. Those that have gone do not count,
    /// even while a policy acts for them.
    ///
    /// # Errors
    /// When all places are taken, or its own was needed by others.
    pub(super) fn admit(
        &mut self,
        socket: &Arc<Socket>,
        connections: usize,
    ) -> Result<(), Parting> {
        let is_full = self.count(Place::Client) >= connections;
        let clients = self
            .inside
            .iter()
            .filter(|(_, place)| *place == Place::Client);
        if is_full && clients.filter(|(client, _)| !has_gone(client)).count() >= connections {
            return Err(Parting::Again(format!(
                "there are {connections} clients, and no room for more"
            )));
        }
        let mut places = self.inside.iter_mut();
        match places.find(|(other, place)| Arc::ptr_eq(other, socket) && *place == Place::Stranger)
        {
            Some((_, place)) => *place = Place::Client,
            None => {
                let reason = "it took so long to say who it is that others got its place";
                return Err(Parting::Again(reason.to_owned()));
            }
        }
        Ok(())
    }

    pub(super) fn leave(&mut self, socket: &Arc<Socket>) {
        self.inside.retain(|(other, _)| !Arc::ptr_eq(other, socket));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.inside.is_empty()
    }

    /// Ends reading, writing or both on all connections: no thread waits there any more.
    pub(super) fn shut(&self, how: Shutdown) {
        for (socket, _) in &self.inside {
            let _ = socket.shutdown(how);
        }
    }

    fn count(&self, place: Place) -> usize {
        let same = |(_, other): &&(_, Place)| *other == place;
        self.inside.iter().filter(same).count()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use super::*;

    fn pair() -> (Arc<Socket>, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        (Arc::new(OwnedFd::from(here).into()), there)
    }

    fn is_closed(mut there: &UnixStream) -> bool {
        there.read(&mut [0]).is_ok_and(|bytes| bytes == 0)
    }

    #[test]
    fn the_oldest_of_those_that_say_nothing_goes_for_one_that_comes() {
        let mut door = Door::default();
        let pairs: Vec<_> = (0..Door::STRANGERS + 2).map(|_| pair()).collect();
        let (early, newest) = pairs.split_at(Door::STRANGERS);
        for (socket, _) in early {
            assert!(door.knock(socket, 2));
        }
        door.admit(&early[0].0, 2).unwrap();
        for (socket, _) in newest {
            assert!(door.knock(socket, 2));
        }
        let closed: Vec<_> = early.iter().map(|(_, there)| is_closed(there)).collect();
        assert_eq!(&closed[..3], [false, true, false]);
        let late = door.admit(&early[1].0, 2).unwrap_err();
        assert!(
            matches!(&late, Parting::Again(why) if why.contains("others got its place")),
            "{late:?}"
        );
        door.admit(&newest[0].0, 2).unwrap();
        let full = door.admit(&newest[1].0, 2).unwrap_err();
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
        let mut door = Door::default();
        let (busy, client) = pair();
        let (next, _other) = pair();
        assert!(door.knock(&busy, 1) && door.knock(&next, 1));
        door.admit(&busy, 1).unwrap();
        assert!(door.admit(&next, 1).is_err());
        // What it sent before it went is still unread.
        std::io::Write::write_all(&mut &client, b"a request").unwrap();
        drop(client);
        door.admit(&next, 1).unwrap();
    }

    #[test]
    fn threads_have_a_limit_also_where_those_sent_away_are_slow_to_go() {
        let mut door = Door::default();
        let (socket, _other) = pair();
        let let_in = (0..1000).filter(|_| door.knock(&socket, 1)).count();
        assert_eq!(
            (let_in, door.inside.len()),
            (1 + 2 * Door::STRANGERS, let_in)
        );
    }
}
