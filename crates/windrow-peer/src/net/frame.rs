//! A frame: kind, number, three words and a body, under check sums.

use std::io::{self, BufRead};

/// Bytes of a frame before its body.
pub const HEAD: usize = 48;

/// Bytes of an opening: mark, version, check sum.
pub(super) const OPENING: usize = 16;

const MARK: [u8; 8] = *b"windrow\n";

/// Bytes of a body for which memory is taken before any of them has come.
const STEP: usize = 64 << 10;

/// One message. What kinds and words mean is up to those who exchange it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame<B = Vec<u8>> {
    /// What it is; the numbers are the caller's.
    pub kind: u16,
    /// By which an answer is known to be that of a request.
    pub seq: u64,
    /// Numbers that go with it.
    pub words: [u64; 3],
    /// Its content.
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
    /// A frame of a later version.
    #[error("a frame has the flags {0:#x}, which this version of the protocol does not know")]
    Flags(u16),
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
    /// Bytes of the frame.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        HEAD + self.body.as_ref().len()
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.body.as_ref()).into_owned()
    }

    pub(super) fn head(&self) -> io::Result<[u8; HEAD]> {
        let body = self.body.as_ref();
        let len = u32::try_from(body.len()).map_err(io::Error::other)?;
        let mut head = [0; HEAD];
        head[4..8].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
        head[8..12].copy_from_slice(&len.to_le_bytes());
        head[12..14].copy_from_slice(&self.kind.to_le_bytes());
        head[16..24].copy_from_slice(&self.seq.to_le_bytes());
        for (place, word) in head[24..].chunks_exact_mut(8).zip(self.words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let sum = crc32fast::hash(&head[4..]);
        head[..4].copy_from_slice(&sum.to_le_bytes());
        Ok(head)
    }
}

impl Frame {
    pub(super) fn read(from: &mut impl BufRead, limit: usize) -> Result<Self, FrameError> {
        let mut head = [0; HEAD];
        from.read_exact(&mut head)?;
        let [sum, body_sum, len] = [0, 4, 8].map(|at| u32::from_le_bytes(field(&head, at)));
        if crc32fast::hash(&head[4..]) != sum {
            return Err(FrameError::Broken);
        }
        match u16::from_le_bytes(field(&head, 14)) {
            0 => {}
            flags => return Err(FrameError::Flags(flags)),
        }
        let len = len as usize;
        if len > limit.saturating_sub(HEAD) {
            let got = HEAD.saturating_add(len);
            return Err(FrameError::Limit { limit, got });
        }
        // It grows as bytes come, whatever their number is said to be.
        let mut body = Vec::new();
        while body.len() < len {
            let have = body.len();
            body.resize(len.min(2 * have + STEP), 0);
            from.read_exact(&mut body[have..])?;
        }
        if crc32fast::hash(&body) != body_sum {
            return Err(FrameError::Broken);
        }
        Ok(Self {
            kind: u16::from_le_bytes(field(&head, 12)),
            seq: u64::from_le_bytes(field(&head, 16)),
            words: [24, 32, 40].map(|at| u64::from_le_bytes(field(&head, at))),
            body,
        })
    }
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

    fn bytes(frame: &Frame) -> Vec<u8> {
        [&frame.head().unwrap()[..], &frame.body].concat()
    }

    fn example(body: Vec<u8>) -> Frame {
        Frame {
            kind: 0x1234,
            seq: 7,
            words: [1, u64::MAX, 3],
            body,
        }
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
        let error = Frame::read(&mut &head[..], 147).unwrap_err();
        let expected = "a frame has 148 bytes, more than the limit of 147";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn flags_of_a_later_version_are_refused_by_name() {
        let mut bytes = bytes(&example(Vec::new()));
        bytes[15] = 0x80;
        let sum = crc32fast::hash(&bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        let error = Frame::read(&mut &bytes[..], 1024).unwrap_err().to_string();
        assert!(error.contains("flags 0x8000"), "{error}");
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
