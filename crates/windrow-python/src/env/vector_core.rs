//! The engine behind `windrow.make_vec`: environments that are stepped by hand, as a vector of
//! Gymnasium's, and begin episodes by themselves.
//!
//! Environments step in the calling thread, or in threads of a pool, which also answers for some of
//! them while others are still stepping. Observations, rewards and flags are views of memory that
//! is used again once the caller holds none of them (`blocks`).

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use numpy::PyArray1;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use windrow::envs::{
    AsyncEnvPool, Command, EXACT_REWARD, EnvError, EnvSpec, NextStep, Outcomes, PoolOutput,
    RecvOptions, Reset, VecEnv,
};
use windrow::tensordict::NestedKey;
use windrow::{Key, Row, RowBlock, Rows, RowsMut};

use super::blocks::{Block, Ring};
use super::describe::Description;
use super::foreign::{read_all, read_leaves, write_leaves};
use super::handle::{call, locked, resets_of, to_py, vec_to_py};
use super::pool::{EnvPool, raise};
use super::read::Leaf;
use super::recipe::{self, Made, Recipe};
use super::rows::{Origin, Target};
use super::write::Writer;
use crate::factory_lock;
use crate::gc::GcRoots;

/// When an environment begins another episode, after Gymnasium's `AutoresetMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// By its next step, in place of that step.
    NextStep,
    /// In the step that ends one.
    SameStep,
    /// When it is told to.
    Disabled,
}

/// Observations leaf by leaf; rewards; whether episodes were terminated; whether they were
/// truncated; and of episodes that have ended: the environments, their last observations where
/// others have begun in the same step, and their returns, lengths and seconds.
type Stepped<'py> = (
    Vec<Bound<'py, PyAny>>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Option<Ended<'py>>,
);
type Ended<'py> = (
    Vec<usize>,
    Option<Vec<Vec<Bound<'py, PyAny>>>>,
    Option<Vec<Episode>>,
);
/// Return, length and seconds.
type Episode = (f64, i64, f64);

/// Environments as a vector of Gymnasium's.
#[pyclass(frozen, module = "windrow._windrow")]
pub(crate) struct VectorCore {
    spec: EnvSpec,
    num_envs: usize,
    mode: Mode,
    /// The pool that steps the environments, where they do not step in the calling thread.
    pool: Option<EnvPool>,
    /// Used by one thread at a time.
    inner: Mutex<Inner>,
    /// The Python objects that the environments hold, for the garbage collector.
    roots: GcRoots,
}

struct Inner {
    /// None once they are closed, or where a pool has them.
    envs: Option<Box<dyn VecEnv>>,
    /// Whether a step waits for other processes, without the interpreter's lock.
    waits: bool,
    acted: Vec<Leaf>,
    actions: RowBlock,
    observed: Vec<Writer>,
    blocks: Ring,
    /// Blocks for what is received of some environments.
    received: Ring,
    /// What was observed last, where resets of some environments are told: the caller may have
    /// changed his arrays.
    kept: Option<RowBlock>,
    episodes: Option<Episodes>,
}

/// Returns and lengths of the episodes that are running.
struct Episodes {
    returns: Vec<f64>,
    lengths: Vec<i64>,
    begun: Vec<Instant>,
    /// Those whose next step begins another one and counts for none.
    ended: Vec<bool>,
    /// The leaf that rewards are observed as in double precision, where they are.
    exact: Option<usize>,
}

