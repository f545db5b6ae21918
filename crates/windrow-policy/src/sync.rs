//! The locks, the counter and the thread of this crate, or loom's and shuttle's models of them.

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicI64, Ordering},
    },
    thread::{Builder, JoinHandle},
};
#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicI64, Ordering},
    },
    thread::{Builder, JoinHandle},
};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicI64, Ordering},
    },
    thread::{Builder, JoinHandle},
};

/// The guard of `mutex`; nothing that is locked in this crate is left half changed by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
