//! Environments that run free, behind `windrow.envs.AsyncEnvPool`: whoever waits gets the answers
//! that are there.
//!
//! Arrays go in and out, one for each leaf, with a leading dimension for the environments that are
//! told or received. A wait gives up the interpreter's lock and looks for signals.
//!
//! Three kinds of members meet here. Native environments share a few threads of the engine's. Those
//! that start a process of their own have a thread each, which waits for the process without the
//! interpreter's lock, so that they step side by side. Those of this process that are written in
//! Python have a thread each too and take turns at the lock; `windrow.envs` makes processes of them
//! where it can.
//!
//! Which call may follow which is the engine's to say (`windrow::envs::AsyncEnvPool`): it answers a
//! call out of order with an error that names the call that it expected, and this module only finds
//! the exception for it.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use tensordict::{DType, for_dtype};
use windrow::envs::{
    Answer, AsyncEnvPool, Command, EnvError, PoolError, PoolOutput, RecvOptions, VecEnv,
};
use windrow::{Key, LeafSpec, RowBlock, Rows, error_chain};
use windrow_sync::unpoisoned;

use super::describe::Description;
use super::foreign::{read_all, read_leaves};
use super::handle::{resets_of, to_py, vec_to_py};
use super::read::Leaf;
use super::recipe::{self, Made, Recipe};
use super::rows::Target;
use super::write::strings;
use crate::error::{finite_duration, raised_in};
use crate::factory_lock;
use crate::gc::GcRoots;
use crate::gil;
use crate::process::Own;

/// How long a shutdown waits for steps before it gives up waits for processes, which kills these.
const GRACE: Duration = Duration::from_millis(500);

/// A pool of environments, told and received by arrays.
#[pyclass(frozen, module = "windrow._windrow")]
pub(crate) struct EnvPool {
    pool: Own<AsyncEnvPool>,
    /// Whether a member has a dimension for its environments.
    is_batched: bool,
    /// Environments of each member.
    rows: usize,
    observation: Vec<LeafSpec>,
    acted: Vec<Leaf>,
    /// Where actions are read to before members take them.
    actions: Mutex<RowBlock>,
    /// The Python objects that the environments hold, for the garbage collector.
    roots: GcRoots,
}

/// Observations leaf by leaf; rewards; whether episodes were terminated; whether they were
/// truncated.
type Stepped<'py> = (
    Vec<Bound<'py, PyAny>>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
);
/// Members, what they have answered, and, where episodes have ended, the observations that follow.
type Answers<'py> = (Vec<usize>, Stepped<'py>, Option<Vec<Bound<'py, PyAny>>>);

#[pymethods]
impl EnvPool {
    /// Makes an environment of each of `envs`, `side_by_side` where they start processes. `threads`
    /// step native ones; others have a thread each.
    #[new]
    fn new(
        py: Python<'_>,
        envs: Vec<Bound<'_, PyAny>>,
        side_by_side: bool,
        threads: usize,
    ) -> PyResult<Self> {
        Self::made_of(py, envs, side_by_side, threads, Ok)
    }

    /// A [`Description`] of all environments, as a dictionary.
    fn describe(&self) -> PyResult<Description> {
        let pool = self.pool()?;
        Description::of(pool.spec(), pool.num_envs(), true)
    }

    /// Dimensions of a member: none, or one for its environments.
    fn member_shape(&self) -> Vec<usize> {
        self.is_batched.then_some(self.rows).into_iter().collect()
    }

    /// Has the environments `envs` begin an episode, each with its seed or None.
    fn reset_send(
        &self,
        py: Python<'_>,
        envs: Vec<usize>,
        seeds: Vec<Option<u64>>,
    ) -> PyResult<()> {
        let resets = resets_of(envs, seeds)?;
        let sent = self.settled(py)?.async_reset_send(&resets);
        sent.map_err(|error| raise(py, &error))
    }

