//! Which threads collect.

use std::cell::Cell;

use pyo3::prelude::*;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// This thread collects until this is dropped.
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

/// Lets this thread collect until it ends.
pub(super) fn from_now_on() {
    std::mem::forget(Collecting::begin());
}

/// Whether the calling thread collects: another collector's failure is not for it. It would end the collection that is under
/// way, and whoever waits for the other would not hear of it.
#[pyfunction]
pub(super) fn collects() -> bool {
    DEPTH.get() > 0
}
