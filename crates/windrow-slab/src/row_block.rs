use tensordict::{HeapBuffer, LeafSpec};

use crate::rows::{Block, Column, place};
use crate::{Rows, RowsMut, SlabError};

/// A single row of time with memory of its own: a cursor carries one from each part to the next, and tests drive an
/// environment or a policy by hand with it.
#[derive(Debug)]
pub struct RowBlock {
    block: Block,
    /// What `block` points into.
    _memory: HeapBuffer,
}

impl RowBlock {
    /// A zeroed row of `leaves` for `envs` environments.
    ///
    /// # Errors
    /// [`SlabError::TooLarge`] when the size overflows, [`SlabError::NoMemory`].
    pub fn new(leaves: &[LeafSpec], envs: usize) -> Result<Self, SlabError> {
        let mut end = 0;
        let columns = leaves
            .iter()
            .map(|leaf| place(leaf, &mut end, 1, envs))
            .collect::<Option<Vec<Column>>>()
            .ok_or(SlabError::TooLarge { frames: envs })?;
        let memory = HeapBuffer::zeroed(end).ok_or(SlabError::NoMemory {
            frames: envs,
            bytes: end,
        })?;
        Ok(Self {
            // SAFETY: the columns were placed before `end`, the size of the memory.
            block: unsafe { Block::new(memory.ptr(), envs, &columns) },
            _memory: memory,
        })
    }

    /// The row, to be read.
    #[inline(always)]
    #[must_use]
    pub fn rows(&self) -> Rows<'_> {
        // SAFETY: the block holds one zeroed row of every column (zero is valid for all dtypes), written only
        // through `rows_mut`, which borrows `self` exclusively.
        unsafe { Rows::new(&self.block, 0) }
    }

    /// The row, to be written.
    #[inline(always)]
    #[must_use]
    pub fn rows_mut(&mut self) -> RowsMut<'_> {
        // SAFETY: as in `rows`; `self` is borrowed exclusively.
        unsafe { RowsMut::new(&self.block, 0) }
    }
}
