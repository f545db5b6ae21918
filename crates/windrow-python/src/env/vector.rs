//! Vectors of environments of Gymnasium, in each of their autoreset modes.
//!
//! The engine resets an environment right after the step that ended its episode, and wants the observation that the episode ended with.
//! A vector does one of three things: in the same step, it resets and puts that observation into `info` (`SAME_STEP`, taken over here);
//! in the next step, it resets instead of stepping, which would be a frame of no episode (`NEXT_STEP`, which works only where single
//! environments can be reset before that step); or it leaves resets to its user (`DISABLED`).

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tensordict::DType;
use windrow::env::{EnvError, EnvSpec, Outcomes, Reset, VecEnv, VecEnvError};
use windrow::slab::{LeafSpec, RowBlock, Rows, RowsMut};

use super::foreign::{outcome_leaves, read_outcomes};
use super::gym::{identity, no_row, not_five};
use super::info::{Entry, InfoReader};
use super::read::{Leaf, Reader};
use super::rows::{Origin, Target, copy_row, copy_rows};
use super::source::Held;
use super::space::Space;
use super::write::Writer;
use crate::gc::GcRef;
use crate::gil::{self, attach};

/// A `gymnasium.vector.VectorEnv`, stepped by one call for all environments. Where the vector has reset an environment in the same step,
/// both observations are taken over: the final one from `info`, the first one of the next episode from the step. An EnvPool is such a
/// vector too; its seed was set when it was made.
pub(super) struct VectorEnvs {
    spec: EnvSpec,
    num_envs: usize,
    /// Methods, looked up once.
    step: GcRef,
    reset: GcRef,
    reader: Reader,
    writer: Writer,
    info: InfoReader,
    /// The readers of reward, `terminated` and `truncated`.
    outcome: [Leaf; 3],
    /// The observations, entries of `info` included, and their element types.
    leaves: Vec<LeafSpec>,
    dtypes: Vec<DType>,
    /// The last observations that the vector returned. A row of an environment that it has reset is kept here until the engine asks for
    /// that reset.
    seen: RowBlock,
    /// Whether the vector resets ended environments itself, in the same step.
    same_step: bool,
    /// The way in which single environments are reset.
    partial: Partial,
    /// Environments that the vector has reset, and the engine not yet.
    pending: Vec<bool>,
    /// Closes the vector when it is dropped.
    held: Held,
}

/// The way in which a vector resets some environments without the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Partial {
    /// By a mask in the options.
    Mask,
    /// By their numbers, as an EnvPool does.
    Numbers,
    /// Not at all.
    Never,
}

impl VectorEnvs {
    /// The environments of `held`, and the entries of `info` that they observe.
    ///
    /// # Errors
    /// [`EnvError`] when a space is not supported, or the vector resets environments where no engine can follow.
    pub(super) fn new(
        py: Python<'_>,
        held: Held,
        one_hot: bool,
        info: &[Entry],
    ) -> Result<Self, EnvError> {
        let made = Self::describe(held.object.bind(py), one_hot);
        let (mut spec, num_envs, reader, writer, mode, some) = made.map_err(EnvError::failed)?;
        if mode == "NextStep" && some == Partial::Never {
            return Err(EnvError::Foreign(format!(
                "{} resets an environment in the step after its end, which would be a frame of no episode: expected a vector with autoreset_mode SAME_STEP or DISABLED, got NEXT_STEP. Its own arguments may choose another (autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP), or gymnasium.make_vec(..., vectorization_mode=\"sync\") makes a vector that can reset single environments",
                spec.id
            )));
        }
        let info = InfoReader::new(py, info, &mut spec)?;
        let leaves = spec.observation_leaves();
        Ok(Self {
            num_envs,
            info,
            step: held.method(py, "step")?,
            reset: held.method(py, "reset")?,
            reader,
            writer,
            outcome: outcome_leaves(&spec.id),
            dtypes: leaves.iter().map(|leaf| leaf.dtype).collect(),
            seen: RowBlock::new(&leaves, num_envs)?,
            leaves,
            same_step: mode == "SameStep",
            partial: some,
            pending: vec![false; num_envs],
            spec,
            held,
        })
    }

