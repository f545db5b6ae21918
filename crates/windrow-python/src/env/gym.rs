//! Environments of Gymnasium, one world each.
//!
//! The worker's thread takes the interpreter's lock once for a step of all worlds, and each world's
//! `step` is one call. Methods are looked up when the environment is made. Only numpy and the
//! environment itself allocate memory in a step.
//!
//! The engine resets a world right after the step that ended its episode, so a world here never
//! resets itself.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};
use windrow::envs::{EnvError, EnvSpec, Outcomes, Reset, StateVisitor, VecEnv, VecEnvError};
use windrow::{LeafSpec, RowMut, Rows, RowsMut, error_chain};

use super::cast::Losses;
use super::info::{Entry, InfoReader};
use super::read::Reader;
use super::rows::{Origin, Target};
use super::source::Held;
use super::space::Space;
use super::wrappers::{Returned, Reward, Wrappers};
use super::write::Writer;
use crate::gc::GcRef;
use crate::gil::{self, attach};

/// Environments of Gymnasium, stepped one after the other under one hold of the interpreter's lock.
#[derive(Debug)]
pub(super) struct GymEnvs {
    /// One spec for all worlds.
    spec: EnvSpec,
    worlds: Vec<World>,
    /// From an observation to a row.
    reader: Reader,
    /// From a row to an action.
    writer: Writer,
    /// Reports rewards that their column cannot hold.
    losses: Losses,
}

/// One world, its methods looked up.
#[derive(Debug)]
struct World {
    wrappers: Wrappers,
    reset: GcRef,
    /// Calls of `step` for each action, one or more. Their rewards add up.
    frame_skip: usize,
    /// Reads entries of `info` as observations.
    info: InfoReader,
    /// Closes the environment when it is dropped.
    held: Held,
}

/// The values that a step returned. Only the observation of the last of several steps is read.
struct Stepped<'py> {
    /// None where the wrappers have it.
    observation: Option<Bound<'py, PyAny>>,
    reward: f64,
    terminated: bool,
    truncated: bool,
    info: Bound<'py, PyAny>,
}

impl GymEnvs {
    /// `worlds`, each with the number of times that it takes an action, and the entries of `info`
    /// that are observed.
    ///
    /// # Errors
    /// [`EnvError`] when a space is not supported or the worlds differ.
    pub(super) fn new(
        py: Python<'_>,
        worlds: Vec<(Held, usize, Vec<Entry>)>,
        one_hot: bool,
    ) -> Result<Self, EnvError> {
        let mut parts = None;
        let mut stepped = Vec::with_capacity(worlds.len());
        for (held, frame_skip, entries) in worlds {
            let env = held.object.bind(py);
            let names = ["observation_space", "action_space"];
            let made = spaces(env, names, one_hot);
            let (mut spec, reader, writer) = made.map_err(EnvError::failed)?;
            let info = InfoReader::new(py, &entries, &mut spec)?;
            if frame_skip == 0 {
                return Err(EnvError::Foreign(format!(
                    "an action is taken once at least, got frame_skip = 0 for {}",
                    spec.id
                )));
            }
            // One spec for all: time limits that differ are left out, and worlds that a policy
            // would see differently are an error.
            let (first, ..) = parts.get_or_insert((spec.clone(), reader, writer));
            first.join(&spec).map_err(|error| {
                EnvError::Foreign(format!(
                    "environment {}: {}",
                    stepped.len(),
                    error_chain(&error)
                ))
            })?;
            stepped.push(World {
                wrappers: Wrappers::of(py, &held)?,
                reset: held.method(py, "reset")?,
                frame_skip,
                info,
                held,
            });
        }
        let Some((spec, reader, writer)) = parts else {
            return Err(EnvError::Foreign(
                "a vector of environments needs at least one, got none".into(),
            ));
        };
        Ok(Self {
            spec,
            worlds: stepped,
            reader,
            writer,
            losses: Losses::default(),
        })
    }

