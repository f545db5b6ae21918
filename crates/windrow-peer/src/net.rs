//! Peers at an address: frames over TCP, Unix sockets and TLS, with deadlines. Nothing here knows
//! what a frame is about, or why somebody connects. The README of windrow-remote has the layout of
//! frames.

mod address;
mod frame;
mod greeting;
mod listener;
mod own_certificate;
mod strangers;
mod stream;

use std::io::{self, BufReader, Read, Write};

pub use address::{Address, AddressError};
pub use frame::{Frame, FrameError, HEAD, Message};
pub use greeting::{GreetingError, Secret};
pub use listener::{Listener, has_bytes, has_gone, wait_for_end};
pub use own_certificate::OwnCertificate;
pub use rustls::ServerConfig;
pub use socket2::Socket;
pub use strangers::Strangers;
pub use stream::{ClientTls, Deadline, Stream, connect};

/// Bytes of a body that are copied behind the message, so that both are sent at once.
const TOGETHER: usize = 64 << 10;

/// Frames in both directions, behind an opening that says which version of a protocol they are of.
pub struct Wire {
    stream: BufReader<Stream>,
    version: u32,
    /// What goes out with the next frame.
    out: Vec<u8>,
}

impl Wire {
    /// Frames of `version` over `stream`.
    #[must_use]
    pub fn new(stream: Stream, version: u32) -> Self {
        Self {
            stream: BufReader::new(stream),
            version,
            out: frame::opening(version).to_vec(),
        }
    }

    /// The version of the other side's protocol.
    ///
    /// # Errors
    /// [`FrameError::Stranger`] for other bytes than an opening, and those of the stream.
    pub fn receive_version(&mut self, deadline: Deadline) -> Result<u32, FrameError> {
        let mut opening = [0; frame::OPENING];
        self.stream.get_mut().set_deadline(deadline);
        self.stream.read_exact(&mut opening)?;
        frame::version(&opening).ok_or(FrameError::Stranger)
    }

    /// The next frame, of at most `limit` bytes.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn receive(&mut self, deadline: Deadline, limit: usize) -> Result<Frame, FrameError> {
        let deadline = match deadline {
            Deadline::OnceBegun(time) if !self.stream.buffer().is_empty() => Deadline::after(time),
            deadline => deadline,
        };
        self.stream.get_mut().set_deadline(deadline);
        Frame::read(&mut self.stream, limit)
    }

    /// Whether it has bytes that came with those of an earlier frame.
    #[must_use]
    pub fn has_bytes(&self) -> bool {
        !self.stream.buffer().is_empty()
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn send<B: AsRef<[u8]>>(&mut self, deadline: Deadline, frame: &Frame<B>) -> io::Result<()> {
        let body = frame.body.as_ref();
        let (first, rest) = body.split_at(body.len().min(TOGETHER));
        self.out.extend(frame.head()?);
        self.out.extend_from_slice(&frame.message);
        self.out.extend_from_slice(first);
        self.flush(deadline)?;
        let stream = self.stream.get_mut();
        stream.write_all(rest)?;
        stream.flush()
    }

    /// Sends the opening, if no frame was sent yet.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn flush(&mut self, deadline: Deadline) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.set_deadline(deadline);
        stream.write_all(&std::mem::take(&mut self.out))?;
        stream.flush()
    }

    /// Sends no more, and waits for the other side to close: what was sent is lost where a stream
    /// is closed with bytes unread.
    pub fn finish(mut self, deadline: Deadline) {
        let stream = self.stream.get_mut();
        stream.set_deadline(deadline);
        stream.finish();
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}
