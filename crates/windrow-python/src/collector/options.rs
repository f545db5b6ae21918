//! From the arguments of Python to a builder.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::{Collector, CollectorBuilder, CollectorConfig, ExplorationType};

use super::stage::Target;
use crate::gc::GcRoots;
use crate::policy::{PolicyEnvs, PolicyRecipe};
use crate::replay::ReplayBufferCore;
use crate::{env, error, plain};

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

    /// The builder that does as these options and `config` say, and the environments that it will make; `roots` knows what both
    /// hold of Python's.
    ///
    /// # Errors
    /// Whatever is wrong with an environment or the policy.
    pub(super) fn builder(
        self,
        config: CollectorConfig,
        target: &Target,
        roots: &GcRoots,
    ) -> PyResult<(CollectorBuilder, Vec<PolicyEnvs>)> {
        let policy = PolicyRecipe::new(&self.policy, roots)?;
        let envs = self.policy_envs(&policy, roots)?;
        let Some(first) = envs.first() else {
            return Err(PyValueError::new_err("expected an environment, got none"));
        };
        let mut builder = Collector::builder(first.clone())
            .config(config)
            .interruptions(error::tells_of_interruption);
        if envs.len() > 1 {
            builder = builder.worker_envs(envs.iter().cloned());
        }
        if let Some(sink) = target.sink() {
            builder = builder.replay_buffer(sink);
        }
        Ok((
            builder.policy_factory(move |worker| policy.policy(worker)),
            envs,
        ))
    }

    fn policy_envs(&self, policy: &PolicyRecipe, roots: &GcRoots) -> PyResult<Vec<PolicyEnvs>> {
        self.envs
            .iter()
            .zip(self.env_kwargs.iter().cycle())
            .map(|(env, kwargs)| PolicyEnvs::new(env, kwargs.as_ref(), policy, roots))
            .collect()
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
