//! Errors of the engine as Python exceptions.
//!
//! An exception that user code raised, in an environment, a policy or a hook, travels through the
//! engine as the source of an error ([`Raised`]). Here it comes out again: as the `__cause__` of a
//! [`WorkerError`] where a worker failed, as itself otherwise. So the user sees the traceback of
//! the own code, and `except` clauses for its type work. Errors of the engine's own get the
//! built-in exception that fits: `ValueError` for arguments, `OSError` for files, `MemoryError`,
//! and `RuntimeError` for the rest.

use std::error::Error;
use std::time::Duration;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use windrow::binding::{causes, kind, lost_worker};
use windrow::replay::{ReplayError, SinkError, StoreError};
use windrow::tensordict::TensorError;
use windrow::{ControlError, ErrorKind, NextError, WorkerError as Lost, error_chain};

use crate::gc::Raised;
use crate::gil::{attach, rest_at_exit};

create_exception!(
    windrow,
    WorkerError,
    PyRuntimeError,
    "A worker failed: its environment or its policy raised an error.\n\nThe message names the \
     worker, environment, episode and step, and so do the attributes `worker`, `env`, `episode` and `step` (None for one \
     that does not apply). `__cause__` is the exception that was raised, with its traceback."
);

/// Adds the exceptions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("WorkerError", module.py().get_type::<WorkerError>())
}

/// `error` as the exception that fits it best. Of several workers that failed, the first gives the
/// cause and the attributes; the message names all of them.
pub(crate) fn to_py(py: Python<'_>, error: &(dyn Error + 'static)) -> PyErr {
    if causes(error).any(|one| matches!(one.downcast_ref(), Some(NextError::ShutDown))) {
        rest_at_exit(py);
    }
    let raised = raised_in(py, error);
    if let Some(lost) = lost_worker(error) {
        return worker_error(py, lost, &error_chain(lost), raised);
    }
    if let Some(ControlError::SeveralWorkers(all)) = error.downcast_ref()
        && let Some(first) = all.first()
    {
        let raised = raised_in(py, first);
        return worker_error(py, first, &error_chain(error), raised);
    }
    if let Some(raised) = raised {
        return raised;
    }
    // From here on the error is the engine's own: no Python code had a part in it.
    let message = error_chain(error);
    if is_for_want_of_memory(error) {
        return PyMemoryError::new_err(message);
    }
    match kind(error) {
        ErrorKind::Argument => PyValueError::new_err(message),
        ErrorKind::File => PyOSError::new_err(message),
        _ => PyRuntimeError::new_err(message),
    }
}

/// Whether an allocation failed, or was too large to try: `MemoryError` in Python.
pub(crate) fn is_for_want_of_memory(error: &(dyn Error + 'static)) -> bool {
    let of_tensor = |error: &TensorError| {
        matches!(
            error,
            TensorError::NoMemory { .. } | TensorError::TooLarge { .. }
        )
    };
    if let Some(ControlError::Next(error)) = error.downcast_ref() {
        return is_for_want_of_memory(error);
    }
    // The sink is a replay buffer, whose error says what it lacked.
    if let Some(NextError::Sink(SinkError::Failed(error))) = error.downcast_ref() {
        return is_for_want_of_memory(&**error);
    }
    if kind(error) == ErrorKind::Memory {
        return true;
    }
    match error.downcast_ref::<ReplayError>() {
        Some(ReplayError::NoMemory { .. }) => true,
        Some(ReplayError::Store(error)) => match error {
            StoreError::NoMemory { .. } | StoreError::TooLarge { .. } => true,
            StoreError::Tensor(error) => of_tensor(error),
            _ => false,
        },
        Some(ReplayError::Tensor(error)) => of_tensor(error),
        _ => false,
    }
}

/// The exception of Python code that caused `error`, if one did: the first of its causes.
pub(crate) fn raised_in(py: Python<'_>, error: &(dyn Error + 'static)) -> Option<PyErr> {
    for error in causes(error) {
        if let Some(raised) = error.downcast_ref::<Raised>() {
            return Some(raised.exception(py));
        }
        if let Some(raised) = error.downcast_ref::<PyErr>() {
            return Some(raised.clone_ref(py));
        }
        #[cfg(target_os = "linux")]
        if let Some(sent) = error.downcast_ref::<windrow::SentError>() {
            return Some(crate::worker::received(py, sent));
        }
    }
    None
}

/// Whether `error` is an interruption and no failure: `KeyboardInterrupt`, `SystemExit` or another
/// exception that is no `Exception`. An interruption does not count as a worker's failure. The
/// engine asks in threads that do not have the interpreter's lock, so this takes it.
pub(crate) fn tells_of_interruption(error: &(dyn Error + 'static)) -> bool {
    attach(|py| raised_in(py, error).is_some_and(|raised| is_interruption(py, &raised)))
}

/// Whether `raised` is no `Exception`, which `except Exception` lets pass for the same reason.
fn is_interruption(py: Python<'_>, raised: &PyErr) -> bool {
    !raised.is_instance_of::<PyException>(py)
}

/// The traceback of `raised`, or the one that a worker process has sent with it.
fn traceback(py: Python<'_>, raised: &PyErr) -> Option<String> {
    match raised.traceback(py) {
        Some(here) => here.format().ok(),
        None => {
            let cause = raised.cause(py)?;
            cause.value(py).getattr("lines").ok()?.extract().ok()
        }
    }
}

/// The `WorkerError` of `lost`, caused by `raised`. An interruption is raised as it is:
/// `KeyboardInterrupt` must not become an ordinary error, which user code may catch.
fn worker_error(py: Python<'_>, lost: &Lost, message: &str, raised: Option<PyErr>) -> PyErr {
    if let Some(raised) = &raised
        && is_interruption(py, raised)
    {
        return raised.clone_ref(py);
    }
    // A log often shows the message alone, so it has the traceback of the user's code too.
    let mut message = message.to_owned();
    if let Some(lines) = raised.as_ref().and_then(|raised| traceback(py, raised)) {
        message = format!("{message}\n\n{}", lines.trim_end());
    }
    let error = WorkerError::new_err(message);
    let value = error.value(py);
    let told = value
        .setattr("worker", lost.worker())
        .and_then(|()| value.setattr("env", lost.env()))
        .and_then(|()| value.setattr("episode", lost.episode()))
        .and_then(|()| value.setattr("step", lost.step()));
    if let Err(other) = told {
        return other;
    }
    error.set_cause(py, raised);
    error
}

/// The duration that the argument `name` gives in `seconds`.
///
/// # Errors
/// `ValueError` where it is negative, not a number, or infinite.
pub(crate) fn finite_duration(name: &str, seconds: f64) -> PyResult<Duration> {
    let duration = Duration::try_from_secs_f64(seconds);
    duration.map_err(|error| PyValueError::new_err(format!("{name}={seconds}: {error}")))
}
