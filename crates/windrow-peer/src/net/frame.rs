//! A frame: what kind of message, the number of a request, the message, and bytes behind it, under
//! check sums.

use std::io::{self, BufRead};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ProcessError;
use crate::codec::{decode, encode};

/// Bytes of a frame before its message.
pub const HEAD: usize = 28;

/// Bytes of an opening: mark, version, check sum.
pub(super) const OPENING: usize = 16;

const MARK: [u8; 8] = *b"windrow\n";

/// Bytes for which memory is taken before any of them has come.
const STEP: usize = 64 << 10;

/// The vocabulary of the greeting.
pub(super) const GREETING: u32 = 0;

/// A vocabulary: an enum of the messages that one side may send. Each of its fields can be written
/// as [`encode`] does, whatever its value.
pub trait Message: Serialize + DeserializeOwned {
    /// The number of the vocabulary, from 1 on: another one for each that may travel by one
    /// connection.
    const KIND: u32;
}

/// One message. What it means is up to those who exchange it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame<B = Vec<u8>> {
    /// The [vocabulary](Message::KIND) of the message.
    pub kind: u32,
    /// By which an answer is known to be that of a request.
    pub seq: u64,
    /// The message, as [`encode`] writes it.
    pub message: Vec<u8>,
    /// Bytes that go with it as they are, such as rows or weights.
    pub body: B,
}

/// Why there is no frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream has ended.
    #[error("the connection was closed")]
    Closed,
    /// The system reports something else, such as the deadline.
    #[error(transparent)]
    Io(io::Error),
    /// The other side speaks another protocol.
    #[error("expected the opening of a windrow connection, got other bytes")]
    Stranger,
    /// A check sum is wrong.
    #[error("a frame is not what was sent")]
    Broken,
    /// A frame is too long.
    #[error("a frame has {got} bytes, more than the limit of {limit}")]
    Limit {
        /// Bytes allowed.
        limit: usize,
        /// Bytes of the frame.
        got: usize,
    },
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

impl<B: AsRef<[u8]>> Frame<B> {
    /// A frame of `message`, with the bytes `body` behind it.
    ///
    /// # Panics
    /// If the message cannot be written.
    #[must_use]
    pub fn of<M: Message>(seq: u64, message: &M, body: B) -> Self {
        Self {
            kind: M::KIND,
            seq,
            message: encode(message).expect("Each field of a vocabulary can be written."),
            body,
        }
    }

    /// Bytes of the frame.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        HEAD + self.message.len() + self.body.as_ref().len()
    }

    /// What comes before message and body.
    pub(super) fn head(&self) -> io::Result<[u8; HEAD]> {
        let body = self.body.as_ref();
        let lens = [self.message.len(), body.len()].map(u32::try_from);
        let [message_len, len] = lens.map(|len| len.map_err(io::Error::other));
        let mut sum = crc32fast::Hasher::new();
        sum.update(&self.message);
        sum.update(body);
        let mut head = [0; HEAD];
        let numbers = [sum.finalize(), message_len?, len?, self.kind];
        for (place, number) in head[4..20].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        head[20..].copy_from_slice(&self.seq.to_le_bytes());
        let sum = crc32fast::hash(&head[4..]);
        head[..4].copy_from_slice(&sum.to_le_bytes());
        Ok(head)
    }
}

impl Frame {
    /// Whether it is one of the greeting, whose place only the network can have changed.
    #[must_use]
    pub fn is_greeting(&self) -> bool {
        self.kind == GREETING
    }

    /// The message, if it is one of the vocabulary `M`.
    ///
    /// # Errors
    /// [`ProcessError::Message`] for bytes that are no such message, and for another vocabulary.
    pub fn parse<M: Message>(&self) -> Result<M, ProcessError> {
        match self.kind == M::KIND {
            true => decode(&self.message),
            false => Err(ProcessError::Message {
                message: std::any::type_name::<M>(),
                verb: "read",
                reason: format!("expected kind {}, got kind {}", M::KIND, self.kind),
            }),
        }
    }

