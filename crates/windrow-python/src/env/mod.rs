//! Anything that Python calls an environment, as a factory of the engine.
//!
//! Python describes environments by a recipe (`windrow.envs._recipe`); `recipe` reads it and makes
//! them. Three kinds are stepped by Python: `gym` calls one environment at a time, `vector` and
//! `foreign` one object for all. They share the way from values to rows (`space`, `read`) and from
//! rows to values (`write`), the rule that one worker at a time steps an object (`loan`), and the
//! closing of objects that were made for the engine (`source`).
//!
//! Environments are made, reset, stepped and closed in the thread of their worker. The thread takes
//! the interpreter's lock for each of these; a step of several environments of Gymnasium takes it
//! once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

mod blocks;
mod cast;
mod describe;
mod foreign;
mod gym;
mod handle;
mod info;
mod loan;
#[cfg(target_os = "linux")]
mod parallel;
mod pool;
mod read;
mod recipe;
mod rows;
mod source;
mod space;
mod statistics;
mod vector;
mod vector_core;
mod wrappers;
mod write;

use windrow::envs::{EnvRegistry, MUJOCO_IDS, Resize};

use crate::gc::GcRoots;
use crate::{batch, gil, plain};

pub(crate) use describe::{Key, examples_of};
pub(crate) use handle::{EnvHandle, Run};
pub(crate) use recipe::Factory;
use recipe::Recipe;
pub(crate) use write::strings;

/// Adds the classes and the function for environments.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<handle::EnvHandle>()?;
    module.add_class::<statistics::SharedStatistics>()?;
    module.add_class::<pool::EnvPool>()?;
    module.add_class::<vector_core::VectorCore>()?;
    #[cfg(target_os = "linux")]
    module.add_class::<parallel::ParallelMembers>()?;
    module.add_function(wrap_pyfunction!(resize, module)?)?;
    module.add_function(wrap_pyfunction!(native_ids, module)?)?;
    module.add_function(wrap_pyfunction!(native_info, module)?)?;
    module.add_function(wrap_pyfunction!(mujoco_arguments, module)?)?;
    module.add_function(wrap_pyfunction!(mujoco_version, module)?)
}

/// The factory behind anything that Python calls an environment: one of `windrow.envs`, of
/// Gymnasium or of TorchRL, an id, or a function that returns any of these. `kwargs` are passed to
/// the function. `roots` holds the objects behind it, and those that it makes.
///
/// Environments of Python's are made under the interpreter's lock, in any thread. So the caller
/// must not hold it while it waits for a collector to be built.
///
/// # Errors
/// `TypeError` for anything else. What a function raises comes when environments are made.
pub(crate) fn maker(
    env: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
    roots: &GcRoots,
) -> PyResult<Arc<Factory>> {
    let recipe = Recipe::of(env, kwargs, roots)?;
    Ok(Arc::new(Factory::new(recipe, roots.clone())))
}

/// Whether batches of `env` have a dimension for the environments even if there is one.
///
/// # Errors
/// As [`maker`].
pub(crate) fn is_batched(env: &Bound<'_, PyAny>) -> PyResult<bool> {
    let recipe = recipe::python_recipe(env, None, true)?;
    recipe.getattr("is_batched")?.extract()
}

/// Warns once that environments of Python's take turns in threads, since each step needs the
/// interpreter's lock.
///
/// # Errors
/// The warning itself, where warnings are errors.
pub(crate) fn warn_of_turns(py: Python<'_>) -> PyResult<()> {
    gil::ports(py)?.call_method0("warn_of_turns")?;
    Ok(())
}

/// Resizes pictures, a tensor `[..., height, width]`, as the transform of the engine with these
/// `arguments` does.
///
/// # Errors
/// `TypeError` for an argument or something else than a tensor, `ValueError` for a tensor that
/// cannot be resized.
#[pyfunction]
fn resize<'py>(
    pictures: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = pictures.py();
    let resize: Resize = plain::read(arguments)?;
    let from = batch::from_torch(pictures)?;
    let resized = py.detach(|| resize.pictures(&from));
    batch::to_torch(py, resized.map_err(|error| handle::to_py(py, &error))?)
}

/// Ids of the environments that come with windrow, and need nothing else.
#[pyfunction]
fn native_ids(py: Python<'_>) -> Vec<Bound<'_, PyString>> {
    let registry = EnvRegistry::builtin();
    let own = registry.names().filter(|id| !MUJOCO_IDS.contains(id));
    own.map(|id| PyString::new(py, id)).collect()
}

/// Ids of the environments that need MuJoCo, each with the names of its arguments.
#[pyfunction]
fn mujoco_arguments() -> BTreeMap<&'static str, Vec<&'static str>> {
    let arguments = |id| (id, windrow::envs::mujoco_arguments(id));
    MUJOCO_IDS.into_iter().map(arguments).collect()
}

/// The version of MuJoCo's library in `folder`, or where a variable says that it is.
#[pyfunction]
fn mujoco_version(py: Python<'_>, folder: Option<PathBuf>) -> PyResult<&'static str> {
    let version = py.detach(move || windrow::envs::mujoco_version(folder.as_deref()));
    version.map_err(|error| handle::to_py(py, &error))
}

/// The entries of `info` that the environment called `id`, which comes with windrow, can observe,
/// each with whether a reset returns it, too.
///
/// # Errors
/// `ValueError` where there is no such environment.
#[pyfunction]
fn native_info<'py>(py: Python<'py>, id: &str) -> PyResult<Bound<'py, PyDict>> {
    let registry = windrow::envs::EnvRegistry::builtin();
    let info = registry.info(id);
    let info = info.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let entries = PyDict::new(py);
    for (name, at_reset) in info {
        entries.set_item(name, at_reset)?;
    }
    Ok(entries)
}
