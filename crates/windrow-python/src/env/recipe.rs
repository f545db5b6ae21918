//! Environments of the recipes that Python's classes for them have.
//!
//! A recipe is a value of Python's, of `windrow.envs._recipe`, and the engine holds it as it is.
//! The thread of a worker reads it when it makes environments, which may call the user's functions:
//! these return something with a recipe again. So a new kind of recipe is a class there, and an arm
//! of [`make`].

use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use serde_json::{Map, Value};
use windrow::envs::{
    AnyTransform, EnvError, EnvFactory, EnvRecipe, Joined, MUJOCO_IDS, OneHotActions,
    OneHotObservations, VecEnv,
};

use super::foreign::ForeignEnvs;
use super::gym::GymEnvs;
use super::handle::EnvHandle;
use super::info::Entry;
#[cfg(target_os = "linux")]
use super::parallel;
use super::source::{call, lend};
use super::vector::VectorEnvs;
use crate::gc::{GcRef, GcRoots};
use crate::gil::{self, attach};
use crate::plain;

/// How to make the environments of a worker: a recipe of `windrow.envs._recipe`, held for one
/// owner.
#[derive(Debug, Clone)]
pub(crate) struct Recipe(GcRef);

/// An environment that comes with windrow.
#[derive(FromPyObject)]
struct Native {
    id: String,
    one_hot: bool,
    frame_skip: usize,
    /// What it is made with, as an object of JSON; nothing for one that takes no arguments.
    arguments: String,
}

impl Recipe {
    /// The recipe of anything that Python calls an environment, held in `roots`. `kwargs` are
    /// passed to a function.
    ///
    /// # Errors
    /// `TypeError` for anything else.
    pub(super) fn of(
        env: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
        roots: &GcRoots,
    ) -> PyResult<Self> {
        Ok(Self(roots.hold(&python_recipe(env, kwargs, true)?)))
    }

    /// Reads `name` of the recipe.
    fn get<'py, T>(&self, py: Python<'py>, name: &str) -> PyResult<T>
    where
        T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
    {
        self.0.bind(py).getattr(name)?.extract().map_err(Into::into)
    }

    /// Its kind, where no transforms are around the environment.
    fn bare_kind(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let transforms: Bound<'_, PyTuple> = self.get(py, "transforms")?;
        match transforms.is_empty() {
            true => self.get(py, "kind").map(Some),
            false => Ok(None),
        }
    }
}

/// A transform that Python gives by its name and a dictionary of arguments.
///
/// # Errors
/// As [`plain::read_variant`].
fn read_transform(described: &(Bound<'_, PyString>, Bound<'_, PyDict>)) -> PyResult<AnyTransform> {
    plain::read_variant(&described.0, &described.1)
}

/// The recipe, as Python has it, of anything that is an environment. An object of another library
/// is the user's `own`, or was made to be stepped and is closed in the end.
pub(super) fn python_recipe<'py>(
    env: &Bound<'py, PyAny>,
    kwargs: Option<&Bound<'py, PyDict>>,
    own: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = env.py();
    gil::call_method(&gil::ports(py)?, "recipe_of", (env, kwargs, own))
}

/// Environments, and two properties that the engine does not know.
pub(super) struct Made {
    pub(super) envs: Box<dyn VecEnv>,
    /// Whether they have a dimension for their number even if it is 1.
    pub(super) is_batched: bool,
    /// Whether any of them is stepped by Python.
    pub(super) is_python: bool,
    /// Whether a step waits for other processes.
    pub(super) waits: bool,
}

impl Made {
    fn native(envs: Box<dyn VecEnv>, is_batched: bool) -> Self {
        Self {
            envs,
            is_batched,
            is_python: false,
            waits: false,
        }
    }

    fn python(envs: impl VecEnv + 'static, is_batched: bool) -> Self {
        Self {
            envs: Box::new(envs),
            is_batched,
            is_python: true,
            waits: false,
        }
    }
}

