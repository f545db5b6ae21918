//! The messages between client and server. The README describes them.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use windrow_peer::net::{Frame, FrameError, GreetingError, HEAD, Message};
use windrow_policy::ExplorationType;

/// Version of the protocol, which both sides must share. Version 1 was gRPC, version 2 sent tokens,
/// and version 3 had messages of words.
pub(crate) const VERSION: u32 = 4;

/// Most bytes of a client's [`Request::Hello`].
pub(crate) const LONGEST_HELLO: usize = 1 << 10;

/// Pieces of weights that a client sends before the server has answered the first: few enough that
/// none of their answers waits for the client to read.
pub(crate) const WINDOW: usize = 16;

/// Most bytes of the message of a piece of weights: its variant, and three numbers.
const PIECE_MESSAGE: usize = 32;

/// From a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first frame after the greeting.
    Hello {
        producer: u128,
        /// Whether the server should know it.
        is_known: bool,
        /// Most bytes of a message.
        limit: u64,
    },
    /// The producer asks no more.
    Bye,
    /// Binds a client of the inference server, by a [`BindRequest`](crate::rows::BindRequest) as
    /// JSON. Bytes: first observations.
    Bind(String),
    /// Has the policy act. Bytes: environments, then the leaves of observations.
    Act {
        exploration: ExplorationType,
        rows: u64,
    },
    /// Bytes: a piece of weights.
    Push(Piece),
    /// Asks for weights, unless their version is the one known.
    Pull { known: i64 },
}

impl Message for Request {
    const KIND: u32 = 1;
}

/// From a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// To [`Request::Hello`].
    Welcome {
        /// The run of the server.
        instance: u64,
        /// The last request of the producer that was done.
        last: u64,
        /// Most bytes of a message.
        limit: u64,
    },
    /// To [`Request::Hello`] where the server does not know the producer.
    Forgotten,
    /// The server ends the connection.
    Closed(Parting),
    /// A request failed, for this reason.
    Failed(String),
    /// To [`Request::Bind`]: what the policy says of itself, as JSON.
    Bound(String),
    /// Bytes: columns.
    Acted { version: i64 },
    /// A piece of weights has come.
    Progress,
    /// All pieces have come, and the weights act.
    Pushed { version: i64 },
    /// Bytes: a piece of weights.
    Piece { piece: Piece, version: i64 },
    /// The newest weights are those known.
    Current { version: i64 },
}

impl Message for Answer {
    const KIND: u32 = 2;
}

/// Where a piece of weights belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// Bytes in all.
    pub(crate) total: u64,
    /// Bytes before this piece.
    pub(crate) offset: u64,
}

/// Why a server ends a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Parting {
    /// It is not let in.
    Refused(String),
    /// The server ends.
    Ended,
    /// It sent what no client may send.
    Misused(String),
    /// Another attempt may succeed.
    Again(String),
    /// The client has gone, or is not to know: it gets no answer.
    Silent,
}

/// A frame of `message` alone.
pub(crate) fn bare(seq: u64, message: &impl Message) -> Frame {
    Frame::of(seq, message, Vec::new())
}

/// The beginning of `message`, for errors.
pub(crate) fn shown(message: &impl fmt::Debug) -> String {
    format!("{message:?}").chars().take(100).collect()
}

impl Parting {
    /// For `frame`, where another frame is expected. A client may try again after a frame of the
    /// greeting, since only the network can have changed their order.
    pub(crate) fn unexpected(expected: &str, frame: &Frame) -> Self {
        let parsed = frame.parse();
        let got = match &parsed {
            Ok(request) => shown(request),
            Err(error) => error.to_string(),
        };
        let reason = format!("expected {expected}, got another frame: {got}");
        match parsed {
            Ok(Request::Hello { .. }) => Self::Again(reason),
            _ if frame.is_greeting() => Self::Again(reason),
            _ => Self::Misused(reason),
        }
    }
}

impl From<FrameError> for Parting {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Closed | FrameError::Io(_) | FrameError::Stranger => Self::Silent,
            FrameError::Broken => Self::Again(error.to_string()),
            FrameError::Limit { .. } => Self::Misused(error.to_string()),
        }
    }
}

impl From<GreetingError> for Parting {
    fn from(error: GreetingError) -> Self {
        match error {
            GreetingError::Frame(error) => error.into(),
            // The greeting has already sent the version of this side.
            GreetingError::Version { .. } => Self::Silent,
            error @ (GreetingError::Unproved | GreetingError::Asked) => {
                Self::Refused(error.to_string())
            }
            GreetingError::Other(frame) => Self::unexpected("a greeting first", &frame),
        }
    }
}

/// Bytes of weights in a frame of at most `limit` bytes.
pub(crate) fn piece(limit: usize) -> usize {
    limit
        .saturating_sub(HEAD + PIECE_MESSAGE)
        .clamp(1, 512 << 10)
}

/// `len` bytes cut into pieces of at most `most`; one piece of none.
pub(crate) fn pieces(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..len.max(1)).step_by(most);
    starts.map(move |start| start..len.min(start + most))
}

