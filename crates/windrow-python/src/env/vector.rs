//! Vectors of environments of Gymnasium, in each of their autoreset modes.
//!
//! The engine resets an environment right after the step that ended its episode, and wants the
//! observation that the episode ended with. A vector does one of three things: in the same step, it
//! resets and puts that observation into `info` (`SAME_STEP`, taken over here); in the next step,
//! it resets instead of stepping, which would be a frame of no episode (`NEXT_STEP`); or it leaves
//! resets to its user (`DISABLED`).
//!
//! In `NEXT_STEP` mode, an ended environment is reset before that step, by a mask or by its number,
//! and all frames are as those of single environments. Most vectors can do that. One that cannot
//! would take the others on by the step in which an environment begins anew. Each environment has
//! to have as many frames as the others, so that step is taken at once and is in no batch, and the
//! episodes of the others are cut before it: their last frame is truncated, and they go on as new
//! ones.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use windrow::envs::{EnvError, EnvSpec, Outcomes, Reset, StateVisitor, VecEnv, VecEnvError};
use windrow::{LeafSpec, RowBlock, Rows, RowsMut};

use super::foreign::{outcome_leaves, read_outcomes};
use super::gym::{no_row, not_five, spaces};
use super::info::{Entry, InfoReader};
use super::read::{Leaf, Reader};
use super::rows::{Origin, Target, copy_rows};
use super::source::Held;
use super::write::Writer;
use crate::gc::GcRef;
use crate::gil::{self, attach};

/// A `gymnasium.vector.VectorEnv`, stepped by one call for all environments. Where the vector has
/// reset an environment in the same step, both observations are taken over: the final one from
/// `info`, the first one of the next episode from the step. An EnvPool is such a vector too; its
/// seed was set when it was made.
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
    /// The observations, entries of `info` included.
    leaves: Vec<LeafSpec>,
    /// The last observations that the vector returned. A row of an environment that it has reset is
    /// kept here until the engine asks for that reset.
    seen: RowBlock,
    /// Whether the vector resets ended environments itself, in the same step.
    same_step: bool,
    /// The way in which single environments are reset.
    partial: Partial,
    /// Environments that the vector has reset, or will with its next step, and the engine not yet.
    pending: Vec<bool>,
    /// The actions of the step that ended an episode, where the vector resets by stepping.
    last_actions: RowBlock,
    /// Whether the user knows that episodes are cut.
    has_told: bool,
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
    /// By its next step, which takes the others on.
    Stepping,
    /// Not at all.
    Never,
}

/// Most steps in a row that no batch has, because an episode ended in each of them.
const STEPS_ON: usize = 1000;

impl VectorEnvs {
    /// The environments of `held`, and the entries of `info` that they observe.
    ///
    /// # Errors
    /// [`EnvError`] when a space is not supported, or the vector resets environments where no
    /// engine can follow.
    pub(super) fn new(
        py: Python<'_>,
        held: Held,
        one_hot: bool,
        info: &[Entry],
    ) -> Result<Self, EnvError> {
        let made = Self::describe(held.object.bind(py), one_hot);
        let (mut spec, num_envs, reader, writer) = made.map_err(EnvError::failed)?;
        let habits = || gil::call_method(&gil::ports(py)?, "habits", (held.object.bind(py),));
        let habits = habits().and_then(|habits| habits.extract());
        let (mode, partial): (String, String) = habits.map_err(EnvError::failed)?;
        let info = InfoReader::new(py, info, &mut spec)?;
        let leaves = spec.observation_leaves();
        Ok(Self {
            num_envs,
            info,
            last_actions: RowBlock::new(&spec.action_leaves(), num_envs)?,
            has_told: false,
            step: held.method(py, "step")?,
            reset: held.method(py, "reset")?,
            reader,
            writer,
            outcome: outcome_leaves(&spec.id),
            seen: RowBlock::new(&leaves, num_envs)?,
            leaves,
            same_step: mode == "SameStep",
            partial: match partial.as_str() {
                "mask" => Partial::Mask,
                "numbers" => Partial::Numbers,
                _ if mode == "NextStep" => Partial::Stepping,
                _ => Partial::Never,
            },
            pending: vec![false; num_envs],
            spec,
            held,
        })
    }

