//! Where a Python object that is to be stepped comes from, and where it goes.
//!
//! An object is either the user's own, which is lent and stays open, or made by a function for one
//! worker, which closes it in the end. A lent object can be used again once its loan is over.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use windrow::envs::{EnvError, StateVisitor};

use super::loan::Loan;
use crate::factory_lock::FactoryLock;
use crate::gc::{GcRef, GcRoots};
use crate::gil::{self, attach};
use crate::process;

/// The `env` of a recipe that is the user's `own`, which stays open, otherwise the object that it
/// makes: to be stepped, and held in `roots`.
///
/// # Errors
/// The exception that the function raised; [`EnvError::Foreign`] when the object is being stepped
/// already.
pub(super) fn lend(recipe: &Bound<'_, PyAny>, roots: &GcRoots) -> Result<Held, EnvError> {
    let py = recipe.py();
    let read = || {
        let own: bool = recipe.getattr(intern!(py, "own"))?.extract()?;
        Ok((recipe.getattr(intern!(py, "env"))?, own))
    };
    let (env, own) = read().map_err(|raised: PyErr| EnvError::failed(raised))?;
    let object = match own {
        true => env,
        false => call(&env, None, roots)?,
    };
    let loan = || Loan::of(&object, roots);
    // A collector that stepped it before may be garbage that is not collected yet: an exception
    // refers, by its traceback, to all frames that were running when it was raised.
    let again = || {
        py.import("gc")?.call_method0("collect")?;
        loan()
    };
    let lent = loan().and_then(|lent| lent.map_or_else(again, |loan| Ok(Some(loan))));
    match lent.map_err(EnvError::failed)? {
        None => Err(in_use(&object, own)),
        Some(loan) => Ok(Held {
            object: roots.hold(&object),
            roots: roots.clone(),
            own,
            process: process::id(),
            _loan: loan,
        }),
    }
}

/// The error of an object that another worker steps, with what to do about it.
#[cold]
fn in_use(object: &Bound<'_, PyAny>, own: bool) -> EnvError {
    let name = object
        .repr()
        .map_or_else(|_| "an environment".to_owned(), |name| name.to_string());
    EnvError::Foreign(match own {
        true => format!(
            "{name} is one object and already in use, by another worker, collector, evaluator or wrapper: give each a function that makes an environment of its own"
        ),
        false => format!(
            "a function returned {name}, which is already in use, by another worker, collector, evaluator or wrapper: it must make a new environment at each call"
        ),
    })
}

/// Calls a function that makes an environment, under the factory lock.
///
/// # Errors
/// The exception that it raised; [`EnvError::Foreign`] when the collector that wanted the
/// environment was given up.
pub(super) fn call<'py>(
    function: &Bound<'py, PyAny>,
    kwargs: Option<&Bound<'py, PyDict>>,
    roots: &GcRoots,
) -> Result<Bound<'py, PyAny>, EnvError> {
    let py = function.py();
    let _lock = FactoryLock::take(py).map_err(EnvError::failed)?;
    // The collector may have been given up since this thread began to wait for the lock.
    if roots.is_abandoned() {
        return Err(EnvError::Foreign(
            "the collector that needed the environments was given up".into(),
        ));
    }
    let called = gil::call(function, (), kwargs);
    called.map_err(|raised| EnvError::failed(roots.raised(py, raised)))
}

/// An object that is being stepped. What was made for it is closed when it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) object: GcRef,
    /// Holds exceptions that the object raises.
    roots: GcRoots,
    /// Whether it is the user's own.
    own: bool,
    /// The process that steps it.
    process: u32,
    /// Ends when the object is closed.
    _loan: Loan,
}

impl Held {
    /// The error of an environment that has `raised`.
    pub(super) fn failed(&self, py: Python<'_>, raised: PyErr) -> EnvError {
        EnvError::failed(self.roots.raised(py, raised))
    }

    /// Saves or loads the state of the environment, as `windrow.envs._simulators` does.
    ///
    /// # Errors
    /// [`EnvError::NotHeld`] where the state cannot be saved, and what the environment raises.
    pub(super) fn visit_state(&self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        attach(|py| {
            let object = self.object.bind(py);
            let mut bytes = Vec::new();
            if !state.is_loading() {
                let save = || {
                    let arguments = (object, state.may_pickle());
                    gil::call_method(&gil::ports(py)?, "env_state", arguments)
                };
                let saved = save().map_err(|raised| self.failed(py, raised))?;
                if let Ok(reason) = saved.extract::<String>() {
                    return Err(EnvError::NotHeld(reason));
                }
                bytes = saved.extract().map_err(EnvError::failed)?;
            }
            state.value(&mut bytes)?;
            if state.is_loading() {
                let load = || {
                    let arguments = (object, PyBytes::new(py, &bytes));
                    gil::call_method(&gil::ports(py)?, "load_env_state", arguments)
                };
                load().map_err(|raised| self.failed(py, raised))?;
            }
            Ok(())
        })
    }

    /// Holds an object that belongs to this one.
    pub(super) fn hold(&self, object: &Bound<'_, PyAny>) -> GcRef {
        self.roots.hold(object)
    }

    /// The object's method `name`.
    ///
    /// # Errors
    /// [`EnvError::Failed`] when it has none.
    pub(super) fn method(&self, py: Python<'_>, name: &str) -> Result<GcRef, EnvError> {
        let method = self.object.bind(py).getattr(name);
        Ok(self.roots.hold(&method.map_err(EnvError::failed)?))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The user's own object stays open. A process that ends closes everything by itself, and
        // has no interpreter to call; a child of fork closes nothing of its parent's, such as a
        // socket that both have.
        if self.own || self.process != process::id() || Python::try_attach(|_| ()).is_none() {
            return;
        }
        attach(|py| {
            if let Err(error) = gil::call_method(self.object.bind(py), "close", ()) {
                // A destructor cannot raise; Python prints the exception to stderr.
                error.write_unraisable(py, Some(self.object.bind(py)));
            }
        });
    }
}
