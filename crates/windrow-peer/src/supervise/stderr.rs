//! What a worker writes to its standard error.

use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes that are kept for the report of a death, and the longest line that is passed on whole.
const KEPT: usize = 8 << 10;

/// More than any pipe holds: what a dead worker wrote comes before that.
const MOST: usize = 1 << 20;

/// Passes lines on, and keeps the last bytes.
#[derive(Debug)]
pub(super) struct Stderr {
    /// `None` at its end.
    pipe: Option<PipeReader>,
    /// A line that has begun.
    line: Vec<u8>,
    tail: Vec<u8>,
}

impl Stderr {
    /// Of a pipe that does not wait.
    pub(super) fn new(pipe: PipeReader) -> Self {
        Self {
            pipe: Some(pipe),
            line: Vec::new(),
            tail: Vec::new(),
        }
    }

    /// The pipe, while more may come.
    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads some of what is there, and passes lines on; the number of bytes.
    pub(super) fn read(&mut self) -> usize {
        let mut bytes = [0; 16 << 10];
        let Some(pipe) = &mut self.pipe else {
            return 0;
        };
        match pipe.read(&mut bytes) {
            Ok(0) => self.pipe = None,
            Ok(len) => {
                self.take(&bytes[..len], &mut io::stderr().lock());
                return len;
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                _ => self.pipe = None,
            },
        }
        0
    }

    /// Reads what a worker has left that is dead; its last bytes.
    pub(super) fn finish(mut self) -> String {
        let mut read = 0;
        // Programs that it started may still write, so there may be no end.
        while read < MOST {
            match self.read() {
                0 => break,
                len => read += len,
            }
        }
        if !self.line.is_empty() {
            self.line.push(b'\n');
            let _ = io::stderr().lock().write_all(&self.line);
        }
        String::from_utf8_lossy(&self.tail).into_owned()
    }

    /// Keeps the last bytes, and passes whole lines on to `output`; errors of the output are
    /// ignored.
    fn take(&mut self, bytes: &[u8], output: &mut impl Write) {
        self.tail.extend_from_slice(bytes);
        let surplus = self.tail.len().saturating_sub(KEPT);
        self.tail.drain(..surplus);
        self.line.extend_from_slice(bytes);
        let whole = match self.line.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if self.line.len() >= KEPT => self.line.len(),
            None => return,
        };
        let _ = output.write_all(&self.line[..whole]);
        self.line.drain(..whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stderr() -> Stderr {
        Stderr {
            pipe: None,
            line: Vec::new(),
            tail: Vec::new(),
        }
    }

    #[test]
    fn lines_are_passed_on_whole() {
        let (mut stderr, mut output) = (stderr(), Vec::new());
        let mut seen = Vec::new();
        for bytes in ["a", "b\nc", "", "d\n\ne", "\n"] {
            stderr.take(bytes.as_bytes(), &mut output);
            seen.push(String::from_utf8(std::mem::take(&mut output)).unwrap());
        }
        assert_eq!(seen, ["", "ab\n", "", "cd\n\n", "e\n"]);
    }

    #[test]
    fn a_line_without_end_is_passed_on_all_the_same_and_the_last_bytes_are_kept() {
        let (mut stderr, mut output) = (stderr(), Vec::new());
        for digit in 0..30_u8 {
            stderr.take(&[b'a' + digit % 26; 1 << 10], &mut output);
        }
        assert_eq!(output.len(), 24 << 10);
        let tail = stderr.finish();
        assert_eq!(tail.len(), KEPT);
        assert!(tail.starts_with('w') && tail.ends_with('d'), "{tail}");
    }

    #[test]
    fn an_unfinished_last_line_is_kept_as_it_was_written() {
        let mut stderr = stderr();
        stderr.take(b"first\nlast words", &mut io::sink());
        assert_eq!(stderr.finish(), "first\nlast words");
    }
}
