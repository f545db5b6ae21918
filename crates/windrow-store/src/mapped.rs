//! Memory that is a file, and memory in pages of its own.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use memmap2::{MmapMut, MmapRaw};

use crate::StoreError;
use crate::header::UNMADE;

/// Memory of at least this many bytes gets large pages: in small ones, every other cache miss of a random read is preceded
/// by one in the page tables.
pub(crate) const HUGE: usize = 4 << 20;

/// Zeroed memory, in large pages where the system has them to give.
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
    _file: File,
}

impl Mapped {
    /// Maps the file at `path`. Creates a missing one with `bytes` bytes: [`UNMADE`], then zeros.
    ///
    /// Allocates the disk space at once where the system can: otherwise a full disk would end the process at the first write
    /// to a page without space.
    pub(crate) fn open(path: &Path, bytes: usize) -> Result<Self, StoreError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed("open", path))?;
        Self::over(file, path, bytes)
    }

    /// As [`open`](Self::open), for a file that is already open. Errors call it `path`.
    pub(crate) fn over(file: File, path: &Path, bytes: usize) -> Result<Self, StoreError> {
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
        } else if found != bytes as u64 {
            return Err(StoreError::File {
                path: PathBuf::from(path),
                expected: format!("{bytes} bytes"),
                got: format!("{found}"),
            });
        }
        let map = MmapRaw::map_raw(&file).map_err(failed("map"))?;
        Ok(Self { map, _file: file })
    }

    /// First byte, aligned to a page.
    pub(crate) fn start(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.map.as_mut_ptr())
    }
}

fn failed(op: &'static str, path: &Path) -> impl Fn(io::Error) -> StoreError {
    move |error| StoreError::Io {
        op,
        path: path.to_path_buf(),
        error,
    }
}

/// Marks an empty file as a store's before it gets its length: a file whose maker dies from here on can be told from a file
/// of another program, which may begin with anything.
fn mark(mut file: &File) -> io::Result<()> {
    file.rewind()?;
    file.write_all(&UNMADE.to_ne_bytes())
}

/// Whether the file is new, or its maker died before it replaced the mark, which it does last.
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
            // A file system may have allocated all that was left, which other programs need.
            file.set_len(0)?;
            Err(error.into())
        }
    }
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
        let error = Mapped::open(&path, 1 << 45).unwrap_err();
        let left = path.metadata().map(|found| found.len());
        std::fs::remove_file(&path).unwrap();
        assert!(error.to_string().contains("make room"), "{error}");
        assert_eq!(left.unwrap(), 0);
    }
}
