//! What travels: frames, and their codec for the RPC library.

use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Number of the protocol, which both sides must share.
pub(crate) const PROTOCOL: u64 = 1;

/// The one method of the service.
pub(crate) const PATH: &str = "/windrow.Remote/Talk";

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident),* $(,)?) => {
        /// What a frame is, and what its words are.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Kind { $($(#[$doc])* $kind),* }

        impl Kind {
            const ALL: &[Self] = &[$(Self::$kind),*];
        }
    };
}

kinds! {
    /// First of a connection. Words: the two halves of the producer, whether the server should know it. Body: [`PROTOCOL`] and most
    /// bytes of a message.
    Hello,
    /// Its answer. Words: the run of the server, the last request of the producer that was done, most bytes of a message.
    Welcome,
    /// Its answer where the server does not know the producer.
    Forgotten,
    /// The producer asks no more.
    Bye,
    /// A place at the inference server. Body: [`Place`](crate::rows::Place).
    Bind,
    /// Its answer. Body: columns of the policy as JSON.
    Bound,
    /// Observations. Words: exploration type, rows. Body: environments, then leaves.
    Act,
    /// Actions. Words: version. Body: columns.
    Acted,
    /// A piece of weights. Words: bytes in all, bytes before this piece.
    Push,
    /// A piece has come.
    Progress,
    /// All pieces have come, and the weights act. Words: version.
    Pushed,
    /// Asks for weights. Words: the version known, whether there is one.
    Pull,
    /// A piece of weights. Words: bytes in all, bytes before this piece, version.
    Piece,
    /// The newest weights are those known. Words: version.
    Current,
    /// A request failed. Body: why.
    Failed,
}

/// One message: a request and its answer have the same number.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// Number of the request, by producer, from 1 on; 0 for a greeting.
    pub(crate) seq: u64,
    pub(crate) words: [u64; 3],
    pub(crate) body: Bytes,
}

/// Check sum, kind, number and words.
pub(crate) const HEAD: usize = 4 + 1 + 8 + 24;

impl Frame {
    pub(crate) fn new(kind: Kind, seq: u64, words: [u64; 3], body: impl Into<Bytes>) -> Self {
        Self {
            kind,
            seq,
            words,
            body: body.into(),
        }
    }

    pub(crate) fn failed(seq: u64, reason: impl Into<String>) -> Self {
        Self::new(Kind::Failed, seq, [0; 3], reason.into())
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// `bytes` cut into frames of `kind`, each with at most `most` bytes.
    pub(crate) fn pieces(
        kind: Kind,
        seq: u64,
        bytes: &Bytes,
        version: i64,
        most: usize,
    ) -> Vec<Self> {
        let total = bytes.len();
        let starts = (0..total.max(1)).step_by(most);
        let piece = |start: usize| {
            let body = bytes.slice(start..total.min(start.saturating_add(most)));
            Self::new(
                kind,
                seq,
                [total as u64, start as u64, version as u64],
                body,
            )
        };
        starts.map(piece).collect()
    }

    /// Bytes of the message.
    pub(crate) fn len(&self) -> usize {
        HEAD + self.body.len()
    }

    fn write(&self, to: &mut impl BufMut) {
        let mut head = [0; HEAD - 4];
        let mut rest = &mut head[..];
        rest.put_u8(self.kind as u8);
        rest.put_u64_le(self.seq);
        self.words.iter().for_each(|word| rest.put_u64_le(*word));
        to.put_u32_le(sum(&head, &self.body));
        to.put_slice(&head);
        to.put_slice(&self.body);
    }

    /// The frame that `bytes` are; `None` where they are not what was sent.
    fn read(mut bytes: Bytes) -> Option<Self> {
        let sent = bytes.try_get_u32_le().ok()?;
        let head = bytes.split_at_checked(HEAD - 4)?.0;
        if sum(head, &bytes[HEAD - 4..]) != sent {
            return None;
        }
        Some(Self {
            kind: *Kind::ALL.get(usize::from(bytes.get_u8()))?,
            seq: bytes.get_u64_le(),
            words: std::array::from_fn(|_| bytes.get_u64_le()),
            body: bytes,
        })
    }
}

fn sum(head: &[u8], body: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(head);
    sum.update(body);
    sum.finalize()
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

    /// Takes a piece, and gives all bytes once they are complete. A piece that came before is left out.
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

/// Frames as the messages of an RPC.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FrameCodec;

impl Codec for FrameCodec {
    type Encode = Frame;
    type Decode = Frame;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for FrameCodec {
    type Item = Frame;
    type Error = Status;

    fn encode(&mut self, frame: Frame, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.reserve(frame.len());
        frame.write(to);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(8 << 10, 256 << 10)
    }
}

impl Decoder for FrameCodec {
    type Item = Frame;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Frame>, Status> {
        let frame = Frame::read(from.copy_to_bytes(from.remaining()));
        let broken = || Status::data_loss("a frame is not what was sent");
        frame.map(Some).ok_or_else(broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written_or_not_at_all() {
        let frame = Frame::new(Kind::Failed, 7, [1, u64::MAX, 3], "why");
        let mut bytes = Vec::new();
        frame.write(&mut bytes);
        assert_eq!(bytes.len(), frame.len());
        let read = Frame::read(Bytes::copy_from_slice(&bytes)).unwrap();
        assert_eq!(
            (read.kind, read.seq, read.words),
            (frame.kind, 7, frame.words)
        );
        assert_eq!(read.text(), "why");
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Frame::read(changed.into()).is_none(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Frame::read(Bytes::copy_from_slice(&bytes[..len])).is_none());
        }
    }

    #[test]
    fn pieces_come_together_once_and_in_order() {
        let bytes = Bytes::from((0..100).collect::<Vec<u8>>());
        let frames = Frame::pieces(Kind::Push, 7, &bytes, 3, 40);
        assert_eq!(
            frames
                .iter()
                .map(|frame| frame.body.len())
                .collect::<Vec<_>>(),
            [40, 40, 20]
        );
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
        let other = Frame::pieces(Kind::Push, 8, &bytes, 3, 100);
        assert_eq!(pieces.take(&other[0]).unwrap().unwrap(), bytes);
        let none = Frame::pieces(Kind::Push, 9, &Bytes::new(), 3, 100);
        assert_eq!(pieces.take(&none[0]).unwrap().unwrap(), b"");
        let odd = Frame::new(Kind::Push, 10, [10, u64::MAX, 0], vec![1]);
        assert!(pieces.take(&odd).is_err());
    }
}
