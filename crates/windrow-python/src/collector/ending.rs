//! How a collector ends, and where that is told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use windrow::{CollectError, Collector};

use super::{IMPATIENCE, Inner, of};
use crate::{error, gil, turn};

/// How long the end of a collector that is freed waits for a step that is being taken.
const PATIENCE: Duration = Duration::from_secs(5);

impl Inner {
    /// Ends collection and waits for the workers.
    pub(super) fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        self.check_outside()?;
        self.handle.shutdown();
        if self.courier.is_none() {
            // Environments are closed in a thread that may also have stepped them: some insist on it.
            let ended = self.with(py, Collector::shutdown)?;
            return self.ended(py, ended);
        }
        let collector = Arc::clone(&self.collector);
        let ended = gil::wait_for_thread(py, "windrow-shutdown", move || {
            collector
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .shutdown()
        })?;
        self.ended(py, ended)
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
        self.handle.shutdown();
        let collector = Arc::clone(&self.collector);
        // Environments are closed in a thread that may also have stepped them, as by `shutdown`.
        let ended = match self.courier.is_none() && !self.handle.is_within() {
            true => py.detach(|| turn::lending(|| end_by(&collector, Instant::now() + patience))),
            false => {
                let (done, ended) = channel();
                let end = move || {
                    let mut collector = collector.lock().unwrap_or_else(PoisonError::into_inner);
                    // Nobody listens any more where this took too long.
                    let _ = done.send(collector.shutdown());
                };
                let begun = Builder::new()
                    .name("windrow-shutdown".to_owned())
                    .spawn(end);
                // The garbage collector may have come by in a worker of the collector's own, which cannot wait for itself.
                let waits = begun.is_ok() && !self.handle.is_within();
                // Workers may need the lock of the interpreter, and the turn to make environments, to come to an end.
                match waits {
                    true => py.detach(move || turn::lending(|| ended.recv_timeout(patience).ok())),
                    false => None,
                }
            }
        };
        match &ended {
            None | Some(Err(CollectError::Stuck { .. })) => {
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
            (false, true) => IMPATIENCE,
            (false, false) => PATIENCE,
        };
        self.leave(py, patience);
    }
}

/// Ends a collector whose workers run in whatever thread asks, if nobody asks it before `deadline` is over.
fn end_by(collector: &Mutex<Collector>, deadline: Instant) -> Option<Result<(), CollectError>> {
    loop {
        match collector.try_lock() {
            Ok(mut collector) => return Some(collector.shutdown()),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner().shutdown()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::WouldBlock) => return None,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if Python::try_attach(|py| self.finalize(py)).is_none() {
            self.handle.shutdown();
        }
    }
}