// Environments are made in the thread that steps them, which does not have the interpreter's lock:
// native ones are made without it, and each of the others takes it for as long as it needs it.

/// Makes the environments of `recipe`. Objects that are made for it are held in `roots`. Those that
/// are in several dimensions keep them unless something `is_around`: windrow's own environments
/// have one dimension at most.
///
/// # Errors
/// The reason why they could not be made; an exception of Python's is the source of the error.
pub(super) fn prepare(recipe: &Recipe, roots: &GcRoots, is_around: bool) -> Result<Made, EnvError> {
    attach(|py| {
        let failed = |raised: PyErr| EnvError::failed(roots.raised(py, raised));
        let transforms: Vec<_> = recipe.get(py, "transforms").map_err(failed)?;
        let transforms = transforms.iter().map(read_transform);
        let transforms = transforms.collect::<PyResult<Vec<_>>>().map_err(failed)?;
        let (made, outside) = make(py, recipe, roots, (&transforms, is_around))?;
        py.detach(|| {
            outside.iter().try_fold(made, |made, transform| {
                Ok(Made {
                    envs: transform.around(made.envs)?,
                    ..made
                })
            })
        })
    })
}

/// The environments of `recipe`, and those of its `transforms` that go around all of them.
fn make<'a>(
    py: Python<'_>,
    recipe: &Recipe,
    roots: &GcRoots,
    (transforms, is_around): (&'a [AnyTransform], bool),
) -> Result<(Made, &'a [AnyTransform]), EnvError> {
    let failed = |raised: PyErr| EnvError::failed(roots.raised(py, raised));
    let is_around = is_around || !transforms.is_empty();
    let kind: String = recipe.get(py, "kind").map_err(failed)?;
    let made = match kind.as_str() {
        "native" => {
            let env: Native = recipe.0.bind(py).extract().map_err(failed)?;
            Made::native(py.detach(|| native(&env, 1))?, false)
        }
        "gymnasium" => Made::python(gym(py, slice::from_ref(recipe), roots)?, false),
        "vector" => {
            let one_hot = recipe.get(py, "one_hot").map_err(failed)?;
            let info: Vec<Entry> = recipe.get(py, "info").map_err(failed)?;
            let lent = lend(recipe.0.bind(py), roots)?;
            Made::python(VectorEnvs::new(py, lent, one_hot, &info)?, true)
        }
        "adapted" => {
            let lent = lend(recipe.0.bind(py), roots)?;
            let (envs, is_batched) = ForeignEnvs::new(py, lent, is_around)?;
            Made::python(envs, is_batched)
        }
        "handle" => {
            let handle: Bound<'_, EnvHandle> = recipe.get(py, "handle").map_err(failed)?;
            let (envs, is_batched) = handle.get().lent();
            Made::python(envs, is_batched)
        }
        "call" => {
            let inner = called(py, recipe, roots)?;
            py.detach(|| prepare(&inner, roots, is_around))?
        }
        #[cfg(target_os = "linux")]
        "parallel" => Made {
            waits: true,
            ..Made::native(parallel::start(recipe.0.bind(py), roots)?, true)
        },
        "many" => {
            let members: Vec<Bound<'_, PyAny>> = recipe.get(py, "members").map_err(failed)?;
            let (alone, outside) = match members.len() {
                1 => (&transforms[..0], transforms),
                _ => AnyTransform::split(transforms),
            };
            let members = members
                .iter()
                .map(|member| around(member, recipe, alone.len()));
            let members = members.map(|member| Ok(Recipe(roots.hold(&member?))));
            let members = members.collect::<PyResult<Vec<_>>>().map_err(failed)?;
            return Ok((py.detach(|| several(members, roots))?, outside));
        }
        other => {
            return Err(failed(PyTypeError::new_err(format!(
                "expected the recipe of an environment, got one of kind {other:?}"
            ))));
        }
    };
    Ok((made, transforms))
}

