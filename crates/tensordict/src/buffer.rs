//! Heap memory of tensors that own their elements.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use crate::shape::{MAX_BYTES, no_memory, numel};
use crate::{DType, Result};

/// Alignment of heap memory in bytes: one cache line, and the widest vector register.
pub(crate) const ALIGN: usize = 64;

/// A block of bytes aligned to [`ALIGN`], freed on drop.
///
/// It never reads its own bytes, so they may be uninitialised until a tensor is made of them.
#[derive(Debug)]
pub(crate) struct HeapBuffer {
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the block is plain memory that this value alone allocated and frees; access to the bytes
// goes through `Tensor`, which shares them read-only or proves that it is the only holder.
unsafe impl Send for HeapBuffer {}
// SAFETY: as above; no method changes the bytes through a shared reference.
unsafe impl Sync for HeapBuffer {}

impl HeapBuffer {
    /// Allocates room for a tensor of `shape`, which passed [`checked_numel`](crate::shape::checked_numel), of unspecified
    /// content.
    ///
    /// # Errors
    /// [`NoMemory`](crate::TensorError::NoMemory) when the system does not give so much.
    pub(crate) fn of(shape: &[usize], dtype: DType) -> Result<Self> {
        let bytes = numel(shape) * dtype.size();
        Self::try_uninit(bytes).ok_or_else(|| no_memory(shape, dtype))
    }

    /// Allocates `bytes` bytes of unspecified content; ends the process when the system does not give so many, as `Vec` does.
    pub(crate) fn uninit(bytes: usize) -> Self {
        Self::try_uninit(bytes).unwrap_or_else(|| handle_alloc_error(Self::layout(bytes)))
    }

    /// Allocates `bytes` bytes of unspecified content; `None` when the system does not give so many.
    fn try_uninit(bytes: usize) -> Option<Self> {
        // SAFETY: `alloc` is the allocation function itself and `with` passes a layout of non-zero
        // size.
        Self::with(bytes, |layout| unsafe { alloc(layout) })
    }

    /// Allocates `bytes` bytes of zero; `None` when the system does not give so many.
    pub(crate) fn try_zeroed(bytes: usize) -> Option<Self> {
        // SAFETY: as in `try_uninit`.
        Self::with(bytes, |layout| unsafe { alloc_zeroed(layout) })
    }

    fn with(bytes: usize, allocate: impl FnOnce(Layout) -> *mut u8) -> Option<Self> {
        assert!(
            bytes <= MAX_BYTES,
            "a tensor of {bytes} bytes is larger than the address space"
        );
        let layout = Self::layout(bytes);
        let ptr = match bytes {
            0 => layout.dangling_ptr(),
            _ => NonNull::new(allocate(layout))?,
        };
        Some(Self { ptr, bytes })
    }

    fn layout(bytes: usize) -> Layout {
        // SAFETY: ALIGN is a power of two, and `with` has checked that `bytes` rounded up to it
        // fits in isize.
        unsafe { Layout::from_size_align_unchecked(bytes, ALIGN) }
    }

    /// First byte; aligned to [`ALIGN`] even when there are none.
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Whether the block holds the `len` bytes that start at `ptr`.
    pub(crate) fn holds(&self, ptr: NonNull<u8>, len: usize) -> bool {
        let from = self.ptr.addr().get();
        let at = ptr.addr().get();
        at >= from && at - from <= self.bytes && len <= self.bytes - (at - from)
    }
}

impl Drop for HeapBuffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: `ptr` came from `allocate` with this same layout, and nothing else frees it.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.bytes)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_even_when_empty() {
        for bytes in [0, 1, 63, 64, 4097] {
            let block = HeapBuffer::try_zeroed(bytes).unwrap();
            assert_eq!(block.ptr().addr().get() % ALIGN, 0);
            assert!(block.holds(block.ptr(), bytes));
            assert!(!block.holds(block.ptr(), bytes + 1));
        }
    }
}
