//! How environments are made: what Python's classes for them come down to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use windrow::env::{
    Env, EnvError, EnvFactory, FrameSkip, Joined, OneHotActions, Serial, VecEnv, make, make_vec,
};

use super::describe::nested_key;
use super::foreign::ForeignEnvs;
use super::gym::GymEnvs;
use super::layer::Layer;
use super::source::Source;
use super::vector::VectorEnvs;
use crate::gil::attach;

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
    },
    /// A vector of Gymnasium.
    Vector { source: Source, one_hot: bool },
    /// Whatever an adapter in Python steps.
    Foreign { source: Source },
    /// What a function returns.
    Call {
        function: Py<PyAny>,
        kwargs: Option<Py<PyDict>>,
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
    is_python: bool,
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

/// Makes the environments of `recipe`.
///
/// # Errors
/// Whatever keeps them from being made; an exception of Python's is the source of the error.
pub(super) fn prepare(recipe: &Arc<Recipe>) -> Result<Made, EnvError> {
    let recipe = resolve(recipe)?;
    match &*recipe {
        Recipe::Native { .. } => Ok(Made::native(native(&recipe, 1)?, false)),
        Recipe::Gym { .. } => Ok(Made::python(gym(std::slice::from_ref(&recipe))?, false)),
        Recipe::Vector { source, one_hot } => attach(|py| {
            let envs = VectorEnvs::new(py, source.lend(py)?, *one_hot)?;
            Ok(Made::python(envs, true))
        }),
        Recipe::Foreign { source } => attach(|py| {
            let held = source.lend(py)?;
            let is_batched = adapts_batch(held.object.bind(py)).map_err(EnvError::failed)?;
            Ok(Made::python(ForeignEnvs::new(py, held)?, is_batched))
        }),
        Recipe::Many(members) => several(members),
        Recipe::Layered(inner, layer) => {
            let made = prepare(inner)?;
            Ok(Made {
                envs: layer.around(made.envs)?,
                ..made
            })
        }
        Recipe::Call { .. } => Err(EnvError::Spec(
            "a function stands for what it returns".into(),
        )),
    }
}

/// What the functions in `recipe` return in place of them.
fn resolve(recipe: &Arc<Recipe>) -> Result<Arc<Recipe>, EnvError> {
    let Recipe::Call { function, kwargs } = &**recipe else {
        return Ok(Arc::clone(recipe));
    };
    attach(|py| {
        let kwargs = kwargs.as_ref().map(|kwargs| kwargs.bind(py));
        let made = function.bind(py).call((), kwargs);
        let made = made.and_then(|made| recipe_of(&made, None, false));
        resolve(&made.map_err(EnvError::failed)?)
    })
}

/// Several environments as one; those of one kind without a copy of their rows.
fn several(members: &[Arc<Recipe>]) -> Result<Made, EnvError> {
    let members = members.iter().map(resolve).collect::<Result<Vec<_>, _>>()?;
    let Some(first) = members.first() else {
        return Err(EnvError::Spec(
            "a vector of environments needs at least one, got none".into(),
        ));
    };
    if members.iter().all(|member| same_native(first, member)) {
        return Ok(Made::native(native(first, members.len())?, true));
    }
    if members.iter().all(|member| same_gym(first, member)) {
        return Ok(Made::python(gym(&members)?, true));
    }
    let mut is_python = false;
    let mut vectors = Vec::with_capacity(members.len());
    for member in &members {
        let made = prepare(member)?;
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
        return Err(EnvError::Spec("not an environment of windrow's own".into()));
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
        true => Ok(Box::new(OneHotActions::new(envs)?)),
        false => Ok(envs),
    }
}

/// The environments of several [`Recipe::Gym`] that agree on how choices are encoded.
fn gym(recipes: &[Arc<Recipe>]) -> Result<GymEnvs, EnvError> {
    attach(|py| {
        let mut worlds = Vec::with_capacity(recipes.len());
        let mut encoding = false;
        for recipe in recipes {
            if let Recipe::Gym {
                source,
                one_hot,
                frame_skip,
            } = &**recipe
            {
                worlds.push((source.lend(py)?, *frame_skip));
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
    is_python: AtomicBool,
}

impl Factory {
    pub(super) fn new(recipe: Arc<Recipe>) -> Self {
        Self {
            recipe,
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
        let made = match num_envs {
            1 => prepare(&self.recipe)?,
            _ => {
                let mut members = Vec::new();
                members.try_reserve_exact(num_envs).map_err(|error| {
                    EnvError::Spec(format!("num_envs={num_envs} is too much: {error}"))
                })?;
                members.resize(num_envs, Arc::clone(&self.recipe));
                several(&members)?
            }
        };
        self.is_python.store(made.is_python, Ordering::Relaxed);
        Ok(made.envs)
    }
}

/// The recipe of anything that Python calls an environment. `kwargs` are passed to a function.
///
/// # Errors
/// `TypeError` for anything else.
pub(crate) fn of(
    env: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<Arc<Recipe>> {
    recipe_of(env, kwargs, true)
}

/// As [`of`]; an object of another library is the user's `own`, or was made to be stepped and is closed in the end.
fn recipe_of(
    env: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
    own: bool,
) -> PyResult<Arc<Recipe>> {
    let py = env.py();
    if let Ok(recipe) = env.cast::<EnvRecipe>() {
        return Ok(Arc::clone(&recipe.get().0));
    }
    // Asked of the type, since environments pass questions about themselves on to whatever is inside.
    if !env.get_type().hasattr(intern!(py, "_recipe"))? {
        if let Some(wrapped) = py
            .import("windrow.envs._wrap")?
            .call_method1("wrap", (env, own))?
            .into_option()
        {
            return of(&wrapped, kwargs);
        }
        if env.is_callable() {
            return Ok(Arc::new(Recipe::Call {
                function: env.clone().unbind(),
                kwargs: kwargs.map(|kwargs| kwargs.clone().unbind()),
            }));
        }
        return Err(PyTypeError::new_err(format!(
            "expected an environment, its id, or a function that returns one, got {}",
            env.get_type().name()?
        )));
    }
    of(&env.call_method0(intern!(py, "_recipe"))?, None)
}

trait IntoOption<'py> {
    fn into_option(self) -> Option<Bound<'py, PyAny>>;
}

impl<'py> IntoOption<'py> for Bound<'py, PyAny> {
    fn into_option(self) -> Option<Self> {
        (!self.is_none()).then_some(self)
    }
}

/// How to make environments.
#[pyclass(frozen, module = "windrow._windrow")]
#[derive(Debug)]
pub(crate) struct EnvRecipe(pub(super) Arc<Recipe>);

impl EnvRecipe {
    fn layered(&self, layer: Layer) -> Self {
        Self(Arc::new(Recipe::Layered(Arc::clone(&self.0), layer)))
    }
}

fn source(env: Py<PyAny>, own: bool) -> Source {
    match own {
        true => Source::own(env),
        false => Source::Make(env),
    }
}

#[pymethods]
impl EnvRecipe {
    /// An environment that comes with windrow.
    #[staticmethod]
    fn native(id: String, one_hot: bool, frame_skip: usize) -> Self {
        Self(Arc::new(Recipe::Native {
            id,
            one_hot,
            frame_skip,
        }))
    }

    /// An environment of Gymnasium: the object itself when `own`, otherwise a function that makes it.
    #[staticmethod]
    fn gymnasium(env: Py<PyAny>, own: bool, one_hot: bool, frame_skip: usize) -> Self {
        Self(Arc::new(Recipe::Gym {
            source: source(env, own),
            one_hot,
            frame_skip,
        }))
    }

    /// A vector of Gymnasium: the object itself when `own`, otherwise a function that makes it.
    #[staticmethod]
    fn vector(env: Py<PyAny>, own: bool, one_hot: bool) -> Self {
        Self(Arc::new(Recipe::Vector {
            source: source(env, own),
            one_hot,
        }))
    }

    /// Environments behind an adapter: the object itself when `own`, otherwise a function that makes it.
    #[staticmethod]
    fn foreign(adapter: Py<PyAny>, own: bool) -> Self {
        Self(Arc::new(Recipe::Foreign {
            source: source(adapter, own),
        }))
    }

    /// Several environments in lockstep, each anything that is an environment.
    #[staticmethod]
    fn many(envs: &Bound<'_, PyAny>) -> PyResult<Self> {
        let members = envs.try_iter()?.map(|env| of(&env?, None));
        Ok(Self(Arc::new(Recipe::Many(
            members.collect::<PyResult<_>>()?,
        ))))
    }

    /// The recipe of anything that is an environment; `kwargs` are passed to a function.
    #[staticmethod]
    #[pyo3(signature = (env, kwargs=None))]
    fn of(env: &Bound<'_, PyAny>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        of(env, kwargs).map(Self)
    }

    /// The same, with steps counted, and episodes truncated after so many.
    fn step_counter(&self, key: String, max_steps: Option<usize>) -> Self {
        self.layered(Layer::StepCounter { key, max_steps })
    }

    /// The same, with a flag that is raised after so many steps.
    fn limit_flag(&self, key: String, max_steps: usize) -> Self {
        self.layered(Layer::LimitFlag { key, max_steps })
    }

    /// The same, with the sum of rewards.
    fn reward_sum(&self, key: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(self.layered(Layer::RewardSum(nested_key(key)?)))
    }

    /// The same, with a mark at the first step of an episode.
    fn init_tracker(&self, key: String) -> Self {
        self.layered(Layer::InitTracker(key))
    }

    /// The same, with observations of float64 narrowed to float32: those named, or all.
    fn double_to_float(&self, keys: Option<Vec<Bound<'_, PyAny>>>) -> PyResult<Self> {
        let keys = keys.map(|keys| keys.iter().map(nested_key).collect::<PyResult<_>>());
        Ok(self.layered(Layer::DoubleToFloat(keys.transpose()?)))
    }

    /// The same, with an observation scaled and shifted.
    fn observation_norm(
        &self,
        key: &Bound<'_, PyAny>,
        loc: Vec<f64>,
        scale: Vec<f64>,
        name: Option<String>,
    ) -> PyResult<Self> {
        let key = nested_key(key)?;
        Ok(self.layered(Layer::ObservationNorm {
            key,
            loc,
            scale,
            name,
        }))
    }

    /// Whether the environments are windrow's own, so that several threads can step them at the same time. None for a
    /// function, which nobody has called yet.
    fn is_native(&self) -> Option<bool> {
        self.0.is_native()
    }
}

/// Whether what an adapter steps has batch dimensions.
fn adapts_batch(adapter: &Bound<'_, PyAny>) -> PyResult<bool> {
    adapter
        .getattr(intern!(adapter.py(), "is_batched"))?
        .is_truthy()
}

impl Recipe {
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
                source: Source::Own(adapter, _),
            } => adapts_batch(adapter.bind(py)),
            Self::Foreign { .. } => Ok(false),
            Self::Layered(inner, _) => inner.is_batched(py),
        }
    }

    fn is_native(&self) -> Option<bool> {
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

/// Ids of the environments that come with windrow.
#[pyfunction]
pub(super) fn native_ids(py: Python<'_>) -> Vec<Bound<'_, PyString>> {
    let registry = windrow::env::EnvRegistry::builtin();
    registry.ids().map(|id| PyString::new(py, id)).collect()
}
