//! The connection between a relay and its worker: one side speaks at a time, but for heartbeats.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windrow_peer::net::{
    Deadline, Frame, FrameError, Message, Secret, Socket, Stream, Wire, has_bytes,
};
use windrow_peer::{Episode, Place};
use windrow_sync::unpoisoned;

use crate::process::messages::{Answer, Command};
use crate::process::serve_error::ServeError;

/// Version of all that both sides say.
const VERSION: u32 = 4;

/// How long nothing may come from a worker that fills a part: it sends heartbeats.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

/// Most bytes of a [`Cut`](Said::Cut).
const SHORT: usize = 1 << 10;

/// Most bytes of a frame from a worker, beside the rows of a part.
pub(super) const MOST: usize = 1 << 30;

/// What a frame holds.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::process) enum Said {
    /// Bytes: a message that travels by a socket on one machine.
    Message,
    /// To the worker.
    Command(Command),
    /// From the worker. Bytes: the rows of a part that is filled.
    Answer {
        answer: Answer,
        /// Messages that follow before it takes a command.
        follow: usize,
    },
    /// To the worker: a version of the weights. Bytes: one parameter behind the other.
    Weights(i64),
    /// From the worker: where it is.
    Beat(Beat),
    /// To the worker: the part that it fills is to be cut short at its next step.
    Cut,
    /// The last one of a side.
    End,
}

impl Message for Said {
    const KIND: u32 = 1;
}

/// Where a worker is, and the episodes of its environments.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::process) struct Beat {
    phase: u32,
    step: u32,
    env: u32,
    /// Ids and first frames.
    episodes: Vec<(u64, u64)>,
}

impl Beat {
    pub(super) fn new(place: Place, episodes: impl Iterator<Item = Episode>) -> Self {
        Self {
            phase: place.phase,
            step: place.step,
            env: place.env,
            episodes: episodes.map(|Episode { id, began }| (id, began)).collect(),
        }
    }

    /// The place, and the episodes in the order of the environments.
    pub(super) fn parts(&self) -> ([u32; 3], impl Iterator<Item = Episode>) {
        let episodes = self.episodes.iter();
        let episodes = episodes.map(|&(id, began)| Episode { id, began });
        ([self.phase, self.step, self.env], episodes)
    }
}

/// One side of the connection.
#[derive(Debug)]
pub(in crate::process) struct StreamEnd {
    wire: Mutex<Wire>,
    socket: Arc<Socket>,
    /// Set once this side has sent its last frame.
    is_over: Arc<AtomicBool>,
    /// While this side fills a part: no frame comes but [`Cut`](Said::Cut).
    is_filling: AtomicBool,
    /// Most bytes of a frame that it receives.
    most: AtomicUsize,
}

impl StreamEnd {
    /// At `stream`, over `socket`, for frames of at most `most` bytes.
    pub(super) fn new(stream: Stream, socket: Arc<Socket>, most: usize) -> Self {
        Self {
            wire: Mutex::new(Wire::new(stream, VERSION)),
            socket,
            is_over: Arc::default(),
            is_filling: AtomicBool::default(),
            most: AtomicUsize::new(most),
        }
    }

    /// Receives frames that are longer by `bytes`.
    pub(super) fn allow(&self, bytes: usize) {
        let most = self.most.load(Ordering::Relaxed);
        self.most
            .store(most.saturating_add(bytes), Ordering::Relaxed);
    }

    /// The same, which sets `is_over` before it sends its last frame.
    pub(super) fn marks_end(self, is_over: Arc<AtomicBool>) -> Self {
        Self { is_over, ..self }
    }

    /// From now on, this side fills a part.
    pub(super) fn begin_part(&self) {
        self.is_filling.store(true, Ordering::Release);
    }

    /// Sends an answer, with which a part ends.
    pub(super) fn end_part(&self, answer: &Said, rows: Vec<u8>) -> Result<(), ServeError> {
        self.is_filling.store(false, Ordering::Release);
        self.send_with(answer, rows)
    }

