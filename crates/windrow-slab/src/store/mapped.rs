//! Memory that is a file, and memory in pages of its own.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use memmap2::{MmapMut, MmapRaw};

use super::StoreError;
use super::words::UNMADE;

/// Memory of so many bytes is worth large pages: reading rows at random, every other cache miss in small ones is
/// preceded by another in the page tables.
pub(super) const HUGE: usize = 4 << 20;

/// Zeroed memory, in large pages where the system has them to give.
pub(super) fn pages(bytes: usize) -> io::Result<MmapRaw> {
    let map = MmapMut::map_anon(bytes)?;
    // Small ones will do as well.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map.into())
}

/// A whole file in memory, locked against others that would open it as well.
#[derive(Debug)]
pub(super) struct Mapped {
    map: MmapRaw,
    /// Holds the lock.
    _file: File,
}

impl Mapped {
    /// Maps the file at `path`; makes one of `bytes` bytes when there is none, zeros behind the mark of a store that is still
    /// to be made.
    ///
    /// Room on the disk is taken at once where the system can: a disk that is full would otherwise end the process at
    /// the first write to a page that has no room.
    pub(super) fn open(path: &Path, bytes: usize) -> Result<Self, StoreError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed("open", path))?;
        Self::over(file, path, bytes)
    }

    /// As [`open`](Self::open), of a file that is open already; `path` is what errors call it.
    pub(super) fn over(file: File, path: &Path, bytes: usize) -> Result<Self, StoreError> {
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
    pub(super) fn start(&self) -> Option<NonNull<u8>> {
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

/// Marks an empty file as a store's before it has a length: whoever dies from here on leaves one that can be told from those
/// of others, which may begin with anything.
fn mark(mut file: &File) -> io::Result<()> {
    file.rewind()?;
    file.write_all(&UNMADE.to_ne_bytes())
}

/// Whether the file is new, or its maker died before the first word was written once more, which comes after all else.
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
        // Some file systems cannot.
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)
}