    /// The properties of a vector: its spec, the number of its environments, the reader of observations and the writer of actions, its
    /// autoreset mode by Gymnasium's name, and the way in which it resets single environments.
    fn describe(
        env: &Bound<'_, PyAny>,
        one_hot: bool,
    ) -> PyResult<(EnvSpec, usize, Reader, Writer, String, Partial)> {
        let (id, limit) = identity(env)?;
        let observed = env.getattr("single_observation_space")?;
        let acted = env.getattr("single_action_space")?;
        let (observation, reader) = Space::observed(&observed, &id, one_hot).reader()?;
        let (action, writer) = Space::acted(&acted, &id, one_hot).writer()?;
        let mut spec = EnvSpec::new(id, observation, action);
        spec.max_episode_steps = limit;
        spec.keeps_seed = true;
        let mode = env
            .getattr("metadata")?
            .call_method1("get", ("autoreset_mode",))?;
        // A vector that names no mode is taken to have Gymnasium's default.
        let mode = match mode.is_none() {
            true => "NextStep".to_owned(),
            false => mode.getattr("value")?.extract()?,
        };
        let some = match mode == "Disabled" || resets_by_mask(env)? {
            true => Partial::Mask,
            false if env.get_type().hasattr("async_reset")? => Partial::Numbers,
            false => Partial::Never,
        };
        let num_envs = env.getattr("num_envs")?.extract()?;
        Ok((spec, num_envs, reader, writer, mode, some))
    }

    /// Steps all environments. Where the vector has reset some in the same step, `obs` has how their episodes ended, and `seen` how the
    /// next ones begin.
    fn step_all(
        &mut self,
        py: Python<'_>,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), EnvError> {
        let action = self.writer.write(py, Origin::All(actions))?;
        let result = gil::call(self.step.bind(py), (action,), None);
        let result = result.map_err(|raised| self.held.failed(py, raised))?;
        let values = match result.cast::<PyTuple>() {
            Ok(values) if values.len() == 5 => values,
            _ => return Err(not_five(&self.spec.id, &result)),
        };
        let value = |index| values.get_item(index).map_err(EnvError::failed);
        let rest = [value(1)?, value(2)?, value(3)?];
        read_outcomes(&self.outcome, &rest, outcomes.reborrow())?;
        // Not to `obs` at once: where the vector has reset an environment, what it returned belongs to the next episode, and `obs` is
        // to have the last observation of the one that ended.
        let mut seen = Target::All(self.seen.rows_mut());
        self.reader.read(&value(0)?, &mut seen)?;
        let info = value(4)?;
        self.read_info(&info, (0..self.num_envs).map(|env| (env, env)))?;
        // Rows may have leaves of others behind those of the vector.
        copy_rows(&self.dtypes, 0..self.num_envs, self.seen.rows(), &mut obs)
            .map_err(|error| error.source)?;
        if self.same_step {
            for env in 0..self.num_envs {
                self.pending[env] = outcomes.terminated[env] || outcomes.truncated[env];
                if self.pending[env] {
                    let last = self.final_observation(&info, env)?;
                    let row = obs.env_mut(env).ok_or_else(no_row)?;
                    self.reader.read(&last, &mut Target::One(row))?;
                    let row = obs.env_mut(env).ok_or_else(no_row)?;
                    self.info.read_final(&info, env, row)?;
                }
            }
        }
        Ok(())
    }

