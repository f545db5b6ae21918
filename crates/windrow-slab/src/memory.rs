//! A block of bytes with an address that never changes.

use std::alloc::{Layout as AllocLayout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of every block and column in bytes: one cache line, and enough for any SIMD load.
pub(crate) const ALIGN: usize = 64;

/// Zeroed heap memory, 64-byte aligned, freed on drop.
///
/// It hands out nothing but its address. Who may read or write which bytes is decided by the owner:
/// [`Ring`](crate::Ring) for slabs, [`RowBlock`](crate::RowBlock) for a single row.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    layout: AllocLayout,
}

// SAFETY: `Memory` is an address and a size; it never reads or writes the bytes itself, so moving or
// sharing it between threads cannot race.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `bytes` zeroed bytes (at least one cache line); `None` when the system does not give so many.
    pub(crate) fn zeroed(bytes: usize) -> Option<Self> {
        let layout = AllocLayout::from_size_align(bytes.max(ALIGN), ALIGN).ok()?;
        // SAFETY: the layout's size is at least `ALIGN`, never zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }

    /// First byte of the block.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this very layout and is freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