    /// Calls `cut` if the part that this side fills is to be cut short, before the part can end.
    pub(super) fn check_cut(&self, cut: impl FnOnce()) -> Result<(), ServeError> {
        let Ok(mut wire) = self.wire.try_lock() else {
            return Ok(());
        };
        // The other side sends no more before the answer, for which the lock is needed.
        let has_bytes = wire.has_bytes() || has_bytes(&self.socket);
        if !self.is_filling.load(Ordering::Acquire) || !has_bytes {
            return Ok(());
        }
        match wire.receive(Deadline::after(SILENCE), SHORT)?.parse()? {
            Said::Cut => cut(),
            _ => return Err(ServeError::Order),
        }
        Ok(())
    }

    /// Sends the last frame of this side.
    pub(in crate::process) fn finish(&self) -> Result<(), ServeError> {
        self.is_over.store(true, Ordering::Release);
        self.send(&Said::End)
    }

    /// Greets the invited worker, which has to prove that it knows `token`.
    pub(super) fn greet_worker(&self, token: &str, deadline: Deadline) -> Result<(), ServeError> {
        let mut wire = unpoisoned(self.wire.lock());
        Ok(wire.greet_client(Some(&secret(token)), deadline)?)
    }

    /// Greets the collector, which has to prove that it knows `token`, since the worker runs what
    /// the collector sends.
    pub(super) fn greet_collector(
        &self,
        token: &str,
        deadline: Deadline,
    ) -> Result<(), ServeError> {
        let mut wire = unpoisoned(self.wire.lock());
        Ok(wire.greet_server(Some(&secret(token)), deadline)?)
    }

    pub(in crate::process) fn send(&self, said: &Said) -> Result<(), ServeError> {
        self.send_with(said, Vec::new())
    }

    /// Sends `said`, and `bytes` as they are.
    pub(in crate::process) fn send_with(
        &self,
        said: &Said,
        bytes: Vec<u8>,
    ) -> Result<(), ServeError> {
        let frame = Frame::of(0, said, bytes);
        let mut wire = unpoisoned(self.wire.lock());
        wire.send(Deadline::OnceBegun(SILENCE), &frame)
            .map_err(lost)
    }

    /// Sends `said` unless the connection is in use, as it is while the other side is waited for.
    pub(super) fn send_beside(&self, said: &Said) -> Result<(), ServeError> {
        let frame = Frame::of(0, said, []);
        let mut wire = match self.wire.try_lock() {
            Ok(wire) => wire,
            Err(TryLockError::Poisoned(wire)) => wire.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        wire.send(Deadline::OnceBegun(SILENCE), &frame)
            .map_err(lost)
    }

    /// Waits for a frame until `deadline`; its message, and its bytes.
    pub(in crate::process) fn receive(
        &self,
        deadline: Deadline,
    ) -> Result<(Said, Vec<u8>), ServeError> {
        let most = self.most.load(Ordering::Relaxed);
        let frame = unpoisoned(self.wire.lock()).receive(deadline, most)?;
        Ok((frame.parse()?, frame.body))
    }
}

/// The secret of a token, which is random, so that nobody can guess it.
fn secret(token: &str) -> Secret {
    Secret::new(token.as_bytes())
}

fn lost(error: std::io::Error) -> ServeError {
    ServeError::Connection(FrameError::from(error))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::thread::spawn;

    use windrow_sync::error_chain;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn a_frame_that_is_longer_than_a_worker_may_send_is_refused_before_it_has_memory() {
        let (here, there) = UnixStream::pair().unwrap();
        let end = |socket, most| {
            let socket = Arc::new(Socket::from(OwnedFd::from(socket)));
            StreamEnd::new(
                Stream::client(Arc::clone(&socket), None).unwrap(),
                socket,
                most,
            )
        };
        let (here, there) = (end(here, 1000), end(there, 1000));
        let worker = spawn(move || {
            let soon = Deadline::after(SOON);
            there.greet_collector("a token", soon).unwrap();
            for _ in 0..2 {
                there.send_with(&Said::Weights(7), vec![1; 2000]).unwrap();
            }
            there
        });
        let soon = || Deadline::after(SOON);
        here.greet_worker("a token", soon()).unwrap();
        here.allow(2000);
        let (said, bytes) = here.receive(soon()).unwrap();
        assert!(matches!(said, Said::Weights(7)) && bytes == [1; 2000]);
        here.most.store(1000, Ordering::Relaxed);
        let error = error_chain(&here.receive(soon()).unwrap_err());
        assert!(error.contains("more than the limit of 1000"), "{error}");
        worker.join().unwrap();
    }
}