/// Weights that come in pieces.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    seq: u64,
    version: i64,
    bytes: Vec<u8>,
}

impl Pieces {
    /// Bytes that have come.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the piece of `frame`, and gives all bytes once they are complete. A piece that came
    /// before is left out.
    ///
    /// # Errors
    /// Why it cannot be the next.
    pub(crate) fn take(
        &mut self,
        frame: &Frame,
        Piece { total, offset }: Piece,
        version: i64,
    ) -> Result<Option<Vec<u8>>, String> {
        if (self.seq, self.version) != (frame.seq, version) {
            *self = Self {
                seq: frame.seq,
                version,
                bytes: Vec::new(),
            };
        }
        let have = self.bytes.len() as u64;
        let end = offset.checked_add(frame.body.len() as u64);
        let Some(end) = end.filter(|end| offset <= have && *end <= total) else {
            return Err(format!(
                "expected a piece of {total} bytes of weights from byte {have} on, got one from byte {offset} on"
            ));
        };
        if end > have {
            let new = frame.body.len() - (end - have) as usize;
            self.bytes.extend_from_slice(&frame.body[new..]);
        }
        Ok((self.bytes.len() as u64 == total).then(|| std::mem::take(self).bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_together_once_and_in_order() {
        let bytes: Vec<u8> = (0..100).collect();
        let cut = |seq, bytes: &[u8], most: usize| -> Vec<Frame> {
            let frame = |range: Range<usize>| {
                let piece = Piece {
                    total: bytes.len() as u64,
                    offset: range.start as u64,
                };
                Frame::of(seq, &Request::Push(piece), bytes[range].to_vec())
            };
            pieces(bytes.len(), most).map(frame).collect()
        };
        let frames = cut(7, &bytes, 40);
        let sizes: Vec<_> = frames.iter().map(|frame| frame.body.len()).collect();
        assert_eq!(sizes, [40, 40, 20]);
        let mut pieces = Pieces::default();
        let mut take = |frame: &Frame| match frame.parse().unwrap() {
            Request::Push(piece) => pieces.take(frame, piece, 3),
            other => panic!("expected a piece, got {other:?}"),
        };
        assert_eq!(take(&frames[0]).unwrap(), None);
        let gap = take(&frames[2]).unwrap_err();
        assert!(
            gap.contains("from byte 40 on, got one from byte 80"),
            "{gap}"
        );
        assert_eq!(take(&frames[0]).unwrap(), None);
        assert_eq!(take(&frames[1]).unwrap(), None);
        assert_eq!(take(&frames[2]).unwrap().unwrap(), bytes);
        // Another request begins anew.
        assert_eq!(take(&frames[0]).unwrap(), None);
        let other = cut(8, &bytes, 100);
        assert_eq!(take(&other[0]).unwrap().unwrap(), bytes);
        let none = cut(9, &[], 100);
        assert_eq!(take(&none[0]).unwrap().unwrap(), b"");
        let (total, offset) = (10, u64::MAX);
        let odd = Request::Push(Piece { total, offset });
        assert!(take(&Frame::of(10, &odd, vec![1])).is_err());
    }

    #[test]
    fn messages_have_the_places_that_travel() {
        let (version, text) = (0, String::new);
        let piece = Piece {
            total: 0,
            offset: 0,
        };
        let requests = [
            Request::Hello {
                producer: 0,
                is_known: false,
                limit: 0,
            },
            Request::Bye,
            Request::Bind(text()),
            Request::Act {
                exploration: ExplorationType::Random,
                rows: 0,
            },
            Request::Push(piece),
            Request::Pull { known: 0 },
        ];
        let answers = [
            Answer::Welcome {
                instance: 0,
                last: 0,
                limit: 0,
            },
            Answer::Forgotten,
            Answer::Closed(Parting::Ended),
            Answer::Failed(text()),
            Answer::Bound(text()),
            Answer::Acted { version },
            Answer::Progress,
            Answer::Pushed { version },
            Answer::Piece { piece, version },
            Answer::Current { version },
        ];
        let requests = requests.map(|request| bare(0, &request).message[0]);
        assert_eq!(requests, [0, 1, 2, 3, 4, 5]);
        let answers = answers.map(|answer| bare(0, &answer).message[0]);
        assert_eq!(answers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn a_piece_of_weights_keeps_to_the_limit_of_messages() {
        let widest = Answer::Piece {
            piece: Piece {
                total: u64::MAX,
                offset: u64::MAX,
            },
            version: i64::MIN,
        };
        for limit in [1024, 100_000] {
            let body = vec![0; piece(limit)];
            assert!(Frame::of(u64::MAX, &widest, body).len() <= limit);
        }
    }

    #[test]
    fn a_client_reads_why_a_connection_ends() {
        let reason = || "why".to_owned();
        for parting in [
            Parting::Silent,
            Parting::Refused(reason()),
            Parting::Ended,
            Parting::Misused(reason()),
            Parting::Again(reason()),
        ] {
            let closed = Answer::Closed(parting);
            assert_eq!(bare(0, &closed).parse::<Answer>().unwrap(), closed);
        }
    }
}