    /// The properties of a vector: its spec, the number of its environments, the reader of
    /// observations and the writer of actions.
    fn describe(
        env: &Bound<'_, PyAny>,
        one_hot: bool,
    ) -> PyResult<(EnvSpec, usize, Reader, Writer)> {
        let names = ["single_observation_space", "single_action_space"];
        let (spec, reader, writer) = spaces(env, names, one_hot)?;
        let num_envs = env.getattr("num_envs")?.extract()?;
        Ok((spec, num_envs, reader, writer))
    }

    /// Steps all environments. Where the vector has reset some in the same step, `obs` has how
    /// their episodes ended, and `seen` how the next ones begin.
    fn step_all(
        &mut self,
        py: Python<'_>,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), EnvError> {
        let action = self.writer.write(py, Origin::All(actions))?;
        // What the vector returned is not for `obs` at once: where it has reset an environment,
        // that belongs to the next episode, and `obs` is to have the last observation of the one
        // that ended.
        let info = self.call_step(py, &action, outcomes.reborrow())?;
        // Rows may have leaves of others behind those of the vector.
        copy_rows(0..self.num_envs, self.seen.rows(), &mut obs).map_err(|error| error.source)?;
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
        if self.partial == Partial::Stepping {
            self.cut_others(py, actions, outcomes)?;
        }
        Ok(())
    }

