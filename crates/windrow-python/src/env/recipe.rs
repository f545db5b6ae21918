//! How environments are made: the recipe that each of Python's classes for them has.
//!
//! A recipe is a value. Python has it as a frozen dataclass, and this is its counterpart; the two
//! have the same kinds. A recipe is read in the thread that builds a collector. Making its
//! environments comes later, in the thread of each worker, and may call the user's functions, which
//! return something with a recipe again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
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
use super::parallel::Processes;
use super::source::{Lender, call};
use super::vector::VectorEnvs;
use crate::gc::{GcRef, GcRoots};
use crate::gil::{self, attach};
use crate::plain;

/// How to make the environments of a worker: a recipe of `windrow.envs._recipe`, whose objects are
/// held for one owner.
#[derive(Debug)]
pub(crate) struct Recipe {
    source: Source,
    /// The first is nearest to the environment.
    transforms: Vec<AnyTransform>,
}

/// The environments before transforms, one variant for each kind of recipe in Python.
#[derive(Debug)]
enum Source {
    /// An environment that comes with windrow.
    Native(Native),
    /// An environment of Gymnasium.
    Gym(Gym),
    /// A vector of Gymnasium.
    Vector {
        lender: Lender,
        /// Whether choices are one-hot vectors, not indices.
        one_hot: bool,
        /// The entries of `info` that are observed.
        info: Vec<Entry>,
    },
    /// Environments behind an adapter in Python.
    Adapted(Lender),
    /// The environment that a function returns.
    Call {
        function: GcRef,
        kwargs: Option<GcRef>,
    },
    /// Those that a handle steps by hand.
    Handle(GcRef),
    /// Several in lockstep.
    Many(Vec<Arc<Recipe>>),
    /// Several side by side, in processes.
    #[cfg(target_os = "linux")]
    Parallel(Processes),
}

/// An environment that comes with windrow. Equal ones can be stored side by side.
#[derive(Debug, PartialEq, FromPyObject)]
struct Native {
    id: String,
    one_hot: bool,
    frame_skip: usize,
    /// What it is made with, as an object of JSON; nothing for one that takes no arguments.
    arguments: String,
}

/// An environment of Gymnasium.
#[derive(Debug)]
struct Gym {
    lender: Lender,
    one_hot: bool,
    frame_skip: usize,
    /// The entries of `info` that are observed.
    info: Vec<Entry>,
}

impl Recipe {
    /// The recipe of anything that Python calls an environment, whose objects are held in `roots`.
    /// `kwargs` are passed to a function.
    ///
    /// # Errors
    /// `TypeError` for anything else.
    pub(super) fn of(
        env: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
        roots: &GcRoots,
    ) -> PyResult<Arc<Self>> {
        Self::read(&python_recipe(env, kwargs, true)?, roots)
    }

    /// Reads a recipe of Python's.
    fn read(recipe: &Bound<'_, PyAny>, roots: &GcRoots) -> PyResult<Arc<Self>> {
        let get = |name: &str| recipe.getattr(name);
        let kind: String = get("kind")?.extract()?;
        let source = match kind.as_str() {
            "native" => Source::Native(recipe.extract()?),
            "gymnasium" => Source::Gym(Gym {
                lender: Lender::read(recipe, roots)?,
                one_hot: get("one_hot")?.extract()?,
                frame_skip: get("frame_skip")?.extract()?,
                info: get("info")?.extract()?,
            }),
            "vector" => Source::Vector {
                lender: Lender::read(recipe, roots)?,
                one_hot: get("one_hot")?.extract()?,
                info: get("info")?.extract()?,
            },
            "adapted" => Source::Adapted(Lender::read(recipe, roots)?),
            "handle" => Source::Handle(roots.hold(&get("handle")?)),
            "call" => {
                let kwargs = get("kwargs")?;
                Source::Call {
                    function: roots.hold(&get("function")?),
                    kwargs: (!kwargs.is_none()).then(|| roots.hold(&kwargs)),
                }
            }
            #[cfg(target_os = "linux")]
            "parallel" => Source::Parallel(Processes::read(recipe, roots)?),
            "many" => {
                let members = get("members")?;
                let members = members.try_iter()?.map(|one| Self::read(&one?, roots));
                Source::Many(members.collect::<PyResult<_>>()?)
            }
            other => {
                return Err(PyTypeError::new_err(format!(
                    "expected the recipe of an environment, got one of kind {other:?}"
                )));
            }
        };
        let transforms = get("transforms")?;
        let transforms = transforms.try_iter()?.map(|one| read_transform(&one?));
        Ok(Arc::new(Self {
            source,
            transforms: transforms.collect::<PyResult<_>>()?,
        }))
    }

    /// The same environment with `transforms` around it.
    fn around(self: &Arc<Self>, transforms: &[AnyTransform]) -> Arc<Self> {
        match transforms {
            [] => Arc::clone(self),
            _ => Arc::new(Self {
                source: Source::Many(vec![Arc::clone(self)]),
                transforms: transforms.to_vec(),
            }),
        }
    }

    /// The environment, where it comes with windrow and nothing is around it.
    fn bare_native(&self) -> Option<&Native> {
        match &self.source {
            Source::Native(native) if self.transforms.is_empty() => Some(native),
            _ => None,
        }
    }

