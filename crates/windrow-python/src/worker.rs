//! Worker processes: what a collector sends them, and the interpreter as one.
//!
//! An environment or a policy of Python's is sent by one name, [`NAME`], with the pickled object as its argument. `windrow._sending`
//! pickles and reads. Exceptions come back the same way.

use std::collections::HashMap;
use std::error::Error;
use std::ffi::OsString;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use windrow::env::{EnvError, EnvFactory, EnvRecipe, VecEnv};
use windrow::policy::{Policy, PolicyError, Registry};
use windrow::{PolicyRecipe as Recipe, SentError, WorkerMain, WorkerProgram};

use crate::error::raised_in;
use crate::gc::GcRoots;
use crate::gil::{self, attach};
use crate::policy::{PolicyEnvs, PolicyRecipe};
use crate::{batch, error};

/// Adds the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(run_worker, module)?)?;
    module.add_function(wrap_pyfunction!(tensors_to_bytes, module)?)
}

/// The name under which Python's environments and policies are made in a worker process.
const NAME: &str = "windrow.python";

/// A pickled object.
struct Pickled(Vec<u8>);

impl Serialize for Pickled {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Pickled {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = BASE64_STANDARD.decode(text).map_err(D::Error::custom)?;
        Ok(Self(bytes))
    }
}

impl Pickled {
    /// What the function `name` of `windrow._sending` makes of `arguments`.
    fn new<'py>(py: Python<'py>, name: &str, arguments: impl PyCallArgs<'py>) -> PyResult<Self> {
        let bytes = sending(py)?.call_method1(name, arguments)?;
        Ok(Self(bytes.cast::<PyBytes>()?.as_bytes().to_vec()))
    }

    /// What the function `name` of `windrow._sending` reads in it.
    fn read<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        gil::call(
            &sending(py)?.getattr(name)?,
            (PyBytes::new(py, &self.0),),
            None,
        )
    }
}

/// Arguments of environments.
#[derive(Serialize, Deserialize)]
struct EnvArguments {
    pickled: Pickled,
    /// Whether the policy reads `is_init`.
    init: bool,
}

/// Arguments of a policy.
#[derive(Serialize, Deserialize)]
struct PolicyArguments {
    pickled: Pickled,
}

/// The interpreter as a worker whose libraries use `threads` threads.
///
/// # Errors
/// `RuntimeError` where nobody knows its path.
pub(crate) fn program(py: Python<'_>, threads: usize) -> PyResult<WorkerProgram> {
    let (program, args, vars): (String, Vec<String>, HashMap<String, String>) = sending(py)?
        .call_method1("program", (threads,))?
        .extract()?;
    Ok(WorkerProgram {
        program: program.into(),
        args: args.into_iter().map(OsString::from).collect(),
        vars: vars
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
    })
}

/// The recipe by which worker processes make the environments `env`, after a call of `init_fn`; they observe `is_init` where `init`.
///
/// # Errors
/// `TypeError` naming what cannot be pickled.
pub(crate) fn env_recipe(
    env: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
    init_fn: Option<&Bound<'_, PyAny>>,
    init: bool,
) -> PyResult<EnvRecipe> {
    let pickled = Pickled::new(env.py(), "environments", (env, kwargs, init_fn))?;
    let recipe = EnvRecipe::of(NAME).with_arguments(&EnvArguments { pickled, init });
    recipe.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The recipe by which a process makes the member of a `ParallelEnv` that `windrow._sending` has pickled.
///
/// # Errors
/// `ValueError` for more than can be sent.
pub(crate) fn member_recipe(pickled: Vec<u8>) -> PyResult<EnvRecipe> {
    let pickled = Pickled(pickled);
    let recipe = EnvRecipe::of(NAME).with_arguments(&EnvArguments {
        pickled,
        init: false,
    });
    recipe.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The recipe by which worker processes make the policy `chosen`, see [`PolicyRecipe::new`].
///
/// # Errors
/// `TypeError` naming what cannot be pickled.
pub(crate) fn policy_recipe(chosen: &Bound<'_, PyAny>) -> PyResult<Recipe> {
    let pickled = Pickled::new(chosen.py(), "policy", (chosen,))?;
    let recipe = Recipe::named_with(NAME, &PolicyArguments { pickled });
    recipe.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The exception that a worker process has sent.
pub(crate) fn received(py: Python<'_>, sent: &SentError) -> PyErr {
    let read = |sent: &SentError| {
        let bytes = PyBytes::new(py, sent.bytes());
        sending(py)?.call_method1(intern!(py, "received"), (bytes,))
    };
    read(sent).map_or_else(|error| error, PyErr::from_value)
}

fn sending(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "windrow._sending"))
}

/// Tensors by name as bytes, in the form of safetensors.
#[pyfunction]
fn tensors_to_bytes<'py>(tensors: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = batch::from_python(tensors)?.to_bytes();
    let bytes = bytes.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(PyBytes::new(tensors.py(), &bytes))
}

/// Runs this process as a worker, and returns its exit status; None if it was not started as one.
#[pyfunction]
fn run_worker(py: Python<'_>) -> PyResult<Option<i32>> {
    let entry = WorkerMain::new()
        .send_errors(send)
        .answer_calls(answer)
        .shows_stack();
    let ran = py.detach(|| {
        entry.serve(|registry: &mut Registry| {
            registry.envs.register_vec_with(NAME, environments)?;
            registry.policy_with(NAME, |arguments, worker| policy(&arguments, worker))?;
            Ok(())
        })
    });
    ran.map_err(|error| error::to_py(py, &error))
}

/// What is sent of an error that an exception has caused.
fn send(error: &(dyn Error + 'static)) -> Option<Vec<u8>> {
    attach(|py| {
        let raised = raised_in(py, error)?;
        let sent = sending(py)
            .and_then(|sending| sending.call_method1(intern!(py, "sent"), (raised.value(py),)));
        // Without it the collector's error has the message alone.
        let sent = sent.ok()?;
        Some(sent.cast::<PyBytes>().ok()?.as_bytes().to_vec())
    })
}

/// What the process answers to a call of [`CollectorCore`](crate::collector)'s `call_worker`.
fn answer(call: &[u8]) -> Vec<u8> {
    attach(|py| {
        let answer = sending(py)?.getattr(intern!(py, "answer"))?;
        let answer = gil::call(&answer, (PyBytes::new(py, call),), None)?;
        Ok(answer.cast::<PyBytes>()?.as_bytes().to_vec())
    })
    // Nothing of the user's raises there; the collector's side says that the answer is none.
    .unwrap_or_else(|_: PyErr| Vec::new())
}

fn environments(arguments: EnvArguments, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
    let EnvArguments { pickled, init } = arguments;
    let roots = GcRoots::default();
    let envs = attach(|py| {
        let read =
            || PolicyEnvs::that_were_sent(&pickled.read(py, "read_environments")?, init, &roots);
        read().map_err(|raised| EnvError::failed(roots.raised(py, raised)))
    });
    envs?.build(num_envs)
}

fn policy(arguments: &PolicyArguments, worker: usize) -> Result<Box<dyn Policy>, PolicyError> {
    let roots = GcRoots::default();
    let recipe = attach(|py| {
        let read = || PolicyRecipe::new(&arguments.pickled.read(py, "read_policy")?, &roots);
        read().map_err(|raised| PolicyError::failed(roots.raised(py, raised)))
    });
    Ok(recipe?.policy(worker))
}
