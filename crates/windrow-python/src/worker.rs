//! Worker processes: what a collector sends them, and the interpreter as one.
//!
//! An environment or a policy of Python's is sent by one name, [`NAME`], with the pickled object in
//! its packed arguments (ADR 0029). `windrow._ports` pickles and reads. Exceptions come back the
//! same way.

use std::collections::HashMap;
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde::{Deserialize, Serialize};
use serde_bytes::{ByteBuf, Bytes};
use windrow::SentError;
use windrow::envs::{EnvError, EnvFactory, EnvRecipe, VecEnv};
use windrow::policy::{Policy, PolicyError, Registry};
use windrow::{
    Invitation, PolicyRecipe as Recipe, Profiler, WorkerMain, WorkerProgram, error_chain,
};

use crate::error::{self, raised_in};
use crate::gc::GcRoots;
use crate::gil::{self, attach};
use crate::policy::{PolicyEnvs, PolicyRecipe, seed_torch};
use crate::process::{self, Own};
use crate::profiler::PyProfiler;

/// Adds the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Nursery>()?;
    module.add_function(wrap_pyfunction!(run_worker, module)?)
}

/// The name under which Python's environments and policies are made in a worker process.
const NAME: &str = "windrow.python";

/// What the function `name` of `windrow._ports` makes of `arguments`: a pickled object.
fn pickled<'py>(py: Python<'py>, name: &str, arguments: impl PyCallArgs<'py>) -> PyResult<Vec<u8>> {
    gil::ports(py)?.call_method1(name, arguments)?.extract()
}

/// What the function `name` of `windrow._ports` reads in `pickled`.
fn unpickled<'py>(py: Python<'py>, name: &str, pickled: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    gil::call_method(&gil::ports(py)?, name, (PyBytes::new(py, pickled),))
}

/// Arguments of environments.
#[derive(Serialize, Deserialize)]
struct EnvArguments {
    #[serde(with = "serde_bytes")]
    pickled: Vec<u8>,
    /// Whether the policy reads `is_init`.
    init: bool,
    /// Seed of torch's generator, if it is used.
    seed: u64,
}

/// A process of Python's that forks workers.
#[pyclass(module = "windrow._windrow", frozen)]
struct Nursery(Own<Arc<windrow::Nursery>>);

#[pymethods]
impl Nursery {
    #[new]
    fn new(program: PathBuf, args: Vec<OsString>, vars: HashMap<OsString, OsString>) -> Self {
        let nursery = windrow::Nursery::new(program, args, vars.into_iter().collect());
        Self(Own::new(Arc::new(nursery)))
    }
}

/// Path, arguments and variables of the interpreter as a worker; the nursery and what it is told.
type Program<'py> = (
    PathBuf,
    Vec<OsString>,
    HashMap<OsString, OsString>,
    Option<(Bound<'py, Nursery>, Vec<u8>)>,
);

/// The interpreter as a worker whose libraries use `threads` threads. A process that has imported
/// torch forks it if `warm`.
///
/// # Errors
/// `RuntimeError` where nobody knows its path.
pub(crate) fn program(py: Python<'_>, threads: usize, warm: bool) -> PyResult<WorkerProgram> {
    let (program, args, vars, forked): Program<'_> = gil::ports(py)?
        .call_method1("program", (threads, warm))?
        .extract()?;
    let forked = forked.map(|(nursery, request)| {
        let nursery = nursery.get().0.get("nursery")?;
        Ok::<_, PyErr>((Arc::clone(nursery), request.into()))
    });
    Ok(WorkerProgram {
        program,
        args,
        vars: vars.into_iter().collect(),
        forked: forked.transpose()?,
    })
}

/// Whether worker processes import torch for the policy `chosen`, see [`PolicyRecipe::new`], or for
/// what is sent as `environments`.
///
/// # Errors
/// None are expected.
pub(crate) fn uses_torch<'py>(
    chosen: &Bound<'py, PyAny>,
    environments: impl IntoPyObject<'py>,
) -> PyResult<bool> {
    gil::ports(chosen.py())?
        .call_method1("uses_torch", (chosen, environments))?
        .extract()
}

/// The recipe by which worker processes make the environments `env`, after a call of `init_fn`;
/// they observe `is_init` where `init`. Torch begins with `seed`, where the environments use it.
/// They send pickled objects with `allow_pickle`, otherwise only data.
///
/// # Errors
/// `TypeError` naming what cannot be pickled.
pub(crate) fn env_recipe(
    env: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
    init_fn: Option<&Bound<'_, PyAny>>,
    allow_pickle: bool,
    (init, seed): (bool, u64),
) -> PyResult<EnvRecipe> {
    sent_envs(
        pickled(
            env.py(),
            "environments",
            (env, kwargs, init_fn, allow_pickle),
        )?,
        init,
        seed,
    )
}

/// The recipe by which worker processes make the policy `chosen`, see [`PolicyRecipe::new`].
///
/// # Errors
/// `TypeError` naming what cannot be pickled.
pub(crate) fn policy_recipe(chosen: &Bound<'_, PyAny>) -> PyResult<Recipe> {
    sent_policy(&pickled(chosen.py(), "policy", (chosen,))?)
}

