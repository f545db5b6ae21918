//! Functions of Python's that make environments are called one after the other, in all collectors
//! of a process.
//!
//! In TorchRL each worker is a process, so what makes its environments may use state of a class or
//! of a module meanwhile, as TorchRL itself does.
//!
//! The lock is taken before the interpreter's, never while waiting with that: a thread that has it
//! calls Python code, which may give the interpreter's lock up at any time. Two threads that took
//! the two locks in different orders would wait for each other for ever. A function that makes
//! environments may itself build a collector, whose workers need this lock: so a thread can take it
//! several times over, and lends it while it waits for other threads.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use pyo3::prelude::*;
use windrow_sync::unpoisoned;

use crate::gil;
use crate::process;

/// The process of the thread that has the lock. A child of fork takes it although its parent had
/// it: the thread that did is not there.
static TAKEN: Mutex<Option<u32>> = Mutex::new(None);
static GIVEN_BACK: Condvar = Condvar::new();

thread_local! {
    /// How many times this thread has taken the lock, one within the other.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// The lock on functions that make environments, until this is dropped.
#[derive(Debug)]
pub(crate) struct FactoryLock(());

impl FactoryLock {
    /// Waits for the lock without the interpreter's. A thread that has it already takes it once
    /// more.
    ///
    /// # Errors
    /// The exception of a signal handler, such as `KeyboardInterrupt`.
    pub(crate) fn take(py: Python<'_>) -> PyResult<Self> {
        // `wait` lends the lock if this thread has it, so it is only called where it does not.
        if DEPTH.get() == 0 {
            gil::wait(py, |patience| taken_within(patience).then_some(()))?;
        }
        DEPTH.set(DEPTH.get() + 1);
        Ok(Self(()))
    }
}

impl Drop for FactoryLock {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            give_back();
        }
    }
}

/// Calls `f`, which may wait for threads that want the lock: this thread lends it to them
/// meanwhile, if it has it. To be called without the interpreter's lock.
pub(crate) fn lending<R>(f: impl FnOnce() -> R) -> R {
    let _lent = Lent::new();
    f()
}

/// Takes the lock back for this thread when it is dropped. Holds how many times over the thread had
/// it.
struct Lent(usize);

impl Lent {
    fn new() -> Self {
        let depth = DEPTH.replace(0);
        if depth > 0 {
            give_back();
        }
        Self(depth)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.0 > 0 {
            // Signals are not handled here: the caller handles them once it has the interpreter's
            // lock again.
            while !taken_within(gil::SLICE) {}
            DEPTH.set(self.0);
        }
    }
}

/// Waits for the lock, no longer than `patience`, and takes it if it is free by then: whether it
/// was. Called without the interpreter's lock.
fn taken_within(patience: Duration) -> bool {
    let here = Some(process::id());
    let waited = GIVEN_BACK.wait_timeout_while(lock(), patience, |taken| *taken == here);
    let (mut taken, _) = unpoisoned(waited);
    let is_free = *taken != here;
    if is_free {
        *taken = here;
    }
    is_free
}

/// Gives the lock to one of the threads that wait for it.
fn give_back() {
    *lock() = None;
    GIVEN_BACK.notify_one();
}

/// The process of the thread that has the lock. The mutex is held for an instant only, and no
/// Python code runs meanwhile.
fn lock() -> MutexGuard<'static, Option<u32>> {
    unpoisoned(TAKEN.lock())
}
