//! How a collector ends, and where that is told.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use windrow::{CollectError, Collector};

use super::{Inner, of};
use crate::{error, gil};

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

    /// Ends collection where nobody is told of anything.
    pub(super) fn finalize(&self, py: Python<'_>) {
        self.handle.shutdown();
        let end = |collector: &Mutex<Collector>| {
            let mut collector = collector.lock().unwrap_or_else(PoisonError::into_inner);
            // There is nobody left to tell.
            let _ = collector.shutdown();
        };
        if self.handle.is_within() {
            // The garbage collector came by in a worker of the collector's own, which cannot wait for itself.
            let collector = Arc::clone(&self.collector);
            thread::spawn(move || end(&collector));
            return;
        }
        // Workers may need the lock of the interpreter to come to an end.
        py.detach(|| end(&self.collector));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if Python::try_attach(|py| self.finalize(py)).is_none() {
            self.handle.shutdown();
        }
    }
}
