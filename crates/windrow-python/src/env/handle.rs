//! Environments stepped by hand from Python: behind `EnvBase.reset` and `step`, and where a
//! transform looks at random frames.
//!
//! [`SteppedEnvs`] lend them to a collector, for rollouts that need no step by hand.
//!
//! They have rows of their own and return copies as arrays of Python's, so nothing of the engine
//! stays in use. The calling thread holds the interpreter's lock all along: a native environment
//! steps in a microsecond, and others need the lock. Signals are handled by the interpreter between
//! two calls.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};
use windrow::envs::{EnvError, EnvSpec, Outcomes, Reset, VecEnv, VecEnvError};
use windrow::error_chain;
use windrow::{Handle, LeafSpec, RowBlock, Rows, RowsMut, SlabError};

use super::describe::Description;
use super::foreign::{read_all, read_leaves, write_leaves};
use super::read::Leaf;
use super::recipe::{self, Made, Recipe};
use super::rows::{Origin, Target};
use super::write::Writer;
use crate::error::raised_in;
use crate::factory_lock;
use crate::gc::GcRoots;

/// Environments with rows of their own, to be reset and stepped by hand. Arrays go in and out, one
/// for each leaf, with a leading dimension for the environments.
#[pyclass(frozen, module = "windrow._windrow")]
pub(crate) struct EnvHandle {
    spec: EnvSpec,
    num_envs: usize,
    /// Whether batches have a dimension for the environments.
    is_batched: bool,
    /// Whether a step waits for other processes, without the interpreter's lock.
    waits: bool,
    /// Used by one thread at a time.
    inner: Arc<Mutex<Inner>>,
    /// The Python objects that the environments hold, for the garbage collector.
    roots: GcRoots,
}

/// Observations of all environments, leaf by leaf; rewards; whether episodes were terminated;
/// whether they were truncated.
type Stepped<'py> = (Vec<Bound<'py, PyAny>>, Vec<f32>, Vec<bool>, Vec<bool>);

/// The environments and the rows that a reset or a step writes.
struct Inner {
    envs: Box<dyn VecEnv>,
    /// Make arrays of observations, and read actions from arrays, leaf by leaf.
    observed: Vec<Writer>,
    acted: Vec<Leaf>,
    obs: RowBlock,
    actions: RowBlock,
    reward: Vec<f32>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    /// Which environments have begun an episode.
    begun: Vec<bool>,
    /// How a collector steps the environments at the moment.
    run: Run,
}

/// A rollout of some steps by a collector.
#[derive(Default)]
pub(crate) struct Run {
    /// Cuts the collector's present part short; None while it does not run.
    collector: Option<Handle>,
    /// Steps to go, and those that were taken.
    left: usize,
    taken: usize,
    /// Whether it ends with the first episode that does, and whether one did.
    ends: bool,
    ended: bool,
    /// Seeds of the next reset, one for each environment.
    seeds: Option<Vec<Option<u64>>>,
}

impl Run {
    /// At most `steps` steps by `collector`, up to the end of the first episode where that `ends`
    /// them. The next reset of all has these seeds.
    pub(crate) fn new(
        collector: Handle,
        steps: usize,
        ends: bool,
        seeds: Option<Vec<Option<u64>>>,
    ) -> Self {
        Self {
            collector: Some(collector),
            left: steps,
            ends,
            seeds,
            ..Self::default()
        }
    }
}

#[pymethods]
impl EnvHandle {
    /// Makes the environments of anything that Python calls one; `kwargs` are passed to a function.
    #[new]
    #[pyo3(signature = (env, kwargs=None))]
    fn new(
        py: Python<'_>,
        env: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let roots = GcRoots::default();
        let recipe = Recipe::of(env, kwargs, &roots)?;
        // Functions in the recipe are called here, under the factory lock, so this may take long
        // and be interrupted.
        let make = || -> Result<Self, EnvError> {
            let Made {
                envs,
                is_batched,
                waits,
                ..
            } = recipe::prepare(&recipe, &roots, true)?;
            let (spec, num_envs) = (envs.spec().clone(), envs.num_envs());
            let (observation, action) = (spec.observation_leaves(), spec.action_leaves());
            Ok(Self {
                num_envs,
                is_batched,
                waits,
                inner: Arc::new(Mutex::new(Inner {
                    observed: write_leaves(&observation),
                    acted: read_leaves(&action, "action", &spec.id),
                    obs: RowBlock::new(&observation, num_envs)?,
                    actions: RowBlock::new(&action, num_envs)?,
                    reward: vec![0.0; num_envs],
                    terminated: vec![false; num_envs],
                    truncated: vec![false; num_envs],
                    begun: vec![false; num_envs],
                    run: Run::default(),
                    envs,
                })),
                spec,
                roots: roots.clone(),
            })
        };
        make().map_err(|error| to_py(py, &error))
    }

