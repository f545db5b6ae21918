//! Frames over a Unix stream socket: eight bytes of length, one with the number of descriptors, and
//! the body, which is one message.
//!
//! The descriptors travel with the first byte. A reader never asks for more than the rest of one
//! frame's head or body, so what arrives with them belongs to that frame.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::ProcessError;
use crate::codec::{decode, encode};
use crate::refused::{no_descriptors, refused};

/// Most bytes of a frame's body: no message is as long, but what is no frame seems to be.
pub const MAX_BODY: usize = 1 << 40;

/// Most descriptors that a frame carries.
pub const MAX_FDS: usize = 16;

/// Most system calls of one [`FrameReader::read_available`].
const AT_ONCE: usize = 64;

/// Bytes before the body.
const HEAD: usize = 9;

/// Bytes of a body for which memory is taken before any of them has come.
const STEP: usize = 1 << 20;

/// What travels by a control socket at once.
#[derive(Debug, Default)]
pub struct Frame {
    /// A message, as [`encode`] writes it.
    pub body: Vec<u8>,
    /// Descriptors that go with it; the receiver owns copies.
    pub fds: Vec<OwnedFd>,
}

/// A frame of an encoded message.
impl From<Vec<u8>> for Frame {
    fn from(body: Vec<u8>) -> Self {
        let fds = Vec::new();
        Self { body, fds }
    }
}

impl Frame {
    /// A frame with `message`.
    ///
    /// # Errors
    /// [`ProcessError::Message`] when the message cannot be written.
    pub fn of(message: &impl Serialize) -> Result<Self, ProcessError> {
        encode(message).map(Self::from)
    }

    /// The message that was written by [`of`](Self::of).
    ///
    /// # Errors
    /// [`ProcessError::Message`] when the body holds something else.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ProcessError> {
        decode(&self.body)
    }

    /// Has another descriptor of `file` travel with it.
    ///
    /// # Errors
    /// [`ProcessError::Descriptors`] when there is no room for one more.
    pub fn attach(&mut self, file: BorrowedFd<'_>) -> Result<(), ProcessError> {
        let copy = file.try_clone_to_owned();
        self.fds
            .push(copy.map_err(refused("duplicate a descriptor"))?);
        Ok(())
    }

    /// Whether it keeps to the limits.
    pub(crate) fn check(&self) -> Result<(), ProcessError> {
        self.head().map(drop)
    }

    /// What comes before the body.
    fn head(&self) -> Result<[u8; HEAD], ProcessError> {
        let (expected, got) = (MAX_FDS, self.fds.len());
        if got > expected {
            return Err(ProcessError::Attached { expected, got });
        }
        let mut head = [got as u8; HEAD];
        head[..8].copy_from_slice(&(self.body.len() as u64).to_le_bytes());
        Ok(head)
    }
}

/// Sends a frame and waits until the socket has taken all of it.
///
/// # Errors
/// [`ProcessError::Attached`] before anything is sent; [`ProcessError::System`] when the other side
/// is gone.
pub fn send(socket: BorrowedFd<'_>, frame: &Frame) -> Result<(), ProcessError> {
    let head = frame.head()?;
    let mut sent = 0;
    while sent < HEAD + frame.body.len() {
        sent += transmit(socket, &head, frame, sent, SendFlags::empty())
            .map_err(refused("send a frame"))?;
    }
    Ok(())
}

/// Sends a frame without a body, if the socket takes it now; whether it does.
pub(crate) fn send_now(socket: BorrowedFd<'_>, frame: &Frame) -> Result<bool, ProcessError> {
    // So few bytes are never taken in part.
    match transmit(socket, &frame.head()?, frame, 0, SendFlags::DONTWAIT) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(refused("send a frame")(error)),
    }
}