    /// As [`bare_native`](Self::bare_native), where it is one of Gymnasium.
    fn bare_gym(&self) -> Option<&Gym> {
        match &self.source {
            Source::Gym(gym) if self.transforms.is_empty() => Some(gym),
            _ => None,
        }
    }
}

/// A transform that Python gives by its name and a dictionary of arguments.
///
/// # Errors
/// As [`plain::read_variant`].
fn read_transform(described: &Bound<'_, PyAny>) -> PyResult<AnyTransform> {
    let (name, arguments): (Bound<'_, PyString>, Bound<'_, PyDict>) = described.extract()?;
    plain::read_variant(&name, &arguments)
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
    let mut outside = recipe.transforms.as_slice();
    let is_around = is_around || !outside.is_empty();
    let made = match &recipe.source {
        Source::Native(env) => Made::native(native(env, 1)?, false),
        Source::Gym(env) => Made::python(gym(&[env], roots)?, false),
        Source::Vector {
            lender,
            one_hot,
            info,
        } => attach(|py| {
            let envs = VectorEnvs::new(py, lender.lend(py, roots)?, *one_hot, info)?;
            Ok::<_, EnvError>(Made::python(envs, true))
        })?,
        Source::Adapted(lender) => attach(|py| {
            let (envs, is_batched) = ForeignEnvs::new(py, lender.lend(py, roots)?, is_around)?;
            Ok::<_, EnvError>(Made::python(envs, is_batched))
        })?,
        Source::Handle(handle) => attach(|py| {
            let handle = handle.bind(py).cast::<EnvHandle>();
            let handle = handle.map_err(|error| EnvError::failed(PyErr::from(error)))?;
            let (envs, is_batched) = handle.get().lent();
            Ok::<_, EnvError>(Made::python(envs, is_batched))
        })?,
        Source::Many(members) if members.len() > 1 => {
            let (alone, rest) = AnyTransform::split(outside);
            let members = members.iter().map(|member| member.around(alone));
            outside = rest;
            several(&members.collect::<Vec<_>>(), roots)?
        }
        Source::Many(members) => several(members, roots)?,
        #[cfg(target_os = "linux")]
        Source::Parallel(processes) => Made {
            waits: true,
            ..Made::native(processes.start()?, true)
        },
        Source::Call { function, kwargs } => {
            let recipe = called(function, kwargs.as_ref(), roots)?;
            prepare(&recipe, roots, is_around)?
        }
    };
    outside.iter().try_fold(made, |made, transform| {
        Ok(Made {
            envs: transform.around(made.envs)?,
            ..made
        })
    })
}

/// The recipe of what a function returns.
fn called(
    function: &GcRef,
    kwargs: Option<&GcRef>,
    roots: &GcRoots,
) -> Result<Arc<Recipe>, EnvError> {
    attach(|py| {
        let made = call(function.bind(py), kwargs, roots)?;
        let recipe = python_recipe(&made, None, false);
        let recipe = recipe.and_then(|recipe| Recipe::read(&recipe, roots));
        recipe.map_err(EnvError::failed)
    })
}

/// `recipe`, or, where it is a function, the recipe of what the function returns. Members have to
/// be known before they can be compared.
fn resolve(recipe: &Arc<Recipe>, roots: &GcRoots) -> Result<Arc<Recipe>, EnvError> {
    match &recipe.source {
        Source::Call { function, kwargs } if recipe.transforms.is_empty() => {
            resolve(&called(function, kwargs.as_ref(), roots)?, roots)
        }
        _ => Ok(Arc::clone(recipe)),
    }
}

/// Several environments as one; those of one kind without a copy of their rows.
fn several(members: &[Arc<Recipe>], roots: &GcRoots) -> Result<Made, EnvError> {
    let members = members.iter().map(|member| resolve(member, roots));
    let members = members.collect::<Result<Vec<_>, _>>()?;
    let Some(first) = members.first() else {
        return Err(EnvError::Foreign(
            "a vector of environments needs at least one, got none".into(),
        ));
    };
    // Native environments of one kind are stored side by side, and step without a call for each.
    if let Some(env) = first.bare_native()
        && members
            .iter()
            .all(|member| member.bare_native() == Some(env))
    {
        return Ok(Made::native(native(env, members.len())?, true));
    }
    // Those of Gymnasium share one hold of the interpreter's lock for a step of all.
    let gyms: Option<Vec<&Gym>> = members.iter().map(|member| member.bare_gym()).collect();
    if let Some(gyms) = gyms
        && gyms.iter().all(|gym| gym.one_hot == gyms[0].one_hot)
    {
        return Ok(Made::python(gym(&gyms, roots)?, true));
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
fn gym(envs: &[&Gym], roots: &GcRoots) -> Result<GymEnvs, EnvError> {
    attach(|py| {
        let mut worlds = Vec::with_capacity(envs.len());
        for env in envs {
            worlds.push((env.lender.lend(py, roots)?, env.frame_skip, &*env.info));
        }
        GymEnvs::new(py, worlds, envs.iter().all(|env| env.one_hot))
    })
}

/// A recipe as a factory of the engine.
#[derive(Debug)]
pub(crate) struct Factory {
    recipe: Arc<Recipe>,
    roots: GcRoots,
    is_python: AtomicBool,
}

impl Factory {
    pub(super) fn new(recipe: Arc<Recipe>, roots: GcRoots) -> Self {
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
                members.resize(num_envs, Arc::clone(&self.recipe));
                several(&members, &self.roots)
            }
        }
    }
}