    /// A [`Description`] of the environments, as a dictionary.
    fn describe(&self) -> PyResult<Description> {
        Description::of(&self.spec, self.num_envs, self.is_batched)
    }

    /// Resets the environments `envs`, each with its seed or None, and returns the observations of
    /// all.
    fn reset<'py>(
        &self,
        py: Python<'py>,
        envs: Vec<usize>,
        seeds: Vec<Option<u64>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let resets = resets_of(envs, seeds)?;
        let mut inner = self.lock()?;
        self.begin(py, &mut inner, &resets)?;
        inner.seen(py)
    }

    /// Steps the environments `which`, in rising order, or all by `actions`, an array for each leaf
    /// with a row for each of all. Where only some have begun an episode, as after a first reset of
    /// these, the others do now.
    #[pyo3(signature = (actions, which=None))]
    fn step<'py>(
        &self,
        py: Python<'py>,
        actions: &Bound<'py, PyAny>,
        which: Option<Vec<usize>>,
    ) -> PyResult<Stepped<'py>> {
        let mut inner = self.lock()?;
        let stepped = which
            .clone()
            .unwrap_or_else(|| (0..self.num_envs).collect());
        let late = stepped.into_iter().filter(|&env| !inner.begun[env]);
        let late: Vec<_> = late.map(|env| Reset { env, seed: None }).collect();
        if !late.is_empty() && inner.begun.contains(&true) {
            self.begin(py, &mut inner, &late)?;
        }
        let Inner {
            envs,
            acted,
            obs,
            actions: rows,
            reward,
            terminated,
            truncated,
            ..
        } = &mut *inner;
        read_all(acted, actions, &mut Target::All(rows.rows_mut()))
            .map_err(|error| to_py(py, &error))?;
        let outcomes = Outcomes {
            reward,
            terminated,
            truncated,
        };
        // Ended episodes are not reset here: the user sees how they ended and says which to reset.
        let (actions, obs) = (rows.rows(), obs.rows_mut());
        call(py, self.waits, || match which {
            None => envs.step(actions, obs, outcomes),
            Some(which) => envs.step_some(&which, actions, obs, outcomes),
        })
        .map_err(|error| vec_to_py(py, &error))?;
        let seen = inner.seen(py)?;
        Ok((
            seen,
            inner.reward.clone(),
            inner.terminated.clone(),
            inner.truncated.clone(),
        ))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.roots.traverse(&visit)
    }
}

impl EnvHandle {
    /// The environments for a collector in this thread, and whether batches have a dimension for
    /// them. It steps them while [`run`](Self::run) does.
    pub(super) fn lent(&self) -> (SteppedEnvs, bool) {
        let mut spec = self.spec.clone();
        // They are gathered as by hand: at each step, and by nobody else.
        spec.statistics.clear();
        let envs = SteppedEnvs {
            spec,
            num_envs: self.num_envs,
            inner: Arc::clone(&self.inner),
        };
        (envs, self.is_batched)
    }

    /// The result of `collect`, during which a collector steps the environments; the number of
    /// steps, and whether an episode has ended them.
    ///
    /// # Errors
    /// `RuntimeError` while another thread steps them; those of `collect`.
    pub(crate) fn run<R>(
        &self,
        run: Run,
        collect: impl FnOnce() -> PyResult<R>,
    ) -> PyResult<(R, usize, bool)> {
        self.lock()?.run = run;
        let collected = collect();
        let run = std::mem::take(&mut self.lock()?.run);
        Ok((collected?, run.taken, run.ended))
    }

    /// Begins episodes.
    fn begin(&self, py: Python<'_>, inner: &mut Inner, resets: &[Reset]) -> PyResult<()> {
        let Inner {
            envs, obs, begun, ..
        } = inner;
        let obs = obs.rows_mut();
        call(py, self.waits, || envs.reset(resets, obs)).map_err(|error| vec_to_py(py, &error))?;
        for reset in resets {
            begun[reset.env] = true;
        }
        Ok(())
    }

    /// As [`locked`].
    fn lock(&self) -> PyResult<MutexGuard<'_, Inner>> {
        locked(&self.inner, &self.spec)
    }
}

/// Environments of an [`EnvHandle`], as a collector steps them in a rollout.
pub(super) struct SteppedEnvs {
    spec: EnvSpec,
    num_envs: usize,
    inner: Arc<Mutex<Inner>>,
}

impl SteppedEnvs {
    /// The environments, in a rollout.
    fn lock(&self) -> Result<MutexGuard<'_, Inner>, VecEnvError> {
        match self.inner.try_lock() {
            Ok(inner) if inner.run.collector.is_some() => Ok(inner),
            Ok(_) | Err(TryLockError::WouldBlock) => {
                let told = format!("{} is stepped by hand", self.spec.id);
                Err(VecEnvError {
                    env: 0,
                    source: EnvError::Foreign(told),
                })
            }
            Err(TryLockError::Poisoned(inner)) => Ok(inner.into_inner()),
        }
    }
}

