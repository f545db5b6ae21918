//! Recipes of environments as Python has them.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use pyo3::{PyTraverseError, PyVisit};

use super::describe::nested_key;
use super::info::Entry;
use super::layer::Layer;
use super::recipe::{self, Recipe};
use super::source::Source;
use crate::keep::Keeper;

/// How to make environments.
#[pyclass(frozen, module = "windrow._windrow")]
#[derive(Debug)]
pub(crate) struct EnvRecipe {
    recipe: Arc<Recipe>,
    keeper: Keeper,
}

impl EnvRecipe {
    /// What `make` makes with a keeper of its objects.
    fn new(make: impl FnOnce(&Keeper) -> Recipe) -> Self {
        let keeper = Keeper::default();
        let recipe = Arc::new(make(&keeper));
        Self { recipe, keeper }
    }

    fn layered(&self, py: Python<'_>, layer: Layer) -> Self {
        Self::new(|keeper| Recipe::Layered(self.recipe.kept_by(py, keeper), layer))
    }

    pub(super) fn recipe(&self) -> &Arc<Recipe> {
        &self.recipe
    }
}

fn source(env: &Bound<'_, PyAny>, own: bool, keeper: &Keeper) -> Source {
    let env = keeper.keep(env);
    match own {
        true => Source::Own(env),
        false => Source::Make(env),
    }
}

#[pymethods]
impl EnvRecipe {
    /// An environment that comes with windrow.
    #[staticmethod]
    fn native(id: String, one_hot: bool, frame_skip: usize) -> Self {
        Self::new(|_| Recipe::Native {
            id,
            one_hot,
            frame_skip,
        })
    }

    /// An environment of Gymnasium: the object itself when `own`, otherwise a function that makes it. It observes the
    /// entries `info` of what it returns besides, each with its names, element type and shape.
    #[staticmethod]
    #[pyo3(signature = (env, own, one_hot, frame_skip, info=Vec::new()))]
    fn gymnasium(
        env: &Bound<'_, PyAny>,
        own: bool,
        one_hot: bool,
        frame_skip: usize,
        info: Vec<Entry>,
    ) -> Self {
        Self::new(|keeper| Recipe::Gym {
            source: source(env, own, keeper),
            one_hot,
            frame_skip,
            info,
        })
    }

    /// A vector of Gymnasium: the object itself when `own`, otherwise a function that makes it; `info` as for
    /// [`gymnasium`](Self::gymnasium).
    #[staticmethod]
    #[pyo3(signature = (env, own, one_hot, info=Vec::new()))]
    fn vector(env: &Bound<'_, PyAny>, own: bool, one_hot: bool, info: Vec<Entry>) -> Self {
        Self::new(|keeper| Recipe::Vector {
            source: source(env, own, keeper),
            one_hot,
            info,
        })
    }

    /// Environments behind an adapter: the object itself when `own`, otherwise a function that makes it.
    #[staticmethod]
    fn foreign(adapter: &Bound<'_, PyAny>, own: bool) -> Self {
        Self::new(|keeper| Recipe::Foreign {
            source: source(adapter, own, keeper),
        })
    }

    /// Several environments in lockstep, each anything that is an environment.
    #[staticmethod]
    fn many(envs: &Bound<'_, PyAny>) -> PyResult<Self> {
        let keeper = Keeper::default();
        let members = envs
            .try_iter()?
            .map(|env| recipe::of(&env?, None, &keeper))
            .collect::<PyResult<_>>()?;
        let recipe = Arc::new(Recipe::Many(members));
        Ok(Self { recipe, keeper })
    }

    /// The recipe of anything that is an environment; `kwargs` are passed to a function.
    #[staticmethod]
    #[pyo3(signature = (env, kwargs=None))]
    fn of(env: &Bound<'_, PyAny>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let keeper = Keeper::default();
        let recipe = recipe::of(env, kwargs, &keeper)?;
        Ok(Self { recipe, keeper })
    }

    /// The same, with steps counted, and episodes truncated after so many.
    fn step_counter(&self, py: Python<'_>, key: String, max_steps: Option<usize>) -> Self {
        self.layered(py, Layer::StepCounter { key, max_steps })
    }

    /// The same, with a flag that is raised after so many steps.
    fn limit_flag(&self, py: Python<'_>, key: String, max_steps: usize) -> Self {
        self.layered(py, Layer::LimitFlag { key, max_steps })
    }

    /// The same, with the sum of rewards.
    fn reward_sum(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(self.layered(py, Layer::RewardSum(nested_key(key)?)))
    }

    /// The same, with a mark at the first step of an episode.
    fn init_tracker(&self, py: Python<'_>, key: String) -> Self {
        self.layered(py, Layer::InitTracker(key))
    }

    /// The same, with observations of float64 narrowed to float32: those named, or all.
    fn double_to_float(
        &self,
        py: Python<'_>,
        keys: Option<Vec<Bound<'_, PyAny>>>,
    ) -> PyResult<Self> {
        let keys = keys.map(|keys| keys.iter().map(nested_key).collect::<PyResult<_>>());
        Ok(self.layered(py, Layer::DoubleToFloat(keys.transpose()?)))
    }

    /// The same, failing as soon as an observation or a reward is infinite or no number.
    fn finite_check(&self, py: Python<'_>) -> Self {
        self.layered(py, Layer::FiniteCheck)
    }

    /// The same, with an observation scaled and shifted.
    fn observation_norm(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        loc: Vec<f64>,
        scale: Vec<f64>,
        name: Option<String>,
    ) -> PyResult<Self> {
        let key = nested_key(key)?;
        Ok(self.layered(
            py,
            Layer::ObservationNorm {
                key,
                loc,
                scale,
                name,
            },
        ))
    }

    /// The same, with what a policy's state begins with.
    fn primer(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        shape: Vec<usize>,
        value: f32,
    ) -> PyResult<Self> {
        let key = nested_key(key)?;
        Ok(self.layered(py, Layer::Primer { key, shape, value }))
    }

    /// Whether the environments are windrow's own, so that several threads can step them at the same time. None for a
    /// function, which nobody has called yet.
    fn is_native(&self) -> Option<bool> {
        self.recipe.is_native()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.keeper.traverse(&visit)
    }
}

/// Ids of the environments that come with windrow.
#[pyfunction]
pub(super) fn native_ids(py: Python<'_>) -> Vec<Bound<'_, PyString>> {
    let registry = windrow::env::EnvRegistry::builtin();
    registry.ids().map(|id| PyString::new(py, id)).collect()
}
