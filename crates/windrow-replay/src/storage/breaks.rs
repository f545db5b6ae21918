//! Which rows on disk hold frames that were written apart from those in the rows before.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use windrow_sync::unpoisoned;

use crate::ReplayError;
use crate::file::io_error;

/// One bit a row, in memory and in a file that outlives the process.
#[derive(Debug)]
pub(super) struct Breaks {
    path: PathBuf,
    capacity: usize,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    file: File,
    bits: Vec<u8>,
}

impl Breaks {
    /// A file at `path` in which no row is apart, replacing an old one.
    ///
    /// # Errors
    /// [`ReplayError::Io`].
    pub(super) fn make(path: &Path, capacity: usize) -> Result<Self, ReplayError> {
        let bits = vec![0; capacity.div_ceil(8)];
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(path).map_err(io_error("create", path))?;
        write_at(&file, &bits, 0).map_err(io_error("write", path))?;
        Ok(Self::of(path, capacity, file, bits))
    }

    /// The contents of the file at `path`.
    ///
    /// # Errors
    /// [`ReplayError::Io`]; [`ReplayError::Damaged`] when it is of another size.
    pub(super) fn open(path: &Path, capacity: usize) -> Result<Self, ReplayError> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(path);
        let file = file.map_err(io_error("open", path))?;
        let bits = std::fs::read(path).map_err(io_error("read", path))?;
        let expected = capacity.div_ceil(8);
        if bits.len() != expected {
            return Err(ReplayError::Damaged {
                path: path.to_path_buf(),
                expected: format!("{expected} bytes"),
                got: format!("{} bytes", bits.len()),
            });
        }
        Ok(Self::of(path, capacity, file, bits))
    }

    fn of(path: &Path, capacity: usize, file: File, bits: Vec<u8>) -> Self {
        Self {
            path: path.to_path_buf(),
            capacity,
            held: Mutex::new(Held { file, bits }),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        unpoisoned(self.held.lock())
    }

    /// The rows that are apart.
    pub(super) fn rows(&self) -> Vec<u32> {
        let held = self.held();
        let rows = 0..self.capacity as u32;
        rows.filter(|&row| held.bits[row as usize / 8] >> (row % 8) & 1 == 1)
            .collect()
    }

    /// Calls `write` for `len` rows from `first` on, modulo the capacity; records that the rows in `places` begin new episodes.
    ///
    /// A process may die anywhere in between: a row may then be said to be apart that is not, but never the other way round.
    ///
    /// # Errors
    /// The errors of `write`; [`ReplayError::Io`].
    pub(super) fn around(
        &self,
        (first, len): (usize, usize),
        places: &[usize],
        write: impl FnOnce() -> Result<(), ReplayError>,
    ) -> Result<(), ReplayError> {
        if first >= self.capacity || len > self.capacity {
            // That is for it to say.
            return write();
        }
        let mut held = self.held();
        let mut changed = false;
        for place in places {
            changed |= held.set((first + place) % self.capacity, true);
        }
        if changed {
            self.put(&held, first, len)?;
        }
        write()?;
        let mut changed = false;
        let mut places = places.iter().copied().peekable();
        for place in 0..len {
            if places.next_if_eq(&place).is_none() {
                changed |= held.set((first + place) % self.capacity, false);
            }
        }
        if changed {
            self.put(&held, first, len)?;
        }
        Ok(())
    }

    /// Brings the bits of these rows to the file.
    fn put(&self, held: &Held, first: usize, len: usize) -> Result<(), ReplayError> {
        let end = first + len;
        let pieces = [
            first..end.min(self.capacity),
            0..end.saturating_sub(self.capacity),
        ];
        for rows in pieces.into_iter().filter(|rows| !rows.is_empty()) {
            let bytes = rows.start / 8..rows.end.div_ceil(8);
            write_at(&held.file, &held.bits[bytes.clone()], bytes.start as u64)
                .map_err(io_error("write", &self.path))?;
        }
        Ok(())
    }
}

impl Held {
    /// Sets the bit of `row`; whether it was another.
    fn set(&mut self, row: usize, apart: bool) -> bool {
        let (byte, bit) = (&mut self.bits[row / 8], 1 << (row % 8));
        let before = *byte;
        *byte = if apart { before | bit } else { before & !bit };
        *byte != before
    }
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(not(unix))]
fn write_at(mut file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};

    file.seek(SeekFrom::Start(at))?;
    file.write_all(bytes)
}
