//! The layout of a ring's shared memory: a page with a header and the ring's words, then slab after
//! slab (ADR 0014).

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::{Mapping, SharedFile};
use crate::SlabError;
use crate::arena::Arena;
#[cfg(not(any(loom, shuttle)))]
use crate::arena::Span;
use crate::control::Control;
use crate::layout::Layout;
use crate::slab::{Memory, Slab, arenas};

/// The first word of every ring's memory. Change it with every change of the layout, so that other
/// versions are refused.
const MAGIC: u64 = u64::from_be_bytes(*b"windrow1");

/// Where in the file arenas begin, behind all slabs.
#[cfg(not(any(loom, shuttle)))]
const ARENAS: u64 = 1 << 46;

/// The beginning of the first page.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Header {
    magic: u64,
    /// The layout's fingerprint: both sides must cut slabs into the same columns.
    fingerprint: u64,
}

/// The shared memory of one ring. Slab `i` begins `i` strides after the first page, so that its
/// number is all that another process needs to map it.
#[derive(Debug)]
pub(crate) struct Segment {
    file: Arc<SharedFile>,
    /// Bytes of a slab, in whole pages.
    stride: usize,
    /// Slabs whose memory is reserved: writing to them cannot fail.
    reserved: usize,
}

impl Segment {
    /// New memory, with room for the first `slabs` slabs.
    ///
    /// # Errors
    /// [`SlabError::NoMemory`], and [`SlabError::Descriptors`] when the process may open no more
    /// files.
    pub(crate) fn create(layout: &Layout, slabs: usize) -> Result<(Self, Control), SlabError> {
        let file = SharedFile::create("windrow-slabs").map_err(refused("memfd_create"))?;
        let segment = Self::over(file, layout, slabs)?;
        let bytes = segment.offset(slabs);
        let shortage = SlabError::NoMemory {
            frames: slabs.saturating_mul(layout.frames()),
            bytes: bytes.map_or(usize::MAX, |bytes| bytes as usize),
        };
        let bytes = bytes.ok_or_else(|| shortage.clone())?;
        let reserved = segment.file.reserve(0, bytes);
        reserved.map_err(|error| match error.kind() {
            io::ErrorKind::OutOfMemory
            | io::ErrorKind::StorageFull
            | io::ErrorKind::FileTooLarge => shortage,
            _ => refused("fallocate")(error),
        })?;
        let page = segment.first_page().map_err(refused("mmap"))?;
        let header = Header {
            magic: MAGIC,
            fingerprint: layout.fingerprint(),
        };
        // SAFETY: the page is mapped, a page has room for a header, and nobody else knows the file
        // yet.
        unsafe { page.ptr().cast::<Header>().write(header) };
        Ok((segment, words(page)))
    }

