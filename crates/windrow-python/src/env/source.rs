//! Where a Python object that is to be stepped comes from.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::env::EnvError;

use crate::gil::{self, attach};
use crate::keep::{Keeper, Kept};
use crate::process;

/// Lends Python objects, one to each worker.
#[derive(Debug)]
pub(super) enum Source {
    /// A function without arguments that makes one.
    Make(Kept),
    /// The user's own, which only one worker can have at a time.
    Own(Kept, Arc<AtomicBool>),
}

impl Source {
    /// The user's own object.
    pub(super) fn own(object: Kept) -> Self {
        Self::Own(object, Arc::default())
    }

    /// The same, held on behalf of another.
    pub(super) fn kept_by(&self, py: Python<'_>, keeper: &Keeper) -> Self {
        match self {
            Self::Make(make) => Self::Make(make.kept_by(py, keeper)),
            Self::Own(object, lent) => Self::Own(object.kept_by(py, keeper), Arc::clone(lent)),
        }
    }

    /// An object to be stepped, which `keeper` knows.
    ///
    /// # Errors
    /// What the function raised; [`EnvError::Spec`] when the object is lent already.
    pub(super) fn lend(&self, py: Python<'_>, keeper: &Keeper) -> Result<Held, EnvError> {
        match self {
            Self::Make(make) => {
                let made = call(make.bind(py), None, keeper)?;
                Ok(Held {
                    object: keeper.keep(&made),
                    keeper: keeper.clone(),
                    lent: None,
                    process: process::id(),
                })
            }
            Self::Own(object, lent) => {
                if lent.swap(true, Ordering::AcqRel) {
                    let name = object
                        .bind(py)
                        .repr()
                        .map_or_else(|_| "an environment".to_owned(), |name| name.to_string());
                    return Err(EnvError::Spec(format!(
                        "{name} is one object and already in use: give a function that makes environments where several are needed"
                    )));
                }
                Ok(Held {
                    object: object.kept_by(py, keeper),
                    keeper: keeper.clone(),
                    lent: Some(Arc::clone(lent)),
                    process: process::id(),
                })
            }
        }
    }
}

/// What a function makes that is to be stepped, or leads to that.
///
/// # Errors
/// What it raised; [`EnvError::Spec`] when nobody waits for what it would make.
pub(super) fn call<'py>(
    function: &Bound<'py, PyAny>,
    kwargs: Option<&Kept>,
    keeper: &Keeper,
) -> Result<Bound<'py, PyAny>, EnvError> {
    if keeper.is_abandoned() {
        return Err(EnvError::Spec("nobody waits for environments".into()));
    }
    let py = function.py();
    let call = || {
        let kwargs = kwargs.map(|kwargs| kwargs.bind(py).cast::<PyDict>());
        gil::call(function, (), kwargs.transpose()?)
    };
    call().map_err(|raised| EnvError::failed(keeper.raised(py, raised)))
}

/// An object that is being stepped. What was made for it is closed when it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) object: Kept,
    keeper: Keeper,
    /// Set while the user's own object is lent.
    lent: Option<Arc<AtomicBool>>,
    process: u32,
}

impl Held {
    /// The error of an environment that has `raised`.
    pub(super) fn failed(&self, py: Python<'_>, raised: PyErr) -> EnvError {
        EnvError::failed(self.keeper.raised(py, raised))
    }

    /// The object's method `name`.
    ///
    /// # Errors
    /// [`EnvError::Failed`] when it has none.
    pub(super) fn method(&self, py: Python<'_>, name: &str) -> Result<Kept, EnvError> {
        let method = self.object.bind(py).getattr(name);
        Ok(self.keeper.keep(&method.map_err(EnvError::failed)?))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(lent) = &self.lent {
            lent.store(false, Ordering::Release);
            return;
        }
        // A process that ends closes everything by itself; a child of fork closes nothing of its parent's.
        if self.process != process::id() || Python::try_attach(|_| ()).is_none() {
            return;
        }
        attach(|py| {
            if let Err(error) = self.object.call_method0(py, "close") {
                error.write_unraisable(py, Some(self.object.bind(py)));
            }
        });
    }
}
