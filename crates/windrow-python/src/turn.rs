//! Functions of Python's that make environments are called one after the other, in all collectors of a process.
//!
//! In TorchRL each worker is a process, so what makes its environments may use state of a class or of a module meanwhile,
//! as TorchRL itself does.
//!
//! The lock is taken before the interpreter's, never while waiting with that: a thread that has the turn calls Python code, which may
//! give the interpreter's lock up at any time. A function that makes environments may itself build a collector, whose workers need
//! the turn: so a thread can have it several times over, and lends it while it waits for other threads.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use crate::gil;
use crate::process;

/// The process of the thread whose turn it is: in a child of fork, none of its parent's threads goes on.
static TAKEN: Mutex<Option<u32>> = Mutex::new(None);
static GIVEN_BACK: Condvar = Condvar::new();

thread_local! {
    /// How many turns this thread has, one within the other.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// The turn of this thread, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn(());

impl Turn {
    /// Waits for the turn, without the interpreter's lock. A thread that has it already has it once more.
    ///
    /// # Errors
    /// The exception of a signal handler, such as `KeyboardInterrupt`.
    pub(crate) fn take(py: Python<'_>) -> PyResult<Self> {
        if DEPTH.get() == 0 {
            gil::wait(py, |patience| taken_within(patience).then_some(()))?;
        }
        DEPTH.set(DEPTH.get() + 1);
        Ok(Self(()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            give_back();
        }
    }
}

/// What `f` returns, which may wait for threads that want the turn: they have it meanwhile, if this thread has. To be
/// called without the interpreter's lock.
pub(crate) fn lending<R>(f: impl FnOnce() -> R) -> R {
    let _lent = Lent::new();
    f()
}

/// Takes the turn of this thread back when it is dropped.
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
            while !taken_within(gil::SLICE) {}
            DEPTH.set(self.0);
        }
    }
}

/// Waits for the turn, no longer than `patience`, and takes it if it is free by then.
fn taken_within(patience: Duration) -> bool {
    let here = Some(process::id());
    let waited = GIVEN_BACK.wait_timeout_while(lock(), patience, |taken| *taken == here);
    let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
    let is_free = *taken != here;
    if is_free {
        *taken = here;
    }
    is_free
}

/// Lets one of those who wait have the turn.
fn give_back() {
    *lock() = None;
    GIVEN_BACK.notify_one();
}

/// Whose turn it is. The mutex is held for an instant only, and no Python code runs meanwhile.
fn lock() -> MutexGuard<'static, Option<u32>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}