    /// Calls the vector's `step`. Its observations go to `seen`; `info` is returned.
    fn call_step<'py>(
        &mut self,
        py: Python<'py>,
        action: &Bound<'py, PyAny>,
        outcomes: Outcomes<'_>,
    ) -> Result<Bound<'py, PyAny>, EnvError> {
        let result = gil::call(self.step.bind(py), (action,), None);
        let result = result.map_err(|raised| self.held.failed(py, raised))?;
        let values = match result.cast::<PyTuple>() {
            Ok(values) if values.len() == 5 => values,
            _ => return Err(not_five(&self.spec.id, &result)),
        };
        let value = |index| values.get_item(index).map_err(EnvError::failed);
        read_outcomes(&self.outcome, &[value(1)?, value(2)?, value(3)?], outcomes)?;
        let mut seen = Target::All(self.seen.rows_mut());
        self.reader.read(&value(0)?, &mut seen)?;
        let info = value(4)?;
        match self.info.is_empty() {
            true => self.info.tell(&info)?,
            false => self.info.read_all(&info, self.seen.rows_mut())?,
        }
        Ok(info)
    }

    /// Where an episode has ended, cuts those of the others: the next step, which begins it anew,
    /// is in no batch.
    fn cut_others(
        &mut self,
        py: Python<'_>,
        actions: Rows<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), EnvError> {
        let Outcomes {
            terminated,
            truncated,
            ..
        } = outcomes;
        let ended = |env: usize| terminated[env] || truncated[env];
        let ends = (0..self.num_envs).filter(|&env| ended(env)).count();
        self.pending.fill(ends > 0);
        if ends == 0 {
            return Ok(());
        }
        let mut last = self.last_actions.rows_mut();
        last.copy_envs(0, actions, 0..self.num_envs)?;
        if ends == self.num_envs {
            return Ok(());
        }
        for (truncated, terminated) in truncated.iter_mut().zip(&*terminated) {
            *truncated |= !terminated;
        }
        if !std::mem::replace(&mut self.has_told, true) {
            let tell = || gil::call_method(&gil::ports(py)?, "tell_of_cuts", (&self.spec.id,));
            tell().map_err(EnvError::failed)?;
        }
        Ok(())
    }

    /// Steps until no environment is at the end of an episode, each with its last action.
    fn step_on(&mut self, py: Python<'_>) -> Result<(), EnvError> {
        let mut reward = vec![0.0; self.num_envs];
        let mut flags = [vec![false; self.num_envs], vec![false; self.num_envs]];
        for _ in 0..STEPS_ON {
            let action = self
                .writer
                .write(py, Origin::All(self.last_actions.rows()))?;
            let [terminated, truncated] = &mut flags;
            let outcomes = Outcomes {
                reward: &mut reward,
                terminated,
                truncated,
            };
            self.call_step(py, &action, outcomes)?;
            if !flags.iter().flatten().any(|&ended| ended) {
                return Ok(());
            }
        }
        Err(EnvError::Foreign(format!(
            "{} ends an episode in each of {STEPS_ON} steps, and resets an environment by its next step only: expected a vector with autoreset_mode SAME_STEP or DISABLED",
            self.spec.id
        )))
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

    /// Resets environments that the vector has not reset itself, and copies the first observations
    /// of all `resets` to `obs`.
    fn reset_some(
        &mut self,
        py: Python<'_>,
        resets: &[Reset],
        obs: &mut RowsMut<'_>,
    ) -> Result<(), EnvError> {
        // An environment that the vector has reset already is at the beginning of an episode;
        // resetting it again would waste one. A seed asks for a certain episode, though.
        let has_begun = |reset: &Reset| self.pending.get(reset.env) == Some(&true);
        let asked: Vec<Reset> = resets
            .iter()
            .filter(|reset| reset.seed.is_some() || !has_begun(reset))
            .copied()
            .collect();
        // Environments that the vector is about to reset by a step begin together.
        let steps_on = self.partial == Partial::Stepping && resets.iter().any(has_begun);
        if steps_on && asked.is_empty() {
            if resets.len() < self.num_envs {
                return Err(self.not_alone());
            }
            self.step_on(py)?;
        }
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
            // An EnvPool returns rows of those that were asked for alone; all others return rows of
            // all environments.
            let by_number = self.partial == Partial::Numbers && asked.len() < self.num_envs;
            let place = |(nth, reset): (usize, &Reset)| match by_number {
                true => (nth, reset.env),
                false => (reset.env, reset.env),
            };
            self.read_info(&info, asked.iter().enumerate().map(place))?;
        }
        let envs = resets.iter().map(|reset| reset.env);
        copy_rows(envs, self.seen.rows(), obs).map_err(|error| error.source)?;
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
            seen.copy_envs(reset.env, rows.rows(), row..row + 1)?;
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
        if is_partial && matches!(self.partial, Partial::Never | Partial::Stepping) {
            return Err(self.not_alone());
        }
        let vector = self.held.object.bind(py);
        let call = || -> PyResult<Bound<'py, PyAny>> {
            let kwargs = PyDict::new(py);
            let (envs, seeds): (Vec<_>, Vec<_>) =
                asked.iter().map(|reset| (reset.env, reset.seed)).unzip();
            if seeds.iter().any(Option::is_some) {
                let seed = gil::call_method(&gil::ports(py)?, "seed", (vector, &envs, seeds))?;
                kwargs.set_item("seed", seed)?;
            }
            if self.partial == Partial::Numbers {
                let numbers = envs.into_iter().map(|env| env as i32).collect();
                let numbers = numpy::PyArray1::from_vec(py, numbers);
                return gil::call(self.reset.bind(py), (numbers,), None);
            }
            if is_partial {
                let mut mask = vec![false; self.num_envs];
                for env in envs {
                    mask[env] = true;
                }
                let mask = numpy::PyArray1::from_vec(py, mask);
                let options = gil::call_method(&gil::ports(py)?, "options", (vector, mask))?;
                kwargs.set_item("options", options)?;
            }
            gil::call(self.reset.bind(py), (), Some(&kwargs))
        };
        call().map_err(|raised| self.held.failed(py, raised))
    }

    /// The error of a reset of some environments that the vector cannot do.
    #[cold]
    fn not_alone(&self) -> EnvError {
        EnvError::Foreign(format!(
            "{} cannot reset an environment without the others: its episodes can be ended by itself only",
            self.spec.id
        ))
    }
}

/// The value of environment `env` in values for all environments: an array, or a dictionary of
/// arrays.
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

impl VecEnv for VectorEnvs {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// Environments of Gymnasium read their action alone: other columns of a policy do not reach
    /// them.
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

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let _ = state;
        Err(EnvError::NotHeld(format!(
            "the state of {} cannot be saved, since it is a vector of its own: give a function that makes one environment",
            self.spec.id
        )))
    }
}