    /// Steps environment `env` by its action in `actions`, and writes what it observes: reward,
    /// `terminated` and `truncated`.
    fn step_world(
        &mut self,
        py: Python<'_>,
        env: usize,
        actions: Rows<'_>,
        obs: &mut RowsMut<'_>,
    ) -> Result<(f32, bool, bool), EnvError> {
        let Some(action) = actions.env(env) else {
            return Err(no_row());
        };
        // A new object for each step, since an environment may keep its actions.
        let action = self.writer.write(py, Origin::One(action))?;
        let world = &mut self.worlds[env];
        let mut stepped = world.step_once(&action, &self.spec.id)?;
        // Rewards add up; an episode that ends on the way ends the step, with the observation it
        // ended with.
        for _ in 1..world.frame_skip {
            if stepped.terminated || stepped.truncated {
                break;
            }
            let reward = stepped.reward;
            stepped = world.step_once(&action, &self.spec.id)?;
            stepped.reward += reward;
        }
        let mut target = Target::One(row_of(obs, env)?);
        match &stepped.observation {
            Some(observation) => self.reader.read(observation, &mut target)?,
            None => world.wrappers.write(py, &self.reader, &mut target)?,
        }
        world.info.read(&stepped.info, row_of(obs, env)?)?;
        let name = || format!("reward of {}, environment {env}", self.spec.id);
        let reward = self.losses.narrowed(py, stepped.reward, name);
        let reward = reward.map_err(EnvError::failed)?;
        Ok((reward, stepped.terminated, stepped.truncated))
    }

    /// Resets the environment of `reset` and writes what it observes. Without a seed, `reset` is
    /// called without the argument, not with None: a wrapper may not take it.
    fn reset_world(
        &self,
        py: Python<'_>,
        reset: Reset,
        obs: &mut RowsMut<'_>,
    ) -> Result<(), EnvError> {
        let Some(world) = self.worlds.get(reset.env) else {
            return Err(no_row());
        };
        let call = || match reset.seed {
            None => gil::call(world.reset.bind(py), (), None),
            Some(seed) => {
                let kwargs = PyDict::new(py);
                kwargs.set_item(intern!(py, "seed"), seed)?;
                gil::call(world.reset.bind(py), (), Some(&kwargs))
            }
        };
        let result = call().map_err(|raised| world.held.failed(py, raised))?;
        let values = match result.cast::<PyTuple>() {
            Ok(values) if values.len() == 2 => values,
            _ => {
                return Err(EnvError::Foreign(format!(
                    "reset of {}: expected (observation, info), got {}",
                    self.spec.id,
                    result.get_type()
                )));
            }
        };
        let value = |index| values.get_borrowed_item(index).map_err(EnvError::failed);
        self.reader
            .read(&*value(0)?, &mut Target::One(row_of(obs, reset.env)?))?;
        world.info.read(&*value(1)?, row_of(obs, reset.env)?)
    }
}

/// The row of environment `env`.
fn row_of<'a>(obs: &'a mut RowsMut<'_>, env: usize) -> Result<RowMut<'a>, EnvError> {
    obs.env_mut(env).ok_or_else(no_row)
}

impl World {
    /// One call of `step`.
    #[inline]
    fn step_once<'py>(
        &mut self,
        action: &Bound<'py, PyAny>,
        id: &str,
    ) -> Result<Stepped<'py>, EnvError> {
        let py = action.py();
        let result = self.wrappers.step(action, self.frame_skip == 1);
        let result = result.map_err(|raised| self.held.failed(py, raised))?;
        // A tuple, as Gymnasium says: four values are an environment of the old gym, whose `done`
        // is ambiguous.
        let values = match result.cast::<PyTuple>() {
            Ok(values) if values.len() == 5 => values,
            _ => return Err(not_five(id, &result)),
        };
        let mut values = Returned::of(values).map_err(EnvError::failed)?;
        (self.wrappers.change(&mut values)).map_err(|raised| self.held.failed(py, raised))?;
        // Most rewards are floats (numpy's float64 is one too), which need no call.
        let reward = match (values.reward.number(), values.reward) {
            (Some(reward), _) | (None, Reward::Number(reward)) => reward,
            (None, Reward::Object(reward)) => number(&reward, id)?,
        };
        let read = || -> PyResult<Stepped<'py>> {
            Ok(Stepped {
                observation: values.observation,
                reward,
                terminated: flag("terminated", &values.terminated)?,
                truncated: flag("truncated", &values.truncated)?,
                info: values.info,
            })
        };
        read().map_err(EnvError::failed)
    }
}