#[pymethods]
impl VectorCore {
    /// Makes the environments of `envs`, each anything that Python calls an environment: a single
    /// one is stepped in the calling thread unless there are `threads`; several are members of a
    /// pool, which steps native ones in as many threads, and starts those that have processes
    /// `side_by_side`.
    #[new]
    #[pyo3(signature = (envs, mode, threads=None, side_by_side=false, episodes=false))]
    fn new(
        py: Python<'_>,
        envs: Vec<Bound<'_, PyAny>>,
        mode: &str,
        threads: Option<usize>,
        side_by_side: bool,
        episodes: bool,
    ) -> PyResult<Self> {
        let mode = match mode {
            "NextStep" => Mode::NextStep,
            "SameStep" => Mode::SameStep,
            "Disabled" => Mode::Disabled,
            other => {
                return Err(PyValueError::new_err(format!(
                    "expected NextStep, SameStep or Disabled, got {other}"
                )));
            }
        };
        let around = |envs: Box<dyn VecEnv>| -> Result<Box<dyn VecEnv>, EnvError> {
            match mode {
                Mode::NextStep => Ok(Box::new(NextStep::new(envs)?)),
                Mode::SameStep | Mode::Disabled => Ok(envs),
            }
        };
        if let Some(threads) = threads {
            let pool = EnvPool::made_of(py, envs, side_by_side, threads, around)?;
            let (spec, num_envs) = (pool.pool()?.spec().clone(), pool.pool()?.num_envs());
            let inner = Inner::new(&spec, num_envs, episodes);
            let inner = Mutex::new(inner.map_err(|error| to_py(py, &error))?);
            return Ok(Self {
                spec,
                num_envs,
                mode,
                pool: Some(pool),
                inner,
                roots: GcRoots::default(),
            });
        }
        let roots = GcRoots::default();
        let [env] = &envs[..] else {
            return Err(PyValueError::new_err("expected one environment or threads"));
        };
        let recipe = Recipe::of(env, None, &roots)?;
        let make = || -> Result<Self, EnvError> {
            let Made { envs, waits, .. } = recipe::prepare(&recipe, &roots, true)?;
            let envs = around(envs)?;
            let (spec, num_envs) = (envs.spec().clone(), envs.num_envs());
            let mut inner = Inner::new(&spec, num_envs, episodes)?;
            if mode == Mode::Disabled {
                inner.kept = Some(RowBlock::new(&spec.observation_leaves(), num_envs)?);
            }
            (inner.envs, inner.waits) = (Some(envs), waits);
            Ok(Self {
                spec,
                num_envs,
                mode,
                pool: None,
                inner: Mutex::new(inner),
                roots: roots.clone(),
            })
        };
        make().map_err(|error| to_py(py, &error))
    }

    /// A [`Description`] of the environments, as a dictionary.
    fn describe(&self) -> PyResult<Description> {
        Description::of(&self.spec, self.num_envs, true)
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
        if let Some(episodes) = &mut inner.episodes {
            episodes.begin(&resets);
        }
        match &self.pool {
            Some(pool) => inner.reset_pool(py, pool, &resets)?,
            None => inner.reset(py, &resets)?,
        }
        inner.seen(py)
    }

    /// Steps all environments by `actions`, an array for each leaf.
    fn step<'py>(&self, py: Python<'py>, actions: &Bound<'py, PyAny>) -> PyResult<Stepped<'py>> {
        let mut inner = self.lock()?;
        let Some(pool) = &self.pool else {
            return inner.step(py, self.mode, actions);
        };
        let called = self.command();
        let members = (0..pool.pool()?.members()).collect();
        pool.step_send(py, members, actions, called == Command::StepAndMaybeReset)?;
        let pool = pool.pool()?;
        let received = py.detach(|| factory_lock::lending(|| pool.receive_all(called)));
        let received = received.map_err(|error| raise(py, &error))?;
        inner.take(py, self.mode, &received, true)
    }

    /// Sends the `members` of the pool a step, by the first rows of `actions`.
    fn send(
        &self,
        py: Python<'_>,
        members: Vec<usize>,
        actions: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let resets = self.command() == Command::StepAndMaybeReset;
        self.its_pool()?.step_send(py, members, actions, resets)
    }

    /// Waits for `count` members, whichever are ready first: their numbers, and what `step` returns
    /// of theirs.
    fn recv<'py>(
        &self,
        py: Python<'py>,
        count: usize,
    ) -> PyResult<(Bound<'py, PyAny>, Stepped<'py>)> {
        let (pool, called) = (self.its_pool()?.pool()?, self.command());
        let options = RecvOptions::at_least(count).at_most(count);
        let received = py.detach(|| factory_lock::lending(|| pool.receive(called, options)));
        let received = received.map_err(|error| raise(py, &error))?;
        let members = received.iter().map(|answer| answer.env() as i64);
        let members = PyArray1::from_iter(py, members).into_any();
        let stepped = self.lock()?.take(py, self.mode, &received, false)?;
        Ok((members, stepped))
    }

    /// Ends threads and processes, and closes the environments.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match &self.pool {
            Some(pool) => pool.shutdown(py, AsyncEnvPool::PATIENCE.as_secs_f64()),
            None => {
                let envs = self.lock()?.envs.take();
                py.detach(|| factory_lock::lending(|| drop(envs)));
                Ok(())
            }
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.roots.traverse(&visit)?;
        self.pool
            .as_ref()
            .map_or(Ok(()), |pool| pool.traverse(&visit))
    }
}

