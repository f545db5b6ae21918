//! A store that is laid out when its first frames come.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};

use tensordict::{NestedKey, TensorDict};
use windrow_store::{Store, StoreError, StoreRead};
use windrow_sync::unpoisoned;

use super::StorageRead;
use crate::ReplayError;

/// The common part of storages whose frames all have the same keys, dtypes and shapes.
#[derive(Debug, Default)]
pub(super) struct Lazy {
    /// Locked for writing only while a store is made; readers keep theirs alive.
    store: RwLock<Option<Arc<Store>>>,
    /// Whether nothing was prepared or written since the store was cleared. Changed under the lock.
    cleared: AtomicBool,
}

impl Lazy {
    #[cfg(not(loom))]
    pub(super) fn of(store: Store) -> Self {
        Self {
            store: RwLock::new(Some(Arc::new(store))),
            cleared: AtomicBool::new(false),
        }
    }

    /// Checks that frames fit the store, which is made by `make` when it is not there yet, and anew
    /// for the first frames after it was cleared, where they do not fit.
    pub(super) fn prepare(
        &self,
        frames: &TensorDict,
        make: impl Fn(&TensorDict) -> Result<Store, ReplayError>,
    ) -> Result<(), ReplayError> {
        self.with_store(frames, make, |store| store.check(frames))
    }

    /// Writes frames, to the store that [`prepare`](Self::prepare) has made.
    pub(super) fn write(
        &self,
        first: usize,
        frames: &TensorDict,
        make: impl Fn(&TensorDict) -> Result<Store, ReplayError>,
    ) -> Result<(), ReplayError> {
        self.with_store(frames, make, |store| store.write(first, frames))
    }

    fn with_store(
        &self,
        frames: &TensorDict,
        make: impl Fn(&TensorDict) -> Result<Store, ReplayError>,
        work: impl Fn(&Store) -> Result<(), StoreError>,
    ) -> Result<(), ReplayError> {
        let is_other = |store: &Arc<Store>| {
            self.cleared.load(Ordering::Relaxed) && store.check(frames).is_err()
        };
        loop {
            if let Some(store) = &*self.store() {
                let done = work(store);
                if done.is_ok() || !is_other(store) {
                    self.cleared.fetch_and(done.is_err(), Ordering::Relaxed);
                    return Ok(done?);
                }
            }
            let mut store = unpoisoned(self.store.write());
            if store.as_ref().is_none_or(is_other) {
                // The old one first: its memory, or its file, makes room for the new.
                *store = None;
                *store = Some(Arc::new(make(frames)?.with_groups(frames.groups())));
                self.cleared.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Rows written over the life of the store; 0 without one.
    #[cfg(not(loom))]
    pub(super) fn written(&self) -> u64 {
        self.store().as_ref().map_or(0, |store| store.written())
    }

    /// Whether `len` rows from `first` on, modulo the capacity, hold frames.
    #[cfg(not(loom))]
    pub(super) fn are_filled(&self, first: usize, len: usize) -> bool {
        let store = self.store();
        let Some(store) = &*store else {
            return false;
        };
        let capacity = store.capacity();
        let rows: Vec<u32> = (first..first + len)
            .map(|row| (row % capacity) as u32)
            .collect();
        // Of no entry: it only looks whether the rows are there.
        store.read().gather_keys(&rows, &[]).is_ok()
    }

    fn store(&self) -> RwLockReadGuard<'_, Option<Arc<Store>>> {
        unpoisoned(self.store.read())
    }

    pub(super) fn read(&self) -> Box<dyn StorageRead + '_> {
        match &*self.store() {
            Some(store) => Box::new(Arc::clone(store).read_shared()),
            None => Box::new(Nothing),
        }
    }

    pub(super) fn clear(&self) {
        if let Some(store) = &*self.store() {
            store.clear();
            self.cleared.store(true, Ordering::Relaxed);
        }
    }
}

impl StorageRead for StoreRead<'_> {
    fn gather(&self, rows: &[u32]) -> Result<TensorDict, ReplayError> {
        Ok(self.gather(rows)?)
    }

    fn gather_keys(&self, rows: &[u32], keys: &[NestedKey]) -> Result<TensorDict, ReplayError> {
        Ok(self.gather_keys(rows, keys)?)
    }

    fn filled(&self) -> Vec<Range<u32>> {
        self.filled()
    }
}

/// A reader of a storage to which nothing has been written.
struct Nothing;

impl StorageRead for Nothing {
    fn gather(&self, rows: &[u32]) -> Result<TensorDict, ReplayError> {
        match rows.first() {
            Some(&row) => Err(StoreError::NotFilled { row }.into()),
            None => Ok(TensorDict::new([0])),
        }
    }

    fn gather_keys(&self, rows: &[u32], _: &[NestedKey]) -> Result<TensorDict, ReplayError> {
        self.gather(rows)
    }

    fn filled(&self) -> Vec<Range<u32>> {
        Vec::new()
    }
}
