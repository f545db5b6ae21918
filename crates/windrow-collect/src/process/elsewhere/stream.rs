//! The connection between a relay and its worker: one side speaks at a time, but for heartbeats.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windrow_peer::net::{Deadline, Frame, FrameError, Secret, Socket, Stream, Wire, has_bytes};
use windrow_peer::{Episode, Place, ProcessError, decode, encode};
use windrow_sync::unpoisoned;

use crate::process::messages::{Answer, Command};
use crate::process::serve_error::ServeError;

/// Version of all that both sides say.
const VERSION: u32 = 3;

/// How long nothing may come from a worker that fills a part: it sends heartbeats.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

/// Most bytes of a [`Cut`](Said::Cut).
const SHORT: usize = 1 << 10;

/// What a frame holds.
#[derive(Debug)]
pub(in crate::process) enum Said {
    /// A message that travels by a socket on one machine.
    Message(Vec<u8>),
    /// To the worker.
    Command(Command),
    /// From the worker: with the rows of a part that is filled, and the number of messages that
    /// follow before it takes a command.
    Answer(Answer, usize, Vec<u8>),
    /// To the worker: a version of the weights, one parameter behind the other.
    Weights(i64, Vec<u8>),
    /// From the worker: where it is.
    Beat(Beat),
    /// To the worker: the part that it fills is to be cut short at its next step.
    Cut,
    /// The last one of a side.
    End,
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

impl Said {
    fn frame(self) -> Result<Frame, ProcessError> {
        let (kind, words, body) = match self {
            Self::Message(message) => (2, [0; 3], message),
            Self::Command(command) => (3, [0; 3], encode(&command)?),
            Self::Answer(answer, follow, rows) => {
                // Rows come first: neither side moves them.
                let words = [rows.len() as u64, follow as u64, 0];
                let mut body = rows;
                body.extend(encode(&answer)?);
                (4, words, body)
            }
            Self::Weights(version, bytes) => (5, [version.cast_unsigned(), 0, 0], bytes),
            Self::Beat(beat) => (6, [0; 3], encode(&beat)?),
            Self::End => (7, [0; 3], Vec::new()),
            Self::Cut => (8, [0; 3], Vec::new()),
        };
        Ok(Frame {
            kind,
            seq: 0,
            words,
            body,
        })
    }

    fn of(frame: Frame) -> Result<Self, ServeError> {
        let Frame {
            kind,
            words,
            mut body,
            ..
        } = frame;
        Ok(match kind {
            2 => Self::Message(body),
            3 => Self::Command(decode(&body)?),
            4 => {
                let rows = words[0] as usize;
                let answer = body.get(rows..).ok_or(ServeError::Order)?;
                let answer = decode(answer)?;
                body.truncate(rows);
                Self::Answer(answer, words[1] as usize, body)
            }
            5 => Self::Weights(words[0].cast_signed(), body),
            6 => Self::Beat(decode(&body)?),
            7 => Self::End,
            8 => Self::Cut,
            _ => return Err(ServeError::Order),
        })
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
}

impl StreamEnd {
    /// At `stream`, over `socket`.
    pub(super) fn new(stream: Stream, socket: Arc<Socket>) -> Self {
        Self {
            wire: Mutex::new(Wire::new(stream, VERSION)),
            socket,
            is_over: Arc::default(),
            is_filling: AtomicBool::default(),
        }
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
    pub(super) fn end_part(&self, answer: Said) -> Result<(), ServeError> {
        self.is_filling.store(false, Ordering::Release);
        self.send(answer)
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
        match Said::of(wire.receive(Deadline::after(SILENCE), SHORT)?)? {
            Said::Cut => cut(),
            _ => return Err(ServeError::Order),
        }
        Ok(())
    }

    /// Sends the last frame of this side.
    pub(in crate::process) fn finish(&self) -> Result<(), ServeError> {
        self.is_over.store(true, Ordering::Release);
        self.send(Said::End)
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

    pub(in crate::process) fn send(&self, said: Said) -> Result<(), ServeError> {
        let frame = said.frame()?;
        let mut wire = unpoisoned(self.wire.lock());
        wire.send(Deadline::OnceBegun(SILENCE), &frame)
            .map_err(lost)
    }

    /// Sends `said` unless the connection is in use, as it is while the other side is waited for.
    pub(super) fn send_beside(&self, said: Said) -> Result<(), ServeError> {
        let frame = said.frame()?;
        let mut wire = match self.wire.try_lock() {
            Ok(wire) => wire,
            Err(TryLockError::Poisoned(wire)) => wire.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        wire.send(Deadline::OnceBegun(SILENCE), &frame)
            .map_err(lost)
    }

    /// Waits for a frame until `deadline`.
    pub(in crate::process) fn receive(&self, deadline: Deadline) -> Result<Said, ServeError> {
        let frame = unpoisoned(self.wire.lock()).receive(deadline, usize::MAX)?;
        Said::of(frame)
    }
}

/// The secret of a token, which is random, so that nobody can guess it.
fn secret(token: &str) -> Secret {
    Secret::new(token.as_bytes())
}

fn lost(error: std::io::Error) -> ServeError {
    ServeError::Connection(FrameError::from(error))
}