    /// The memory of a ring that another process owns.
    ///
    /// # Errors
    /// [`SlabError::NoRing`] and [`SlabError::OtherLayout`] when it is something else;
    /// [`SlabError::System`].
    pub(crate) fn open(file: SharedFile, layout: &Layout) -> Result<(Self, Control), SlabError> {
        let segment = Self::over(file, layout, 0)?;
        let no_ring = |got| SlabError::NoRing {
            expected: MAGIC,
            got,
        };
        let page = segment.first_page().map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => no_ring(0),
            _ => refused("mmap")(error),
        })?;
        // SAFETY: the page is mapped and has room for a header, any bytes are one, and its writer
        // was done before it let the file go.
        let header = unsafe { page.ptr().cast::<Header>().read() };
        if header.magic != MAGIC {
            return Err(no_ring(header.magic));
        }
        let (expected, got) = (layout.fingerprint(), header.fingerprint);
        match got == expected {
            true => Ok((segment, words(page))),
            false => Err(SlabError::OtherLayout { expected, got }),
        }
    }

    pub(crate) fn file(&self) -> &SharedFile {
        &self.file
    }

    /// Slab `slot`, which nobody has mapped yet; `None` when the system does not give the memory.
    pub(crate) fn grow(&self, layout: &Layout, slot: usize) -> Option<Slab> {
        if slot >= self.reserved {
            let reserved = self.file.reserve(self.offset(slot)?, self.stride as u64);
            reserved.ok()?;
        }
        self.slab(layout, slot).ok()
    }

    /// Slab `slot`, which its owner has made.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if it has not, and errors of the system.
    pub(crate) fn slab(&self, layout: &Layout, slot: usize) -> io::Result<Slab> {
        let offset = self.offset(slot).ok_or(io::ErrorKind::UnexpectedEof)?;
        let memory = Memory::Mapped(self.file.map(offset, self.stride)?);
        let arenas = arenas(layout, |part| self.arena(layout, &memory, slot, part));
        let arenas = arenas.ok_or(io::ErrorKind::FileTooLarge)?;
        // SAFETY: a stride is as long as the layout, new bytes of a file are zero, and slabs at
        // these offsets are of this layout: this process has chosen it, or has compared
        // fingerprints.
        Ok(unsafe { Slab::over(memory, layout, arenas) })
    }

    /// Where the values of variable size of a part lie: behind all slabs, so far apart that each
    /// has room for any number. `None` if a file cannot be so long.
    #[cfg(not(any(loom, shuttle)))]
    fn arena(&self, layout: &Layout, slab: &Memory, slot: usize, part: usize) -> Option<Arena> {
        let words = layout.arena_words(part)?;
        let arena = slot.checked_mul(layout.parts.len())?.checked_add(part)?;
        let offset = (arena as u64).checked_mul(Span::SIZE)?;
        let offset = offset.checked_add(ARENAS)?;
        i64::try_from(offset.checked_add(Span::SIZE)?).ok()?;
        // SAFETY: the words lie in the slab, which has the arena, and only arenas use them.
        let span = unsafe { Span::new(Arc::clone(&self.file), offset, slab.ptr().add(words)) };
        Some(Arena::shared(part, span))
    }

    /// The words of models cannot lie in shared memory.
    #[cfg(any(loom, shuttle))]
    #[allow(clippy::unused_self)]
    fn arena(&self, _: &Layout, _: &Memory, _: usize, part: usize) -> Option<Arena> {
        Some(Arena::on_heap(part))
    }

    fn over(file: SharedFile, layout: &Layout, reserved: usize) -> Result<Self, SlabError> {
        let stride = layout.bytes.checked_next_multiple_of(SharedFile::page());
        let stride = stride.ok_or(SlabError::TooLarge {
            frames: layout.frames(),
        })?;
        Ok(Self {
            file: Arc::new(file),
            stride,
            reserved,
        })
    }

    fn first_page(&self) -> io::Result<Mapping> {
        self.file.map(0, SharedFile::page())
    }

    /// Where slab `slot` begins.
    fn offset(&self, slot: usize) -> Option<u64> {
        let slabs = (slot as u64).checked_mul(self.stride as u64)?;
        slabs.checked_add(SharedFile::page() as u64)
    }
}

/// Makes the error of a refused system call `call`, for `map_err`.
pub(crate) fn refused(call: &'static str) -> impl Fn(io::Error) -> SlabError {
    move |error| match Errno::from_io_error(&error) {
        Some(Errno::MFILE) => SlabError::Descriptors {
            limit: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        },
        code => SlabError::System {
            call,
            code: code.map_or(0, Errno::raw_os_error),
        },
    }
}

#[cfg(not(any(loom, shuttle)))]
fn words(page: Mapping) -> Control {
    Control::Mapped(MappedWords { page })
}

/// The types of models cannot lie in shared memory.
#[cfg(any(loom, shuttle))]
fn words(_: Mapping) -> Control {
    Control::own()
}

#[cfg(not(any(loom, shuttle)))]
pub(crate) use mapped::MappedWords;

#[cfg(not(any(loom, shuttle)))]
mod mapped {
    use super::{Header, Mapping};
    use crate::control::Words;

    /// The ring's words in the first page of its memory.
    #[derive(Debug)]
    pub(crate) struct MappedWords {
        pub(super) page: Mapping,
    }

    /// After the header, and aligned.
    const OFFSET: usize = 256;

    /// The smallest page of all systems.
    const PAGE: usize = 4096;

    const _: () =
        assert!(OFFSET >= size_of::<Header>() && OFFSET.is_multiple_of(align_of::<Words>()));
    const _: () = assert!(OFFSET + size_of::<Words>() <= PAGE);

    impl MappedWords {
        pub(crate) fn get(&self) -> &Words {
            // SAFETY: the words lie in the page, aligned, which stays mapped as long as `self`.
            // They are atomics, for which zero is valid, and every process changes them as such.
            unsafe { self.page.ptr().add(OFFSET).cast::<Words>().as_ref() }
        }
    }
}