    /// Has `members` step by the first rows of `actions`, arrays for all environments; those that
    /// end begin another episode if `reset`.
    ///
    /// Actions are read under the interpreter's lock into rows of this pool, all of them before the
    /// first member is told: an array of the wrong shape or type leaves no member stepping. The
    /// engine then copies each row to its member.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "Python's sequence becomes a vector"
    )]
    pub(super) fn step_send(
        &self,
        py: Python<'_>,
        members: Vec<usize>,
        actions: &Bound<'_, PyAny>,
        reset: bool,
    ) -> PyResult<()> {
        let pool = self.settled(py)?;
        let mut rows = unpoisoned(self.actions.lock());
        read_all(&self.acted, actions, &mut Target::All(rows.rows_mut()))
            .map_err(|error| to_py(py, &error))?;
        let fill = |place: usize, mut to: windrow::RowsMut<'_>| {
            let own = place * self.rows..(place + 1) * self.rows;
            Ok(to.copy_envs(0, rows.rows(), own)?)
        };
        let sent = match reset {
            true => pool.async_step_and_maybe_reset_send_with(&members, fill),
            false => pool.async_step_send_with(&members, fill),
        };
        sent.map_err(|error| raise(py, &error))
    }

    /// The answers to the command `called`: of `min` members or more, or of the one called `env`.
    #[pyo3(signature = (called, min, max=None, env=None, timeout=None))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        called: &str,
        min: usize,
        max: Option<usize>,
        env: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Answers<'py>> {
        let mut want = env.map_or(RecvOptions::at_least(min), RecvOptions::of);
        if let (Some(max), None) = (max, env) {
            want = want.at_most(max);
        }
        if let Some(seconds) = timeout {
            want = want.within(finite_duration("timeout", seconds)?);
        }
        let called = command(called)?;
        self.answers(py, called, |pool| pool.receive(called, want))
    }

    /// As `recv`, for all members that were told `called`. After a fault, nothing is left to be
    /// received. After Ctrl-C, the next command waits for what is left and drops it.
    fn recv_all<'py>(&self, py: Python<'py>, called: &str) -> PyResult<Answers<'py>> {
        let called = command(called)?;
        self.answers(py, called, |pool| pool.receive_all(called))
    }

    /// Resets the environments `envs`, each with its seed or None, and returns the observations of
    /// all, as `EnvHandle.reset` does.
    fn reset<'py>(
        &self,
        py: Python<'py>,
        envs: Vec<usize>,
        seeds: Vec<Option<u64>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let pool = self.settled(py)?;
        let all = || pool.all().map_err(|error| raise(py, &error));
        // None but these will answer.
        drop(all()?);
        if !envs.is_empty() {
            self.reset_send(py, envs, seeds)?;
            self.recv_all(py, "async_reset")?;
        }
        self.gathered(py, &all()?, |answer| answer.root())
    }

    /// Steps all environments by `actions`, an array for each leaf, as `EnvHandle.step` does.
    fn step<'py>(&self, py: Python<'py>, actions: &Bound<'py, PyAny>) -> PyResult<Stepped<'py>> {
        let members = (0..self.pool()?.members()).collect();
        self.step_send(py, members, actions, false)?;
        Ok(self.recv_all(py, "async_step")?.1)
    }

    /// Ends the threads, which close the environments, and waits for that.
    pub(super) fn shutdown(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let Some(pool) = self.pool.here() else {
            return Ok(());
        };
        let patience = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let begin = Instant::now();
        let ended = gil::wait(py, |slice| self.end(pool, begin, slice, patience))?;
        ended.map_err(|error| raise(py, &error))
    }

    /// As `shutdown`, without errors: whether all threads have ended within `seconds`.
    fn leave(&self, py: Python<'_>, seconds: f64) -> bool {
        let Some(pool) = self.pool.here() else {
            return true;
        };
        let patience = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let begin = Instant::now();
        let end = || loop {
            if let Some(ended) = self.end(pool, begin, gil::SLICE, patience) {
                return ended.is_ok();
            }
        };
        py.detach(|| factory_lock::lending(end))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.traverse(&visit)
    }
}