    /// Keeps the entries of `info`, for each place in it the environment that is meant.
    fn read_info(
        &mut self,
        info: &Bound<'_, PyAny>,
        places: impl Iterator<Item = (usize, usize)>,
    ) -> Result<(), EnvError> {
        if self.info.is_empty() {
            return self.info.tell(info);
        }
        let mut seen = self.seen.rows_mut();
        for (place, env) in places {
            let row = seen.env_mut(env).ok_or_else(no_row)?;
            self.info.read_one_of_all(info, place, row)?;
        }
        Ok(())
    }

    /// The observation that the episode of environment `env` ended with.
    fn final_observation<'py>(
        &self,
        info: &Bound<'py, PyAny>,
        env: usize,
    ) -> Result<Bound<'py, PyAny>, EnvError> {
        let py = info.py();
        let last = info
            .cast::<PyDict>()
            .ok()
            .and_then(|info| info.get_item(intern!(py, "final_obs")).ok().flatten());
        let Some(last) = last else {
            return Err(EnvError::Foreign(format!(
                "step of {}: expected the observation that environment {env} ended with under \"final_obs\" in info, got {info}",
                self.spec.id
            )));
        };
        pick(&last, env).map_err(EnvError::failed)
    }

    /// Resets environments that the vector has not reset itself, and copies the first observations of all `resets` to `obs`.
    fn reset_some(
        &mut self,
        py: Python<'_>,
        resets: &[Reset],
        obs: &mut RowsMut<'_>,
    ) -> Result<(), EnvError> {
        // An environment that the vector has reset already is at the beginning of an episode; resetting it again would waste one. A
        // seed asks for a certain episode, though.
        let has_begun = |reset: &Reset| self.pending.get(reset.env) == Some(&true);
        let asked: Vec<Reset> = resets
            .iter()
            .filter(|reset| reset.seed.is_some() || !has_begun(reset))
            .copied()
            .collect();
        if !asked.is_empty() {
            let result = self.call_reset(py, &asked)?;
            let (observation, info) = match result.cast::<PyTuple>() {
                Ok(values) if values.len() == 2 => {
                    let value = |index| values.get_item(index).map_err(EnvError::failed);
                    (value(0)?, value(1)?)
                }
                _ => {
                    return Err(EnvError::Foreign(format!(
                        "reset of {}: expected (observation, info), got {}",
                        self.spec.id,
                        result.get_type()
                    )));
                }
            };
            self.see(&asked, &observation)?;
            // An EnvPool returns rows of those that were asked for alone; all others return rows of all environments.
            let by_number = self.partial == Partial::Numbers && asked.len() < self.num_envs;
            let place = |(nth, reset): (usize, &Reset)| match by_number {
                true => (nth, reset.env),
                false => (reset.env, reset.env),
            };
            self.read_info(&info, asked.iter().enumerate().map(place))?;
        }
        let envs = resets.iter().map(|reset| reset.env);
        copy_rows(&self.dtypes, envs, self.seen.rows(), obs).map_err(|error| error.source)?;
        for reset in resets {
            self.pending[reset.env] = false;
        }
        Ok(())
    }

    /// Keeps what a reset of `asked` returned.
    fn see(&mut self, asked: &[Reset], observation: &Bound<'_, PyAny>) -> Result<(), EnvError> {
        if self.partial != Partial::Numbers || asked.len() == self.num_envs {
            let mut seen = Target::All(self.seen.rows_mut());
            return self.reader.read(observation, &mut seen);
        }
        // Episodes of an EnvPool end seldom enough for a block of its own.
        let mut rows = RowBlock::new(&self.leaves, asked.len())?;
        self.reader
            .read(observation, &mut Target::All(rows.rows_mut()))?;
        for (row, reset) in asked.iter().enumerate() {
            let mut seen = self.seen.rows_mut();
            copy_row(&self.dtypes, rows.rows().env(row), seen.env_mut(reset.env))?;
        }
        Ok(())
    }

    /// Calls the vector's `reset` for the environments in `asked`.
    fn call_reset<'py>(
        &self,
        py: Python<'py>,
        asked: &[Reset],
    ) -> Result<Bound<'py, PyAny>, EnvError> {
        let is_partial = asked.len() < self.num_envs;
        if is_partial && self.partial == Partial::Never {
            return Err(EnvError::Foreign(format!(
                "{} cannot reset an environment without the others: its episodes can be ended by itself only",
                self.spec.id
            )));
        }
        let call = || -> PyResult<Bound<'py, PyAny>> {
            if self.partial == Partial::Numbers {
                let numbers = asked.iter().map(|reset| reset.env as i32).collect();
                let numbers = numpy::PyArray1::from_vec(py, numbers);
                return gil::call(self.reset.bind(py), (numbers,), None);
            }
            let kwargs = PyDict::new(py);
            if asked.iter().any(|reset| reset.seed.is_some()) {
                let mut seeds = vec![None; self.num_envs];
                for reset in asked {
                    seeds[reset.env] = reset.seed;
                }
                match consecutive(&seeds) {
                    Some(first) => kwargs.set_item("seed", first)?,
                    None => kwargs.set_item("seed", seeds)?,
                }
            }
            if is_partial {
                let mut mask = vec![false; self.num_envs];
                for reset in asked {
                    mask[reset.env] = true;
                }
                let options = PyDict::new(py);
                options.set_item("reset_mask", numpy::PyArray1::from_vec(py, mask))?;
                kwargs.set_item("options", options)?;
            }
            gil::call(self.reset.bind(py), (), Some(&kwargs))
        };
        call().map_err(|raised| self.held.failed(py, raised))
    }
}

