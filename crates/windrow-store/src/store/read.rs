//! Reading rows of a store.

use std::ops::{Deref, Range};
use std::sync::Arc;

use tensordict::{Cell, DType, Extent, LeafSpec, NestedKey, Shape, Tensor, TensorDict};

use super::{CHUNK, Store};
use crate::StoreError;
use crate::epoch::ReadToken;
use crate::layout::Field;

/// A registered reader: what it could read at first stays as it is until the reader is dropped.
#[derive(Debug)]
pub struct StoreRead<'a> {
    pub(super) store: StoreRef<'a>,
    pub(super) token: ReadToken,
}

/// The store of a reader, which may keep it alive.
#[derive(Debug)]
pub(super) enum StoreRef<'a> {
    Lent(&'a Store),
    Shared(Arc<Store>),
}

impl Deref for StoreRef<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        match self {
            Self::Lent(store) => store,
            Self::Shared(store) => store,
        }
    }
}

impl Drop for StoreRead<'_> {
    fn drop(&mut self) {
        self.store.lock.leave(self.token);
    }
}

impl StoreRead<'_> {
    /// Copies rows into fresh memory, in the order given; rows may repeat. Result: `[rows.len()]`.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRow`], and [`StoreError::NotFilled`] when a row holds no frame or was
    /// being written when the reader was registered.
    pub fn gather(&self, rows: &[u32]) -> Result<TensorDict, StoreError> {
        let layout = &self.store.layout;
        self.gather_of(rows, layout.leaves.iter().zip(&layout.fields))
    }

    /// As [`gather`](StoreRead::gather), for these entries alone.
    ///
    /// # Errors
    /// The errors of [`gather`](StoreRead::gather), and [`StoreError::Missing`] when the store has
    /// no such entry.
    pub fn gather_keys(&self, rows: &[u32], keys: &[NestedKey]) -> Result<TensorDict, StoreError> {
        let layout = &self.store.layout;
        let find = |key: &NestedKey| {
            let at = layout.leaves.iter().position(|leaf| leaf.key == *key);
            at.map(|at| (&layout.leaves[at], &layout.fields[at]))
                .ok_or_else(|| StoreError::Missing { key: key.clone() })
        };
        let chosen = keys.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        self.gather_of(rows, chosen.into_iter())
    }

    fn gather_of<'l>(
        &self,
        rows: &[u32],
        chosen: impl Iterator<Item = (&'l LeafSpec, &'l Field)> + Clone,
    ) -> Result<TensorDict, StoreError> {
        self.check(rows)?;
        #[cfg(loom)]
        rows.iter()
            .for_each(|&row| self.store.shadow[row as usize].read());
        let mut targets = Vec::with_capacity(self.store.layout.fields.len());
        let is_of_values = |(leaf, _): &(&LeafSpec, &Field)| leaf.dtype == DType::Bytes;
        for (leaf, field) in chosen.clone().filter(|entry| !is_of_values(entry)) {
            let mut shape = Shape::with_capacity(leaf.shape.len() + 1);
            shape.push(rows.len());
            shape.extend_from_slice(&leaf.shape);
            // SAFETY: every row is written below, before the tensor is handed out.
            let tensor = unsafe { Tensor::uninit(leaf.dtype, &shape) }?;
            targets.push((leaf, field, tensor));
        }
        for (chunk, rows) in rows.chunks(CHUNK).enumerate() {
            for (_, field, tensor) in &targets {
                let base = self.store.field(field).cast_const();
                // SAFETY: `check` has found the rows filled and none of them pending, so no one
                // writes them as long as this reader is registered; each tensor has room for all
                // rows.
                unsafe {
                    let to = tensor.data_ptr().as_ptr().add(chunk * CHUNK * field.bytes);
                    (field.copies.gather)(base, field.stride, rows, field.bytes, to);
                }
            }
        }
        // Only now: of two tensors under one key, the dict would drop the first.
        let mut dict = TensorDict::new([rows.len()]);
        for (leaf, _, tensor) in targets {
            dict.set(&leaf.key, tensor)?;
        }
        for (leaf, field) in chosen.filter(is_of_values) {
            dict.set(&leaf.key, self.gather_values(rows, leaf, field)?)?;
        }
        dict.set_groups(&self.store.groups)?;
        Ok(dict)
    }

    /// Copies the values of `rows`, which `check` has found readable.
    fn gather_values(
        &self,
        rows: &[u32],
        leaf: &LeafSpec,
        field: &Field,
    ) -> Result<Tensor, StoreError> {
        let extents = self.store.values.extents();
        let base = self.store.field(field).cast_const();
        let count = leaf.elements();
        let mut values: Vec<&[u8]> = Vec::with_capacity(rows.len() * count);
        for &row in rows {
            for element in 0..count {
                // SAFETY: as in `gather_of`, nobody writes the row as long as this reader is
                // registered, nor the blocks that its cells name, which are written before the row
                // and freed with it. Memory of values is initialised.
                let value = unsafe {
                    let cells = base.add(row as usize * field.stride).cast::<Cell>();
                    Extent::find(&extents, cells.add(element).read())
                };
                values.push(value.ok_or_else(|| StoreError::Stray {
                    row,
                    key: leaf.key.clone(),
                })?);
            }
        }
        let shape = [&[rows.len()][..], &leaf.shape].concat();
        Ok(Tensor::from_strings(&values, shape)?)
    }

    /// Whether all of these rows can be read.
    fn check(&self, rows: &[u32]) -> Result<(), StoreError> {
        let capacity = self.store.layout.capacity;
        for &row in rows {
            if row as usize >= capacity {
                let row = row as usize;
                return Err(StoreError::NoSuchRow { row, capacity });
            }
            let torn = self
                .token
                .pending
                .is_some_and(|pending| pending.has(row as usize, capacity));
            if torn || !self.store.header.is_filled(row) {
                return Err(StoreError::NotFilled { row });
            }
        }
        Ok(())
    }

    /// The rows that can be read, in order.
    #[must_use]
    pub fn filled(&self) -> Vec<Range<u32>> {
        let capacity = self.store.layout.capacity;
        let runs = self.store.header.filled();
        let Some(pending) = self.token.pending else {
            return runs;
        };
        let [high, low] = pending.pieces(capacity);
        let torn = [low, high].map(|piece| piece.start as u32..piece.end as u32);
        runs.into_iter()
            .flat_map(|run| without(run, &torn))
            .collect()
    }
}

/// What is left of `run` without `torn`, which are in order.
fn without(run: Range<u32>, torn: &[Range<u32>]) -> Vec<Range<u32>> {
    let mut left = Vec::new();
    let mut start = run.start;
    for torn in torn {
        left.push(start..torn.start.min(run.end));
        start = start.max(torn.end);
    }
    left.push(start..run.end);
    left.retain(|run| run.start < run.end);
    left
}