impl EnvPool {
    /// As the constructor, with each member `around` what was made.
    pub(super) fn made_of(
        py: Python<'_>,
        envs: Vec<Bound<'_, PyAny>>,
        side_by_side: bool,
        threads: usize,
        around: impl Fn(Box<dyn VecEnv>) -> Result<Box<dyn VecEnv>, EnvError>,
    ) -> PyResult<Self> {
        let roots = GcRoots::default();
        let recipes = envs.into_iter();
        let recipes = recipes.map(|env| Recipe::of(&env, None, &roots));
        let recipes = recipes.collect::<PyResult<Vec<_>>>()?;
        let made = match side_by_side {
            true => make_side_by_side(py, recipes, &roots)?,
            false => recipes
                .iter()
                .map(|recipe| recipe::prepare(recipe, &roots, true))
                .collect(),
        };
        let made = made.into_iter().enumerate();
        let made = made.map(|(env, made)| made.map_err(|error| PoolError::Env(error.of(env))));
        let made = made.collect::<Result<Vec<_>, _>>();
        let made = made.map_err(|error| raise(py, &error))?;
        let is_batched = made.first().is_some_and(|made| match made.waits {
            // What a process has is known by its number alone.
            true => made.envs.num_envs() > 1,
            false => made.is_batched,
        });
        let own = made.iter().any(|made| made.is_python || made.waits);
        let envs = made.into_iter().map(|made| around(made.envs));
        let envs = envs.collect::<Result<Vec<_>, _>>();
        let envs = envs.map_err(|error| to_py(py, &error))?;
        let threads = if own { envs.len() } else { threads };
        let pool = AsyncEnvPool::new(envs, threads).map_err(|error| raise(py, &error))?;
        let pool = pool.interrupt(gil::interrupt(py)?);
        let (spec, num_envs) = (pool.spec(), pool.num_envs());
        let action = spec.action_leaves();
        let actions = RowBlock::new(&action, num_envs).map_err(|error| to_py(py, &error.into()))?;
        Ok(Self {
            is_batched,
            rows: num_envs / pool.members(),
            observation: spec.observation_leaves(),
            acted: read_leaves(&action, "action", &spec.id),
            actions: Mutex::new(actions),
            pool: Own::new(pool),
            roots,
        })
    }

    /// Visits the Python objects that the environments hold.
    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.roots.traverse(visit)
    }

    /// The pool, in the process that made it.
    pub(super) fn pool(&self) -> PyResult<&AsyncEnvPool> {
        self.pool.get("pool of environments")
    }

    /// The pool, once all outputs of a call that was interrupted are dropped. Waits for them
    /// without the interpreter's lock, which the environments may need.
    fn settled(&self, py: Python<'_>) -> PyResult<&AsyncEnvPool> {
        let pool = self.pool()?;
        if pool.interrupted().is_some() {
            let dropped = py.detach(|| factory_lock::lending(|| pool.drop_interrupted()));
            dropped.map_err(|error| raise(py, &error))?;
        }
        Ok(pool)
    }

    /// Waits by `receive`, and makes arrays of what is received.
    fn answers<'py>(
        &self,
        py: Python<'py>,
        called: Command,
        receive: impl FnOnce(&AsyncEnvPool) -> Result<PoolOutput<'_>, PoolError> + Send,
    ) -> PyResult<Answers<'py>> {
        let pool = self.pool()?;
        let received = py.detach(|| factory_lock::lending(|| receive(pool)));
        let received = received.map_err(|error| raise(py, &error))?;
        let ends = |answer: Answer<'_>| {
            let flags = [answer.terminated(), answer.truncated()];
            flags.iter().any(|flags| flags.contains(&true))
        };
        let stepped = (
            self.gathered(py, &received, |answer| answer.observation())?,
            joined(py, &received, |answer| answer.reward()),
            joined(py, &received, |answer| answer.terminated()),
            joined(py, &received, |answer| answer.truncated()),
        );
        let has_begun = called == Command::StepAndMaybeReset && received.iter().any(ends);
        let root = has_begun.then(|| self.gathered(py, &received, |answer| answer.root()));
        let members = received.iter().map(|answer| answer.env()).collect();
        Ok((members, stepped, root.transpose()?))
    }

    /// An array for each leaf of observations.
    fn gathered<'py>(
        &self,
        py: Python<'py>,
        received: &PoolOutput<'_>,
        rows: for<'a> fn(&Answer<'a>) -> Rows<'a>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let array = |(index, leaf): (usize, &LeafSpec)| {
            let lead = received.len() * self.rows;
            if leaf.dtype == DType::Bytes {
                let mut all = Vec::new();
                for answer in received.iter() {
                    let rows = rows(&answer).strings(Key::new(index));
                    all.extend(rows.map_err(|error| to_py(py, &error.into()))?);
                }
                return Ok(strings(py, all)?.into_any());
            }
            for_dtype!(leaf.dtype, T => {
                let mut all = Vec::with_capacity(lead * leaf.elements());
                for answer in received.iter() {
                    let rows = rows(&answer).get(Key::<T>::new(index));
                    all.extend_from_slice(rows.map_err(|error| to_py(py, &error.into()))?);
                }
                let shape = [&[lead], leaf.shape.as_slice()].concat();
                Ok(PyArray1::from_vec(py, all).reshape(shape)?.into_any())
            })
        };
        self.observation.iter().enumerate().map(array).collect()
    }

    /// Waits a `slice` for the end that began at `begin`; `None` while it is to be waited for
    /// further.
    fn end(
        &self,
        pool: &AsyncEnvPool,
        begin: Instant,
        slice: Duration,
        patience: Duration,
    ) -> Option<Result<(), PoolError>> {
        let past = begin.elapsed();
        if past >= GRACE.min(patience) {
            // Processes in the middle of a step are killed.
            self.roots.abandon();
        }
        // Even when the time is used up, threads that end at once have the chance to.
        let left = patience.saturating_sub(past).max(slice.min(GRACE));
        match pool.shutdown(left.min(slice)) {
            Err(PoolError::Stuck { .. }) if past < patience => None,
            Err(PoolError::Stuck { envs, .. }) => {
                let timeout = patience;
                Some(Err(PoolError::Stuck { envs, timeout }))
            }
            ended => Some(ended),
        }
    }
}

