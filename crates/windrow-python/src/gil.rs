//! Threads of the engine and the interpreter's lock.
//!
//! Three kinds of threads meet here. Threads of Python hold the lock when they call windrow; where
//! windrow then has to wait, they give the lock up and handle signals ten times a second ([`wait`],
//! [`wait_for_thread`]). Threads of the engine do not hold the lock; they take it for each call of
//! Python ([`attach`]). Native code that runs in a thread of Python without any such call looks for
//! signals by itself ([`SignalWatch`]).
//!
//! A thread that waited with the lock held could wait for ever: the thread that it waits for may
//! need the lock to go on. A thread that asks for the lock when the interpreter has ended sleeps
//! until the process ends ([`end`]).

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod end;

use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{self, Builder, ThreadId};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{BoundObject, IntoPyObjectExt};
use windrow::Interrupt;

use crate::factory_lock;

/// How long a wait may keep a signal such as Ctrl-C from being seen.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// How long the end of collectors and evaluators waits after Ctrl-C for a step that has not
/// returned.
pub(crate) const IMPATIENCE: Duration = Duration::from_millis(300);

/// How long a thread rests once the program ends. The rest is not endless, because the end of the
/// program may still wait for the thread, for instance in another `atexit` function that joins it.
const REST: Duration = Duration::from_secs(5);

thread_local! {
    static KNOWN: Known = Known::new();
}

/// Runs `f` with the interpreter's lock.
///
/// The interpreter's state of a thread that the engine started is made once and kept until the
/// thread ends: making it for each call, as [`Python::attach`] does, costs some 40 µs where torch
/// is called.
pub(crate) fn attach<R>(f: impl for<'py> FnOnce(Python<'py>) -> R) -> R {
    // The first use in a thread makes its state. PyO3 then finds that state, and keeps it, since it
    // made none.
    KNOWN.with(|_| ());
    Python::attach(f)
}

/// The interpreter's state of this thread, where it is ours to give back.
///
/// A thread of Python has a state already, which belongs to the interpreter: `None`. A thread of
/// the engine gets one at its first call of Python, and gives it back when it ends.
struct Known(Option<*mut ffi::PyThreadState>);

impl Known {
    fn new() -> Self {
        // SAFETY: the interpreter is initialised, since this library was loaded by it.
        let is_known = unsafe { !ffi::PyGILState_GetThisThreadState().is_null() };
        if is_known {
            return Self(None);
        }
        // SAFETY: this thread has no state; the one that is made here is given back by `drop`, in
        // the same thread.
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
        // SAFETY: `state` is this thread's, made and detached by `new`. An interpreter that has
        // ended has freed it, so it is then left alone.
        unsafe {
            if ffi::Py_IsInitialized() != 0 {
                ffi::PyEval_RestoreThread(state);
                ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_UNLOCKED);
            }
        }
    }
}

/// Whether this thread is one of Python, and not of the engine.
fn is_of_python() -> bool {
    KNOWN.try_with(|known| known.0.is_none()).unwrap_or(false)
}

/// The thread in which the program ends, once it does.
static EXIT: OnceLock<ThreadId> = OnceLock::new();

/// Announces that the program ends: this thread ends all collectors next.
#[pyfunction]
pub(crate) fn announce_exit() {
    EXIT.get_or_init(|| thread::current().id());
}

/// Rests for as long as a program may take to end, where it does and this thread is another one of
/// Python. At that point it is a daemon thread, whose collector the program has ended: it has
/// nobody to tell.
pub(crate) fn rest_at_exit(py: Python<'_>) {
    let is_elsewhere = |ends: &ThreadId| *ends != thread::current().id();
    if EXIT.get().is_some_and(is_elsewhere) && is_of_python() {
        py.detach(|| thread::sleep(REST));
    }
}

/// Announces the end of the interpreter. This is the last function that `atexit` calls, when
/// collectors have ended. From then on, threads of Python that use windrow sleep at their next use,
/// such as a daemon thread that samples.
#[pyfunction]
pub(crate) fn announce_end(py: Python<'_>) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    py.detach(end::announce);
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = py;
}

/// Gives the lock up for a moment where the interpreter is about to end, so that a thread rests
/// that calls nothing but what keeps the lock, such as writes to a buffer.
pub(crate) fn pass(py: Python<'_>) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if end::is_near() {
        py.detach(|| ());
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = py;
}

