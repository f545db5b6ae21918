//! The messages between client and server. The README describes them field by field.

use std::ops::Range;

use windrow_peer::net::{Frame, FrameError, GreetingError, HEAD};

/// Version of the protocol, which both sides must share. Version 1 was gRPC, and version 2 sent
/// tokens.
pub(crate) const VERSION: u32 = 3;

/// Most bytes of a client's [`Kind::Hello`].
pub(crate) const LONGEST_HELLO: usize = 1 << 10;

/// Pieces of weights that a client sends before the server has answered the first: few enough that
/// none of their answers waits for the client to read.
pub(crate) const WINDOW: usize = 16;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $number:literal),* $(,)?) => {
        /// The kinds of frames, each with the meaning of its words.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u16)]
        pub(crate) enum Kind { $($(#[$doc])* $kind = $number),* }

        impl Kind {
            /// The kind of `frame`; `None` where this version has none with that number.
            pub(crate) fn of<B>(frame: &Frame<B>) -> Option<Self> {
                match frame.kind {
                    $($number => Some(Self::$kind),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// The first frame after the greeting. Words: the two halves of the producer, whether the
    /// server should know it. Body: most bytes of a message.
    Hello = 1,
    /// Its answer. Words: the run of the server, the last request of the producer that was done,
    /// most bytes of a message.
    Welcome = 2,
    /// Its answer where the server does not know the producer.
    Forgotten = 3,
    /// The producer asks no more.
    Bye = 4,
    /// The server ends the connection. Words: a [`Parting`]. Body: why.
    Closed = 5,
    /// A request failed. Body: why.
    Failed = 6,
    /// Of the greeting: the client's random bytes.
    Challenge = 9,
    /// Of the greeting: the server's random bytes, and a code; then the client's code.
    Proof = 10,
    /// Binds a client of the inference server. Body: [`BindRequest`](crate::rows::BindRequest),
    /// first observations.
    Bind = 16,
    /// Its answer. Body: columns of the policy as JSON.
    Bound = 17,
    /// Observations. Words: exploration type, rows. Body: environments, then leaves.
    Act = 18,
    /// Actions. Words: version. Body: columns.
    Acted = 19,
    /// A piece of weights. Words: bytes in all, bytes before this piece.
    Push = 32,
    /// A piece has come.
    Progress = 33,
    /// All pieces have come, and the weights act. Words: version.
    Pushed = 34,
    /// Asks for weights. Words: the version known.
    Pull = 35,
    /// A piece of weights. Words: bytes in all, bytes before this piece, version.
    Piece = 36,
    /// The newest weights are those known. Words: version.
    Current = 37,
}

impl Kind {
    pub(crate) fn frame<B>(self, seq: u64, words: [u64; 3], body: B) -> Frame<B> {
        let kind = self as u16;
        Frame {
            kind,
            seq,
            words,
            body,
        }
    }

    /// A frame without a body.
    pub(crate) fn bare(self, seq: u64, words: [u64; 3]) -> Frame {
        self.frame(seq, words, Vec::new())
    }
}

/// The name of `frame`'s kind, for errors.
pub(crate) fn name<B>(frame: &Frame<B>) -> String {
    match Kind::of(frame) {
        Some(kind) => format!("{kind:?}"),
        None => format!(
            "of kind {}, which version {VERSION} of the protocol does not know",
            frame.kind
        ),
    }
}

/// Why a server ends a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parting {
    /// The client has gone, or is not to know: it gets no answer.
    Silent,
    /// It is not let in.
    Refused(String),
    /// The server ends.
    Ended,
    /// It sent what no client may send.
    Misused(String),
    /// Another attempt may succeed.
    Again(String),
}

impl Parting {
    /// For `frame`, where another frame is expected. A client may try again after a frame of the
    /// greeting, since only the network can have changed their order.
    pub(crate) fn unexpected(expected: &str, frame: &Frame) -> Self {
        let reason = format!("expected {expected}, got a frame {}", name(frame));
        match Kind::of(frame) {
            Some(Kind::Hello | Kind::Challenge | Kind::Proof) => Self::Again(reason),
            _ => Self::Misused(reason),
        }
    }

    /// What the client is sent.
    pub(crate) fn frame(&self) -> Option<Frame> {
        let (number, reason) = match self {
            Self::Silent => return None,
            Self::Refused(reason) => (1, reason.as_str()),
            Self::Ended => (2, "it was shut down"),
            Self::Misused(reason) => (3, reason.as_str()),
            Self::Again(reason) => (4, reason.as_str()),
        };
        Some(Kind::Closed.frame(0, [number, 0, 0], reason.into()))
    }

    /// That of a [`Kind::Closed`].
    pub(crate) fn of(frame: &Frame) -> Self {
        match frame.words[0] {
            1 => Self::Refused(frame.text()),
            2 => Self::Ended,
            3 => Self::Misused(frame.text()),
            _ => Self::Again(frame.text()),
        }
    }
}

impl From<FrameError> for Parting {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Closed | FrameError::Io(_) | FrameError::Stranger => Self::Silent,
            FrameError::Broken => Self::Again(error.to_string()),
            FrameError::Limit { .. } | FrameError::Flags(_) => Self::Misused(error.to_string()),
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
    limit.saturating_sub(HEAD).clamp(1, 512 << 10)
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
    version: u64,
    bytes: Vec<u8>,
}

impl Pieces {
    /// Bytes that have come.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes a piece, and gives all bytes once they are complete. A piece that came before is left
    /// out.
    ///
    /// # Errors
    /// Why it cannot be the next.
    pub(crate) fn take(&mut self, frame: &Frame) -> Result<Option<Vec<u8>>, String> {
        let [total, offset, version] = frame.words;
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
            let frame = |piece: Range<usize>| {
                let words = [bytes.len() as u64, piece.start as u64, 3];
                Kind::Push.frame(seq, words, bytes[piece].to_vec())
            };
            pieces(bytes.len(), most).map(frame).collect()
        };
        let frames = cut(7, &bytes, 40);
        let sizes: Vec<_> = frames.iter().map(|frame| frame.body.len()).collect();
        assert_eq!(sizes, [40, 40, 20]);
        let mut pieces = Pieces::default();
        assert_eq!(pieces.take(&frames[0]).unwrap(), None);
        let gap = pieces.take(&frames[2]).unwrap_err();
        assert!(
            gap.contains("from byte 40 on, got one from byte 80"),
            "{gap}"
        );
        assert_eq!(pieces.take(&frames[0]).unwrap(), None);
        assert_eq!(pieces.take(&frames[1]).unwrap(), None);
        assert_eq!(pieces.take(&frames[2]).unwrap().unwrap(), bytes);
        // Another request begins anew.
        assert_eq!(pieces.take(&frames[0]).unwrap(), None);
        let other = cut(8, &bytes, 100);
        assert_eq!(pieces.take(&other[0]).unwrap().unwrap(), bytes);
        let none = cut(9, &[], 100);
        assert_eq!(pieces.take(&none[0]).unwrap().unwrap(), b"");
        let odd = Kind::Push.frame(10, [10, u64::MAX, 0], vec![1]);
        assert!(pieces.take(&odd).is_err());
    }

    #[test]
    fn kinds_have_the_numbers_that_travel() {
        assert_eq!(
            Kind::of(&Kind::Current.bare(0, [0; 3])),
            Some(Kind::Current)
        );
        let mut later = Kind::Bye.bare(0, [0; 3]);
        later.kind = 48;
        assert_eq!(Kind::of(&later), None);
        let named = name(&later);
        assert!(named.starts_with("of kind 48, which version 3"), "{named}");
    }

    #[test]
    fn a_client_reads_why_a_connection_ends() {
        let reason = || "why".to_owned();
        for parting in [
            Parting::Refused(reason()),
            Parting::Ended,
            Parting::Misused(reason()),
            Parting::Again(reason()),
        ] {
            assert_eq!(Parting::of(&parting.frame().unwrap()), parting);
        }
        assert!(Parting::Silent.frame().is_none());
    }
}
