//! Python objects that the engine holds, and the interpreter's garbage collector.
//!
//! The collector frees a cycle only if it sees every reference in it. A reference in the engine's memory is one that it cannot see: an
//! environment whose attribute is the collector that steps it would never be freed. So every object that the engine holds is known to
//! the owner that it is held for, a class of this module, which shows it in `__traverse__`.
//!
//! None of the classes has a `__clear__`. When a cycle is garbage, Python's own objects in it are taken apart, which drops the owner,
//! and the owner ends its threads and closes its environments in order.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::gil::attach;

/// Knows the objects that the engine holds for one object of Python's, such as a collector, which shows them to the garbage
/// collector. Without that, everything that refers to itself by way of the engine would live for ever.
#[derive(Debug, Clone, Default)]
pub(crate) struct GcRoots {
    /// Weak, so that an object is dropped where the engine lets go of it, and not when this list is next looked at.
    known: Arc<Mutex<Vec<Weak<Py<PyAny>>>>>,
    /// Whether the owner was given up while it was built.
    abandoned: Arc<AtomicBool>,
}

/// An object that is held until the last clone of this is dropped: one reference, however many clones there are, so that it is shown once.
#[derive(Debug, Clone)]
pub(crate) struct GcRef(Arc<Py<PyAny>>);

impl GcRoots {
    /// Holds `object`.
    pub(crate) fn hold<T>(&self, object: &Bound<'_, T>) -> GcRef {
        let kept = Arc::new(object.as_any().clone().unbind());
        let mut known = self.known();
        // Now and then, at a cost that is spread over all that were added.
        if known.len() == known.capacity() {
            known.retain(|known| known.strong_count() > 0);
        }
        known.push(Arc::downgrade(&kept));
        GcRef(kept)
    }

    /// What Python code has raised, as an error of the engine, which may hold it for long: it refers to all that was under way.
    pub(crate) fn raised(&self, py: Python<'_>, raised: PyErr) -> Raised {
        Raised(self.hold(raised.into_value(py).bind(py)))
    }

    /// Notes that the owner was given up while it was built, as by Ctrl-C: no further function of the user's is called.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// Whether the owner was given up while it was built.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Shows everything that is held to the garbage collector, on behalf of the one object that these roots belong to.
    ///
    /// Between two looks of it something may be dropped, by a thread that does not have the interpreter's lock, but nothing
    /// is added, which takes that lock: so it never takes for garbage what is not.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let known = self.known();
        let mut kept = known.iter().filter_map(Weak::upgrade);
        kept.try_for_each(|kept| visit.call(&*kept))
    }

    /// Never waits for long: each thread that comes here has the interpreter's lock and does not give it up meanwhile.
    fn known(&self) -> MutexGuard<'_, Vec<Weak<Py<PyAny>>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for GcRef {
    type Target = Py<PyAny>;

    fn deref(&self) -> &Py<PyAny> {
        &self.0
    }
}

/// An exception that the engine holds.
#[derive(Debug, Clone)]
pub(crate) struct Raised(GcRef);

impl Raised {
    pub(crate) fn exception(&self, py: Python<'_>) -> PyErr {
        PyErr::from_value(self.0.bind(py).clone())
    }
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        attach(|py| self.exception(py).fmt(f))
    }
}

impl std::error::Error for Raised {}
