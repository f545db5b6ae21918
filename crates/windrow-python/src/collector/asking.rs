//! Calls of Python threads on the engine, which may wait but must see signals and never deadlock.

use std::ffi::CString;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyException, PyRuntimeError, PyUserWarning};
use pyo3::prelude::*;
use windrow::CollectError;

use super::collecting::Collecting;
use super::stage::Delivered;
use super::{Engine, Inner, of};
use crate::{factory_lock, gil};

/// More batches are rarely kept on purpose.
const MANY: usize = 64;

impl Inner {
    /// The next batch; `None` after the last.
    ///
    /// # Errors
    /// The error of the engine or of a function of the user's; after one, that the collector has ended.
    pub(super) fn next(&self, py: Python<'_>) -> PyResult<Option<Delivered>> {
        let answer = self.asked(py);
        let interrupted = |raised: &PyErr| !raised.is_instance_of::<PyException>(py);
        let interrupted = answer.as_ref().is_err_and(interrupted);
        self.interrupted.store(interrupted, Ordering::Relaxed);
        answer
    }

    fn asked(&self, py: Python<'_>) -> PyResult<Option<Delivered>> {
        let answer = self.interruptible(py, |engine, given_up| {
            let _collecting = Collecting::begin();
            engine.next_unless(given_up)
        })?;
        let failed = match &answer {
            Some(Ok(_) | Err(CollectError::Started)) => None,
            Some(Err(CollectError::ShutDown)) => Some(CollectError::ShutDown.to_string()),
            Some(Err(error)) => Some(format!(
                "the collector was ended by an error: {error}; build a new one to go on"
            )),
            None => {
                let failure = self.failure().clone();
                return failure.map_or(Ok(None), |failure| Err(PyRuntimeError::new_err(failure)));
            }
        };
        *self.failure() = failed;
        answer.map(|batch| of(py, batch)).transpose()
    }

    /// Raises an error in a worker, which must not wait for the collector: the collector waits for it.
    pub(super) fn check_outside(&self) -> PyResult<()> {
        match self.handle.is_within() {
            true => Err(PyRuntimeError::new_err(
                "the collector cannot be asked for this from within its own environment or policy: it would wait for itself",
            )),
            false => Ok(()),
        }
    }

    /// The message of calls for more batches, after an error.
    pub(super) fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the engine, without the interpreter's lock, once no other thread uses it.
    ///
    /// # Errors
    /// Where the collector itself calls the function that asks; any error that a signal handler raises meanwhile.
    pub(super) fn with<R: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Engine) -> R + Send,
    ) -> PyResult<R> {
        self.check_outside()?;
        if self.engine.is_taken_here() {
            return Err(PyRuntimeError::new_err(
                "the collector cannot be asked for this from within its own hooks: it would wait for itself",
            ));
        }
        let mut left = Some(f);
        let mut attempt = |patience: Duration| {
            let f = left.take()?;
            match self.engine.with_within(patience, f) {
                Ok(done) => Some(done),
                Err(f) => {
                    left = Some(f);
                    None
                }
            }
        };
        gil::wait(py, &mut attempt)
    }

    /// As [`with`](Self::with), and passes `f` a function that returns true once a signal handler has raised an error.
    pub(super) fn interruptible<R: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Engine, &mut dyn FnMut() -> bool) -> R + Send,
    ) -> PyResult<R> {
        let mut raised = Ok(());
        let done = self.with(py, |engine| {
            f(engine, &mut || {
                raised = gil::attach(|py| py.check_signals());
                raised.is_err()
            })
        })?;
        raised.map(|()| done)
    }

    /// As [`with`](Self::with), without signals and errors: `None` where another thread uses the engine for longer than
    /// `patience`.
    pub(super) fn with_within<R: Send>(
        &self,
        py: Python<'_>,
        patience: Duration,
        f: impl FnOnce(&mut Engine) -> R + Send,
    ) -> Option<R> {
        py.detach(|| factory_lock::lending(|| self.engine.with_within(patience, f).ok()))
    }

    /// Warns once of many batches that are alive: a single tensor keeps a whole batch.
    pub(super) fn warn_of_memory(&self, py: Python<'_>) -> PyResult<()> {
        if self.handle.slabs() <= MANY || self.warned.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let stats = self.handle.stats();
        let told = format!(
            "{} batches of {} bytes each are kept alive: any tensor of a batch keeps all of it. clone() the tensors that you \
             need for longer, if that is more than you meant to keep",
            stats.slabs,
            stats.slab_bytes / stats.slabs
        );
        let told = CString::new(told)?;
        PyErr::warn(py, &py.get_type::<PyUserWarning>(), &told, 1)
    }
}