/// The recipe `member` of `whole`, with the first transforms of that around it, as many as `alone`.
fn around<'py>(
    member: &Bound<'py, PyAny>,
    whole: &Recipe,
    alone: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let transforms: Bound<'py, PyTuple> = whole.get(member.py(), "transforms")?;
    member.call_method1("transformed", transforms.get_slice(0, alone))
}

/// The recipe of what the function of `recipe` returns.
fn called(py: Python<'_>, recipe: &Recipe, roots: &GcRoots) -> Result<Recipe, EnvError> {
    let failed = |raised: PyErr| EnvError::failed(roots.raised(py, raised));
    let function: Bound<'_, PyAny> = recipe.get(py, "function").map_err(failed)?;
    let kwargs: Option<Bound<'_, PyDict>> = recipe.get(py, "kwargs").map_err(failed)?;
    let made = call(&function, kwargs.as_ref(), roots)?;
    let recipe = python_recipe(&made, None, false).map_err(failed)?;
    Ok(Recipe(roots.hold(&recipe)))
}

/// `recipe`, or, where it is a function, the recipe of what the function returns. Members have to
/// be known before they can be compared.
fn resolve(py: Python<'_>, recipe: Recipe, roots: &GcRoots) -> Result<Recipe, EnvError> {
    match recipe.bare_kind(py) {
        Ok(Some(kind)) if kind == "call" => resolve(py, called(py, &recipe, roots)?, roots),
        Ok(_) => Ok(recipe),
        Err(raised) => Err(EnvError::failed(roots.raised(py, raised))),
    }
}

/// Several environments as one; those of one kind without a copy of their rows.
fn several(members: Vec<Recipe>, roots: &GcRoots) -> Result<Made, EnvError> {
    let (members, alike) = attach(|py| {
        let members = members.into_iter().map(|member| resolve(py, member, roots));
        let members = members.collect::<Result<Vec<_>, _>>()?;
        let alike = side_by_side(py, &members, roots);
        Ok::<_, EnvError>((members, alike?))
    })?;
    if let Some(made) = alike {
        return Ok(made);
    }
    let (mut is_python, mut waits) = (false, false);
    let mut vectors = Vec::with_capacity(members.len());
    for member in &members {
        let made = prepare(member, roots, true)?;
        is_python |= made.is_python;
        waits |= made.waits;
        vectors.push(made.envs);
    }
    Ok(Made {
        is_python,
        waits,
        ..Made::native(Box::new(Joined::new(vectors)?), true)
    })
}

/// The environments of `members` without a call for each, where their kind has that.
fn side_by_side(
    py: Python<'_>,
    members: &[Recipe],
    roots: &GcRoots,
) -> Result<Option<Made>, EnvError> {
    let failed = |raised: PyErr| EnvError::failed(roots.raised(py, raised));
    let Some(first) = members.first() else {
        return Err(EnvError::Foreign(
            "a vector of environments needs at least one, got none".into(),
        ));
    };
    let is_alike = |member: &Recipe| match first.bare_kind(py)?.as_deref() {
        Some("native") => first.0.bind(py).eq(member.0.bind(py)),
        Some("gymnasium") => Ok(member.bare_kind(py)?.as_deref() == Some("gymnasium")
            && member.get::<bool>(py, "one_hot")? == first.get::<bool>(py, "one_hot")?),
        _ => Ok(false),
    };
    for member in members {
        if !is_alike(member).map_err(failed)? {
            return Ok(None);
        }
    }
    // Native environments of one kind are stored side by side; those of Gymnasium share one hold of
    // the interpreter's lock for a step of all.
    Ok(Some(match first.0.bind(py).extract::<Native>() {
        Ok(env) => Made::native(py.detach(|| native(&env, members.len()))?, true),
        Err(_) => Made::python(gym(py, members, roots)?, true),
    }))
}

