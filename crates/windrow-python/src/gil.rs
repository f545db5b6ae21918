//! Threads of the engine and the interpreter's lock.

use std::mem;
use std::ptr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{BoundObject, IntoPyObjectExt};

use crate::factory_lock;

/// How long a wait may keep a signal such as Ctrl-C from being seen.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// How long the end of collectors and evaluators waits after Ctrl-C for a step that has not returned.
pub(crate) const IMPATIENCE: Duration = Duration::from_millis(300);

thread_local! {
    static KNOWN: Known = Known::new();
}

/// Runs `f` with the interpreter's lock.
///
/// The interpreter's state of a thread that the engine started is made once and kept until the thread ends: making it
/// for each call, as [`Python::attach`] does, costs some 40 µs where torch is called.
pub(crate) fn attach<R>(f: impl for<'py> FnOnce(Python<'py>) -> R) -> R {
    KNOWN.with(|_| ());
    Python::attach(f)
}

/// The interpreter's state of this thread, where it is ours to give back.
struct Known(Option<*mut ffi::PyThreadState>);

impl Known {
    fn new() -> Self {
        // SAFETY: the interpreter is initialised, since this library was loaded by it.
        let is_known = unsafe { !ffi::PyGILState_GetThisThreadState().is_null() };
        if is_known {
            return Self(None);
        }
        // SAFETY: this thread has no state; the one that is made here is given back by `drop`, in the same thread.
        Self(Some(unsafe {
            ffi::PyGILState_Ensure();
            ffi::PyEval_SaveThread()
        }))
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let Some(state) = self.0 else {
            return;
        };
        // SAFETY: `state` is this thread's, made and detached by `new`; what an interpreter that has ended left of it must
        // not be touched.
        unsafe {
            if ffi::Py_IsInitialized() != 0 {
                ffi::PyEval_RestoreThread(state);
                ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_UNLOCKED);
            }
        }
    }
}

unsafe extern "C-unwind" {
    /// As `pyo3::ffi` declares it, but for a thread that the interpreter ends in it.
    fn PyObject_Call(
        function: *mut ffi::PyObject,
        arguments: *mut ffi::PyObject,
        kwargs: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// Calls a function of the user's, such as the step of an environment, which may take any time.
///
/// Before 3.14, an interpreter that has ended meanwhile ends the thread when the function comes back to it. That must not
/// go through frames of Rust, where it would abort the program, which is about to end by itself: the thread sleeps instead.
///
/// # Errors
/// What the function raises.
pub(crate) fn call<'py>(
    function: &Bound<'py, PyAny>,
    arguments: impl IntoPyObject<'py, Target = PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = function.py();
    let arguments = arguments.into_pyobject_or_pyerr(py)?;
    let kwargs = kwargs.map_or(ptr::null_mut(), |kwargs| kwargs.as_ptr());
    // Made last, and so dropped first, where the interpreter ends the thread.
    let sleeper = Sleeper;
    // SAFETY: a function, a tuple and a dictionary or nothing, which live until the call is over; the lock is held. The
    // result is a new reference, or null with an exception set.
    let returned = unsafe {
        let returned = PyObject_Call(function.as_ptr(), arguments.as_ptr(), kwargs);
        Bound::from_owned_ptr_or_err(py, returned)
    };
    mem::forget(sleeper);
    returned
}

/// Keeps a thread that is being ended from going any further.
struct Sleeper;

impl Drop for Sleeper {
    fn drop(&mut self) {
        loop {
            thread::park();
        }
    }
}

/// Asks `attempt` for a result, without the interpreter's lock, until it has one. `attempt` waits no longer than it is
/// told; signals are handled in between.
///
/// # Errors
/// Whatever a signal handler raises: `KeyboardInterrupt` after Ctrl-C.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    mut attempt: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<T> {
    loop {
        if let Some(done) = py.detach(|| factory_lock::lending(|| attempt(SLICE))) {
            return Ok(done);
        }
        py.check_signals()?;
    }
}

/// What `f` returns, which runs in a thread of its own, so that signals are seen however long it takes.
///
/// # Errors
/// As [`wait`], and `f` goes on; when there is no thread to be had, or `f` panics.
pub(crate) fn wait_for_thread<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (done, ended) = channel();
    let run = move || {
        // Nobody listens any more after Ctrl-C.
        let _ = done.send(f());
    };
    Builder::new().name(name.to_owned()).spawn(run)?;
    let ended = wait(py, move |patience| match ended.recv_timeout(patience) {
        Ok(returned) => Some(Some(returned)),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(None),
    })?;
    ended.ok_or_else(|| PyRuntimeError::new_err(format!("the thread {name} has panicked")))
}

/// Looks for signals now and then, in a loop that Python has no part in.
#[derive(Debug)]
pub(crate) struct SignalWatch {
    /// Calls until the clock is looked at.
    left: u32,
    /// Calls between two looks: so many that they take a hundredth of a second or so.
    calls: u32,
    last: Instant,
}

impl SignalWatch {
    pub(crate) fn new() -> Self {
        Self {
            left: 1,
            calls: 1,
            last: Instant::now(),
        }
    }

    /// To be called at every turn of the loop.
    ///
    /// # Errors
    /// As [`wait`].
    #[inline(always)]
    pub(crate) fn look(&mut self) -> PyResult<()> {
        self.left -= 1;
        if self.left > 0 {
            return Ok(());
        }
        self.look_at_clock()
    }

    #[cold]
    fn look_at_clock(&mut self) -> PyResult<()> {
        let past = self.last.elapsed();
        if past < SLICE / 20 {
            self.calls = self.calls.saturating_mul(2).min(1 << 20);
        } else if past > SLICE / 2 {
            self.calls = (self.calls / 4).max(1);
        }
        self.left = self.calls;
        self.last = Instant::now();
        attach(|py| py.check_signals())
    }
}