impl VectorCore {
    /// What a member of the pool does in a step.
    fn command(&self) -> Command {
        match self.mode {
            Mode::SameStep => Command::StepAndMaybeReset,
            Mode::NextStep | Mode::Disabled => Command::Step,
        }
    }

    fn its_pool(&self) -> PyResult<&EnvPool> {
        let missing = || PyRuntimeError::new_err("environments in the calling thread are stepped");
        self.pool.as_ref().ok_or_else(missing)
    }

    /// As [`locked`].
    fn lock(&self) -> PyResult<MutexGuard<'_, Inner>> {
        locked(&self.inner, &self.spec)
    }
}

impl Inner {
    fn new(spec: &EnvSpec, num_envs: usize, episodes: bool) -> Result<Self, EnvError> {
        let (observation, action) = (spec.observation_leaves(), spec.action_leaves());
        let exact = NestedKey::from(EXACT_REWARD);
        let exact = observation.iter().position(|leaf| leaf.key == exact);
        Ok(Self {
            envs: None,
            waits: false,
            acted: read_leaves(&action, "action", &spec.id),
            actions: RowBlock::new(&action, num_envs)?,
            observed: write_leaves(&observation),
            received: Ring::new(observation.clone(), 0),
            blocks: Ring::new(observation, num_envs),
            kept: None,
            episodes: episodes.then(|| Episodes::new(num_envs, exact)),
        })
    }