/// `num_envs` environments that come with windrow, all alike.
fn native(env: &Native, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
    let mut recipe = EnvRecipe::of_skipping(&env.id, env.frame_skip);
    if !env.arguments.is_empty() {
        recipe = recipe.with_arguments(&arguments(env)?)?;
    }
    let mut envs = recipe.build(num_envs)?;
    // Asked of the environments, since a recipe does not know what they observe and which actions
    // they take.
    if env.one_hot && OneHotObservations::apply_to(&envs.spec().observation) {
        envs = Box::new(envs.transformed(OneHotObservations {})?);
    }
    if env.one_hot && envs.spec().action.choices().is_some() {
        envs = Box::new(envs.transformed(OneHotActions::new())?);
    }
    Ok(envs)
}

/// The arguments of an environment; for one of MuJoCo, with the folders that this process has the
/// library and the models in.
fn arguments(env: &Native) -> Result<Map<String, Value>, EnvError> {
    let mut arguments: Map<String, Value> =
        serde_json::from_slice(env.arguments.as_bytes()).map_err(EnvError::failed)?;
    if MUJOCO_IDS.contains(&env.id.as_str()) {
        let folders: [Option<String>; 2] = attach(|py| {
            let folders = gil::ports(py).and_then(|ports| ports.call_method0("mujoco_folders"));
            folders.and_then(|folders| folders.extract())
        })
        .map_err(EnvError::failed)?;
        for (name, folder) in ["library", "models"].into_iter().zip(folders) {
            arguments.extend(folder.map(|folder| (name.to_owned(), Value::String(folder))));
        }
    }
    Ok(arguments)
}

/// Environments of Gymnasium that agree on how choices are encoded.
fn gym(py: Python<'_>, envs: &[Recipe], roots: &GcRoots) -> Result<GymEnvs, EnvError> {
    let failed = |raised: PyErr| EnvError::failed(roots.raised(py, raised));
    let mut worlds = Vec::with_capacity(envs.len());
    let mut one_hot = true;
    for env in envs {
        one_hot &= env.get::<bool>(py, "one_hot").map_err(failed)?;
        let frame_skip: usize = env.get(py, "frame_skip").map_err(failed)?;
        let info: Vec<Entry> = env.get(py, "info").map_err(failed)?;
        worlds.push((lend(env.0.bind(py), roots)?, frame_skip, info));
    }
    GymEnvs::new(py, worlds, one_hot)
}

/// A recipe as a factory of the engine.
#[derive(Debug)]
pub(crate) struct Factory {
    recipe: Recipe,
    roots: GcRoots,
    is_python: AtomicBool,
}

impl Factory {
    pub(super) fn new(recipe: Recipe, roots: GcRoots) -> Self {
        Self {
            recipe,
            roots,
            is_python: AtomicBool::new(false),
        }
    }

    /// Whether what was made is stepped by Python, so that threads take turns.
    pub(crate) fn is_python(&self) -> bool {
        self.is_python.load(Ordering::Relaxed)
    }
}

impl EnvFactory for Factory {
    fn build(&self, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
        let made = self.make(num_envs).inspect_err(|_| {
            // This thread has no interpreter's lock, and PyO3 keeps references that are dropped
            // without it until some thread takes it. Taking it here frees environments that were
            // made in vain now.
            attach(|_| ());
        })?;
        self.is_python.store(made.is_python, Ordering::Relaxed);
        Ok(made.envs)
    }
}

impl Factory {
    /// Makes `num_envs` environments of the recipe: one as it is, several in lockstep.
    fn make(&self, num_envs: usize) -> Result<Made, EnvError> {
        match num_envs {
            1 => prepare(&self.recipe, &self.roots, false),
            _ => {
                let mut members = Vec::new();
                members.try_reserve_exact(num_envs).map_err(|error| {
                    EnvError::Foreign(format!("num_envs={num_envs} is too much: {error}"))
                })?;
                members.resize(num_envs, self.recipe.clone());
                several(members, &self.roots)
            }
        }
    }
}
