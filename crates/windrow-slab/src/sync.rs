//! The locks and counters of rings, or loom's and shuttle's models of them.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// Stands for the memory of one part: loom fails a model in which one thread writes the part while another accesses it.
#[cfg(loom)]
#[derive(Debug, Default)]
pub(crate) struct Shadow(loom::cell::UnsafeCell<u64>);

#[cfg(loom)]
// SAFETY: loom checks every access, which is what the cell is for.
unsafe impl Sync for Shadow {}

#[cfg(loom)]
impl Shadow {
    /// The part is being written.
    pub(crate) fn write(&self) {
        // SAFETY: loom fails the test when another thread accesses the cell meanwhile.
        self.0.with_mut(|writes| unsafe { *writes += 1 });
    }

    /// The part is being read.
    pub(crate) fn read(&self) {
        // SAFETY: as above.
        self.0.with(|writes| assert!(unsafe { *writes } > 0));
    }
}
