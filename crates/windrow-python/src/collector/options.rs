//! From the arguments of Python to a builder.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::env::{EnvError, EnvFactory, InitTracker, VecEnv};
use windrow::tensordict::NestedKey;
use windrow::{Collector, CollectorBuilder, CollectorConfig, ExplorationType, Placement};

use super::stage::Target;
use crate::keep::Keeper;
use crate::policy::{Actor, Rows, Terms};
use crate::replay::ReplayBufferCore;
use crate::{env, error, gil, plain};

/// What the classes of `windrow.collectors` have made of their arguments: plain options, and the objects beside them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Options<'py> {
    /// The plain options, by the names of the fields of [`CollectorConfig`].
    config: Bound<'py, PyDict>,
    envs: Vec<Bound<'py, PyAny>>,
    env_kwargs: Vec<Option<Bound<'py, PyDict>>>,
    policy: Bound<'py, PyAny>,
    replay_buffer: Option<Bound<'py, ReplayBufferCore>>,
    takes_writes: bool,
    /// What batches say that they are on.
    device: Option<Py<PyAny>>,
}

impl<'py> Options<'py> {
    /// The plain options.
    ///
    /// # Errors
    /// `TypeError` and `ValueError`, naming the argument, what was expected and what came.
    pub(super) fn config(&self) -> PyResult<CollectorConfig> {
        let mut config: CollectorConfig = plain::read(&self.config)?;
        config.round_up = true;
        // Batches are objects like others: how many are kept is up to whoever keeps them.
        config.max_slabs = usize::MAX;
        // What is wrong with an environment is said when it is made.
        let batched = |env| env::is_batched(env).unwrap_or(false);
        if config.num_envs.is_none() && self.envs.iter().any(batched) {
            config.num_envs = Some(1);
        }
        Ok(config)
    }

    /// What batches are written to.
    pub(super) fn target(&self) -> Target {
        let buffer = self.replay_buffer.as_ref().map(Bound::get);
        match buffer {
            buffer if self.takes_writes => {
                Target::Python(buffer.map(|buffer| buffer.buffer().clone()))
            }
            Some(buffer) => Target::Buffer(buffer.buffer().clone(), buffer.timeout()),
            None => Target::Nowhere,
        }
    }

    /// What batches say that they are on: `torch.device("cpu")`, where a device was named.
    pub(super) fn device(&self) -> Option<Py<PyAny>> {
        self.device
            .as_ref()
            .map(|device| device.clone_ref(self.policy.py()))
    }

    /// The builder that does as these options and `config` say; `keeper` knows what it holds of Python's.
    ///
    /// # Errors
    /// Whatever is wrong with an environment or the policy.
    pub(super) fn builder(
        self,
        config: CollectorConfig,
        terms: &Terms,
        target: &Target,
        keeper: &Keeper,
    ) -> PyResult<CollectorBuilder> {
        let actor = Actor::new(&self.policy, terms, keeper)?;
        let makers = self.makers(&actor, &terms.rows, keeper)?;
        let Some(first) = makers.first() else {
            return Err(PyValueError::new_err("expected an environment, got none"));
        };
        let mut builder = Collector::builder(first.clone())
            .config(config)
            .interruptions(error::tells_of_interruption);
        if makers.len() > 1 {
            builder = builder.worker_envs(makers);
        }
        if let Some(sink) = target.sink() {
            builder = builder.replay_buffer(sink);
        }
        Ok(actor.act_in(builder, terms.clone()))
    }

    fn makers(&self, actor: &Actor, rows: &Rows, keeper: &Keeper) -> PyResult<Vec<Noted>> {
        self.envs
            .iter()
            .zip(self.env_kwargs.iter().cycle())
            .map(|(env, kwargs)| Noted::new(env, kwargs.as_ref(), actor, rows, keeper))
            .collect()
    }
}

/// What policies are told of the collector.
pub(super) fn terms(config: &CollectorConfig) -> Terms {
    Terms::new(
        config.num_envs.is_some(),
        config.placement == Placement::Inline,
    )
}

/// Environments for a policy: they observe what it has to know, and what it will see is noted, since it is bound after that.
#[derive(Clone)]
pub(crate) struct Noted {
    maker: Arc<env::Factory>,
    /// Whether they are to observe `is_init`; nothing where the policy is asked once they are made.
    init: Option<bool>,
    actor: Actor,
    rows: Rows,
    keeper: Keeper,
}

impl Noted {
    pub(crate) fn new(
        env: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
        actor: &Actor,
        rows: &Rows,
        keeper: &Keeper,
    ) -> PyResult<Self> {
        Ok(Self {
            init: Some(actor.reads_init(env.py())?),
            ..Self::before_policy(env, kwargs, actor, rows, keeper)?
        })
    }

    /// As [`new`](Self::new), where environments are made before the policy is, which may be made for one of them.
    pub(crate) fn before_policy(
        env: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
        actor: &Actor,
        rows: &Rows,
        keeper: &Keeper,
    ) -> PyResult<Self> {
        Ok(Self {
            maker: env::maker(env, kwargs, keeper)?,
            init: None,
            actor: actor.clone(),
            rows: rows.clone(),
            keeper: keeper.clone(),
        })
    }

    fn needs_init(&self) -> Result<bool, EnvError> {
        let ask = |py: Python<'_>| {
            let asked = self.actor.reads_init(py);
            asked.map_err(|raised| EnvError::failed(self.keeper.raised(py, raised)))
        };
        self.init.map_or_else(|| gil::attach(ask), Ok)
    }
}

impl EnvFactory for Noted {
    fn build(&self, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
        let mut env = self.maker.build(num_envs)?;
        let is_init = NestedKey::from("is_init");
        let observed = env.spec().observation_leaves();
        if observed.iter().all(|leaf| leaf.key != is_init) && self.needs_init()? {
            env = Box::new(InitTracker::new(env)?);
        }
        let called = self.actor.may_be_called();
        Ok(self.rows.take_note(env, self.maker.is_python(), called))
    }
}

/// The exploration type called `name`.
///
/// # Errors
/// `ValueError` naming those there are.
pub(crate) fn exploration_type(name: &str) -> PyResult<ExplorationType> {
    Ok(match name.to_ascii_lowercase().as_str() {
        "random" => ExplorationType::Random,
        "mode" => ExplorationType::Mode,
        "mean" => ExplorationType::Mean,
        "deterministic" => ExplorationType::Deterministic,
        _ => {
            return Err(PyValueError::new_err(format!(
                "exploration_type must be RANDOM, MODE, MEAN or DETERMINISTIC, got {name}"
            )));
        }
    })
}