    /// The observations of all environments.
    fn seen<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let Some(block) = self.blocks.last() else {
            return Ok(Vec::new());
        };
        block.arrays(py).map_err(|error| to_py(py, &error))
    }

    /// Begins episodes; the others are seen as before.
    fn reset(&mut self, py: Python<'_>, resets: &[Reset]) -> PyResult<()> {
        let Self {
            envs,
            waits,
            blocks,
            kept,
            ..
        } = self;
        let envs = envs.as_mut().ok_or_else(closed)?;
        let is_partial = resets.len() < envs.num_envs();
        let before = match (is_partial, &*kept) {
            (false, _) => None,
            (true, Some(kept)) => Some(kept.rows()),
            (true, None) => blocks.last().map(Block::observations),
        };
        // The last block may be the next one, and rows cannot be copied to themselves.
        let before = before.map(|rows| blocks.copied(rows)).transpose();
        let before = before.map_err(|error| to_py(py, &error))?;
        let written = blocks.write(py, |mut obs, _| {
            if let Some(before) = &before {
                let copied = obs.copy_from(before.rows());
                copied.map_err(|error| EnvError::from(error).of(0))?;
            }
            call(py, *waits, || envs.reset(resets, obs.reborrow()))?;
            keep(kept.as_mut(), obs.as_rows())
        });
        let reset = written.map_err(|error| to_py(py, &error))?;
        reset.map_err(|error| vec_to_py(py, &error))
    }

    /// As [`reset`](Self::reset), in a pool.
    fn reset_pool(&mut self, py: Python<'_>, pool: &EnvPool, resets: &[Reset]) -> PyResult<()> {
        let pool = pool.pool()?;
        let reset = py.detach(|| factory_lock::lending(|| pool.reset(resets).map(drop)));
        reset.map_err(|error| raise(py, &error))?;
        let all = pool.all().map_err(|error| raise(py, &error))?;
        let written = self.blocks.write(py, |mut obs, _| gather(&all, &mut obs));
        let written = written.map_err(|error| to_py(py, &error))?;
        written.map_err(|error| to_py(py, &error))
    }

    /// Steps all environments in this thread.
    fn step<'py>(
        &mut self,
        py: Python<'py>,
        mode: Mode,
        given: &Bound<'py, PyAny>,
    ) -> PyResult<Stepped<'py>> {
        let Self {
            envs,
            waits,
            acted,
            actions,
            observed,
            blocks,
            kept,
            episodes,
            ..
        } = self;
        let envs = envs.as_mut().ok_or_else(closed)?;
        read_all(acted, given, &mut Target::All(actions.rows_mut()))
            .map_err(|error| to_py(py, &error))?;
        let written = blocks.write(py, |mut obs, mut outcomes| {
            let stepped = || envs.step(actions.rows(), obs.reborrow(), outcomes.reborrow());
            call(py, *waits, stepped).map_err(|error| vec_to_py(py, &error))?;
            let ended = ends(&outcomes, 0..);
            let told = episodes.as_mut();
            let rewards = told.as_deref().map(|told| {
                let row = |row| (obs.as_rows().env(row), outcomes.reward[row]);
                told.rewards((0..outcomes.reward.len()).map(row))
            });
            let told = told.zip(rewards);
            let told =
                told.and_then(|(episodes, rewards)| episodes.step(mode, 0.., &outcomes, &rewards));
            let mut finals = None;
            if mode == Mode::SameStep && !ended.is_empty() {
                let rows = ended.iter().map(|&env| obs.as_rows().env(env));
                finals = Some(copies(py, observed, rows)?);
                let resets = ended.iter().map(|&env| Reset { env, seed: None });
                let resets: Vec<_> = resets.collect();
                call(py, *waits, || envs.reset(&resets, obs.reborrow()))
                    .map_err(|error| vec_to_py(py, &error))?;
            }
            keep(kept.as_mut(), obs.as_rows()).map_err(|error| vec_to_py(py, &error))?;
            PyResult::Ok(told_of(mode, ended, finals, told))
        });
        let ended = written.map_err(|error| to_py(py, &error))??;
        returned(py, blocks, ended)
    }

    /// What a pool has answered, of all environments or of some.
    fn take<'py>(
        &mut self,
        py: Python<'py>,
        mode: Mode,
        received: &PoolOutput<'_>,
        all: bool,
    ) -> PyResult<Stepped<'py>> {
        let Self {
            observed,
            blocks,
            received: some,
            episodes,
            ..
        } = self;
        let blocks = if all { blocks } else { some };
        let each = received
            .iter()
            .next()
            .map_or(1, |answer| answer.reward().len());
        let envs = received.iter().flat_map(|answer| {
            let first = answer.env() * each;
            first..first + each
        });
        let envs: Vec<_> = envs.collect();
        blocks.resize(envs.len());
        let written = blocks.write(py, |mut obs, outcomes| {
            gather(received, &mut obs).map_err(|error| to_py(py, &error))?;
            for (answer, first) in received.iter().zip((0..).step_by(each)) {
                let own = first..first + each;
                outcomes.reward[own.clone()].copy_from_slice(answer.reward());
                outcomes.terminated[own.clone()].copy_from_slice(answer.terminated());
                outcomes.truncated[own].copy_from_slice(answer.truncated());
            }
            let ended = ends(&outcomes, 0..);
            let told = episodes.as_mut();
            let rewards = told.as_deref().map(|told| {
                let rows = received.iter().flat_map(|answer| {
                    (0..each).map(move |row| (answer.observation().env(row), answer.reward()[row]))
                });
                told.rewards(rows)
            });
            let told = told.zip(rewards).and_then(|(episodes, rewards)| {
                episodes.step(mode, envs.iter().copied(), &outcomes, &rewards)
            });
            let mut finals = None;
            if mode == Mode::SameStep && !ended.is_empty() {
                let answers: Vec<_> = received.iter().collect();
                let rows = ended.iter();
                let rows = rows.map(|&row| answers[row / each].observation().env(row % each));
                finals = Some(copies(py, observed, rows)?);
            }
            PyResult::Ok(told_of(mode, ended, finals, told))
        });
        let ended = written.map_err(|error| to_py(py, &error))??;
        returned(py, blocks, ended)
    }
}

/// What a step returns, from the block that was written last.
fn returned<'py>(
    py: Python<'py>,
    blocks: &Ring,
    ended: Option<Ended<'py>>,
) -> PyResult<Stepped<'py>> {
    let block = blocks.last().ok_or_else(closed)?;
    let seen = block.arrays(py).map_err(|error| to_py(py, &error))?;
    let [reward, terminated, truncated] = block.outcomes(py);
    Ok((seen, reward, terminated, truncated, ended))
}

/// What is told of episodes that have ended: nothing where nobody asked.
fn told_of<'py>(
    mode: Mode,
    ended: Vec<usize>,
    finals: Option<Vec<Vec<Bound<'py, PyAny>>>>,
    told: Option<Vec<Episode>>,
) -> Option<Ended<'py>> {
    let is_told = mode == Mode::Disabled || finals.is_some() || told.is_some();
    (is_told && !ended.is_empty()).then_some((ended, finals, told))
}

