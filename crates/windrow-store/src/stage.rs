//! Copies to memory that leave the caches out.

use std::arch::x86_64::{_mm_sfence, _mm256_load_si256, _mm256_stream_si256};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Most bytes that are copied at once: they stay in the first-level cache.
pub(crate) const STAGE: usize = 6 << 10;

/// Where rows are put together before they are copied past the caches.
///
/// A cache line that is written as a whole need not be fetched from memory first. There is room for one more line, since the rows
/// begin as far from the start of a line here as they do in memory.
#[repr(align(64))]
pub(crate) struct Stage([u8; STAGE + LINE]);

impl Stage {
    pub(crate) fn new() -> Self {
        Self([0; STAGE + LINE])
    }

    /// Has `put` write `bytes` bytes, [`STAGE`] at most, and copies them to `to`. Other threads may see them only after
    /// [`end`](Self::end).
    ///
    /// # Safety
    /// The processor has AVX. `put` writes `bytes` bytes at most, and as many may be written to `to`.
    #[target_feature(enable = "avx")]
    pub(crate) unsafe fn copy(&mut self, to: *mut u8, bytes: usize, put: impl FnOnce(*mut u8)) {
        debug_assert!(bytes <= STAGE);
        // SAFETY: there is room for a line and `STAGE` bytes; the rest is promised by the caller. Behind `head`, both sides are at the start
        // of a line.
        unsafe {
            let from = self.0.as_mut_ptr().add(to.addr() % LINE);
            put(from);
            let head = to.align_offset(LINE).min(bytes);
            std::ptr::copy_nonoverlapping(from, to, head);
            let lines = (bytes - head) / LINE;
            for at in (0..2 * lines).map(|half| head + half * LINE / 2) {
                _mm256_stream_si256(to.add(at).cast(), _mm256_load_si256(from.add(at).cast()));
            }
            let end = head + lines * LINE;
            std::ptr::copy_nonoverlapping(from.add(end), to.add(end), bytes - end);
        }
    }

    /// Orders all that was copied before whatever this thread writes next.
    pub(crate) fn end(self) {
        // SAFETY: every x86-64 processor has SSE.
        unsafe { _mm_sfence() };
    }
}
