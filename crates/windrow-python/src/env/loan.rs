//! Which objects of Python's are being stepped: each by one worker at a time.
//!
//! Two workers with one object would mix their episodes without an error. What counts is the object
//! behind all wrappers, since a `TimeLimit` around an environment is that environment;
//! `windrow.envs._innermost` finds it.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;
use windrow_sync::unpoisoned;

use crate::gc::{GcRef, GcRoots};
use crate::gil;
use crate::process;

/// The addresses of objects that are being stepped, each with the process that steps it: a child of
/// fork has objects of its own.
static STEPPED: Mutex<BTreeSet<(usize, u32)>> = Mutex::new(BTreeSet::new());

/// The right to step an object, until this is dropped. Wrappers around one environment are one
/// object.
#[derive(Debug)]
pub(super) struct Loan {
    /// The objects behind all wrappers. They are held, so that no other object gets one of their
    /// addresses.
    innermost: Vec<GcRef>,
    process: u32,
}

impl Loan {
    /// The right to step `object`, whose parts are held in `roots`; None while another worker has
    /// it.
    ///
    /// # Errors
    /// The exception of an environment that could not be looked into.
    pub(super) fn of(object: &Bound<'_, PyAny>, roots: &GcRoots) -> PyResult<Option<Self>> {
        let py = object.py();
        let found: Vec<Bound<'_, PyAny>> =
            gil::call_method(&gil::ports(py)?, "innermost", (object,))?.extract()?;
        let mut loan = Self {
            innermost: Vec::with_capacity(found.len()),
            process: process::id(),
        };
        for object in &found {
            // On the way out, dropping `loan` gives back what was taken for the objects before this
            // one.
            if !stepped().insert(key(object.as_unbound(), loan.process)) {
                return Ok(None);
            }
            loan.innermost.push(roots.hold(object));
        }
        Ok(Some(loan))
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut stepped = stepped();
        for object in &self.innermost {
            stepped.remove(&key(object, self.process));
        }
    }
}

/// The entry of an object: its address and the process that steps it.
fn key(object: &Py<PyAny>, process: u32) -> (usize, u32) {
    (object.as_ptr() as usize, process)
}

/// Locked for moments only, and no Python code runs under this lock: so it may be taken with the
/// interpreter's lock held.
fn stepped() -> MutexGuard<'static, BTreeSet<(usize, u32)>> {
    unpoisoned(STEPPED.lock())
}