/// The recipe of environments that `windrow._ports.environments` has pickled; they observe
/// `is_init` where `init`, and torch begins with `seed`, where they use it.
///
/// # Errors
/// `ValueError` where it cannot be written.
pub(crate) fn sent_envs(pickled: Vec<u8>, init: bool, seed: u64) -> PyResult<EnvRecipe> {
    let arguments = EnvArguments {
        pickled,
        init,
        seed,
    };
    let recipe = EnvRecipe::of(NAME).with_packed(&arguments);
    recipe.map_err(|error| PyValueError::new_err(error_chain(&error)))
}

/// The recipe of a policy that `windrow._ports.policy` has pickled.
///
/// # Errors
/// `ValueError` where it cannot be written.
pub(crate) fn sent_policy(pickled: &[u8]) -> PyResult<Recipe> {
    let recipe = Recipe::named_with_packed(NAME, &Bytes::new(pickled));
    recipe.map_err(|error| PyValueError::new_err(error_chain(&error)))
}

/// The profiler of worker `worker`, whose maker was `pickled`.
fn profiler(
    pickled: &[u8],
    worker: usize,
) -> Result<Box<dyn Profiler>, Box<dyn Error + Send + Sync>> {
    let roots = GcRoots::default();
    attach(|py| {
        let read = || {
            let pickle = py.import(intern!(py, "pickle"))?;
            pickle.call_method1(intern!(py, "loads"), (PyBytes::new(py, pickled),))
        };
        let make = read().map_err(|raised| roots.raised(py, raised))?;
        Ok(Box::new(PyProfiler::new(&make, worker, &roots)?) as Box<dyn Profiler>)
    })
}

/// The exception that a worker process has sent.
pub(crate) fn received(py: Python<'_>, sent: &SentError) -> PyErr {
    let read = |sent: &SentError| {
        let bytes = PyBytes::new(py, sent.bytes());
        gil::call_method(&gil::ports(py)?, "received", (bytes,))
    };
    read(sent).map_or_else(|error| error, PyErr::from_value)
}

/// Runs this process as a worker, and returns its exit status; None if it was not started as one.
/// With an `invitation`, works for the collector elsewhere that has sent it.
#[pyfunction]
#[pyo3(signature = (invitation = None))]
fn run_worker(py: Python<'_>, invitation: Option<&str>) -> PyResult<Option<i32>> {
    let invitation = invitation.map(Invitation::from_json).transpose();
    let invitation = invitation.map_err(|error| PyValueError::new_err(error.to_string()))?;
    process::become_worker();
    let entry = WorkerMain::new()
        .send_errors(send)
        .answer_calls(answer)
        .profilers(profiler)
        .shows_stack();
    let register = |registry: &mut Registry| {
        registry.envs.register_vec_with(NAME, environments)?;
        registry.policy_with(NAME, |pickled: ByteBuf, worker| policy(&pickled, worker))?;
        Ok(())
    };
    let ran = py.detach(|| match invitation {
        Some(invitation) => Ok(Some(entry.work_for(&invitation, register))),
        None => entry.serve(register),
    });
    ran.map_err(|error| error::to_py(py, &error))
}

/// What is sent of an error that an exception has caused.
fn send(error: &(dyn Error + 'static)) -> Option<Vec<u8>> {
    attach(|py| {
        let raised = raised_in(py, error)?;
        let sent = gil::ports(py)
            .and_then(|ports| ports.call_method1(intern!(py, "sent"), (raised.value(py),)));
        // Without it the collector's error has the message alone.
        let sent = sent.ok()?;
        Some(sent.cast::<PyBytes>().ok()?.as_bytes().to_vec())
    })
}

/// What the process answers to a call of [`CollectorCore`](crate::collector)'s `call_worker`.
fn answer(call: &[u8]) -> Vec<u8> {
    attach(|py| {
        let answer = gil::ports(py)?.getattr(intern!(py, "answer"))?;
        let answer = gil::call(&answer, (PyBytes::new(py, call),), None)?;
        Ok(answer.cast::<PyBytes>()?.as_bytes().to_vec())
    })
    // Nothing of the user's raises there; the collector's side says that the answer is none.
    .unwrap_or_else(|_: PyErr| Vec::new())
}

fn environments(arguments: EnvArguments, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
    let EnvArguments {
        pickled,
        init,
        seed,
    } = arguments;
    let roots = GcRoots::default();
    let failed = |py: Python<'_>, raised| EnvError::failed(roots.raised(py, raised));
    let envs = attach(|py| {
        let read = || {
            let seeded = seed_torch(py, seed)?;
            let sent = unpickled(py, "read_environments", &pickled)?;
            Ok((PolicyEnvs::that_were_sent(&sent, init, &roots)?, seeded))
        };
        read().map_err(|raised| failed(py, raised))
    });
    let (envs, seeded) = envs?;
    let made = envs.build(num_envs)?;
    // They may have imported it.
    if !seeded {
        attach(|py| seed_torch(py, seed).map_err(|raised| failed(py, raised)))?;
    }
    Ok(made)
}

fn policy(pickled: &[u8], worker: usize) -> Result<Box<dyn Policy>, PolicyError> {
    let roots = GcRoots::default();
    let recipe = attach(|py| {
        let read = || PolicyRecipe::new(&unpickled(py, "read_policy", pickled)?, &roots);
        read().map_err(|raised| PolicyError::failed(roots.raised(py, raised)))
    });
    Ok(recipe?.policy(worker))
}