/// Sends what follows the first `sent` bytes, or some of it; the number of bytes that the socket
/// took.
fn transmit(
    socket: BorrowedFd<'_>,
    head: &[u8; HEAD],
    frame: &Frame,
    sent: usize,
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = frame.fds.iter().map(AsFd::as_fd).collect();
    if sent == 0 && !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let slices = [
        IoSlice::new(head.get(sent..).unwrap_or_default()),
        IoSlice::new(
            frame
                .body
                .get(sent.saturating_sub(HEAD)..)
                .unwrap_or_default(),
        ),
    ];
    // A worker that is gone is an error here, and must not be a signal that ends this process.
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| sendmsg(socket, &slices, &mut control, flags))
}

/// Whether more may come from a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incoming {
    /// More may come; all that was there was read.
    Open,
    /// There may be more already.
    More,
    /// The other side has ended, after a whole frame.
    Ended,
}

/// Puts frames together from what a socket gives.
#[derive(Debug, Default)]
pub struct FrameReader {
    head: [u8; HEAD],
    /// What has come of the body, and room for more.
    body: Vec<u8>,
    /// Bytes of the body.
    len: usize,
    /// Bytes of head and body that have come.
    got: usize,
    /// Descriptors that have come with them.
    fds: Vec<OwnedFd>,
}

/// What one call of `recvmsg` gave.
enum Received {
    Some,
    Nothing,
    Ended,
}

impl FrameReader {
    /// Waits for a frame; `None` when the other side has ended after a whole one.
    ///
    /// # Errors
    /// [`ProcessError::CutShort`] when it ended within a frame; [`ProcessError::TooLong`] and
    /// [`ProcessError::Attached`] for what is not a frame; [`ProcessError::Descriptors`] when
    /// descriptors came and there was no room for them.
    pub fn read(&mut self, socket: BorrowedFd<'_>) -> Result<Option<Frame>, ProcessError> {
        loop {
            // Only a socket that was set not to wait says that there is nothing; for it, too, this
            // call waits.
            match self.receive(socket, RecvFlags::empty())? {
                Received::Some => {}
                Received::Nothing => readable(socket)?,
                Received::Ended => return Ok(None),
            }
            if let Some(frame) = self.whole()? {
                return Ok(Some(frame));
            }
        }
    }

    /// Adds to `frames` those that are there, without waiting; a few at most, so that one side that
    /// writes all the time does not keep the other from everything else.
    ///
    /// # Errors
    /// As [`read`](Self::read). The frames before the error are in `frames`.
    pub fn read_available(
        &mut self,
        socket: BorrowedFd<'_>,
        frames: &mut Vec<Frame>,
    ) -> Result<Incoming, ProcessError> {
        for _ in 0..AT_ONCE {
            match self.receive(socket, RecvFlags::DONTWAIT)? {
                Received::Some => {}
                Received::Nothing => return Ok(Incoming::Open),
                Received::Ended => return Ok(Incoming::Ended),
            }
            frames.extend(self.whole()?);
        }
        Ok(Incoming::More)
    }

