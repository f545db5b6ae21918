//! The threads that are collecting at the moment.
//!
//! An error that ends a collector in the background is kept, and the next call on the collector or
//! its replay buffer raises it. A call in a thread that collects does not, such as a hook that
//! reads the buffer: the error would end that thread's collection too, and the user would not see
//! it as the other collector's.

use std::cell::Cell;

use pyo3::prelude::*;

thread_local! {
    /// How many collections this thread is in, one within the other: a hook may iterate over
    /// another collector.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Marks the calling thread as one that collects, until this is dropped.
#[derive(Debug)]
pub(super) struct Collecting(());

impl Collecting {
    /// Marks the thread; call it once for each collection.
    pub(super) fn begin() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self(())
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Marks the calling thread as one that collects until it ends: the thread of `start`.
pub(super) fn from_now_on() {
    std::mem::forget(Collecting::begin());
}

/// Whether the calling thread collects, so that the failure of another collector must not be raised
/// in it.
#[pyfunction]
pub(super) fn collects() -> bool {
    DEPTH.get() > 0
}