/// Calls a function of the user's, such as the step of an environment, which may take any time.
///
/// # Errors
/// The exception that the function raises.
pub(crate) fn call<'py>(
    function: &Bound<'py, PyAny>,
    arguments: impl IntoPyObject<'py, Target = PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let arguments = arguments.into_pyobject_or_pyerr(function.py())?;
    function.call(arguments.into_bound(), kwargs)
}

/// As [`call`], of a method. For code of the user's too, and for all that takes more than a moment
/// in a thread of the engine.
///
/// # Errors
/// The exception of the method; `AttributeError` where there is no such method.
pub(crate) fn call_method<'py>(
    object: &Bound<'py, PyAny>,
    name: &str,
    arguments: impl IntoPyObject<'py, Target = PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    call(&object.getattr(name)?, arguments, None)
}

/// The module `name`, whose import may take a while. See [`call`].
///
/// # Errors
/// The exception of the import.
pub(crate) fn import<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let importlib = py.import(intern!(py, "importlib"))?;
    call_method(&importlib, "import_module", (name,))
}

/// `windrow._ports`, the only module of the package that the extension calls.
///
/// # Errors
/// The exception of its import.
pub(crate) fn ports(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    import(py, "windrow._ports")
}

/// Warns by `windrow.Warning`.
///
/// # Errors
/// The warning, where the program's filters make it an exception.
pub(crate) fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    call_method(&ports(py)?, "warn", (text,)).map(drop)
}

/// Calls `attempt`, without the interpreter's lock, until it returns a result. Each attempt waits
/// no longer than the duration that it gets, [`SLICE`]; signals are handled in between. The calling
/// thread lends the factory lock meanwhile, if it has it: the threads that it waits for may need to
/// make environments.
///
/// # Errors
/// Any exception that a signal handler raises: `KeyboardInterrupt` after Ctrl-C.
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

/// Ends waits of the engine with the exception of a signal handler, such as `KeyboardInterrupt`.
/// Only the main thread runs handlers. Also warns of workers that are silent for long.
///
/// # Errors
/// The exception of the import of `windrow._ports`.
pub(crate) fn interrupt(py: Python<'_>) -> PyResult<Interrupt> {
    let after: f64 = ports(py)?.getattr(intern!(py, "SILENT"))?.extract()?;
    // Without an interpreter, nobody sees signals or warnings any more.
    let signals = Interrupt::new(|| Python::try_attach(|py| py.check_signals()).unwrap_or(Ok(())));
    Ok(
        signals.reporting(Duration::from_secs_f64(after), |line: &str| {
            Python::try_attach(|py| warn(py, line)).unwrap_or(Ok(()))
        }),
    )
}

/// Runs `f` in a thread of its own and returns its result. For calls of the engine that cannot be
/// cut into slices: the calling thread can handle signals however long `f` takes.
///
/// # Errors
/// As [`wait`]; `f` then goes on in its thread, and its result is dropped. `OSError` when the
/// system gives no thread, `RuntimeError` when `f` panics.
pub(crate) fn wait_for_thread<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (done, ended) = channel();
    let run = move || {
        // After Ctrl-C, the receiver is gone; the result is then dropped here, in this thread.
        let _ = done.send(f());
    };
    Builder::new().name(name.to_owned()).spawn(run)?;
    let ended = wait(py, move |patience| match ended.recv_timeout(patience) {
        Ok(returned) => Some(Some(returned)),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(None),
    })?;
    ended.ok_or_else(|| PyRuntimeError::new_err(format!("thread {name} panicked")))
}

/// Looks for signals now and then, in a loop that never calls Python.
///
/// Taking the lock at each turn of a loop that runs millions of times a second would slow it down
/// many times over, and so would a look at the clock. So the watch counts turns, and adapts their
/// number to how long they take.
#[derive(Debug)]
pub(crate) struct SignalWatch {
    /// Calls until the next look at the clock.
    left: u32,
    /// Calls between two looks: so many that they take a hundredth of a second or so.
    calls: u32,
    /// The time of the last look.
    last: Instant,
}

impl SignalWatch {
    /// A watch that looks at its first call: how long a turn of the loop takes is not known yet.
    pub(crate) fn new() -> Self {
        Self {
            left: 1,
            calls: 1,
            last: Instant::now(),
        }
    }

    /// Call this at every turn of the loop, in the thread of Python that runs it: only the main
    /// thread handles signals.
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

    /// Handles signals, and sets the number of turns until the next time: doubled after a short
    /// while, quartered after a long one.
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
