//! How environments are made: what Python's classes for them come down to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::env::{
    Env, EnvError, EnvFactory, FrameSkip, Joined, OneHotActions, Serial, VecEnv, make, make_vec,
};

use super::env_recipe::EnvRecipe;
use super::foreign::ForeignEnvs;
use super::gym::GymEnvs;
use super::info::Entry;
use super::layer::Layer;
use super::source::{Source, call};
use super::vector::VectorEnvs;
use crate::gil::attach;
use crate::keep::{Keeper, Kept};

/// How to make the environments of a worker.
#[derive(Debug)]
pub(crate) enum Recipe {
    /// One that comes with windrow.
    Native {
        id: String,
        one_hot: bool,
        frame_skip: usize,
    },
    /// One of Gymnasium.
    Gym {
        source: Source,
        one_hot: bool,
        frame_skip: usize,
        /// Of `info`, what is observed.
        info: Vec<Entry>,
    },
    /// A vector of Gymnasium.
    Vector {
        source: Source,
        one_hot: bool,
        /// Of `info`, what is observed.
        info: Vec<Entry>,
    },
    /// Whatever an adapter in Python steps.
    Foreign { source: Source },
    /// What a function returns.
    Call {
        function: Kept,
        kwargs: Option<Kept>,
    },
    /// Several in lockstep.
    Many(Vec<Arc<Recipe>>),
    /// One with something done to it.
    Layered(Arc<Recipe>, Layer),
}

/// Environments and what is known of them.
pub(super) struct Made {
    pub(super) envs: Box<dyn VecEnv>,
    /// Whether they have a dimension for their number even if it is 1.
    pub(super) is_batched: bool,
    /// Whether any of them is stepped by Python.
    pub(super) is_python: bool,
}

impl Made {
    fn native(envs: Box<dyn VecEnv>, is_batched: bool) -> Self {
        Self {
            envs,
            is_batched,
            is_python: false,
        }
    }

    fn python(envs: impl VecEnv + 'static, is_batched: bool) -> Self {
        Self {
            envs: Box::new(envs),
            is_batched,
            is_python: true,
        }
    }
}

/// Makes the environments of `recipe`, whose objects `keeper` knows.
///
/// # Errors
/// Whatever keeps them from being made; an exception of Python's is the source of the error.
pub(super) fn prepare(recipe: &Arc<Recipe>, keeper: &Keeper) -> Result<Made, EnvError> {
    let recipe = resolve(recipe, keeper)?;
    match &*recipe {
        Recipe::Native { .. } => Ok(Made::native(native(&recipe, 1)?, false)),
        Recipe::Gym { .. } => {
            let envs = gym(std::slice::from_ref(&recipe), keeper)?;
            Ok(Made::python(envs, false))
        }
        Recipe::Vector {
            source,
            one_hot,
            info,
        } => attach(|py| {
            let envs = VectorEnvs::new(py, source.lend(py, keeper)?, *one_hot, info)?;
            Ok(Made::python(envs, true))
        }),
        Recipe::Foreign { source } => attach(|py| {
            let held = source.lend(py, keeper)?;
            let is_batched = adapts_batch(held.object.bind(py)).map_err(EnvError::failed)?;
            Ok(Made::python(ForeignEnvs::new(py, held)?, is_batched))
        }),
        Recipe::Many(members) => several(members, keeper),
        Recipe::Layered(inner, layer) => {
            let made = prepare(inner, keeper)?;
            Ok(Made {
                envs: layer.around(made.envs)?,
                ..made
            })
        }
        Recipe::Call { .. } => Err(EnvError::Foreign(
            "a function stands for what it returns".into(),
        )),
    }
}

/// What the functions in `recipe` return in place of them.
fn resolve(recipe: &Arc<Recipe>, keeper: &Keeper) -> Result<Arc<Recipe>, EnvError> {
    let Recipe::Call { function, kwargs } = &**recipe else {
        return Ok(Arc::clone(recipe));
    };
    attach(|py| {
        let made = call(function.bind(py), kwargs.as_ref(), keeper)?;
        let made = recipe_of(&made, None, false, keeper).map_err(EnvError::failed)?;
        resolve(&made, keeper)
    })
}

