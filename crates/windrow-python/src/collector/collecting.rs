//! The threads that collect, at any moment.

use std::cell::Cell;

use pyo3::prelude::*;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Marks the calling thread as one that collects, until this is dropped.
#[derive(Debug)]
pub(super) struct Collecting(());

impl Collecting {
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

/// Marks the calling thread as one that collects, for good.
pub(super) fn from_now_on() {
    std::mem::forget(Collecting::begin());
}

/// Whether the calling thread collects. The failure of another collector is not raised there: it would end the present
/// collection, and the user would not see it.
#[pyfunction]
pub(super) fn collects() -> bool {
    DEPTH.get() > 0
}