    /// Reads once, at most to the end of the head or of the body.
    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        flags: RecvFlags,
    ) -> Result<Received, ProcessError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let missing = match self.got.checked_sub(HEAD) {
            None => self.head.get_mut(self.got..),
            Some(got) => self.body.get_mut(got..),
        };
        let mut slices = [IoSliceMut::new(missing.unwrap_or_default())];
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::io::retry_on_intr(|| recvmsg(socket, &mut slices, &mut control, flags));
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            // The other side ended with frames of ours unread; what it had sent before was read.
            Err(Errno::CONNRESET) => return self.ended(),
            Err(error) => return Err(refused("read a frame")(error)),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) && self.fds.len() < MAX_FDS {
            return Err(no_descriptors("receive the descriptors of a frame"));
        }
        if received.bytes == 0 {
            return self.ended();
        }
        self.got += received.bytes;
        if self.got >= HEAD {
            self.make_room()?;
        }
        Ok(Received::Some)
    }

    /// Makes room for more of the body: twice as much as has come of it, since nothing but the head
    /// has promised the rest.
    fn make_room(&mut self) -> Result<(), ProcessError> {
        let [len @ .., _] = self.head;
        let (limit, got) = (MAX_BODY, u64::from_le_bytes(len) as usize);
        if got > limit {
            return Err(ProcessError::TooLong { limit, got });
        }
        self.len = got;
        let come = self.got - HEAD;
        if come == self.body.len() {
            self.body.resize(got.min(2 * come.max(STEP)), 0);
        }
        Ok(())
    }

    /// The frame, if it has come to its end.
    fn whole(&mut self) -> Result<Option<Frame>, ProcessError> {
        if self.got < HEAD + self.len || self.got < HEAD {
            return Ok(None);
        }
        let Self {
            head, body, fds, ..
        } = std::mem::take(self);
        let [.., announced] = head;
        let (expected, got) = (usize::from(announced), fds.len());
        if expected != got {
            return Err(ProcessError::Attached { expected, got });
        }
        Ok(Some(Frame { body, fds }))
    }

    fn ended(&self) -> Result<Received, ProcessError> {
        match self.got {
            0 => Ok(Received::Ended),
            got => Err(ProcessError::CutShort {
                expected: HEAD + self.len,
                got,
            }),
        }
    }
}

/// Waits until there is something to read.
fn readable(socket: BorrowedFd<'_>) -> Result<(), ProcessError> {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut fds, None)).map_err(refused("wait for a frame"))?;
    Ok(())
}

/// Frames that wait until a socket takes them.
#[derive(Debug, Default)]
pub struct FrameWriter {
    waiting: VecDeque<([u8; HEAD], Frame)>,
    /// Bytes of the first one that the socket has taken.
    sent: usize,
}