/// A reward that is no float of Python's: an array of one element is a number too.
fn number(reward: &Bound<'_, PyAny>, id: &str) -> Result<f64, EnvError> {
    let one = match reward.call_method0(intern!(reward.py(), "item")) {
        Ok(one) => one.extract(),
        Err(_) => reward.extract(),
    };
    one.map_err(|_: PyErr| {
        EnvError::Foreign(format!(
            "reward of {id}: expected a number, got {reward} ({})",
            reward.get_type()
        ))
    })
}

/// A boolean of Python, numpy or torch, or one of the numbers that are equal to it.
#[inline]
pub(super) fn flag(name: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(value.is_true());
    }
    // An array of several compares to several, which are no one boolean.
    let is = |flag: bool| value.eq(flag).unwrap_or(false);
    if is(false) {
        return Ok(false);
    }
    match is(true) {
        true => Ok(true),
        false => Err(PyTypeError::new_err(format!(
            "{name} must be True or False, got {value:?}"
        ))),
    }
}

/// The error of a step that did not return five values. Vectors raise it too.
#[cold]
pub(super) fn not_five(id: &str, result: &Bound<'_, PyAny>) -> EnvError {
    let got = match result.len() {
        Ok(len) => format!("{} of {len}", result.get_type()),
        Err(_) => result.get_type().to_string(),
    };
    EnvError::Foreign(format!(
        "step of {id}: expected (observation, reward, terminated, truncated, info), got {got}"
    ))
}

/// The error of an index that no environment has. The engine passes no such index.
#[cold]
pub(super) fn no_row() -> EnvError {
    EnvError::Foreign("no environment has this index, or its row is missing".into())
}

/// The spec of `env`, with the reader of its observations and the writer of its actions. Their
/// spaces are the attributes `names`.
pub(super) fn spaces(
    env: &Bound<'_, PyAny>,
    names: [&str; 2],
    one_hot: bool,
) -> PyResult<(EnvSpec, Reader, Writer)> {
    let (id, limit) = identity(env)?;
    let [observed, acted] = [env.getattr(names[0])?, env.getattr(names[1])?];
    let (action, writer) = Space::acted(&acted, &id, one_hot).writer()?;
    let (mut spec, reader) = Space::observed(&observed, &id, one_hot).reader(action)?;
    spec.max_episode_steps = limit;
    // The user may have seeded it: without a seed for the collector, it goes on from there.
    spec.keeps_seed = true;
    Ok((spec, reader, writer))
}

/// The id that `env` was registered under, or else the name of its class; and its time limit.
fn identity(env: &Bound<'_, PyAny>) -> PyResult<(String, Option<usize>)> {
    // An environment that was not made by `gymnasium.make` has no spec, or one that is None.
    let registered = env.getattr("spec").and_then(|spec| {
        let limit = spec.getattr("max_episode_steps")?.extract()?;
        Ok((spec.getattr("id")?.extract()?, limit))
    });
    if let Ok(registered) = registered {
        return Ok(registered);
    }
    let inner = env.getattr("unwrapped").unwrap_or_else(|_| env.clone());
    Ok((inner.get_type().name()?.to_string(), None))
}

impl VecEnv for GymEnvs {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.worlds.len()
    }

    /// Environments of Gymnasium read their action alone: other columns of a policy do not reach
    /// them.
    fn bind(&mut self, _: &[LeafSpec]) -> Result<(), EnvError> {
        Ok(())
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        attach(|py| {
            resets.iter().try_for_each(|&reset| {
                self.reset_world(py, reset, &mut obs)
                    .map_err(|source| VecEnvError {
                        env: reset.env,
                        source,
                    })
            })
        })
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        attach(|py| {
            for env in 0..self.worlds.len() {
                let (reward, terminated, truncated) =
                    self.step_world(py, env, actions, &mut obs)
                        .map_err(|source| VecEnvError { env, source })?;
                outcomes.reward[env] = reward;
                outcomes.terminated[env] = terminated;
                outcomes.truncated[env] = truncated;
            }
            Ok(())
        })
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.section(format!("{} x {}", self.worlds.len(), self.spec.id))?;
        let mut worlds = self.worlds.iter();
        worlds.try_for_each(|world| world.held.visit_state(state))
    }
}
