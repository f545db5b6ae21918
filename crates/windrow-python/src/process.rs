//! What belongs to one process.
//!
//! A child of fork, such as a worker of a `DataLoader`, has a copy of all memory but none of the
//! threads. A lock that one of these held stays locked in the child for ever, so that even dropping
//! a collector there could wait for ever. Tensors may be read in the child: their memory is a copy.

use std::mem;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The number of this process. Each tensor of a batch needs it twice, and asking the system for it
/// would add a tenth to the time that making the tensor takes.
static HERE: AtomicU32 = AtomicU32::new(0);

/// Records the number of this process, and has each child of fork record its own before any other
/// code runs there.
///
/// # Errors
/// `OSError` when the system refuses to register the handler of forks.
pub(crate) fn register() -> PyResult<()> {
    extern "C" fn note() {
        HERE.store(process::id(), Ordering::Relaxed);
    }
    note();
    #[cfg(unix)]
    {
        // SAFETY: a function that only asks for the number and stores it, both of which a child of
        // fork may do.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(note)) };
        if refused != 0 {
            return Err(std::io::Error::from_raw_os_error(refused).into());
        }
    }
    Ok(())
}

/// The number of this process.
pub(crate) fn id() -> u32 {
    HERE.load(Ordering::Relaxed)
}

/// Whether this process serves as a worker.
static IS_WORKER: AtomicBool = AtomicBool::new(false);

/// Records that this process is a worker of a collector in another one.
#[cfg(target_os = "linux")]
pub(crate) fn become_worker() {
    IS_WORKER.store(true, Ordering::Relaxed);
}

/// Whether this process is a worker of a collector in another one.
pub(crate) fn is_worker() -> bool {
    IS_WORKER.load(Ordering::Relaxed)
}

/// A value of the process that made it. A child of fork can neither use nor drop its copy: both may
/// wait for threads that the child does not have. The child leaks the copy, whose memory the system
/// frees when the child ends.
#[derive(Debug)]
pub(crate) struct Own<T> {
    /// Always there until this is dropped.
    value: Option<T>,
    /// The process that made the value.
    process: u32,
}

impl<T> Own<T> {
    /// `value`, of this process.
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Some(value),
            process: id(),
        }
    }

    /// The value in the process that it belongs to, `None` in any other.
    pub(crate) fn here(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.belongs_here())
    }

    /// As [`here`](Self::here); errors call the value `what`.
    ///
    /// # Errors
    /// `RuntimeError` in another process.
    pub(crate) fn get(&self, what: &str) -> PyResult<&T> {
        self.here().ok_or_else(|| {
            PyRuntimeError::new_err(format!(
                "this {what} belongs to process {}, this is process {}: make it in the process that uses it",
                self.process,
                id()
            ))
        })
    }

    /// Whether this is the process that the value belongs to.
    pub(crate) fn belongs_here(&self) -> bool {
        self.process == id()
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if !self.belongs_here() {
            mem::forget(self.value.take());
        }
    }
}
