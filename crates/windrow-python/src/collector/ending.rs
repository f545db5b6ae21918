//! How a collector ends, and where that is told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use windrow::CollectError;

use super::{Engine, Inner, of};
use crate::{error, gil, turn};

impl Inner {
    /// Ends collection and waits for the workers; for the thread of `start` so many seconds, or as long as it takes.
    pub(super) fn shutdown(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
        self.check_outside()?;
        if self.is_called_here() {
            // The batch that is under way is the last; its thread cannot wait for itself.
            return self.end_without_waiting(py);
        }
        if self.handle.is_running() {
            let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            let timeout = timeout.unwrap_or(Duration::MAX);
            let ended = self.interruptible(py, |engine, given_up| {
                engine.finish_unless(timeout, given_up)
            })?;
            if !ended {
                return Err(PyTimeoutError::new_err(format!(
                    "collection in the background did not end within {} s",
                    timeout.as_secs_f64()
                )));
            }
        }
        // Whoever waits for a batch is told at once.
        self.handle.shutdown();
        let ended = self.interruptible(py, |engine, given_up| {
            engine.shutdown_unless(Engine::PATIENCE, given_up)
        })?;
        self.ended(py, ended)
    }

    /// Whether a function asks that the collector calls for one of its batches.
    fn is_called_here(&self) -> bool {
        self.engine.is_taken_here() || self.owner.is_running_here()
    }

    fn end_without_waiting(&self, py: Python<'_>) -> PyResult<()> {
        if self.owner.is_running_here() {
            self.with(py, |engine| engine.finish_unless(Duration::ZERO, || true))?;
            return Ok(());
        }
        self.handle.shutdown();
        Ok(())
    }

    /// What a shutdown has told. What interrupted another worker was told already, or else is an error like others: nobody is
    /// interrupted by it any more.
    fn ended(&self, py: Python<'_>, ended: Result<(), CollectError>) -> PyResult<()> {
        match ended {
            Err(error) if error::tells_of_interruption(&error) => match *self.failure() {
                Some(_) => Ok(()),
                None => Err(PyRuntimeError::new_err(error.to_string())),
            },
            ended => of(py, ended),
        }
    }

    /// Ends collection where nobody waits to be told: whether that was through within `patience`. What is stuck in a step ends
    /// when the step comes back. Errors of workers are shown to `sys.unraisablehook` where nobody was told of any.
    pub(super) fn leave(&self, py: Python<'_>, patience: Duration) -> bool {
        let begin = Instant::now();
        if !self.handle.is_running() {
            self.handle.shutdown();
        }
        if self.handle.is_within() || self.is_called_here() {
            // A thread of the collector's own cannot wait for itself; the garbage collector may have come by there.
            self.handle.shutdown();
            self.left.store(true, Ordering::Relaxed);
            return false;
        }
        let handle = &self.handle;
        let ended = self.with_within(py, patience, |engine| {
            engine.finish_unless(patience.saturating_sub(begin.elapsed()), || false);
            handle.shutdown();
            // Where others have used the time up, what comes back at once is still given that.
            let left = patience.saturating_sub(begin.elapsed());
            engine.shutdown_unless(left.max(gil::SLICE), || false)
        });
        match &ended {
            None | Some(Err(CollectError::Stuck { .. })) => {
                self.handle.shutdown();
                self.left.store(true, Ordering::Relaxed);
                return false;
            }
            Some(Err(error)) => {
                // Whoever was told of one worker knows.
                let is_told = self.failure().is_some();
                if !is_told && !error::tells_of_interruption(error) {
                    error::to_py(py, error).write_unraisable(py, None);
                }
            }
            Some(Ok(())) => {}
        }
        true
    }

    /// Ends collection of a collector that is freed.
    pub(super) fn finalize(&self, py: Python<'_>) {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let patience = match (is_set(&self.left), is_set(&self.interrupted)) {
            (true, _) => Duration::ZERO,
            // `KeyboardInterrupt` may be on its way through the function whose end this is.
            (false, true) => gil::IMPATIENCE,
            (false, false) => Engine::PATIENCE,
        };
        self.leave(py, patience);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let ended = Python::try_attach(|py| {
            self.finalize(py);
            let Some(engine) = self.engine.take() else {
                return;
            };
            if self.handle.is_within() || self.is_called_here() {
                let end = move || drop(engine);
                // Without a thread, this one waits for itself for a while.
                let _ = Builder::new()
                    .name("windrow-shutdown".to_owned())
                    .spawn(end);
            } else {
                // The last threads of the engine may need the interpreter's lock to end.
                py.detach(|| turn::lending(|| drop(engine)));
            }
        });
        if ended.is_none() {
            self.handle.shutdown();
        }
    }
}