/// Copies what was observed.
fn keep(kept: Option<&mut RowBlock>, seen: Rows<'_>) -> Result<(), windrow::envs::VecEnvError> {
    match kept {
        None => Ok(()),
        Some(kept) => {
            let copied = kept.rows_mut().copy_from(seen);
            copied.map_err(|error| EnvError::from(error).of(0))
        }
    }
}

/// Of `envs`, those whose episode has ended.
fn ends(outcomes: &Outcomes<'_>, envs: impl Iterator<Item = usize>) -> Vec<usize> {
    let flags = outcomes.terminated.iter().zip(&*outcomes.truncated);
    let ends = flags.map(|(terminated, truncated)| terminated | truncated);
    let ended = envs.zip(ends).filter(|&(_, ended)| ended);
    ended.map(|(env, _)| env).collect()
}

/// The observations that the next actions answer, one member after the other.
fn gather(received: &PoolOutput<'_>, obs: &mut RowsMut<'_>) -> Result<(), EnvError> {
    let mut place = 0;
    for answer in received.iter() {
        let root = answer.root();
        obs.copy_envs(place, root, 0..root.envs())?;
        place += root.envs();
    }
    Ok(())
}

/// New arrays of rows, leaf by leaf.
fn copies<'a, 'py>(
    py: Python<'py>,
    observed: &[Writer],
    rows: impl Iterator<Item = Option<Row<'a>>>,
) -> PyResult<Vec<Vec<Bound<'py, PyAny>>>> {
    let copy = |row: Option<Row<'a>>| {
        let row = Origin::One(row.ok_or_else(super::gym::no_row)?);
        observed.iter().map(|leaf| leaf.write(py, row)).collect()
    };
    let copied: Result<_, EnvError> = rows.map(copy).collect();
    copied.map_err(|error| to_py(py, &error))
}

#[cold]
fn closed() -> PyErr {
    PyRuntimeError::new_err("the vector of environments was closed: make another one")
}

impl Episodes {
    fn new(num_envs: usize, exact: Option<usize>) -> Self {
        Self {
            exact,
            returns: vec![0.0; num_envs],
            lengths: vec![0; num_envs],
            begun: vec![Instant::now(); num_envs],
            ended: vec![false; num_envs],
        }
    }

    /// Episodes begin.
    fn begin(&mut self, resets: &[Reset]) {
        let now = Instant::now();
        for reset in resets {
            if reset.env < self.returns.len() {
                self.begin_one(reset.env, now);
            }
        }
    }

    fn begin_one(&mut self, env: usize, now: Instant) {
        (self.returns[env], self.lengths[env]) = (0.0, 0);
        (self.begun[env], self.ended[env]) = (now, false);
    }

    /// The rewards of a step, of what was observed and the rounded ones.
    fn rewards<'a>(&self, rows: impl Iterator<Item = (Option<Row<'a>>, f32)>) -> Vec<f64> {
        let reward = |(row, rounded): (Option<Row<'a>>, f32)| {
            let exact = self.exact.zip(row);
            let exact = exact.and_then(|(leaf, row)| row.get(Key::<f64>::new(leaf)).ok());
            exact.map_or(f64::from(rounded), |exact| exact[0])
        };
        rows.map(reward).collect()
    }

    /// Counts a step of `envs`, and returns the episodes that have ended, if any.
    fn step(
        &mut self,
        mode: Mode,
        envs: impl Iterator<Item = usize>,
        outcomes: &Outcomes<'_>,
        rewards: &[f64],
    ) -> Option<Vec<Episode>> {
        let mut told = Vec::new();
        for (row, env) in (0..outcomes.reward.len()).zip(envs) {
            if self.ended[env] {
                self.begin_one(env, Instant::now());
                continue;
            }
            self.returns[env] += rewards[row];
            self.lengths[env] += 1;
            if outcomes.terminated[row] || outcomes.truncated[row] {
                let now = Instant::now();
                let seconds = now.duration_since(self.begun[env]).as_secs_f64();
                // To a microsecond, as Gymnasium's are.
                let seconds = (seconds * 1e6).round() / 1e6;
                told.push((self.returns[env], self.lengths[env], seconds));
                self.begin_one(env, now);
                self.ended[env] = mode == Mode::NextStep;
            }
        }
        (!told.is_empty()).then_some(told)
    }
}
