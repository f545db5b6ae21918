//! Keeps the end of the interpreter from aborting the process.
//!
//! Before Python 3.14, an interpreter that has ended also ends every other thread that acquires the
//! lock again, by unwinding the thread's stack (glibc's `pthread_exit`). Unwinding through frames
//! of Rust aborts the process. So a daemon thread that samples from a buffer would make a program
//! fail that has already done its work. Such a thread sleeps here instead, until the process ends.
//!
//! A thread acquires the lock in two places: where windrow has released it, and within any Python
//! code. Each function of the interpreter that this library calls and that may run Python code is
//! in the table below. The linker (`--wrap`, see `build.rs`) turns all calls of `PyObject_Call` in
//! this library, those in PyO3 included, into calls of `__wrap_PyObject_Call`, which the table
//! defines; `__real_PyObject_Call` is the function of the interpreter. No other library is changed.
//!
//! Other libraries acquire the lock too: torch releases it while it frees a tensor, and unwinding a
//! C++ destructor ends the process. So once the program has ended its collectors ([`announce`]), a
//! thread of Python that returns from windrow rests there, just before the interpreter ends.
//!
//! Elsewhere than on Linux with glibc, ending a thread unwinds nothing.
#![allow(
    non_snake_case,
    reason = "names are those of the interpreter and the linker"
)]

use std::cell::Cell;
use std::ffi::c_int;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::ffi::{Py_ssize_t, PyGILState_STATE, PyObject, PyThreadState};

use super::REST;

/// Stops a thread that is being ended from unwinding any further: its destructor never returns.
struct Sleeper;

impl Drop for Sleeper {
    fn drop(&mut self) {
        loop {
            thread::park();
        }
    }
}

/// How long [`announce`] waits for threads to rest.
const PATIENCE: Duration = Duration::from_millis(100);

/// Whether the interpreter is about to end.
static ENDING: AtomicBool = AtomicBool::new(false);
/// The number of living threads of Python that have used windrow and do not rest.
static AWAKE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static GUEST: Guest = Guest::new();
}

/// A thread of Python that has released the lock within windrow.
struct Guest {
    /// Whether the thread rests once the interpreter is about to end. A thread of the engine does
    /// not, since it ends with its collector, nor does the thread that ends the interpreter.
    rests: Cell<bool>,
}

impl Guest {
    fn new() -> Self {
        let rests = super::is_of_python();
        AWAKE.fetch_add(usize::from(rests), Ordering::Relaxed);
        Self {
            rests: Cell::new(rests),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        AWAKE.fetch_sub(usize::from(self.rests.get()), Ordering::Relaxed);
    }
}

/// Announces the end of the interpreter, in the thread that ends it, and waits briefly until other
/// threads of Python that use windrow rest. The caller does not hold the interpreter's lock.
pub(super) fn announce() {
    GUEST.with(|guest| {
        let rested = guest.rests.replace(false);
        AWAKE.fetch_sub(usize::from(rested), Ordering::Relaxed);
    });
    ENDING.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    while AWAKE.load(Ordering::Relaxed) > 0 && begin.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the interpreter is about to end. Notes that this thread uses windrow.
pub(super) fn is_near() -> bool {
    // A thread that is ending has no guest any more.
    let _ = GUEST.try_with(|_| ());
    ENDING.load(Ordering::Relaxed)
}

/// Rests, if the interpreter is about to end.
fn rest() {
    // A thread that is ending has no guest any more.
    let _ = GUEST.try_with(|guest| {
        if !(ENDING.load(Ordering::Relaxed) && guest.rests.get()) {
            return;
        }
        AWAKE.fetch_sub(1, Ordering::Relaxed);
        thread::sleep(REST);
        AWAKE.fetch_add(1, Ordering::Relaxed);
    });
}

/// Defines `__wrap_NAME` for each function of the table, some of which call another function first.
macro_rules! asleep_at_the_end {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)? $(, after $first:ident)?;)*) => {$(
        #[unsafe(export_name = concat!("__wrap_", stringify!($name)))]
        unsafe extern "C" fn $name($($arg: $type),*) $(-> $out)? {
            // Not PyO3's declaration, which says that these functions do not unwind.
            unsafe extern "C-unwind" {
                #[link_name = concat!("__real_", stringify!($name))]
                fn real($($arg: $type),*) $(-> $out)?;
            }
            // The linker leaves `__real_NAME` undefined where nothing refers to NAME.
            unsafe extern "C-unwind" {
                #[link_name = stringify!($name)]
                fn named($($arg: $type),*) $(-> $out)?;
            }
            #[used]
            static NAMED: unsafe extern "C-unwind" fn($($type),*) $(-> $out)? = named;
            $($first();)?
            // The only local value with a destructor: nothing else runs without an interpreter.
            let sleeper = Sleeper;
            // SAFETY: the arguments are passed on unchanged, and the caller keeps the contract of
            // the function.
            let returned = unsafe { real($($arg),*) };
            // The call has returned, so this thread goes on as usual.
            mem::forget(sleeper);
            returned
        }
    )*};
}

asleep_at_the_end! {
    fn PyEval_RestoreThread(state: *mut PyThreadState), after rest;
    fn PyGILState_Ensure() -> PyGILState_STATE;
    fn PyErr_CheckSignals() -> c_int;
    fn PyErr_WriteUnraisable(object: *mut PyObject);
    fn PyImport_Import(name: *mut PyObject) -> *mut PyObject;
    fn PyIter_Next(iterator: *mut PyObject) -> *mut PyObject;
    fn PyObject_Call(
        function: *mut PyObject,
        arguments: *mut PyObject,
        kwargs: *mut PyObject,
    ) -> *mut PyObject;
    // PyO3 uses it only for methods without arguments. A null pointer ends the list of arguments.
    fn PyObject_CallMethodObjArgs(
        object: *mut PyObject,
        name: *mut PyObject,
        end: *mut PyObject,
    ) -> *mut PyObject;
    fn PyObject_CallNoArgs(function: *mut PyObject) -> *mut PyObject;
    fn PyObject_DelItem(object: *mut PyObject, key: *mut PyObject) -> c_int;
    fn PyObject_GetAttr(object: *mut PyObject, name: *mut PyObject) -> *mut PyObject;
    fn PyObject_GetItem(object: *mut PyObject, key: *mut PyObject) -> *mut PyObject;
    fn PyObject_GetIter(object: *mut PyObject) -> *mut PyObject;
    fn PyObject_IsInstance(object: *mut PyObject, class: *mut PyObject) -> c_int;
    fn PyObject_IsTrue(object: *mut PyObject) -> c_int;
    fn PyObject_Repr(object: *mut PyObject) -> *mut PyObject;
    fn PyObject_RichCompare(
        one: *mut PyObject,
        other: *mut PyObject,
        op: c_int,
    ) -> *mut PyObject;
    fn PyObject_SetAttr(
        object: *mut PyObject,
        name: *mut PyObject,
        value: *mut PyObject,
    ) -> c_int;
    fn PyObject_SetItem(object: *mut PyObject, key: *mut PyObject, value: *mut PyObject) -> c_int;
    fn PyObject_Size(object: *mut PyObject) -> Py_ssize_t;
    fn PyObject_Str(object: *mut PyObject) -> *mut PyObject;
    fn Py_DecRef(object: *mut PyObject);
    fn _Py_DecRef(object: *mut PyObject);
}