/// Rows that do not fit, which cannot be: all have the layout of one spec.
fn misfit(error: SlabError) -> VecEnvError {
    VecEnvError {
        env: 0,
        source: error.into(),
    }
}

impl VecEnv for SteppedEnvs {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.num_envs
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        let mut inner = self.lock()?;
        let Inner {
            envs,
            obs: own,
            begun,
            run,
            ..
        } = &mut *inner;
        if run.ended {
            // The user sees how episodes ended, and says which to reset.
            return Ok(());
        }
        let seeds = run.seeds.take().unwrap_or_default();
        let resets: Vec<Reset> = resets
            .iter()
            .map(|reset| Reset {
                env: reset.env,
                seed: seeds.get(reset.env).copied().flatten(),
            })
            .collect();
        // What is observed by hand afterwards is what was observed last.
        if run.taken > 0 {
            own.rows_mut().copy_from(obs.as_rows()).map_err(misfit)?;
        }
        envs.reset(&resets, own.rows_mut())?;
        for reset in &resets {
            begun[reset.env] = true;
        }
        obs.copy_from(own.rows()).map_err(misfit)
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        let mut inner = self.lock()?;
        let Inner {
            envs,
            obs: own,
            run,
            ..
        } = &mut *inner;
        envs.step(actions, obs.reborrow(), outcomes.reborrow())?;
        run.taken += 1;
        run.left = run.left.saturating_sub(1);
        let done = |flags: &[bool]| flags.contains(&true);
        run.ended = run.ends && (done(outcomes.terminated) || done(outcomes.truncated));
        if run.ended || run.left == 0 {
            own.rows_mut().copy_from(obs.as_rows()).map_err(misfit)?;
            if let Some(collector) = &run.collector {
                collector.stop_collection();
            }
        }
        Ok(())
    }

    fn bind(&mut self, _: &[LeafSpec]) -> Result<(), EnvError> {
        // As by hand, they see actions alone.
        Ok(())
    }
}

/// What a reset or step of the environments of `spec` works with, unless another thread steps them:
/// waiting for it with the interpreter's lock, which it may need to go on, could last for ever.
///
/// # Errors
/// `RuntimeError` while another thread steps them.
pub(super) fn locked<'a, T>(inner: &'a Mutex<T>, spec: &EnvSpec) -> PyResult<MutexGuard<'a, T>> {
    match inner.try_lock() {
        Ok(inner) => Ok(inner),
        // A panic left rows half written, which the next reset or step writes again.
        Err(TryLockError::Poisoned(inner)) => Ok(inner.into_inner()),
        Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(format!(
            "{} is being stepped by another thread",
            spec.id
        ))),
    }
}

/// Calls environments, without the interpreter's lock where that may take long.
pub(super) fn call<R: Send>(py: Python<'_>, waits: bool, f: impl FnOnce() -> R + Send) -> R {
    match waits {
        true => py.detach(|| factory_lock::lending(f)),
        false => f(),
    }
}

/// Resets of `envs`, each with its seed or None.
///
/// # Errors
/// `ValueError` where there are more or fewer seeds.
pub(super) fn resets_of(envs: Vec<usize>, seeds: Vec<Option<u64>>) -> PyResult<Vec<Reset>> {
    if envs.len() != seeds.len() {
        return Err(PyValueError::new_err(format!(
            "expected a seed or None for each of {} environments, got {}",
            envs.len(),
            seeds.len()
        )));
    }
    let pairs = envs.into_iter().zip(seeds);
    Ok(pairs.map(|(env, seed)| Reset { env, seed }).collect())
}

impl Inner {
    /// The observations of all environments as arrays, in the order of the leaves.
    fn seen<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let rows = Origin::All(self.obs.rows());
        let arrays = self.observed.iter().map(|leaf| leaf.write(py, rows));
        arrays
            .collect::<Result<_, _>>()
            .map_err(|error: EnvError| to_py(py, &error))
    }
}

/// The exception that an environment raised, or one with the message of `error`.
pub(super) fn to_py(py: Python<'_>, error: &EnvError) -> PyErr {
    match error {
        EnvError::Member(fault) => vec_to_py(py, fault),
        _ => raised_in(py, error).unwrap_or_else(|| PyValueError::new_err(error_chain(error))),
    }
}

/// As [`to_py`], for the error of one environment of several.
pub(super) fn vec_to_py(py: Python<'_>, error: &VecEnvError) -> PyErr {
    let raised = raised_in(py, error);
    #[cfg(target_os = "linux")]
    if let Some(told) = super::parallel::of_member(py, error, raised.as_ref()) {
        return told;
    }
    raised.unwrap_or_else(|| PyValueError::new_err(error_chain(error)))
}
