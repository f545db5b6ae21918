//! Anonymous files, and their bytes in this process's memory.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    memfd_create,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, getrlimit};

use super::free;

/// An anonymous file that lives in memory, for as long as a process has it open or mapped. It has
/// no name in any folder, and can grow but never shrink: bytes that were mapped stay there.
///
/// ```
/// use windrow_slab::SharedFile;
///
/// let file = SharedFile::create("words")?;
/// file.reserve(0, 4096)?;
/// let (here, there) = (file.map(0, 4096)?, file.map(0, 4096)?);
/// // SAFETY: both are mapped for 4096 bytes, and no other thread knows of them.
/// unsafe {
///     here.ptr().write(7);
///     assert_eq!(there.ptr().read(), 7);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct SharedFile {
    fd: OwnedFd,
}

impl SharedFile {
    /// An empty file; `name` shows in `/proc/PID/maps`. A program that this one starts does not
    /// inherit it.
    ///
    /// # Errors
    /// Errors of the system, such as too many open files.
    pub fn create(name: &str) -> io::Result<Self> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(Self { fd })
    }

    /// The file behind a descriptor that another process passed on.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) when the file could shrink: reading bytes that
    /// are then missing would kill this process.
    ///
    /// # Safety
    /// The processes that map the file must agree on the writer of each byte at any time. If a
    /// [`RemoteRing`](crate::RemoteRing) is opened over it, the ring's owner names each part to one
    /// process at a time, and does not touch it until that process has returned it or has ended.
    pub unsafe fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let seals = fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
        match seals.contains(SealFlags::SHRINK) {
            true => Ok(Self { fd }),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "expected the descriptor of an anonymous file that is sealed against shrinking, got another file's",
            )),
        }
    }

    /// Reserves memory for the bytes, so that writing them later cannot fail. New bytes are zero,
    /// existing ones stay. The file grows if needed.
    ///
    /// # Errors
    /// [`OutOfMemory`](io::ErrorKind::OutOfMemory) or [`StorageFull`](io::ErrorKind::StorageFull)
    /// if there is too little memory, [`FileTooLarge`](io::ErrorKind::FileTooLarge) beyond the
    /// process's limit for the size of files (`ulimit -f`).
    pub fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
        // The system would not only refuse, but also send a signal that kills the process.
        let limit = getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| end > limit) || i64::try_from(end).is_err() {
            return Err(Errno::FBIG.into());
        }
        // The system would continue until no memory is left, and then kill processes.
        if len > free::bytes().unwrap_or(u64::MAX) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(retry_on_intr(|| {
            fallocate(&self.fd, FallocateFlags::empty(), offset, len)
        })?)
    }

    /// Gives the memory of the bytes back, which are zero then and no longer reserved. Where the
    /// system refuses, they stay as they are.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn release(&self, offset: u64, len: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = retry_on_intr(|| fallocate(&self.fd, flags, offset, len));
    }

    /// Maps `len` bytes from `offset` on, a multiple of the [page](Self::page)'s size. They are
    /// shared with all other mappings of the file, in this process and in others.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) when the file ends before them, and errors
    /// of the system.
    pub fn map(&self, offset: u64, len: usize) -> io::Result<Mapping> {
        let size = fstat(&self.fd)?.st_size as u64;
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > size) {
            let text = format!("expected {len} bytes from {offset} on, got a file of {size}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses a place where nothing is mapped, so no reference points there.
        let ptr = unsafe {
            mmap(
                null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                &self.fd,
                offset,
            )
        }?;
        let ptr = NonNull::new(ptr.cast()).ok_or(Errno::FAULT)?;
        Ok(Mapping { ptr, len })
    }

    /// Size of a page of memory, in bytes.
    #[must_use]
    pub fn page() -> usize {
        rustix::param::page_size()
    }
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Bytes of a [`SharedFile`] in this process's memory, unmapped on drop. They stay after the file
/// itself was dropped.
///
/// It hands out its address and never touches its bytes. Code that does must expect other processes
/// to change them.
#[derive(Debug)]
pub struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a size; no method reads or writes the bytes, so moving or sharing it
// between threads cannot race.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// First byte, at the start of a page.
    #[must_use]
    pub fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Bytes that were asked for; never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: these pages were mapped by `map` and by nothing else, and no reference into them
        // outlives their owner. The call fails only for other arguments.
        let _ = unsafe { munmap(self.ptr.as_ptr().cast::<c_void>(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shared_by_all_mappings_and_outlive_the_file() {
        let file = SharedFile::create("test").unwrap();
        let page = SharedFile::page();
        file.reserve(0, 3 * page as u64).unwrap();
        let (all, last) = (
            file.map(0, 3 * page).unwrap(),
            file.map(2 * page as u64, page).unwrap(),
        );
        drop(file);
        // SAFETY: both are mapped, and this thread alone knows them.
        unsafe {
            assert_eq!(all.ptr().add(2 * page).read(), 0);
            last.ptr().write(9);
            assert_eq!(all.ptr().add(2 * page).read(), 9);
        }
    }

    #[test]
    fn what_the_file_does_not_have_is_not_mapped() {
        let file = SharedFile::create("test").unwrap();
        let page = SharedFile::page();
        file.reserve(0, page as u64).unwrap();
        for (offset, len) in [(0, page + 1), (page as u64, 1), (u64::MAX, 2)] {
            let error = file.map(offset, len).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{offset} {len}");
        }
    }

    #[test]
    fn more_memory_than_there_is_is_refused_at_once() {
        let file = SharedFile::create("test").unwrap();
        for len in [1 << 55, i64::MAX as u64, u64::MAX] {
            let kind = file.reserve(1 << 12, len).unwrap_err().kind();
            let shortage = [io::ErrorKind::OutOfMemory, io::ErrorKind::FileTooLarge];
            assert!(shortage.contains(&kind), "{kind:?}");
        }
        // Nothing was taken.
        assert_eq!(fstat(&file.fd).unwrap().st_size, 0);
    }

    #[test]
    fn a_file_that_was_made_here_never_shrinks_and_others_are_refused() {
        let file = SharedFile::create("test").unwrap();
        file.reserve(0, 8192).unwrap();
        assert_eq!(rustix::fs::ftruncate(&file.fd, 4096), Err(Errno::PERM));
        // SAFETY: nothing is mapped.
        assert!(unsafe { SharedFile::from_fd(file.fd) }.is_ok());
        let open = memfd_create("open", MemfdFlags::CLOEXEC).unwrap();
        // SAFETY: as above.
        let error = unsafe { SharedFile::from_fd(open) }.unwrap_err();
        assert!(
            error.to_string().contains("sealed against shrinking"),
            "{error}"
        );
    }
}
