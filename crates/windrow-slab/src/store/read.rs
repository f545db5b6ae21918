//! Reading rows.

use std::ops::{Deref, Range};
use std::sync::Arc;

use tensordict::{NestedKey, Shape, Tensor, TensorDict};

use super::gate::Pass;
use super::layout::Field;
use super::{CHUNK, Store, StoreError};
use crate::LeafSpec;

/// A registered reader: what it could read at first stays as it is until it is dropped.
#[derive(Debug)]
pub struct StoreRead<'a> {
    pub(super) store: Held<'a>,
    pub(super) pass: Pass,
}

/// The store that is read, which a reader may keep alive.
#[derive(Debug)]
pub(super) enum Held<'a> {
    Lent(&'a Store),
    Shared(Arc<Store>),
}

impl Deref for Held<'_> {
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
        self.store.gate.leave(self.pass);
    }
}

impl StoreRead<'_> {
    /// Copies rows into fresh memory, in the order given; rows may repeat. Result: `[rows.len()]`.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRow`], and [`StoreError::NotFilled`] when a row holds no frame or was being written when the
    /// reader was registered.
    pub fn gather(&self, rows: &[u32]) -> Result<TensorDict, StoreError> {
        let layout = &self.store.layout;
        self.gather_of(rows, layout.leaves.iter().zip(&layout.fields))
    }

    /// As [`gather`](StoreRead::gather), for these entries alone.
    ///
    /// # Errors
    /// As there, and [`StoreError::Missing`] when the store has no such entry.
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
        for (leaf, field) in chosen {
            let mut shape = Shape::with_capacity(leaf.shape.len() + 1);
            shape.push(rows.len());
            shape.extend_from_slice(&leaf.shape);
            // SAFETY: every row is written below, before anybody else sees the tensor.
            let tensor = unsafe { Tensor::uninit(leaf.dtype, &shape) }?;
            targets.push((leaf, field, tensor));
        }
        for (chunk, rows) in rows.chunks(CHUNK).enumerate() {
            for (_, field, tensor) in &targets {
                let base = self.store.field(field).cast_const();
                // SAFETY: `check` has found the rows filled and apart from those that were being written, so nobody
                // writes them as long as this reader is registered; each tensor has room for all rows.
                unsafe {
                    let to = tensor.data_ptr().as_ptr().add(chunk * CHUNK * field.bytes);
                    (field.copies.gather)(base, field.stride, rows, field.bytes, to);
                }
            }
        }
        // Only now: of two tensors under one key, the dict keeps the second alone.
        let mut dict = TensorDict::new([rows.len()]);
        for (leaf, _, tensor) in targets {
            dict.set(&leaf.key, tensor)?;
        }
        dict.set_groups(&self.store.groups)?;
        Ok(dict)
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
                .pass
                .flight
                .is_some_and(|flight| flight.has(row as usize, capacity));
            if torn || !self.store.words.is_filled(row) {
                return Err(StoreError::NotFilled { row });
            }
        }
        Ok(())
    }

    /// The rows that can be read, in order.
    #[must_use]
    pub fn filled(&self) -> Vec<Range<u32>> {
        let capacity = self.store.layout.capacity;
        let runs = self.store.words.filled();
        let Some(flight) = self.pass.flight else {
            return runs;
        };
        let torn = flight.pieces(capacity);
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