/// Several environments as one; those of one kind without a copy of their rows.
fn several(members: &[Arc<Recipe>], keeper: &Keeper) -> Result<Made, EnvError> {
    let members = members.iter().map(|member| resolve(member, keeper));
    let members = members.collect::<Result<Vec<_>, _>>()?;
    let Some(first) = members.first() else {
        return Err(EnvError::Foreign(
            "a vector of environments needs at least one, got none".into(),
        ));
    };
    if members.iter().all(|member| same_native(first, member)) {
        return Ok(Made::native(native(first, members.len())?, true));
    }
    if members.iter().all(|member| same_gym(first, member)) {
        return Ok(Made::python(gym(&members, keeper)?, true));
    }
    let mut is_python = false;
    let mut vectors = Vec::with_capacity(members.len());
    for member in &members {
        let made = prepare(member, keeper)?;
        is_python |= made.is_python;
        vectors.push(made.envs);
    }
    Ok(Made {
        is_python,
        ..Made::native(Box::new(Joined::new(vectors)?), true)
    })
}

fn same_native(a: &Recipe, b: &Recipe) -> bool {
    matches!(
        (a, b),
        (
            Recipe::Native { id, one_hot, frame_skip },
            Recipe::Native { id: other, one_hot: hot, frame_skip: skip },
        ) if id == other && one_hot == hot && frame_skip == skip
    )
}

fn same_gym(a: &Recipe, b: &Recipe) -> bool {
    matches!(
        (a, b),
        (Recipe::Gym { one_hot, .. }, Recipe::Gym { one_hot: other, .. }) if one_hot == other
    )
}

/// `num_envs` environments of a [`Recipe::Native`].
fn native(recipe: &Recipe, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
    let Recipe::Native {
        id,
        one_hot,
        frame_skip,
    } = recipe
    else {
        return Err(EnvError::Foreign(
            "not an environment of windrow's own".into(),
        ));
    };
    let envs: Box<dyn VecEnv> = match frame_skip {
        1 => make_vec(id, num_envs)?,
        _ => {
            let skipping = |_| -> Result<FrameSkip<Box<dyn Env>>, EnvError> {
                FrameSkip::new(make(id)?, *frame_skip)
            };
            let envs = (0..num_envs).map(skipping).collect::<Result<_, _>>()?;
            Box::new(Serial::new(envs)?)
        }
    };
    match *one_hot && envs.spec().action.choices().is_some() {
        true => Ok(Box::new(envs.transformed(OneHotActions::new())?)),
        false => Ok(envs),
    }
}

/// The environments of several [`Recipe::Gym`] that agree on how choices are encoded.
fn gym(recipes: &[Arc<Recipe>], keeper: &Keeper) -> Result<GymEnvs, EnvError> {
    attach(|py| {
        let mut worlds = Vec::with_capacity(recipes.len());
        let mut encoding = false;
        for recipe in recipes {
            if let Recipe::Gym {
                source,
                one_hot,
                frame_skip,
                info,
            } = &**recipe
            {
                worlds.push((source.lend(py, keeper)?, *frame_skip, info.as_slice()));
                encoding = *one_hot;
            }
        }
        GymEnvs::new(py, worlds, encoding)
    })
}

/// A recipe as a factory of the engine.
#[derive(Debug)]
pub(crate) struct Factory {
    recipe: Arc<Recipe>,
    keeper: Keeper,
    is_python: AtomicBool,
}

impl Factory {
    pub(super) fn new(recipe: Arc<Recipe>, keeper: Keeper) -> Self {
        Self {
            recipe,
            keeper,
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
            // What was made in vain is freed now, not when somebody comes by with the interpreter's lock.
            attach(|_| ());
        })?;
        self.is_python.store(made.is_python, Ordering::Relaxed);
        Ok(made.envs)
    }
}

impl Factory {
    fn make(&self, num_envs: usize) -> Result<Made, EnvError> {
        match num_envs {
            1 => prepare(&self.recipe, &self.keeper),
            _ => {
                let mut members = Vec::new();
                members.try_reserve_exact(num_envs).map_err(|error| {
                    EnvError::Foreign(format!("num_envs={num_envs} is too much: {error}"))
                })?;
                members.resize(num_envs, Arc::clone(&self.recipe));
                several(&members, &self.keeper)
            }
        }
    }
}

/// The recipe of anything that Python calls an environment, whose objects `keeper` knows. `kwargs` are passed to a function.
///
/// # Errors
/// `TypeError` for anything else.
pub(crate) fn of(
    env: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
    keeper: &Keeper,
) -> PyResult<Arc<Recipe>> {
    recipe_of(env, kwargs, true, keeper)
}

