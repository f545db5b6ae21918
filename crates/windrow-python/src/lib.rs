//! `windrow._windrow`: what the Python package is built on.
//!
//! Each room turns one kind of Python object into what the engine takes: `env` environments,
//! `policy` policies, `replay` replay buffers, `batch` tensors, `learning` what a learner does with
//! them, `profiler` profilers, `worker` what processes of their own need, `server` requests,
//! `remote` servers elsewhere. `collector` and `evaluator` put them together. The engine does the
//! collecting; this crate adds the rules of the interpreter: its lock (`gil`), its garbage
//! collector (`gc`), `fork` (`process`) and its exceptions (`error`).
//!
//! The classes here are private to that package: their arguments were checked in Python, and their
//! names may change. `README.md` beside this crate has the map, the way of a batch, and the rules
//! for the interpreter's lock and the garbage collector.

use pyo3::prelude::*;

mod batch;
mod collector;
mod env;
mod error;
mod evaluator;
mod factory_lock;
mod gc;
mod gil;
#[cfg(target_os = "linux")]
mod launcher;
mod learning;
mod plain;
mod policy;
mod process;
mod profiler;
#[cfg(unix)]
mod remote;
mod replay;
mod server;
#[cfg(target_os = "linux")]
mod worker;

// Nobody has tried it without the interpreter's lock yet, so an interpreter that has none takes one
// when it imports this.
#[pymodule(gil_used = true)]
#[pyo3(name = "_windrow")]
fn windrow_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(gil::announce_exit, module)?)?;
    module.add_function(wrap_pyfunction!(gil::announce_end, module)?)?;
    // First, since everything that is made from here on records the process that it belongs to.
    process::register()?;
    batch::packed::register(module)?;
    env::register(module)?;
    collector::register(module)?;
    evaluator::register(module)?;
    policy::register(module)?;
    #[cfg(unix)]
    remote::register(module)?;
    replay::register(module)?;
    learning::register(module)?;
    server::register(module)?;
    #[cfg(target_os = "linux")]
    launcher::register(module)?;
    #[cfg(target_os = "linux")]
    worker::register(module)?;
    error::register(module)
}
