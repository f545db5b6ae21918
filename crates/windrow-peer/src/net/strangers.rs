//! Connections that have not proved who they are.

use std::net::Shutdown;
use std::sync::Arc;

use super::Socket;

/// Connections that have not proved who they are, the oldest first. They have places of their own,
/// so that silent connections take none from known ones. When the places are full, a new connection
/// displaces the oldest, so that silent connections do not keep others out.
#[derive(Debug)]
pub struct Strangers {
    most: usize,
    inside: Vec<Arc<Socket>>,
    /// Connections that were displaced and shut down, until they [leave](Self::leave).
    sent_away: Vec<Arc<Socket>>,
}

impl Strangers {
    /// Places for at most `most` connections, and for at least one.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            inside: Vec::new(),
            sent_away: Vec::new(),
        }
    }

    /// Gives `socket` a place. If all are taken, shuts the oldest socket down and gives its place
    /// to `socket`. Returns `false`, and gives no place, while as many sockets as there are places
    /// were shut down and have not left yet.
    pub fn enter(&mut self, socket: &Arc<Socket>) -> bool {
        if self.sent_away.len() >= self.most {
            return false;
        }
        if self.inside.len() >= self.most {
            let oldest = self.inside.remove(0);
            let _ = oldest.shutdown(Shutdown::Both);
            self.sent_away.push(oldest);
        }
        self.inside.push(Arc::clone(socket));
        true
    }

    /// Takes `socket` out. Returns whether it still had its place.
    pub fn leave(&mut self, socket: &Arc<Socket>) -> bool {
        let others = |other: &Arc<Socket>| !Arc::ptr_eq(other, socket);
        let before = self.inside.len();
        self.sent_away.retain(others);
        self.inside.retain(others);
        self.inside.len() < before
    }

    /// Whether no connection has a place.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inside.is_empty()
    }

    /// Shuts all of them down.
    pub fn end(&mut self) {
        self.sent_away.append(&mut self.inside);
        for socket in &self.sent_away {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

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
    fn the_oldest_goes_for_one_that_comes() {
        let mut strangers = Strangers::new(2);
        let pairs: Vec<_> = (0..4).map(|_| pair()).collect();
        let closed = || {
            pairs
                .iter()
                .map(|(_, there)| is_closed(there))
                .collect::<Vec<_>>()
        };
        assert!(pairs[..3].iter().all(|(socket, _)| strangers.enter(socket)));
        assert_eq!(closed(), [true, false, false, false]);
        assert!(!strangers.leave(&pairs[0].0) && strangers.leave(&pairs[1].0));
        assert!(strangers.enter(&pairs[3].0));
        assert_eq!(closed(), [true, false, false, false]);
        strangers.end();
        assert_eq!(closed(), [true, false, true, true]);
    }

    #[test]
    fn none_enters_while_too_many_that_were_sent_away_have_not_left() {
        let mut strangers = Strangers::new(2);
        let pairs: Vec<_> = (0..5).map(|_| pair()).collect();
        let entered: Vec<_> = pairs
            .iter()
            .map(|(socket, _)| strangers.enter(socket))
            .collect();
        assert_eq!(entered, [true, true, true, true, false]);
        strangers.leave(&pairs[0].0);
        assert!(strangers.enter(&pairs[4].0));
    }
}
