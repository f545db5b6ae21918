/// `f32` memory that starts at a multiple of 64 bytes, so that no vector load crosses a cache line.
#[derive(Debug, Default)]
pub(crate) struct Aligned {
    memory: Vec<f32>,
    start: usize,
    len: usize,
}

/// Elements of a cache line.
pub(crate) const LINE: usize = 16;

impl Aligned {
    /// `len` zeros.
    pub(crate) fn zeros(len: usize) -> Self {
        let memory = vec![0.0; len + LINE];
        // `align_offset` may decline to answer; the memory is then used unaligned, which is only
        // slower.
        let start = memory.as_ptr().align_offset(64);
        Self {
            start: if start < LINE { start } else { 0 },
            memory,
            len,
        }
    }

    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[f32] {
        &self.memory[self.start..self.start + self.len]
    }

    #[inline(always)]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

impl Clone for Aligned {
    fn clone(&self) -> Self {
        let mut copy = Self::zeros(self.len);
        copy.as_mut_slice().copy_from_slice(self.as_slice());
        copy
    }
}
