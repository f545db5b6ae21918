//! Environments as a policy needs them.
//!
//! Recurrent policies of TorchRL read `is_init`, which an environment has only if a transform adds
//! it. Windrow adds it by itself, where the policy says that it reads it and the environment does
//! not observe it yet.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::envs::{EnvError, EnvFactory, EnvRecipe, InitTracker, VecEnv};
use windrow::tensordict::NestedKey;

use super::PolicyRecipe;
use crate::gc::GcRoots;
use crate::{env, gil};

/// Environments for a policy: they observe `is_init` where the policy reads it.
#[derive(Clone)]
pub(crate) struct PolicyEnvs {
    factory: Arc<env::Factory>,
    /// Whether they observe `is_init`; `None` where the policy is asked once they are made.
    init: Option<bool>,
    policy: PolicyRecipe,
    roots: GcRoots,
    /// How a worker process makes them.
    written: Option<EnvRecipe>,
}

impl PolicyEnvs {
    /// Environments that `env` describes, for a policy that is made before them.
    ///
    /// # Errors
    /// `TypeError` if `env` is not an environment; the exception of a function that makes the
    /// policy.
    pub(crate) fn new(
        env: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
        policy: &PolicyRecipe,
        roots: &GcRoots,
    ) -> PyResult<Self> {
        Ok(Self {
            init: Some(policy.reads_init(env.py())?),
            factory: env::maker(env, kwargs, roots)?,
            policy: policy.clone(),
            roots: roots.clone(),
            written: None,
        })
    }

    /// Environments that another process has sent, which observe `is_init` where `init`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[cfg(target_os = "linux")]
    pub(crate) fn that_were_sent(
        env: &Bound<'_, PyAny>,
        init: bool,
        roots: &GcRoots,
    ) -> PyResult<Self> {
        Ok(Self {
            init: Some(init),
            ..Self::before_policy(env, &PolicyRecipe::Random, roots)?
        })
    }

    /// The same, which worker processes make by the recipe that `write` makes, given whether they
    /// observe `is_init`.
    ///
    /// # Errors
    /// As `write`.
    #[cfg(target_os = "linux")]
    pub(crate) fn written_as(
        mut self,
        write: impl FnOnce(bool) -> PyResult<EnvRecipe>,
    ) -> PyResult<Self> {
        self.written = Some(write(self.init.unwrap_or(false))?);
        Ok(self)
    }

    /// As [`new`](Self::new), for a policy that may be made for one of these environments, and so
    /// after them.
    ///
    /// # Errors
    /// `TypeError` if `env` is not an environment.
    pub(crate) fn before_policy(
        env: &Bound<'_, PyAny>,
        policy: &PolicyRecipe,
        roots: &GcRoots,
    ) -> PyResult<Self> {
        Ok(Self {
            init: None,
            factory: env::maker(env, None, roots)?,
            policy: policy.clone(),
            roots: roots.clone(),
            written: None,
        })
    }

    /// Whether environments that were made are stepped by Python.
    pub(crate) fn are_python(&self) -> bool {
        self.factory.is_python()
    }

    /// Whether the policy reads `is_init`. Called by a thread of the engine, without the
    /// interpreter's lock.
    fn need_init(&self) -> Result<bool, EnvError> {
        let ask = |py: Python<'_>| {
            let asked = self.policy.reads_init(py);
            asked.map_err(|raised| EnvError::failed(self.roots.raised(py, raised)))
        };
        self.init.map_or_else(|| gil::attach(ask), Ok)
    }
}

impl EnvFactory for PolicyEnvs {
    fn recipe(&self) -> Option<EnvRecipe> {
        self.written.clone()
    }

    fn build(&self, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
        let env = self.factory.build(num_envs)?;
        let is_init = NestedKey::from("is_init");
        let observed = env.spec().observation_leaves();
        Ok(match observed.iter().any(|leaf| leaf.key == is_init) {
            false if self.need_init()? => Box::new(env.transformed(InitTracker::new())?),
            _ => env,
        })
    }
}
