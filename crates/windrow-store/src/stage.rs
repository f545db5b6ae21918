//! Copies to memory that leave the caches out.

use std::arch::x86_64::{
    _mm_sfence, _mm256_load_si256, _mm256_stream_si256, _mm512_load_si512, _mm512_stream_si512,
};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Most bytes that are copied at once: they stay in the first-level cache.
pub(crate) const STAGE: usize = 6 << 10;

/// Copies cache lines past the caches: to where, from where, and how many. Both pointers are at the
/// start of a line.
pub(crate) type Stream = unsafe fn(*mut u8, *const u8, usize);

/// The fastest that this processor has, if it has any.
pub(crate) fn stream() -> Option<Stream> {
    if is_x86_feature_detected!("avx512f") {
        Some(stream_by_64)
    } else if is_x86_feature_detected!("avx") {
        Some(stream_by_32)
    } else {
        None
    }
}

/// Where rows are put together before they are copied past the caches.
///
/// A cache line that is written as a whole need not be fetched from memory first. There is room for
/// one more line, since the rows begin as far from the start of a line here as they do in memory.
#[repr(C, align(64))]
pub(crate) struct Stage {
    rows: [u8; STAGE + LINE],
    stream: Stream,
}

impl Stage {
    /// # Safety
    /// [`stream`] has returned `stream`.
    pub(crate) unsafe fn new(stream: Stream) -> Self {
        Self {
            rows: [0; STAGE + LINE],
            stream,
        }
    }

    /// Has `put` write `bytes` bytes, [`STAGE`] at most, and copies them to `to`. Other threads may
    /// see them only after [`end`](Self::end).
    ///
    /// # Safety
    /// `put` writes `bytes` bytes at most, and as many may be written to `to`.
    #[inline]
    pub(crate) unsafe fn copy(&mut self, to: *mut u8, bytes: usize, put: impl FnOnce(*mut u8)) {
        debug_assert!(bytes <= STAGE);
        // SAFETY: there is room for a line and `STAGE` bytes; the rest is promised by the caller.
        // Behind `head`, both sides are at the start of a line. The processor has what `stream`
        // needs, as `new` was promised.
        unsafe {
            let from = self.rows.as_mut_ptr().add(to.addr() % LINE);
            put(from);
            let head = to.align_offset(LINE).min(bytes);
            std::ptr::copy_nonoverlapping(from, to, head);
            let lines = (bytes - head) / LINE;
            (self.stream)(to.add(head), from.add(head), lines);
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

#[target_feature(enable = "avx512f")]
unsafe fn stream_by_64(to: *mut u8, from: *const u8, lines: usize) {
    for at in (0..lines).map(|line| line * LINE) {
        // SAFETY: the caller promises that both sides have `lines` lines, and are at the start of
        // one.
        unsafe { _mm512_stream_si512(to.add(at).cast(), _mm512_load_si512(from.add(at).cast())) };
    }
}

#[target_feature(enable = "avx")]
unsafe fn stream_by_32(to: *mut u8, from: *const u8, lines: usize) {
    for at in (0..2 * lines).map(|half| half * LINE / 2) {
        // SAFETY: as above.
        unsafe { _mm256_stream_si256(to.add(at).cast(), _mm256_load_si256(from.add(at).cast())) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_copies_all_bytes_and_no_others() {
        let mut streams: Vec<Stream> = Vec::new();
        if is_x86_feature_detected!("avx512f") {
            streams.push(stream_by_64);
        }
        if is_x86_feature_detected!("avx") {
            streams.push(stream_by_32);
        }
        for stream in streams {
            for (first, bytes) in [
                (0, STAGE),
                (1, 200),
                (63, 64),
                (40, 23),
                (8, 24),
                (56, STAGE),
            ] {
                let mut memory = vec![7u8; STAGE + 4 * LINE];
                let first = memory.as_ptr().align_offset(LINE) + first;
                // SAFETY: the processor has these instructions; `bytes` bytes are written, and
                // there is room for them.
                unsafe {
                    let mut stage = Stage::new(stream);
                    stage.copy(memory[first..].as_mut_ptr(), bytes, |to| {
                        for at in 0..bytes {
                            to.add(at).write(at as u8);
                        }
                    });
                    stage.end();
                }
                let copied = memory[first..][..bytes].iter().enumerate();
                assert!(copied.into_iter().all(|(at, byte)| *byte == at as u8));
                let others = memory[..first].iter().chain(&memory[first + bytes..]);
                assert!(others.into_iter().all(|byte| *byte == 7));
            }
        }
    }
}
