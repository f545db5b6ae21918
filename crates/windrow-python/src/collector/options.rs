//! From the arguments of Python to a builder.
//!
//! The classes of `windrow.collectors` hand over a dict with the entries of [`Options`]. Its
//! `config` holds plain values under the names of the engine's own fields, so an argument that the
//! engine declares needs no code here.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::{
    Collector, CollectorBuilder, CollectorConfig, ExplorationType, PolicyRecipe as Recipe,
};
#[cfg(target_os = "linux")]
use windrow::{Placement, policy::Noise};

use super::stage::Target;
use crate::gc::GcRoots;
use crate::policy::{PolicyEnvs, PolicyRecipe};
use crate::replay::ReplayBufferCore;
use crate::{env, error, plain};
#[cfg(target_os = "linux")]
use crate::{launcher, worker};

/// A collector as the classes of `windrow.collectors` describe it: plain options, and objects.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Options<'py> {
    /// The plain options, by the names of the fields of [`CollectorConfig`].
    config: Bound<'py, PyDict>,
    /// Environments: one for each worker, or one that all workers make their own of.
    envs: Vec<Bound<'py, PyAny>>,
    /// Keyword arguments for those that are functions, used in turn where they are fewer.
    env_kwargs: Vec<Option<Bound<'py, PyDict>>>,
    /// See [`PolicyRecipe::new`].
    policy: Bound<'py, PyAny>,
    /// The replay buffer, if it is one of windrow.
    replay_buffer: Option<Bound<'py, ReplayBufferCore>>,
    /// Whether Python writes batches, since something in Python changes them, or since the buffer
    /// is not one of windrow.
    takes_writes: bool,
    /// The device that batches name.
    device: Option<Py<PyAny>>,
    /// Batches have one dimension.
    pub(super) flat: bool,
    /// Called first in each worker process.
    init_fn: Option<Bound<'py, PyAny>>,
    /// How many threads libraries of a worker process use.
    worker_threads: usize,
    /// Starts workers somewhere else.
    launcher: Option<Bound<'py, PyAny>>,
    /// Whether worker processes send pickled objects.
    allow_pickle: bool,
}

impl<'py> Options<'py> {
    /// The plain options.
    ///
    /// # Errors
    /// `TypeError` and `ValueError`, naming the argument, what was expected and what came.
    pub(super) fn config(&self) -> PyResult<CollectorConfig> {
        let mut config: CollectorConfig = plain::read(&self.config)?;
        config.round_up = true;
        // Batches are objects like others: Python code may keep as many as it likes, and
        // `warn_of_memory` warns of many.
        config.max_slabs = usize::MAX;
        // Invalid environments are reported when they are made, not here.
        let batched = |env| env::is_batched(env).unwrap_or(false);
        if config.num_envs.is_none() && self.envs.iter().any(batched) {
            config.num_envs = Some(1);
        }
        Ok(config)
    }

    /// The buffer that batches are written to, and whether the engine or Python writes them.
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

    /// The device that batches name: `torch.device("cpu")` where the user named a device, none
    /// otherwise.
    pub(super) fn device(&self) -> Option<Py<PyAny>> {
        self.device
            .as_ref()
            .map(|device| device.clone_ref(self.policy.py()))
    }

    /// A builder with these options and `config`, and the factories of its environments. All Python
    /// objects that they hold are in `roots`.
    ///
    /// # Errors
    /// `TypeError` and `ValueError` for environments or a policy that cannot be read; the exception
    /// of a function that makes a policy.
    pub(super) fn builder(
        self,
        config: CollectorConfig,
        target: &Target,
        roots: &GcRoots,
    ) -> PyResult<(CollectorBuilder, Vec<PolicyEnvs>)> {
        let policy = PolicyRecipe::new(&self.policy, roots)?;
        let mut envs = self.policy_envs(&policy, roots)?;
        let mut recipe = Recipe::opaque(move |worker| policy.policy(worker));
        #[cfg(target_os = "linux")]
        let program = match config.placement {
            Some(Placement::Processes) => {
                envs = self.written(envs, config.seed.or(config.noise_seed))?;
                recipe = recipe.written_as(worker::policy_recipe(&self.policy)?);
                let sent = (&self.envs, &self.env_kwargs, &self.init_fn);
                let warm = worker::uses_torch(&self.policy, sent)?;
                let py = self.policy.py();
                Some(worker::program(py, self.worker_threads, warm)?)
            }
            _ => None,
        };
        let Some(first) = envs.first() else {
            return Err(PyValueError::new_err("expected an environment, got none"));
        };
        let mut builder = Collector::builder(first.clone())
            .config(config)
            .policy_recipe(recipe)
            .interruptions(error::tells_of_interruption);
        #[cfg(target_os = "linux")]
        {
            builder = match (&self.launcher, program) {
                (Some(launcher), _) => launcher::added_to(builder, launcher, self.allow_pickle)?,
                (None, Some(program)) => builder.worker_program(program),
                (None, None) => builder,
            };
        }
        if envs.len() > 1 {
            builder = builder.worker_envs(envs.iter().cloned());
        }
        if let Some(sink) = target.sink() {
            builder = builder.replay_buffer(sink);
        }
        Ok((builder, envs))
    }

    /// `envs`, which worker processes can make, too. What they draw from torch follows from `seed`,
    /// where there is one.
    ///
    /// # Errors
    /// `TypeError` naming what cannot be sent to them.
    #[cfg(target_os = "linux")]
    fn written(&self, envs: Vec<PolicyEnvs>, seed: Option<u64>) -> PyResult<Vec<PolicyEnvs>> {
        let given = self.envs.iter().zip(self.env_kwargs.iter().cycle());
        let seeds = (0..).map(|env| Noise::new(seed.unwrap_or_default(), env, 0).bits());
        let written = envs.into_iter().zip(given).zip(seeds);
        let written = written.map(|((envs, (env, kwargs)), seed)| {
            let init_fn = self.init_fn.as_ref();
            envs.written_as(|init| {
                let kwargs = kwargs.as_ref();
                worker::env_recipe(env, kwargs, init_fn, self.allow_pickle, (init, seed))
            })
        });
        written.collect()
    }

    /// The environments of each worker, for `policy`.
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
/// `ValueError` naming the types.
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