/// The first of `seeds`, if each of the others is one more than the one before it. Every vector takes such a seed as one number; not every
/// vector takes a list.
fn consecutive(seeds: &[Option<u64>]) -> Option<u64> {
    let first = (*seeds.first()?)?;
    let mut expected = (first..).map(Some);
    let is_so = seeds.iter().all(|&seed| expected.next() == Some(seed));
    is_so.then_some(first)
}

/// The value of environment `env` in values for all environments: an array, or a dictionary of arrays.
fn pick<'py>(values: &Bound<'py, PyAny>, env: usize) -> PyResult<Bound<'py, PyAny>> {
    let Ok(entries) = values.cast::<PyDict>() else {
        return values.get_item(env);
    };
    let picked = PyDict::new(values.py());
    for (key, values) in entries {
        // Beside each entry stands a mask of the environments that it is about.
        if !key
            .extract::<String>()
            .is_ok_and(|key| key.starts_with('_'))
        {
            picked.set_item(key, pick(&values, env)?)?;
        }
    }
    Ok(picked.into_any())
}

/// Whether `env` is one of Gymnasium's own vectors, which reset by mask in every mode.
fn resets_by_mask(env: &Bound<'_, PyAny>) -> PyResult<bool> {
    let vector = env.py().import("gymnasium.vector")?;
    let inner = env.getattr("unwrapped").unwrap_or_else(|_| env.clone());
    for name in ["SyncVectorEnv", "AsyncVectorEnv"] {
        if inner.is_instance(&vector.getattr(name)?)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl VecEnv for VectorEnvs {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// Environments of Gymnasium read their action alone: other columns of a policy do not reach them.
    fn bind(&mut self, _: &[LeafSpec]) -> Result<(), EnvError> {
        Ok(())
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        let env = resets.first().map_or(0, |reset| reset.env);
        // Before anything is indexed by these numbers.
        let outside = resets.iter().find(|reset| reset.env >= self.num_envs);
        if let Some(&Reset { env, .. }) = outside {
            let source = super::gym::no_row();
            return Err(VecEnvError { env, source });
        }
        let reset = attach(|py| self.reset_some(py, resets, &mut obs));
        reset.map_err(|source| VecEnvError { env, source })
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        let stepped = attach(|py| self.step_all(py, actions, obs, outcomes));
        stepped.map_err(|source| VecEnvError { env: 0, source })
    }
}