impl FrameWriter {
    /// Puts a frame behind the others.
    ///
    /// # Errors
    /// [`ProcessError::Attached`].
    pub fn push(&mut self, frame: Frame) -> Result<(), ProcessError> {
        self.waiting.push_back((frame.head()?, frame));
        Ok(())
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Writes what the socket takes now, without waiting; see [`is_empty`](Self::is_empty) for
    /// whether it took all.
    ///
    /// # Errors
    /// [`ProcessError::System`] when the other side is gone.
    pub fn write_available(&mut self, socket: BorrowedFd<'_>) -> Result<(), ProcessError> {
        while let Some((head, frame)) = self.waiting.front() {
            match transmit(socket, head, frame, self.sent, SendFlags::DONTWAIT) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(refused("send a frame")(error)),
            }
            if self.sent == HEAD + frame.body.len() {
                self.waiting.pop_front();
                self.sent = 0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("a pair of sockets")
    }

    #[test]
    fn frames_arrive_whole_and_in_order_however_long_they_are() {
        let (here, there) = pair();
        let bodies: Vec<_> = [0, 1, 70_000, 3 << 20]
            .map(|len| (0..len).map(|at| at as u8).collect::<Vec<_>>())
            .into();
        let sent = bodies.clone();
        let sender = thread::spawn(move || {
            for body in sent {
                send(here.as_fd(), &Frame::from(body)).expect("the reader lives");
            }
        });
        let mut reader = FrameReader::default();
        for body in bodies {
            let got = reader.read(there.as_fd()).expect("a frame").expect("more");
            assert!(got.body == body);
        }
        assert!(reader.read(there.as_fd()).expect("the end").is_none());
        sender.join().expect("all was sent");
    }

    #[test]
    fn descriptors_come_with_their_own_frame() {
        let (here, there) = pair();
        let files = ["one", "two"].map(|text| {
            let mut file: File = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC)
                .expect("a file")
                .into();
            file.write_all(text.as_bytes()).expect("room");
            file
        });
        let mut writer = FrameWriter::default();
        for file in files {
            let mut frame = Frame::from(vec![1]);
            frame.fds.push(file.into());
            writer.push(frame).expect("short enough");
            writer.push(Frame::from(vec![2])).expect("short enough");
        }
        writer.write_available(here.as_fd()).expect("a reader");
        assert!(writer.is_empty());
        let mut frames = Vec::new();
        let state = FrameReader::default().read_available(there.as_fd(), &mut frames);
        assert_eq!(state.expect("open"), Incoming::Open);
        assert_eq!(
            frames.iter().map(|frame| frame.body[0]).collect::<Vec<_>>(),
            [1, 2, 1, 2]
        );
        let texts: Vec<_> = frames
            .into_iter()
            .flat_map(|frame| frame.fds)
            .map(|fd| {
                let (mut file, mut text) = (File::from(fd), String::new());
                file.rewind().expect("a file");
                file.read_to_string(&mut text).expect("text");
                text
            })
            .collect();
        assert_eq!(texts, ["one", "two"]);
    }

    #[test]
    fn a_frame_cut_short_is_neither_a_frame_nor_the_end() {
        for (bytes, expected) in [(&b"\x05\0"[..], 9), (&b"\x05\0\0\0\0\0\0\0\0abc"[..], 14)] {
            let (mut here, there) = pair();
            here.write_all(bytes).expect("a reader");
            let mut reader = FrameReader::default();
            let mut frames = Vec::new();
            let open = reader.read_available(there.as_fd(), &mut frames);
            assert_eq!(open.expect("open"), Incoming::Open);
            drop(here);
            match reader.read(there.as_fd()) {
                Err(ProcessError::CutShort { expected: of, got }) => {
                    assert_eq!((of, got), (expected, bytes.len()));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn bytes_that_are_no_frame_are_refused_and_a_length_alone_takes_no_memory() {
        let (mut here, there) = pair();
        here.write_all(b"a line of text\n").expect("a reader");
        let read = FrameReader::default().read(there.as_fd());
        assert!(matches!(read, Err(ProcessError::TooLong { .. })));
        let (mut here, there) = pair();
        here.write_all(&[0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0])
            .expect("a reader");
        let mut reader = FrameReader::default();
        let open = reader.read_available(there.as_fd(), &mut Vec::new());
        assert_eq!(open.expect("open"), Incoming::Open);
        assert!(reader.body.len() <= 2 * STEP);
    }

    #[test]
    fn announced_descriptors_that_do_not_come_are_an_error() {
        let (mut here, there) = pair();
        here.write_all(b"\0\0\0\0\0\0\0\0\x02").expect("a reader");
        let read = FrameReader::default().read(there.as_fd());
        let got = read.expect_err("none came").to_string();
        assert_eq!(got, "a frame carries 0 descriptors, expected 2");
    }

    #[test]
    fn a_writer_keeps_what_the_socket_does_not_take() {
        let (here, there) = pair();
        let mut writer = FrameWriter::default();
        let body = vec![7; 4 << 20];
        writer
            .push(Frame::from(body.clone()))
            .expect("short enough");
        writer.write_available(here.as_fd()).expect("a reader");
        assert!(!writer.is_empty(), "no socket takes so much at once");
        let (mut reader, mut frames) = (FrameReader::default(), Vec::new());
        while frames.is_empty() {
            reader
                .read_available(there.as_fd(), &mut frames)
                .expect("open");
            writer.write_available(here.as_fd()).expect("a reader");
        }
        assert!(writer.is_empty() && frames[0].body == body);
    }

    #[test]
    fn an_end_with_unread_frames_is_the_end_behind_what_was_sent() {
        let (here, there) = pair();
        send(there.as_fd(), &Frame::from(b"never read".to_vec())).expect("a reader");
        send(here.as_fd(), &Frame::from(b"last words".to_vec())).expect("a reader");
        drop(here);
        let (mut reader, mut frames) = (FrameReader::default(), Vec::new());
        let state = reader.read_available(there.as_fd(), &mut frames);
        assert_eq!(state.expect("the end"), Incoming::Ended);
        assert_eq!(frames[0].body, b"last words");
        let error = send(there.as_fd(), &Frame::default()).expect_err("nobody reads");
        assert!(matches!(error, ProcessError::System { .. }));
    }
}
