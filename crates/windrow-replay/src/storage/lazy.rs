//! A store that is laid out when its first frames come.

use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use tensordict::{NestedKey, TensorDict};
use windrow_slab::{LeafSpec, Store, StoreError, StoreRead};

use super::StorageRead;
use crate::ReplayError;

/// What storages have in common whose frames all look alike.
#[derive(Debug, Default)]
pub(super) struct Lazy {
    store: OnceLock<Store>,
    /// Held by whoever makes the store.
    making: Mutex<()>,
}

impl Lazy {
    pub(super) fn of(store: Store) -> Self {
        Self {
            store: OnceLock::from(store),
            making: Mutex::default(),
        }
    }

    /// Checks that frames fit the store, which is made by `make` when it is not there yet.
    pub(super) fn prepare(
        &self,
        frames: &TensorDict,
        make: impl FnOnce(Vec<LeafSpec>) -> Result<Store, ReplayError>,
    ) -> Result<(), ReplayError> {
        Ok(self.store_for(frames, make)?.check(frames)?)
    }

    /// Writes frames, to a store by `make` when it is not there yet.
    pub(super) fn write(
        &self,
        first: usize,
        frames: &TensorDict,
        make: impl FnOnce(Vec<LeafSpec>) -> Result<Store, ReplayError>,
    ) -> Result<(), ReplayError> {
        Ok(self.store_for(frames, make)?.write(first, frames)?)
    }

    fn store_for(
        &self,
        frames: &TensorDict,
        make: impl FnOnce(Vec<LeafSpec>) -> Result<Store, ReplayError>,
    ) -> Result<&Store, ReplayError> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let made = make(Store::leaves(frames)?)?;
        Ok(self.store.get_or_init(|| made))
    }

    pub(super) fn read(&self) -> Box<dyn StorageRead + '_> {
        match self.store.get() {
            Some(store) => Box::new(store.read()),
            None => Box::new(Nothing),
        }
    }

    pub(super) fn clear(&self) {
        if let Some(store) = self.store.get() {
            store.clear();
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
