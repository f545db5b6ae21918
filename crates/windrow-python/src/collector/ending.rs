//! The end of a collector, and its errors.
//!
//! A collector ends in one of four ways. `shutdown` waits for all threads and raises their errors.
//! `leave` waits for a limited time and raises nothing: at the end of the interpreter, and after
//! Ctrl-C. `finalize` is `leave` for an object that is freed. `Drop` comes last, and also drops the
//! engine, in another thread where this one is the collector's own.
//!
//! Each wait gives up the interpreter's lock, since workers need it to close environments and to
//! return from Python. A thread that the collector itself calls never waits here: it would wait for
//! itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use windrow::{ControlError, error_chain};

use super::{Engine, Inner, of};
use crate::{error, factory_lock, gil};

impl Inner {
    /// Ends collection and waits for the workers, and up to `seconds` for the thread of `start`.
    ///
    /// # Errors
    /// `TimeoutError` when that thread does not end in time; errors of workers that no call has
    /// raised; any error that a signal handler raises meanwhile.
    pub(super) fn shutdown(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
        self.check_outside()?;
        if self.is_called_here() {
            // The present batch is the last one; this thread cannot wait for itself.
            return self.end_without_waiting(py);
        }
        if self.handle.is_running() {
            let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            let timeout = timeout.unwrap_or(Duration::MAX);
            let ended = self.with(py, |engine| engine.finish_within(timeout))?;
            if !of(py, ended)? {
                return Err(PyTimeoutError::new_err(format!(
                    "collection in the background did not end within {} s",
                    timeout.as_secs_f64()
                )));
            }
        }
        // First by the handle, which needs no turn: it ends the wait of another thread for a batch,
        // so that this one gets the engine.
        self.handle.shutdown();
        let ended = self.with(py, Engine::shutdown)?;
        self.ended(py, ended)
    }

    /// Whether the calling thread runs a function that the collector calls, such as a hook.
    fn is_called_here(&self) -> bool {
        self.engine.is_taken_here() || self.owner.is_running_here()
    }

    /// Ends collection after the present batch, from within a function that the collector calls. In
    /// the thread of `start`, the batch is cut short and still written; in a thread that iterates,
    /// no other batch follows.
    fn end_without_waiting(&self, py: Python<'_>) -> PyResult<()> {
        if self.owner.is_running_here() {
            let ended = self.with(py, |engine| engine.finish_within(Duration::ZERO))?;
            return of(py, ended.map(drop));
        }
        self.handle.shutdown();
        Ok(())
    }

    /// The result of a shutdown. An interruption of a worker was raised by an earlier call, or is
    /// an ordinary error: it does not interrupt this call.
    fn ended(&self, py: Python<'_>, ended: Result<(), ControlError>) -> PyResult<()> {
        match ended {
            Err(ControlError::WaitInterrupted(_)) => of(py, ended),
            Err(error) if error::tells_of_interruption(&error) => match *self.failure() {
                Some(_) => Ok(()),
                None => Err(PyRuntimeError::new_err(error_chain(&error))),
            },
            ended => of(py, ended),
        }
    }

    /// Ends collection without raising errors: whether all threads ended within `patience`. A
    /// thread that is stuck in a step ends when the step returns. `sys.unraisablehook` shows errors
    /// of workers, unless a call has raised one.
    pub(super) fn leave(&self, py: Python<'_>, patience: Duration) -> bool {
        let begin = Instant::now();
        if !self.handle.is_running() {
            self.handle.shutdown();
        }
        if self.handle.is_within() || self.is_called_here() {
            // A thread of the collector cannot wait for itself. The garbage collector runs in any
            // thread of Python, so it may free the collector in a worker that steps an environment.
            self.handle.shutdown();
            self.left.store(true, Ordering::Relaxed);
            return false;
        }
        let ended = self.with_within(py, patience, |engine| {
            engine.leave_within(patience.saturating_sub(begin.elapsed()))
        });
        match &ended {
            None | Some(Err(ControlError::Stuck { .. })) => {
                self.handle.shutdown();
                self.left.store(true, Ordering::Relaxed);
                return false;
            }
            Some(Err(error)) => {
                // After an error, calls for batches keep its message: an earlier call has raised it
                // then.
                let is_told = self.failure().is_some();
                if !is_told && !error::tells_of_interruption(error) {
                    error::to_py(py, error).write_unraisable(py, None);
                }
            }
            Some(Ok(())) => {}
        }
        true
    }

    /// Ends a collector that is freed. Waits for a step that does not return: five seconds, a
    /// fraction of one after Ctrl-C, and not at all if a thread was left behind before.
    pub(super) fn finalize(&self, py: Python<'_>) {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let patience = match (is_set(&self.left), is_set(&self.interrupted)) {
            (true, _) => Duration::ZERO,
            // `KeyboardInterrupt` may be leaving the function that frees the collector.
            (false, true) => gil::IMPATIENCE,
            (false, false) => Engine::PATIENCE,
        };
        self.leave(py, patience);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Without an interpreter, threads cannot return from Python: they are told to end and left
        // to the end of the process.
        let ended = Python::try_attach(|py| {
            self.finalize(py);
            let Some(engine) = self.engine.take() else {
                return;
            };
            if self.handle.is_within() || self.is_called_here() {
                let end = move || drop(engine);
                // Without a new thread, this one waits for itself, up to the engine's patience.
                let _ = Builder::new()
                    .name("windrow-shutdown".to_owned())
                    .spawn(end);
            } else {
                // Threads of the engine may need the interpreter's lock to end.
                py.detach(|| factory_lock::lending(|| drop(engine)));
            }
        });
        if ended.is_none() {
            self.handle.shutdown();
        }
    }
}
