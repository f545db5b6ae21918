//! Memory in mapped files, and memory in large pages.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Mutex;

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use windrow_sync::unpoisoned;

use crate::StoreError;
use crate::header::UNMADE;

/// Memory of at least this many bytes gets large pages: in small ones, every other cache miss of a
/// random read is preceded by one in the page tables.
pub(crate) const HUGE: usize = 4 << 20;

/// Zeroed memory, in large pages if the system has some.
pub(crate) fn pages(bytes: usize) -> io::Result<MmapRaw> {
    let map = MmapMut::map_anon(bytes)?;
    // Small pages work too.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map.into())
}

/// A whole file mapped into memory, and locked against other stores.
#[derive(Debug)]
pub(crate) struct Mapped {
    map: MmapRaw,
    /// Holds the lock.
    file: File,
    /// Which pieces of the file have room on the disk; `None` if the whole file has.
    pieces: Option<Mutex<Vec<bool>>>,
    /// Name of the file in errors.
    path: PathBuf,
}

/// Values of variable size begin at a multiple of this, behind the rows: more than a page of any
/// system.
const VALUES: u64 = 1 << 16;

/// Bytes of a file that get room at a time.
const PIECE: usize = 16 << 20;

impl Mapped {
    /// Maps the file at `path`. Creates a missing one with `bytes` bytes: [`UNMADE`], then zeros.
    ///
    /// Allocates the disk space at once where the system can: otherwise a full disk would end the
    /// process at the first write to a page without space. The file may be longer where it
    /// `has_values`.
    pub(crate) fn open(path: &Path, bytes: usize, has_values: bool) -> Result<Self, StoreError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed("open", path))?;
        Self::over(file, path, bytes, has_values)
    }

    /// As [`open`](Self::open), for a file that is already open, new and to be gone with this. It
    /// takes room on the disk only where [`make_room`](Self::make_room) was called. Errors call it
    /// `path`.
    pub(crate) fn sparse(file: File, path: &Path, bytes: usize) -> Result<Self, StoreError> {
        let sized = mark(&file).and_then(|()| file.set_len(bytes as u64));
        sized.map_err(failed("write", path))?;
        let map = MmapRaw::map_raw(&file).map_err(failed("map", path))?;
        let pieces = vec![false; bytes.div_ceil(PIECE)];
        Ok(Self {
            map,
            file,
            pieces: Some(Mutex::new(pieces)),
            path: path.to_path_buf(),
        })
    }

    /// Bytes behind the rows: those of values.
    pub(crate) fn values_len(&self) -> Result<u64, StoreError> {
        let found = self.file.metadata();
        let found = found.map_err(failed("inspect", &self.path))?.len();
        Ok(found.saturating_sub(self.values_start()))
    }

    /// Makes sure that there is room on the disk for the first `len` bytes of values: whoever made
    /// the file longer may have died.
    pub(crate) fn reserve_values(&self, len: u64) -> Result<(), StoreError> {
        let room = allocate(&self.file, self.values_start(), len);
        room.map_err(failed("make room for", &self.path))
    }

    /// Maps `len` bytes of values from `at` on.
    pub(crate) fn map_values(&self, at: u64, len: u64) -> Result<MmapRaw, StoreError> {
        let mut options = MmapOptions::new();
        let options = options.offset(self.values_start() + at).len(len as usize);
        let map = options.map_raw(&self.file);
        map.map_err(failed("map", &self.path))
    }

    /// Makes the file longer, by `len` bytes for values from `at` on.
    pub(crate) fn grow_values(&self, at: u64, len: u64) -> Result<MmapRaw, StoreError> {
        let start = self.values_start() + at;
        let room = self.file.set_len(start + len).and_then(|()| {
            let room = allocate(&self.file, start, len);
            // What has no room is not to be taken for memory of values when the file is opened
            // again.
            room.inspect_err(|_| drop(self.file.set_len(start)))
        });
        room.map_err(failed("make room for", &self.path))?;
        self.map_values(at, len)
    }

    /// Makes the file as long as without values. Where that fails, it keeps the room for others.
    pub(crate) fn forget_values(&self) {
        let _ = self.file.set_len(self.map.len() as u64);
    }

    fn values_start(&self) -> u64 {
        (self.map.len() as u64).next_multiple_of(VALUES)
    }

    /// Makes room on the disk for these bytes of the file, without which a full disk would end the
    /// process when they are written.
    ///
    /// # Errors
    /// An error of the system if there is too little; the call then takes no room.
    pub(crate) fn make_room(&self, bytes: Range<usize>) -> io::Result<()> {
        let Some(pieces) = &self.pieces else {
            return Ok(());
        };
        let mut pieces = unpoisoned(pieces.lock());
        let wanted = bytes.start / PIECE..bytes.end.div_ceil(PIECE);
        let mut at = wanted.start;
        let Some(mut rest) = pieces.get_mut(wanted) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        while !rest.is_empty() {
            let there = rest.iter().take_while(|has_room| **has_room).count();
            let missing = rest[there..]
                .iter()
                .take_while(|has_room| !**has_room)
                .count();
            if missing > 0 {
                let from = (at + there) * PIECE;
                let end = self.map.len().min(from + missing * PIECE);
                allocate(&self.file, from as u64, (end - from) as u64)?;
                rest[there..there + missing].fill(true);
            }
            at += there + missing;
            rest = &mut rest[there + missing..];
        }
        Ok(())
    }

    /// The pieces of the file that have room, from byte `from` on.
    pub(crate) fn roomy(&self, from: usize) -> Vec<Range<usize>> {
        let all = 0..self.map.len();
        let Some(pieces) = &self.pieces else {
            return std::iter::once(from..all.end).collect();
        };
        let pieces = unpoisoned(pieces.lock());
        let with_room = pieces.iter().enumerate().filter(|(_, has_room)| **has_room);
        let bytes = with_room.map(|(piece, _)| piece * PIECE..all.end.min((piece + 1) * PIECE));
        bytes
            .map(|bytes| bytes.start.max(from)..bytes.end)
            .filter(|bytes| !bytes.is_empty())
            .collect()
    }

    fn over(file: File, path: &Path, bytes: usize, has_values: bool) -> Result<Self, StoreError> {
        let failed = |op| failed(op, path);
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let path = path.to_path_buf();
                return Err(StoreError::InUse { path });
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock")(error)),
        }
        let found = file.metadata().map_err(failed("inspect"))?.len();
        if found == 0 {
            mark(&file).map_err(failed("write"))?;
        }
        if is_unmade(&file).map_err(failed("read"))? {
            reserve(&file, bytes as u64).map_err(failed("make room for"))?;
        } else if found != bytes as u64 && !(has_values && found > bytes as u64) {
            return Err(StoreError::File {
                path: PathBuf::from(path),
                expected: format!("{bytes} bytes"),
                got: format!("{found}"),
            });
        }
        let map = MmapOptions::new().len(bytes).map_raw(&file);
        Ok(Self {
            map: map.map_err(failed("map"))?,
            file,
            pieces: None,
            path: path.to_path_buf(),
        })
    }

    /// First byte, aligned to a page.
    pub(crate) fn start(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.map.as_mut_ptr())
    }
}

