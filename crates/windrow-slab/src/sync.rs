//! The locks and counters of the ring, or loom's models of them.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// Looks for `changed` a short while before the caller goes to sleep.
///
/// A thread that sleeps costs a futex round trip (about 15 µs) to wake, one that is still looking well under one.
/// Few looks, then a few yields: where workers outnumber cores, long spinning keeps the very thread from running
/// that one waits for.
#[cfg(not(loom))]
pub(crate) fn spin_until(mut changed: impl FnMut() -> bool) -> bool {
    for _ in 0..100 {
        if changed() {
            return true;
        }
        std::hint::spin_loop();
    }
    for _ in 0..30 {
        if changed() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

/// Spinning adds states to the model and nothing that it could find.
#[cfg(loom)]
pub(crate) fn spin_until(_: impl FnMut() -> bool) -> bool {
    false
}
