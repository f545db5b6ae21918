//! `windrow._windrow`: what the Python package is built on.

use pyo3::prelude::*;

mod batch;
mod collector;
mod env;
mod error;
mod evaluator;
mod gil;
mod keep;
mod plain;
mod policy;
mod process;
mod replay;
mod turn;

#[pymodule]
#[pyo3(name = "_windrow")]
fn windrow_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    process::register()?;
    env::register(module)?;
    collector::register(module)?;
    evaluator::register(module)?;
    policy::register(module)?;
    replay::register(module)?;
    error::register(module)
}
