use tensordict::TensorDict;
use windrow_store::Store;

use super::lazy::Lazy;
use super::{Storage, StorageRead};
use crate::ReplayError;

/// Frames in memory, which is laid out when the first come; all frames have their keys, types and
/// shapes, up to those that come first after the storage was cleared.
#[derive(Debug)]
pub struct LazyTensorStorage {
    capacity: usize,
    lazy: Lazy,
}

impl LazyTensorStorage {
    /// Room for `capacity` frames, between 1 and 2³² - 1; anything else is an error of the first
    /// write.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            lazy: Lazy::default(),
        }
    }

    fn make(&self, frames: &TensorDict) -> Result<Store, ReplayError> {
        Ok(Store::new(Store::leaves(frames)?, self.capacity)?)
    }
}

impl Storage for LazyTensorStorage {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn prepare(&self, frames: &TensorDict) -> Result<(), ReplayError> {
        self.lazy.prepare(frames, |frames| self.make(frames))
    }

    fn write(&self, first: usize, frames: &TensorDict) -> Result<(), ReplayError> {
        self.lazy.write(first, frames, |frames| self.make(frames))
    }

    fn read(&self) -> Box<dyn StorageRead + '_> {
        self.lazy.read()
    }

    fn clear(&self) {
        self.lazy.clear();
    }
}