    pub(super) fn read(from: &mut impl BufRead, limit: usize) -> Result<Self, FrameError> {
        let mut head = [0; HEAD];
        from.read_exact(&mut head)?;
        let numbers = [0, 4, 8, 12, 16].map(|at| u32::from_le_bytes(field(&head, at)));
        let [sum, content_sum, message_len, len, kind] = numbers;
        if crc32fast::hash(&head[4..]) != sum {
            return Err(FrameError::Broken);
        }
        let [message_len, len] = [message_len, len].map(|len| len as usize);
        let got = HEAD.saturating_add(message_len).saturating_add(len);
        if got > limit {
            return Err(FrameError::Limit { limit, got });
        }
        let (message, body) = (take(from, message_len)?, take(from, len)?);
        let mut sum = crc32fast::Hasher::new();
        sum.update(&message);
        sum.update(&body);
        if sum.finalize() != content_sum {
            return Err(FrameError::Broken);
        }
        Ok(Self {
            kind,
            seq: u64::from_le_bytes(field(&head, 20)),
            message,
            body,
        })
    }
}

/// The next `len` bytes. Memory grows as they come, whatever their number is said to be.
fn take(from: &mut impl BufRead, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let have = bytes.len();
        bytes.resize(len.min(2 * have + STEP), 0);
        from.read_exact(&mut bytes[have..])?;
    }
    Ok(bytes)
}

/// The `N` bytes from `at` on.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|byte| bytes[at + byte])
}

/// What a side sends before its first frame.
pub(super) fn opening(version: u32) -> [u8; OPENING] {
    let mut opening = [0; OPENING];
    opening[..8].copy_from_slice(&MARK);
    opening[8..12].copy_from_slice(&version.to_le_bytes());
    let sum = crc32fast::hash(&opening[..12]);
    opening[12..].copy_from_slice(&sum.to_le_bytes());
    opening
}

/// The version in `opening`; `None` where it is no opening, or not what was sent.
pub(super) fn version(opening: &[u8; OPENING]) -> Option<u32> {
    let version = u32::from_le_bytes(field(opening, 8));
    (*opening == self::opening(version)).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Message for [u64; 3] {
        const KIND: u32 = 0x1234;
    }

    impl Message for String {
        const KIND: u32 = 7;
    }

    fn bytes(frame: &Frame) -> Vec<u8> {
        [&frame.head().unwrap()[..], &frame.message, &frame.body].concat()
    }

    fn example(body: Vec<u8>) -> Frame {
        Frame::of(7, &[1, u64::MAX, 3], body)
    }

    #[test]
    fn a_frame_is_read_as_it_was_written_or_not_at_all() {
        let frame = example(b"why".to_vec());
        let bytes = bytes(&frame);
        assert_eq!(bytes.len(), frame.len());
        assert_eq!(Frame::read(&mut &bytes[..], 1024).unwrap(), frame);
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let read = Frame::read(&mut &changed[..], 1024);
            assert!(matches!(read, Err(FrameError::Broken)), "bit {bit}");
        }
        for len in 0..bytes.len() {
            let read = Frame::read(&mut &bytes[..len], 1024);
            assert!(matches!(read, Err(FrameError::Closed)), "{len} bytes");
        }
    }

    #[test]
    fn frames_of_any_size_follow_each_other() {
        let sizes = [0, 1, STEP - 1, STEP, STEP + 1, 5 * STEP + 3];
        let frames = sizes.map(|size| example((0..size).map(|byte| byte as u8).collect()));
        let stream: Vec<u8> = frames.iter().flat_map(bytes).collect();
        let mut rest = &stream[..];
        for frame in &frames {
            assert_eq!(Frame::read(&mut rest, frame.len()).unwrap(), *frame);
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_a_body_is_read() {
        let frame = example(vec![0; 100]);
        let head = frame.head().unwrap();
        let error = Frame::read(&mut &head[..], frame.len() - 1).unwrap_err();
        let expected = "a frame has 140 bytes, more than the limit of 139";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_message_is_read_by_its_own_vocabulary_alone() {
        let frame = example(Vec::new());
        assert_eq!(frame.parse::<[u64; 3]>().unwrap(), [1, u64::MAX, 3]);
        let error = frame.parse::<String>().unwrap_err().to_string();
        assert!(error.contains("expected kind 7, got kind 4660"), "{error}");
    }

    #[test]
    fn an_opening_has_a_version_or_is_none() {
        let opening = opening(77);
        assert_eq!(version(&opening), Some(77));
        for bit in 0..8 * OPENING {
            let mut changed = opening;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(version(&changed), None, "bit {bit}");
        }
    }
}
