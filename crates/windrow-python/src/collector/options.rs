//! From the arguments of Python to a builder.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use windrow::env::{EnvError, EnvFactory, InitTracker, VecEnv};
use windrow::tensordict::NestedKey;
use windrow::{
    CatResults, Collector, CollectorBuilder, ExplorationType, MultiCollector, OnLoss, Placement,
    TrajFormat,
};

use super::stage::Target;
use crate::keep::Keeper;
use crate::policy::{Actor, Rows, Terms};
use crate::replay::ReplayBufferCore;
use crate::{env, error, gil};

/// What the classes of `windrow.collectors` have made of their arguments.
pub(super) struct Options<'py> {
    /// Whether each batch waits for all workers.
    sync: bool,
    threads: bool,
    envs: Vec<Bound<'py, PyAny>>,
    env_kwargs: Vec<Option<Bound<'py, PyDict>>>,
    num_workers: Option<usize>,
    num_envs: Option<usize>,
    policy: Bound<'py, PyAny>,
    frames_per_batch: Option<usize>,
    frames_per_worker: Option<Vec<usize>>,
    total_frames: Option<u64>,
    allow_partial_batch: bool,
    max_frames_per_traj: Option<usize>,
    init_random_frames: u64,
    exploration_type: String,
    seed: Option<u64>,
    noise_seed: Option<u64>,
    reset_at_each_iter: bool,
    set_truncated: bool,
    track_traj_ids: bool,
    track_policy_version: bool,
    cat_results: String,
    preemptive_threshold: Option<f64>,
    trajs_per_batch: Option<usize>,
    trajs_per_write: Option<usize>,
    replay_buffer: Option<Bound<'py, ReplayBufferCore>>,
    takes_writes: bool,
    traj_format: String,
    split_trajs: bool,
    on_loss: Bound<'py, PyAny>,
    /// What batches say that they are on.
    device: Option<Py<PyAny>>,
}

impl<'a, 'py> FromPyObject<'a, 'py> for Options<'py> {
    type Error = PyErr;

    fn extract(options: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let given = Given(options.cast::<PyDict>()?.to_owned());
        Ok(Self {
            sync: given.read("sync")?,
            threads: given.read("threads")?,
            envs: given.read("envs")?,
            env_kwargs: given.read("env_kwargs")?,
            num_workers: given.number("num_workers")?,
            num_envs: given.number("num_envs")?,
            policy: given.read("policy")?,
            frames_per_batch: given.number("frames_per_batch")?,
            frames_per_worker: given.read("frames_per_worker")?,
            total_frames: given.number("total_frames")?,
            allow_partial_batch: given.read("allow_partial_batch")?,
            max_frames_per_traj: given.number("max_frames_per_traj")?,
            init_random_frames: given.number("init_random_frames")?.unwrap_or(0),
            exploration_type: given.read("exploration_type")?,
            seed: given.number("seed")?,
            noise_seed: given.read("noise_seed")?,
            reset_at_each_iter: given.read("reset_at_each_iter")?,
            set_truncated: given.read("set_truncated")?,
            track_traj_ids: given.read("track_traj_ids")?,
            track_policy_version: given.read("track_policy_version")?,
            cat_results: given.read("cat_results")?,
            preemptive_threshold: given.read("preemptive_threshold")?,
            trajs_per_batch: given.number("trajs_per_batch")?,
            trajs_per_write: given.number("trajs_per_write")?,
            replay_buffer: given.read("replay_buffer")?,
            takes_writes: given.read("takes_writes")?,
            traj_format: given.read("traj_format")?,
            split_trajs: given.read("split_trajs")?,
            on_loss: given.read("on_loss")?,
            device: given.read("device")?,
        })
    }
}

/// The arguments by name.
struct Given<'py>(Bound<'py, PyDict>);

impl<'py> Given<'py> {
    fn get(&self, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let value = self.0.get_item(name)?;
        value.ok_or_else(|| PyTypeError::new_err(format!("{name} is missing")))
    }

    /// The argument `name`.
    ///
    /// # Errors
    /// `TypeError` naming the argument, what came and what is wrong with it.
    fn read<T>(&self, name: &str) -> PyResult<T>
    where
        T: for<'a> FromPyObject<'a, 'py>,
    {
        let value = self.get(name)?;
        value
            .extract::<T>()
            .map_err(Into::into)
            .map_err(|error: PyErr| {
                let why = error.value(value.py());
                PyTypeError::new_err(format!("{name} cannot be {value:?}: {why}"))
            })
    }

    /// The whole number `name`, of Python, numpy or torch, if it is given.
    ///
    /// # Errors
    /// `TypeError` for anything else, `ValueError` for a negative number or one that is too large; both name the argument.
    fn number<T: TryFrom<u64>>(&self, name: &str) -> PyResult<Option<T>> {
        let value = self.get(name)?;
        if value.is_none() {
            return Ok(None);
        }
        let index = match value.is_instance_of::<PyBool>() {
            true => None,
            false => index(&value).ok(),
        };
        let Some(index) = index else {
            return Err(PyTypeError::new_err(format!(
                "{name} must be a whole number, got {value:?}"
            )));
        };
        let number = index.extract::<u64>().ok();
        match number.and_then(|number| T::try_from(number).ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(PyValueError::new_err(format!(
                "{name} must be a whole number from 0 to {}, got {value:?}",
                u64::MAX
            ))),
        }
    }
}

/// `value` as Python uses it as an index.
fn index<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let operator = value.py().import("operator")?;
    operator.call_method1("index", (value,))
}

