//! Heap memory of tensors, slabs and stores.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::num::NonZero;
use std::ptr::NonNull;

use crate::shape::{no_memory, numel};
use crate::{DType, Result};

/// A block of heap memory, aligned to [`ALIGN`](Self::ALIGN) and freed on drop.
///
/// It hands out its address and never reads its own bytes. The owner decides who may read or write
/// which of them.
#[derive(Debug)]
pub struct HeapBuffer {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block is an address and a size; no method reads or writes the bytes, so moving or
// sharing it between threads cannot race.
unsafe impl Send for HeapBuffer {}
// SAFETY: as above.
unsafe impl Sync for HeapBuffer {}

impl HeapBuffer {
    /// Alignment of every block in bytes: one cache line, and the widest vector register.
    pub const ALIGN: usize = 64;

    /// Most bytes of one block: what an allocation of this alignment can hold.
    pub(crate) const MAX_BYTES: usize = isize::MAX as usize - (Self::ALIGN - 1);

    /// Allocates `bytes` zeroed bytes; `None` if the system refuses.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Option<Self> {
        // SAFETY: as in `try_uninit`.
        Self::with(bytes, |layout| unsafe { alloc_zeroed(layout) })
    }

    /// Allocates room for a tensor of `shape`, which passed
    /// [`checked_numel`](crate::shape::checked_numel), of unspecified content.
    ///
    /// # Errors
    /// [`NoMemory`](crate::TensorError::NoMemory) when the system does not give so much.
    pub(crate) fn of(shape: &[usize], dtype: DType) -> Result<Self> {
        let bytes = numel(shape) * dtype.size();
        Self::try_uninit(bytes).ok_or_else(|| no_memory(shape, dtype))
    }

    /// Allocates `bytes` bytes of unspecified content; ends the process if the system refuses, as
    /// `Vec` does.
    pub(crate) fn uninit(bytes: usize) -> Self {
        Self::try_uninit(bytes).unwrap_or_else(|| {
            let layout = Layout::from_size_align(bytes, Self::ALIGN);
            handle_alloc_error(layout.unwrap_or(Layout::new::<u8>()))
        })
    }

    /// Allocates `bytes` bytes of unspecified content; `None` if the system refuses.
    fn try_uninit(bytes: usize) -> Option<Self> {
        // SAFETY: `alloc` is the allocation function itself and `with` passes a layout of non-zero
        // size.
        Self::with(bytes, |layout| unsafe { alloc(layout) })
    }

    fn with(bytes: usize, allocate: impl FnOnce(Layout) -> *mut u8) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, Self::ALIGN).ok()?;
        let ptr = match bytes {
            0 => NonNull::without_provenance(NonZero::new(layout.align())?),
            _ => NonNull::new(allocate(layout))?,
        };
        Some(Self { ptr, layout })
    }

    /// First byte; aligned to [`ALIGN`](Self::ALIGN) even when there are none.
    #[must_use]
    pub fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Whether the block holds the `len` bytes that start at `ptr`.
    pub(crate) fn holds(&self, ptr: NonNull<u8>, len: usize) -> bool {
        let from = self.ptr.addr().get();
        let at = ptr.addr().get();
        at >= from && at - from <= self.layout.size() && len <= self.layout.size() - (at - from)
    }
}

impl Drop for HeapBuffer {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: `ptr` came from `allocate` with this same layout, and nothing else frees it.
            unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_even_when_empty() {
        for bytes in [0, 1, 63, 64, 4097] {
            let block = HeapBuffer::zeroed(bytes).unwrap();
            assert_eq!(block.ptr().addr().get() % HeapBuffer::ALIGN, 0);
            assert!(block.holds(block.ptr(), bytes));
            assert!(!block.holds(block.ptr(), bytes + 1));
        }
    }

    #[test]
    fn more_bytes_than_the_address_space_has_are_no_block() {
        for bytes in [HeapBuffer::MAX_BYTES + 1, usize::MAX] {
            assert!(HeapBuffer::zeroed(bytes).is_none());
        }
    }
}