impl Drop for EnvPool {
    fn drop(&mut self) {
        let left = Python::try_attach(|py| self.leave(py, AsyncEnvPool::PATIENCE.as_secs_f64()));
        if let (None, Some(pool)) = (left, self.pool.here()) {
            // Without an interpreter, threads cannot return from Python: they are left to the end
            // of the process.
            let _ = pool.shutdown(Duration::ZERO);
        }
    }
}

/// One array of what each answer has.
fn joined<'py, T: numpy::Element + Copy>(
    py: Python<'py>,
    received: &PoolOutput<'_>,
    values: for<'a> fn(&Answer<'a>) -> &'a [T],
) -> Bound<'py, PyAny> {
    let each: Vec<_> = received.iter().collect();
    let all: Vec<T> = each
        .iter()
        .flat_map(|answer| values(answer).iter().copied())
        .collect();
    PyArray1::from_vec(py, all).into_any()
}

/// The command that Python's calls begin with.
fn command(called: &str) -> PyResult<Command> {
    let all = [Command::Reset, Command::Step, Command::StepAndMaybeReset];
    let found = all
        .into_iter()
        .find(|command| command.to_string() == called);
    found.ok_or_else(|| PyValueError::new_err(format!("no command is called {called:?}")))
}

/// Makes all environments at the same time, each in a thread: those that start processes wait for
/// them.
fn make_side_by_side(
    py: Python<'_>,
    recipes: Vec<Recipe>,
    roots: &GcRoots,
) -> PyResult<Vec<Result<Made, EnvError>>> {
    let held = roots.clone();
    let make_all = move || {
        thread::scope(|scope| {
            let held = &held;
            let make = |recipe: &'_ Recipe| recipe::prepare(recipe, held, true);
            let start = |recipe| scope.spawn(move || make(recipe));
            let making: Vec<_> = recipes.iter().map(start).collect();
            let panicked = |_| Err(EnvError::Foreign("panicked while it was made".into()));
            let made = making.into_iter();
            made.map(|made| made.join().unwrap_or_else(panicked))
                .collect()
        })
    };
    // After Ctrl-C, what still waits for its process is given up.
    gil::wait_for_thread(py, "windrow-pool", make_all).inspect_err(|_| roots.abandon())
}

/// `error` as an exception: the one that an environment raised, with a note that names it, or the
/// built-in one that fits.
pub(super) fn raise(py: Python<'_>, error: &PoolError) -> PyErr {
    let message = || error_chain(error);
    match error {
        PoolError::Env(fault) => {
            let told = vec_to_py(py, fault);
            if raised_in(py, fault).is_some() {
                let note = format!("It was raised by environment {} of a pool.", fault.env);
                // An exception without notes is as good.
                let _ = told
                    .value(py)
                    .call_method1(intern!(py, "add_note"), (note,));
            }
            told
        }
        PoolError::Unmade(error) => to_py(py, error),
        PoolError::Interrupted(error) => {
            raised_in(py, error).unwrap_or_else(|| PyRuntimeError::new_err(message()))
        }
        PoolError::TimedOut { .. } => PyTimeoutError::new_err(message()),
        PoolError::Repeated { .. }
        | PoolError::NoSuchEnv { .. }
        | PoolError::Bounds { .. }
        | PoolError::Rows { .. }
        | PoolError::Unequal { .. } => PyValueError::new_err(message()),
        _ => PyRuntimeError::new_err(message()),
    }
}
