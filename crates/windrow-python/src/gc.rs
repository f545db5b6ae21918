//! Python objects that the engine holds, and the interpreter's garbage collector.
//!
//! The collector frees a cycle only if it sees every reference in it. A reference in the engine's
//! memory is one that it cannot see: an environment whose attribute is the collector that steps it
//! would never be freed. So every object that the engine holds is known to the owner that it is
//! held for, a class of this module, which shows it in `__traverse__`.
//!
//! None of the classes has a `__clear__`. When a cycle is garbage, Python's own objects in it are
//! taken apart, which drops the owner, and the owner ends its threads and closes its environments
//! in order.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use windrow_sync::unpoisoned;

use crate::gil::attach;

/// The objects that the engine holds for one Python object, such as a collector. That object, their
/// owner, shows them to the garbage collector. Otherwise a cycle that leads through the engine
/// would live for ever.
#[derive(Debug, Clone, Default)]
pub(crate) struct GcRoots {
    /// Weak, so that an object is dropped where the engine lets go of it, and not when this list is
    /// next looked at.
    known: Arc<Mutex<Vec<Weak<Py<PyAny>>>>>,
    /// Whether the owner was given up while it was built.
    abandoned: Arc<AtomicBool>,
}

/// A Python object that the engine holds, until the last clone of this is dropped. All clones share
/// one reference, and the garbage collector is shown that one: it subtracts each reference that it
/// sees from those that the object counts, so a reference that it saw twice would make a living
/// object look like garbage.
#[derive(Debug, Clone)]
pub(crate) struct GcRef(Arc<Py<PyAny>>);

impl GcRoots {
    /// Holds `object` until the last clone of the returned reference is dropped. The caller has the
    /// interpreter's lock.
    pub(crate) fn hold<T>(&self, object: &Bound<'_, T>) -> GcRef {
        let kept = Arc::new(object.as_any().clone().unbind());
        let mut known = self.known();
        // Entries whose objects are gone are removed when the list would grow, so that the cost is
        // spread over all additions.
        if known.len() == known.capacity() {
            known.retain(|known| known.strong_count() > 0);
        }
        known.push(Arc::downgrade(&kept));
        GcRef(kept)
    }

    /// An exception as an error of the engine. The engine may keep it for long, and its traceback
    /// refers to every frame that was running, the collector's user among them: so it is a root
    /// like other objects.
    pub(crate) fn raised(&self, py: Python<'_>, raised: PyErr) -> Raised {
        Raised(self.hold(raised.into_value(py).bind(py)))
    }

    /// Notes that the owner was given up while it was built, as by Ctrl-C: no further function of
    /// the user's is called.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// Whether the owner was given up while it was built.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Shows everything that is held to the garbage collector, on behalf of the one object that
    /// these roots belong to.
    ///
    /// The garbage collector traverses objects several times under the interpreter's lock. In
    /// between, a thread without the lock may drop a reference here, but none can add one, since
    /// that takes the lock. So it may miss garbage until its next run, but never takes a living
    /// object for garbage.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let known = self.known();
        let mut kept = known.iter().filter_map(Weak::upgrade);
        kept.try_for_each(|kept| visit.call(&*kept))
    }

    /// The list. Locking it never waits for long, and cannot deadlock: each thread that gets here
    /// has the interpreter's lock, and calls no Python code while it has both.
    fn known(&self) -> MutexGuard<'_, Vec<Weak<Py<PyAny>>>> {
        unpoisoned(self.known.lock())
    }
}

impl Deref for GcRef {
    type Target = Py<PyAny>;

    fn deref(&self) -> &Py<PyAny> {
        &self.0
    }
}

/// An exception that the engine holds as the source of an error;
/// [`error::to_py`](crate::error::to_py) finds it there.
#[derive(Debug, Clone)]
pub(crate) struct Raised(GcRef);

impl Raised {
    /// The exception itself, the same object each time, with its traceback.
    pub(crate) fn exception(&self, py: Python<'_>) -> PyErr {
        PyErr::from_value(self.0.bind(py).clone())
    }
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The engine formats errors in its own threads, which do not have the interpreter's lock.
        attach(|py| self.exception(py).fmt(f))
    }
}

impl std::error::Error for Raised {}