impl Options<'_> {
    /// Whether workers run in threads of their own.
    pub(super) fn threads(&self) -> bool {
        self.threads
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

    /// What policies are told.
    pub(super) fn terms(&self) -> Terms {
        Terms::new(self.is_batched(), !self.threads)
    }

    /// Whether batches have a dimension for the environments even if there is one.
    fn is_batched(&self) -> bool {
        let asked = |env| env::is_batched(env).unwrap_or(false);
        // What is wrong with an environment is said when it is made.
        self.num_envs.is_some() || self.envs.iter().any(asked)
    }

    /// The builder that does as these options say; `keeper` knows what it holds of Python's.
    ///
    /// # Errors
    /// Whatever is wrong with an environment, the policy or a name.
    pub(super) fn builder(
        self,
        terms: &Terms,
        target: &Target,
        keeper: &Keeper,
    ) -> PyResult<CollectorBuilder> {
        let actor = Actor::new(&self.policy, terms, keeper)?;
        let makers = self.makers(&actor, &terms.rows, keeper)?;
        let exploration = exploration_type(&self.exploration_type)?;
        let mut builder = match makers.first() {
            Some(first) if self.sync && !self.threads => Collector::builder(first.clone()),
            Some(first) => MultiCollector::builder(first.clone(), self.sync),
            None => return Err(PyValueError::new_err("expected an environment, got none")),
        };
        if makers.len() > 1 {
            builder = builder.worker_envs(makers);
        }
        builder = builder
            .placement(match self.threads {
                true => Placement::Threads,
                false => Placement::Inline,
            })
            .partial_last_batch(self.allow_partial_batch)
            .round_up(true)
            .init_random_frames(self.init_random_frames)
            .exploration_type(exploration)
            .reset_at_each_iter(self.reset_at_each_iter)
            .set_truncated(self.set_truncated)
            .track_traj_ids(self.track_traj_ids)
            .track_policy_version(self.track_policy_version)
            // Batches are objects like others: how many are kept is up to whoever keeps them.
            .max_slabs(usize::MAX)
            .cat_results(cat_results(&self.cat_results)?)
            .traj_format(traj_format(&self.traj_format)?)
            .split_trajs(self.split_trajs)
            .on_loss(on_loss(&self.on_loss)?)
            .interruptions(error::tells_of_interruption);
        builder = self.numbers(builder);
        if let Some(sink) = target.sink() {
            builder = builder.replay_buffer(sink);
        }
        Ok(actor.act_in(builder, terms.clone()))
    }

    /// The numbers that may be left out.
    fn numbers(&self, mut builder: CollectorBuilder) -> CollectorBuilder {
        if let Some(workers) = self.num_workers {
            builder = builder.num_workers(workers);
        }
        if let Some(seed) = self.noise_seed {
            builder = builder.noise_seed(seed);
        }
        if self.is_batched() {
            builder = builder.num_envs(self.num_envs.unwrap_or(1));
        }
        if let Some(frames) = self.frames_per_batch {
            builder = builder.frames_per_batch(frames);
        }
        if let Some(frames) = &self.frames_per_worker {
            builder = builder.frames_per_worker(frames.iter().copied());
        }
        if let Some(frames) = self.total_frames {
            builder = builder.total_frames(frames);
        }
        if let Some(frames) = self.max_frames_per_traj {
            builder = builder.max_frames_per_traj(frames);
        }
        if let Some(seed) = self.seed {
            builder = builder.seed(seed);
        }
        if let Some(fraction) = self.preemptive_threshold {
            builder = builder.preemptive_threshold(fraction);
        }
        if let Some(trajectories) = self.trajs_per_batch {
            builder = builder.trajs_per_batch(trajectories);
        }
        if let Some(trajectories) = self.trajs_per_write {
            builder = builder.trajs_per_write(trajectories);
        }
        builder
    }

    fn makers(&self, actor: &Actor, rows: &Rows, keeper: &Keeper) -> PyResult<Vec<Noted>> {
        self.envs
            .iter()
            .zip(self.env_kwargs.iter().cycle())
            .map(|(env, kwargs)| Noted::new(env, kwargs.as_ref(), actor, rows, keeper))
            .collect()
    }
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

fn cat_results(name: &str) -> PyResult<CatResults> {
    Ok(match name {
        "stack" => CatResults::Stack,
        "0" => CatResults::Flat,
        "-1" => CatResults::Time,
        _ => {
            return Err(PyValueError::new_err(format!(
                "cat_results must be \"stack\", 0 or -1, got {name}"
            )));
        }
    })
}

fn traj_format(name: &str) -> PyResult<TrajFormat> {
    Ok(match name {
        "padded" => TrajFormat::Padded,
        "cat" => TrajFormat::Cat,
        _ => {
            return Err(PyValueError::new_err(format!(
                "traj_format must be \"padded\" or \"cat\", got {name:?}"
            )));
        }
    })
}

/// `"raise"`, `"continue"`, or how often a worker may be replaced.
fn on_loss(chosen: &Bound<'_, PyAny>) -> PyResult<OnLoss> {
    if let Ok(budget) = chosen.extract::<usize>() {
        return Ok(OnLoss::Restart { budget });
    }
    let name: String = chosen.extract().map_err(|_| {
        PyTypeError::new_err(format!(
            "on_loss must be \"raise\", \"continue\" or a number of restarts, got {chosen:?}"
        ))
    })?;
    match name.as_str() {
        "raise" => Ok(OnLoss::Raise),
        "continue" => Ok(OnLoss::Continue),
        _ => Err(PyValueError::new_err(format!(
            "on_loss must be \"raise\", \"continue\" or a number of restarts, got {name:?}"
        ))),
    }
}