pub(crate) fn failed(op: &'static str, path: &Path) -> impl Fn(io::Error) -> StoreError {
    move |error| StoreError::Io {
        op,
        path: path.to_path_buf(),
        error,
    }
}

/// Marks an empty file as a store's before it gets its length: if its maker dies from here on, the
/// file differs from one of another program, which may begin with anything.
fn mark(mut file: &File) -> io::Result<()> {
    file.rewind()?;
    file.write_all(&UNMADE.to_ne_bytes())
}

/// Whether the file is new, or its maker died before its last step, which replaces the mark.
fn is_unmade(mut file: &File) -> io::Result<bool> {
    let mut mark = [0; size_of::<u64>()];
    file.rewind()?;
    match file.read_exact(&mut mark) {
        Ok(()) => Ok(mark == UNMADE.to_ne_bytes()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(target_os = "linux")]
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;

    file.set_len(bytes)?;
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // Some file systems cannot allocate ahead.
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(error) => {
            // The file system may have allocated all the rest of the disk, which other programs
            // need.
            file.set_len(0)?;
            Err(error.into())
        }
    }
}

/// Room for `len` bytes of a file that is long enough, and has none there.
#[cfg(target_os = "linux")]
fn allocate(file: &File, from: u64, len: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;

    match fallocate(file, FallocateFlags::empty(), from, len) {
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(error) => {
            // As in `reserve`; where no hole can be made, the file keeps it until it is gone.
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(file, hole, from, len);
            Err(error.into())
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_room_takes_none() {
        let folder = Path::new("/dev/shm");
        if !folder.is_dir() {
            return;
        }
        let path = folder.join(format!("windrow-no-room-{}", std::process::id()));
        let error = Mapped::open(&path, 1 << 45, false).unwrap_err();
        let left = path.metadata().map(|found| found.len());
        std::fs::remove_file(&path).unwrap();
        assert!(error.to_string().contains("make room"), "{error}");
        assert_eq!(left.unwrap(), 0);
    }

    #[test]
    fn a_sparse_file_takes_room_piece_by_piece_and_none_where_there_is_too_little() {
        use std::os::unix::fs::MetadataExt;

        let folder = Path::new("/dev/shm");
        if !folder.is_dir() {
            return;
        }
        // Memory checkers have less room for maps than the system.
        let most = rustix::fs::statvfs(folder).unwrap();
        let most = (most.f_blocks * most.f_frsize) as usize;
        let file = tempfile::tempfile_in(folder).unwrap();
        let taken = || file.metadata().unwrap().blocks() as usize * 512;
        let sparse = Mapped::sparse(file.try_clone().unwrap(), folder, most + 8 * PIECE).unwrap();
        assert!(taken() <= PIECE / 2);
        sparse.make_room(10..PIECE + 1).unwrap();
        sparse.make_room(7..9).unwrap();
        assert_eq!(taken(), 2 * PIECE);
        assert_eq!(sparse.roomy(5), [5..PIECE, PIECE..2 * PIECE]);
        // More than there can be: the system refuses it before it has taken any.
        assert!(sparse.make_room(4 * PIECE..most + 8 * PIECE).is_err());
        let all: usize = sparse.roomy(0).into_iter().map(|bytes| bytes.len()).sum();
        assert_eq!(taken(), all, "what was not given was given back");
    }
}
