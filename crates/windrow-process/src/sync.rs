//! The words that processes share, or loom's models of them.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence},
};

use std::sync::PoisonError;

/// A panic of a caller's closure under one of these locks leaves what they guard as it was.
pub(crate) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stands for memory without words of its own: loom fails a model in which one thread writes it while another accesses it.
#[cfg(loom)]
#[derive(Debug, Default)]
pub(crate) struct Shadow(loom::cell::UnsafeCell<u64>);

#[cfg(loom)]
// SAFETY: loom checks every access, which is what the cell is for.
unsafe impl Sync for Shadow {}

#[cfg(loom)]
impl Shadow {
    /// The memory is being written.
    pub(crate) fn write(&self) {
        // SAFETY: loom fails the test when another thread accesses the cell meanwhile.
        self.0.with_mut(|writes| unsafe { *writes += 1 });
    }

    /// The memory is being read.
    pub(crate) fn read(&self) {
        // SAFETY: as above.
        self.0.with(|writes| assert!(unsafe { *writes } > 0));
    }
}
