//! Calls of Python threads on the engine, which may wait but must see signals and never deadlock.
//!
//! A call that needs the engine itself ([`Inner::with`]) waits until no other thread uses it,
//! without the interpreter's lock: the thread that uses it may need that lock to call a hook or to
//! step an environment. Calls that a function of the collector's own makes, such as a hook or a
//! step, would wait for themselves; they raise an error instead. Calls that the engine's handle
//! answers, such as figures, weights and seeds, never wait for a batch.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use windrow::{NextError, error_chain};
use windrow_sync::unpoisoned;

use super::collecting::Collecting;
use super::stage::Delivered;
use super::{Engine, Inner, of};
use crate::{factory_lock, gil};

/// A user who keeps more batches than this rarely does so on purpose.
const MANY: usize = 64;

impl Inner {
    /// The next batch; `None` after the last.
    ///
    /// # Errors
    /// The error of the engine or of a function of the user's. After such an error, each call
    /// raises a `RuntimeError` that names it.
    pub(super) fn next(&self, py: Python<'_>) -> PyResult<Option<Delivered>> {
        let answer = self.asked(py);
        // `KeyboardInterrupt` is no `Exception`. `finalize` then waits for a shorter time.
        let interrupted = |raised: &PyErr| !raised.is_instance_of::<PyException>(py);
        let interrupted = answer.as_ref().is_err_and(interrupted);
        self.interrupted.store(interrupted, Ordering::Relaxed);
        answer
    }

    /// As [`next`](Self::next), and keeps the message of an error for later calls: the engine
    /// returns an error once and then no more batches, which would look like the end of a complete
    /// collection.
    fn asked(&self, py: Python<'_>) -> PyResult<Option<Delivered>> {
        let answer = self.with(py, |engine| {
            let _collecting = Collecting::begin();
            engine.next()
        })?;
        let failed = match &answer {
            // A collector that runs in the background has not ended, nor has one whose call was
            // interrupted.
            Some(Ok(_) | Err(NextError::Started | NextError::WaitInterrupted(_))) => None,
            Some(Err(NextError::ShutDown)) => Some(NextError::ShutDown.to_string()),
            Some(Err(error)) => Some(format!(
                "the collector was ended by an error: {}; build a new one to go on",
                error_chain(error)
            )),
            None => {
                let failure = self.failure().clone();
                return failure.map_or(Ok(None), |failure| Err(PyRuntimeError::new_err(failure)));
            }
        };
        *self.failure() = failed;
        answer.map(|batch| of(py, batch)).transpose()
    }

    /// Raises an error in a worker, which must not wait for the collector: the collector waits for
    /// it.
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
        unpoisoned(self.failure.lock())
    }

    /// Calls `f` with the engine, without the interpreter's lock, once no other thread uses it.
    ///
    /// # Errors
    /// `RuntimeError` in a function that the collector itself calls; any error that a signal
    /// handler raises meanwhile. `f` was not called then.
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
        // `f` is called once, by the first attempt that gets the engine; the others return it.
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

    /// As [`with`](Self::with), without signals and errors, where an object is freed and nothing
    /// can be raised: `None` where another thread uses the engine for longer than `patience`.
    pub(super) fn with_within<R: Send>(
        &self,
        py: Python<'_>,
        patience: Duration,
        f: impl FnOnce(&mut Engine) -> R + Send,
    ) -> Option<R> {
        py.detach(|| factory_lock::lending(|| self.engine.with_within(patience, f).ok()))
    }

    /// Warns once when many batches are alive: a single tensor keeps the memory of a whole batch,
    /// which users may not expect.
    ///
    /// # Errors
    /// The warning itself, where warnings are errors.
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
        gil::warn(py, &told)
    }
}
