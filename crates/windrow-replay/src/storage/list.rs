use std::ops::Range;
use std::sync::{RwLock, RwLockReadGuard};

use tensordict::{NestedKey, TensorDict};
use windrow_store::StoreError;
use windrow_sync::unpoisoned;

use super::{Storage, StorageRead};
use crate::ReplayError;
use crate::buffer::{ValuesOf, alike};

/// Frames kept one by one, in memory of their own each: for small things whose keys or shapes may
/// differ.
///
/// Sampling stacks the frames, so those that are sampled together must be alike. Writers wait until
/// no reader is left.
#[derive(Debug)]
pub struct ListStorage {
    capacity: usize,
    /// As many as were written to.
    rows: RwLock<Vec<Option<TensorDict>>>,
    values_of: Option<ValuesOf>,
}

impl ListStorage {
    /// Room for `capacity` frames.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            rows: RwLock::default(),
            values_of: None,
        }
    }

    /// Samples frames that have numbers in an entry together with frames that have values of bytes
    /// there: the numbers become values, by this function.
    #[doc(hidden)]
    #[must_use]
    pub fn values_of(mut self, values_of: ValuesOf) -> Self {
        self.values_of = Some(values_of);
        self
    }

    fn rows(&self) -> RwLockReadGuard<'_, Vec<Option<TensorDict>>> {
        unpoisoned(self.rows.read())
    }
}

impl Storage for ListStorage {
    fn capacity(&self) -> usize {
        self.capacity
    }

    /// Checks that the frames are flat; everything else may differ.
    fn frames_are_alike(&self) -> bool {
        false
    }

    fn prepare(&self, frames: &TensorDict) -> Result<(), ReplayError> {
        match frames.batch_size() {
            [_] => Ok(()),
            other => Err(StoreError::NotFlat {
                batch_size: other.to_vec(),
            }
            .into()),
        }
    }

    fn write(&self, first: usize, frames: &TensorDict) -> Result<(), ReplayError> {
        self.prepare(frames)?;
        // Copied before the lock is taken: readers wait for moves only.
        let split = (0..frames.numel())
            .map(|frame| Ok(frames.index(frame)?.detach()))
            .collect::<Result<Vec<_>, ReplayError>>()?;
        let capacity = self.capacity;
        if first >= capacity {
            return Err(StoreError::NoSuchRow {
                row: first,
                capacity,
            }
            .into());
        }
        if split.len() > capacity {
            return Err(StoreError::TooMany {
                frames: split.len(),
                capacity,
            }
            .into());
        }
        let mut rows = unpoisoned(self.rows.write());
        let end = capacity.min(first + split.len());
        if rows.len() < end {
            rows.resize(end, None);
        }
        for (place, frame) in split.into_iter().enumerate() {
            rows[(first + place) % capacity] = Some(frame);
        }
        Ok(())
    }

    fn read(&self) -> Box<dyn StorageRead + '_> {
        Box::new(ListRead {
            capacity: self.capacity,
            rows: self.rows(),
            values_of: self.values_of,
        })
    }

    fn clear(&self) {
        unpoisoned(self.rows.write()).fill(None);
    }
}

/// A reader of the list: it holds the lock.
struct ListRead<'a> {
    capacity: usize,
    rows: RwLockReadGuard<'a, Vec<Option<TensorDict>>>,
    values_of: Option<ValuesOf>,
}

impl ListRead<'_> {
    fn row(&self, row: u32) -> Result<&TensorDict, ReplayError> {
        let (at, capacity) = (row as usize, self.capacity);
        if at >= capacity {
            return Err(StoreError::NoSuchRow { row: at, capacity }.into());
        }
        let found = self.rows.get(at).and_then(Option::as_ref);
        Ok(found.ok_or(StoreError::NotFilled { row })?)
    }
}

impl StorageRead for ListRead<'_> {
    fn gather(&self, rows: &[u32]) -> Result<TensorDict, ReplayError> {
        let frames = rows
            .iter()
            .map(|&row| self.row(row))
            .collect::<Result<Vec<_>, _>>()?;
        stack(rows, &frames, self.values_of)
    }

    fn gather_keys(&self, rows: &[u32], keys: &[NestedKey]) -> Result<TensorDict, ReplayError> {
        let frames = rows
            .iter()
            .map(|&row| Ok(self.row(row)?.select(keys)?))
            .collect::<Result<Vec<_>, ReplayError>>()?;
        stack(rows, &frames, self.values_of)
    }

    fn filled(&self) -> Vec<Range<u32>> {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for (row, frame) in (0u32..).zip(self.rows.iter()) {
            if frame.is_none() {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == row => last.end = row + 1,
                _ => ranges.push(row..row + 1),
            }
        }
        ranges
    }
}

fn stack<D: std::borrow::Borrow<TensorDict>>(
    rows: &[u32],
    frames: &[D],
    values_of: Option<ValuesOf>,
) -> Result<TensorDict, ReplayError> {
    if frames.is_empty() {
        return Ok(TensorDict::new([0]));
    }
    let stacked = TensorDict::stack(frames, 0);
    let stacked = match values_of {
        Some(values_of) if stacked.is_err() => TensorDict::stack(&alike(frames, values_of)?, 0),
        _ => stacked,
    };
    stacked.map_err(|error| ReplayError::Unlike {
        rows: rows.to_vec(),
        error: Box::new(error),
    })
}
