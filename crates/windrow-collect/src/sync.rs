//! The locks, counters, channels and threads between a collector and its workers, or shuttle's models of them.

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread::{Builder, JoinHandle, ThreadId, current as current_thread},
};
#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread::{Builder, JoinHandle, ThreadId, current as current_thread},
};

/// The guard of `mutex`; nothing that is locked in this crate is left half changed by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Says whether a wait is given up; `None` for a wait that lasts until its end, which needs no clock.
pub(crate) type GivenUp<'a> = Option<&'a mut dyn FnMut() -> bool>;

/// How often a wait that can be given up asks whether it is.
pub(crate) const SLICE: std::time::Duration = std::time::Duration::from_millis(100);