/// As [`of`]; an object of another library is the user's `own`, or was made to be stepped and is closed in the end.
fn recipe_of(
    env: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
    own: bool,
    keeper: &Keeper,
) -> PyResult<Arc<Recipe>> {
    let py = env.py();
    if let Ok(recipe) = env.cast::<EnvRecipe>() {
        return Ok(recipe.get().recipe().kept_by(py, keeper));
    }
    // Asked of the type, since environments pass questions about themselves on to whatever is inside.
    if !env.get_type().hasattr(intern!(py, "_recipe"))? {
        if let Some(wrapped) = py
            .import("windrow.envs._wrap")?
            .call_method1("wrap", (env, own))?
            .into_option()
        {
            return of(&wrapped, kwargs, keeper);
        }
        if env.is_callable() {
            return Ok(Arc::new(Recipe::Call {
                function: keeper.keep(env),
                kwargs: kwargs.map(|kwargs| keeper.keep(kwargs)),
            }));
        }
        return Err(PyTypeError::new_err(format!(
            "expected an environment, its id, or a function that returns one, got {}",
            env.get_type().name()?
        )));
    }
    of(&env.call_method0(intern!(py, "_recipe"))?, None, keeper)
}

trait IntoOption<'py> {
    fn into_option(self) -> Option<Bound<'py, PyAny>>;
}

impl<'py> IntoOption<'py> for Bound<'py, PyAny> {
    fn into_option(self) -> Option<Self> {
        (!self.is_none()).then_some(self)
    }
}

/// Whether what an adapter steps has batch dimensions.
fn adapts_batch(adapter: &Bound<'_, PyAny>) -> PyResult<bool> {
    adapter
        .getattr(intern!(adapter.py(), "is_batched"))?
        .is_truthy()
}

impl Recipe {
    /// The same, with objects held on behalf of another.
    pub(super) fn kept_by(&self, py: Python<'_>, keeper: &Keeper) -> Arc<Self> {
        let kept = |kept: &Kept| kept.kept_by(py, keeper);
        Arc::new(match self {
            Self::Native {
                id,
                one_hot,
                frame_skip,
            } => Self::Native {
                id: id.clone(),
                one_hot: *one_hot,
                frame_skip: *frame_skip,
            },
            Self::Gym {
                source,
                one_hot,
                frame_skip,
                info,
            } => Self::Gym {
                source: source.kept_by(py, keeper),
                one_hot: *one_hot,
                frame_skip: *frame_skip,
                info: info.clone(),
            },
            Self::Vector {
                source,
                one_hot,
                info,
            } => Self::Vector {
                source: source.kept_by(py, keeper),
                one_hot: *one_hot,
                info: info.clone(),
            },
            Self::Foreign { source } => Self::Foreign {
                source: source.kept_by(py, keeper),
            },
            Self::Call { function, kwargs } => Self::Call {
                function: kept(function),
                kwargs: kwargs.as_ref().map(kept),
            },
            Self::Many(members) => {
                let members = members.iter().map(|member| member.kept_by(py, keeper));
                Self::Many(members.collect())
            }
            Self::Layered(inner, layer) => Self::Layered(inner.kept_by(py, keeper), layer.clone()),
        })
    }

    /// Whether batches have a dimension for the environments even if there is one. Functions that nobody has called yet
    /// are taken to make single environments.
    ///
    /// # Errors
    /// What an adapter raises.
    pub(super) fn is_batched(&self, py: Python<'_>) -> PyResult<bool> {
        match self {
            Self::Native { .. } | Self::Gym { .. } | Self::Call { .. } => Ok(false),
            Self::Vector { .. } | Self::Many(_) => Ok(true),
            Self::Foreign {
                source: Source::Own(adapter),
            } => adapts_batch(adapter.bind(py)),
            Self::Foreign { .. } => Ok(false),
            Self::Layered(inner, _) => inner.is_batched(py),
        }
    }

    /// Whether none is stepped by Python; None where a function is to be called first.
    pub(super) fn is_native(&self) -> Option<bool> {
        match self {
            Self::Native { .. } => Some(true),
            Self::Gym { .. } | Self::Vector { .. } | Self::Foreign { .. } => Some(false),
            Self::Call { .. } => None,
            Self::Layered(inner, _) => inner.is_native(),
            Self::Many(members) => {
                let known: Vec<_> = members.iter().map(|member| member.is_native()).collect();
                match known.contains(&Some(false)) {
                    true => Some(false),
                    false => (!known.contains(&None)).then_some(true),
                }
            }
        }
    }
}
