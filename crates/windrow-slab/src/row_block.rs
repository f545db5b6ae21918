use std::sync::Arc;

use tensordict::{DType, HeapBuffer, LeafSpec};

use crate::arena::Arena;
use crate::rows::{Block, Column, place};
use crate::{Rows, RowsMut, SlabError};

/// A single row of time with memory of its own: a cursor carries one from each part to the next,
/// and tests drive an environment or a policy by hand with it.
#[derive(Debug)]
pub struct RowBlock {
    block: Block,
    /// Environments that there is memory for.
    envs: usize,
    /// Bytes of values of variable size from which on it is worth while to drop those that were
    /// overwritten.
    most: u64,
    /// The memory that `block` points into.
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
        let has_bytes = leaves.iter().any(|leaf| leaf.dtype == DType::Bytes);
        let arena = has_bytes.then(|| Arc::new(Arena::on_heap(0)));
        Ok(Self {
            // SAFETY: the columns were placed before `end`, the size of the memory.
            block: unsafe { Block::new(memory.ptr(), envs, &columns, arena) },
            envs,
            most: LEAST,
            _memory: memory,
        })
    }

    /// Leaves out all environments but the first `envs`, or takes them in again; there is memory
    /// for as many as it was made with.
    ///
    /// # Errors
    /// [`SlabError::Envs`] for more, which changes nothing.
    pub fn limit(&mut self, envs: usize) -> Result<(), SlabError> {
        if envs > self.envs {
            let most = self.envs;
            return Err(SlabError::Envs { most, got: envs });
        }
        self.block.limit(envs);
        Ok(())
    }

    /// The row, to be read.
    #[inline(always)]
    #[must_use]
    pub fn rows(&self) -> Rows<'_> {
        // SAFETY: the block holds one zeroed row of every column (zero is valid for all dtypes),
        // written only through `rows_mut`, which borrows `self` exclusively.
        unsafe { Rows::new(&self.block, 0) }
    }

    /// The row, to be written.
    #[inline(always)]
    #[must_use]
    pub fn rows_mut(&mut self) -> RowsMut<'_> {
        if self.block.used() > self.most {
            self.compact();
        }
        // SAFETY: as in `rows`; `self` is borrowed exclusively.
        unsafe { RowsMut::new(&self.block, 0) }
    }

    /// Drops values that were overwritten. Without memory for copies of the others, everything
    /// stays as it is.
    #[cold]
    fn compact(&mut self) {
        // All environments have values, also those that are left out at present.
        let envs = self.block.envs();
        self.block.limit(self.envs);
        // SAFETY: the row is borrowed exclusively, and no rows of it are left.
        unsafe { self.block.compact() };
        self.block.limit(envs);
        self.most = LEAST.max(self.block.used().saturating_mul(2));
    }
}

/// The least number of bytes that are compacted.
const LEAST: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use tensordict::{DType, LeafSpec};

    use super::RowBlock;
    use crate::{Key, SlabError};

    #[test]
    fn fewer_environments_are_the_first_ones_and_more_than_it_was_made_for_are_refused() {
        let leaves = [
            LeafSpec::new("observation", DType::F32, [2]),
            LeafSpec::new("mask", DType::Bool, []),
        ];
        let (numbers, flags) = (Key::<f32>::new(0), Key::<bool>::new(1));
        let mut block = RowBlock::new(&leaves, 3).unwrap();
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut rows = block.rows_mut();
        rows.get_mut(numbers).unwrap().copy_from_slice(&values);
        rows.get_mut(flags).unwrap()[2] = true;
        for envs in [2, 0, 3, 1] {
            block.limit(envs).unwrap();
            let rows = block.rows();
            assert_eq!(rows.envs(), envs);
            assert_eq!(rows.get(numbers).unwrap(), &values[..2 * envs]);
            assert_eq!(rows.get(flags).unwrap(), &[false, false, true][..envs]);
            assert!(rows.env(envs).is_none());
        }
        block.rows_mut().zero(0).unwrap();
        let refused = block.limit(4).unwrap_err();
        assert!(
            matches!(refused, SlabError::Envs { most: 3, got: 4 }),
            "{refused}"
        );
        assert_eq!(block.rows().envs(), 1);
        block.limit(3).unwrap();
        let kept = block.rows().get(numbers).unwrap();
        assert_eq!(kept, [0.0, 0.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn environments_of_one_block_are_copied_to_any_place_of_another() {
        let leaves = [
            LeafSpec::new("observation", DType::F64, [2]),
            LeafSpec::new("action", DType::I64, []),
        ];
        let (pairs, single) = (Key::<f64>::new(0), Key::<i64>::new(1));
        let mut from = RowBlock::new(&leaves, 2).unwrap();
        let mut rows = from.rows_mut();
        rows.get_mut(pairs)
            .unwrap()
            .copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
        rows.get_mut(single).unwrap().copy_from_slice(&[7, 8]);
        let mut to = RowBlock::new(&leaves, 4).unwrap();
        let mut rows = to.rows_mut();
        rows.copy_envs(1, from.rows(), 0..2).unwrap();
        rows.copy_envs(0, from.rows(), 1..2).unwrap();
        let rows = to.rows();
        let expected = [3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 0.0, 0.0];
        assert_eq!(rows.get(pairs).unwrap(), expected);
        assert_eq!(rows.get(single).unwrap(), [8, 7, 8, 0]);
        let mut rows = to.rows_mut();
        for (at, envs) in [(3, 0..2), (0, 1..3), (usize::MAX, 0..1)] {
            assert!(rows.copy_envs(at, from.rows(), envs).is_err());
        }
        let other = RowBlock::new(&leaves[..1], 2).unwrap();
        assert!(rows.copy_envs(0, other.rows(), 0..1).is_err());
        let shaped = [leaves[1].clone(), leaves[0].clone()];
        let other = RowBlock::new(&shaped, 2).unwrap();
        assert!(rows.copy_envs(0, other.rows(), 0..1).is_err());
        assert_eq!(to.rows().get(single).unwrap(), [8, 7, 8, 0]);
    }
}
