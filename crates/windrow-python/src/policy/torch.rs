//! A module that torch evaluates, or any other function of Python, as a policy.
//!
//! The Python side is an object with `windrow.policies.torch_policy.TorchPolicy`'s methods. Each
//! worker has one, with its own copy of the module where workers run in threads. `bind` calls the
//! module once, to learn what it writes. From then on `act` passes tensors of the observations in a
//! fixed order, and gets a tuple of tensors back.
//!
//! `bind`, `act` and `load` run in the worker's thread; the reference's `check` and `weights` run
//! in the thread that publishes or asks for weights. Each call takes the interpreter's lock, so the
//! policies of several threads take turns, except where torch gives the lock up.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use tensordict::{DType, Tensor, for_dtype};
use windrow::envs::{EnvError, EnvSpec, StateVisitor};
use windrow::policy::EnvRows;
use windrow::policy::KnownRows;
use windrow::policy::{
    Backend, Binding, Policy, PolicyError, PolicyIn, PolicySpec, States, Weights,
};
use windrow::tensordict::NestedKey;
use windrow::{Key, LeafSpec, Rows, RowsMut, error_chain};

use super::Makers;
use super::columns::Column;
use crate::env::{Key as EnvKey, examples_of};
use crate::gc::{GcRef, GcRoots};
use crate::gil::{self, attach};
use crate::{batch, process};

/// Calls an object of `windrow._ports.PolicyPort`'s protocol.
pub(super) struct TorchPolicy {
    makers: Makers,
    /// The number of the worker that it acts for.
    worker: usize,
    /// Set by `bind`. A reference policy is never bound; it only checks and returns weights.
    bound: Option<Known>,
}

/// A policy that is bound: its Python object, and the columns that it reads and writes.
struct Known {
    object: GcRef,
    /// The object's method, looked up once.
    act: GcRef,
    /// Holds exceptions that the policy raises.
    roots: GcRoots,
    /// The observations that the object gets, each with its number among those of the environment.
    /// Rewards are left out.
    leaves: Vec<(usize, LeafSpec)>,
    /// Dimensions before those of a leaf: the rows of the present call, or none for one environment
    /// alone.
    batch: Vec<usize>,
    /// The actions, then everything else that the policy writes.
    columns: Vec<Column>,
    /// Whether the object has a state for each row, and so gets a flag for each row that begins an
    /// episode.
    wants_first: bool,
    /// Whether the object keeps its states by place, and so gets the place of each row.
    wants_places: bool,
    known: KnownRows,
    /// In a worker process, the frame up to which the present seed of torch's generator holds.
    seeded_to: Option<u64>,
}

impl TorchPolicy {
    pub(super) fn new(makers: Makers, worker: usize) -> Self {
        Self {
            makers,
            worker,
            bound: None,
        }
    }

    /// The Python object, which is made at the first use.
    fn object(&self, py: Python<'_>) -> PyResult<GcRef> {
        match &self.bound {
            Some(bound) => Ok(bound.object.clone()),
            None => self.makers.get(py, self.worker),
        }
    }

    /// The result of a call, or the exception as an error of the policy.
    fn checked<T>(&self, py: Python<'_>, called: PyResult<T>) -> Result<T, PolicyError> {
        called.map_err(|raised| PolicyError::failed(self.makers.roots.raised(py, raised)))
    }

    /// Calls the object's `method` with `weights`.
    fn call_with(&self, method: &str, weights: &Weights) -> Result<(), PolicyError> {
        attach(|py| {
            let call = || {
                let weights = batch::weights_to_python(py, weights)?;
                let object = self.object(py)?;
                gil::call_method(object.bind(py), method, (weights,)).map(drop)
            };
            self.checked(py, call())
        })
    }

    /// Calls the policy once with first observations. Only a call shows which entries it writes,
    /// and their shapes and element types. Actions that do not fit the environment are an error
    /// now, before anything is collected.
    fn probe(&self, py: Python<'_>, binding: &Binding<'_>) -> PyResult<Known> {
        let object = self.makers.get(py, self.worker)?;
        let env = binding.spec;
        let are_all = env.dimensions.iter().product::<usize>() == binding.num_envs;
        let batch = match binding.batched {
            true if are_all && !env.dimensions.is_empty() => env.dimensions.clone(),
            true => vec![binding.num_envs],
            false => Vec::new(),
        };
        let left_out = left_out(object.bind(py), env)?;
        let observed = env.observation_leaves().into_iter().enumerate();
        let leaves: Vec<_> = observed
            .filter(|(_, leaf)| !(env.rewards.contains(&leaf.key) || left_out.contains(&leaf.key)))
            .collect();
        let inputs = PyDict::new(py);
        for (index, leaf) in &leaves {
            let example = example(binding.first_rows, *index, leaf, &batch);
            let example = example.map_err(|error| PyTypeError::new_err(error_chain(&error)))?;
            let key = batch::key_to_python(py, &leaf.key)?;
            inputs.set_item(key, batch::as_input(py, example)?)?;
        }
        let actions = env.action.leaves("action");
        let keys = actions
            .iter()
            .map(|(key, _)| batch::key_to_python(py, key))
            .collect::<PyResult<Vec<_>>>()?;
        let groups = groups(py, env, &batch)?;
        let arguments = (inputs, keys, &batch, groups, examples_of(env));
        let found = gil::call(&object.bind(py).getattr("bind")?, arguments, None)?;
        let found: Vec<(Vec<String>, Bound<'_, PyAny>)> = found.extract()?;
        let mut columns = Vec::new();
        let leaves_of_actions = env.action_leaves();
        for ((leaf, (_, spec)), (_, value)) in leaves_of_actions.iter().zip(&actions).zip(&found) {
            let value = output(&leaf.key, value)?;
            let column = Column::of_action(env.column_for(leaf, value.dtype()), spec);
            let fits = column.check(&value, &batch);
            fits.map_err(|error| PyValueError::new_err(error_chain(&error)))?;
            warn_of_cast(py, &column, value.dtype())?;
            columns.push(column);
        }
        for (names, value) in &found[columns.len()..] {
            columns.push(extra_column(names, value, &batch)?);
        }
        let wants = |name: &str| -> PyResult<bool> { object.getattr(py, name)?.extract(py) };
        let (wants_first, wants_places) = (wants("wants_first")?, wants("wants_places")?);
        Ok(Known {
            roots: self.makers.roots.clone(),
            act: self
                .makers
                .roots
                .hold(object.bind(py).getattr("act")?.as_any()),
            object,
            leaves,
            batch,
            columns,
            wants_first,
            wants_places,
            known: KnownRows::default(),
            seeded_to: process::is_worker().then_some(u64::MAX),
        })
    }
}

/// The entries of `info` that the policy behind `object` does not get.
fn left_out(object: &Bound<'_, PyAny>, env: &EnvSpec) -> PyResult<Vec<NestedKey>> {
    if env.info.is_empty() {
        return Ok(Vec::new());
    }
    let py = object.py();
    let of_python = |key: &NestedKey| batch::key_to_python(py, key);
    let observed = env.observation_leaves();
    let observed = observed.iter().map(|leaf| of_python(&leaf.key));
    let arguments = (
        object.getattr("policy")?,
        object.getattr("conditions")?.getattr("trust")?,
        observed.collect::<PyResult<Vec<_>>>()?,
        env.info
            .iter()
            .map(of_python)
            .collect::<PyResult<Vec<_>>>()?,
    );
    let ports = gil::ports(py)?;
    let kept: Vec<EnvKey> = gil::call_method(&ports, "read_by", arguments)?.extract()?;
    let is_kept = |key: &&NestedKey| kept.iter().any(|one| one.0 == **key);
    Ok(env
        .info
        .iter()
        .filter(|key| !is_kept(key))
        .cloned()
        .collect())
}

/// Warns of an action that is written as floats, where the environment takes integers.
fn warn_of_cast(py: Python<'_>, column: &Column, dtype: DType) -> PyResult<()> {
    if !column.needs_whole(dtype) {
        return Ok(());
    }
    let (key, leaf) = (&column.leaf.key, column.leaf.dtype);
    let told = format!(
        "the policy writes {key:?} as {dtype}, the environment takes {leaf}: whole numbers are cast, others are an error"
    );
    gil::warn(py, &told)
}

/// An observation to try a policy with: the first one, since zeros may be invalid, as a mask that
/// allows no action; zeros where no episode could be begun.
fn example(
    first: Option<Rows<'_>>,
    index: usize,
    leaf: &LeafSpec,
    batch: &[usize],
) -> Result<Tensor, PolicyError> {
    match first {
        Some(first) => observations(first, index, leaf, batch),
        None => {
            Tensor::zeros(leaf.dtype, [batch, &leaf.shape].concat()).map_err(PolicyError::failed)
        }
    }
}

/// Groups of observations, with the dimensions of a batch of them.
fn groups<'py>(
    py: Python<'py>,
    env: &EnvSpec,
    batch: &[usize],
) -> PyResult<Vec<(Bound<'py, PyAny>, Vec<usize>)>> {
    let observed = env.observation_leaves();
    let groups = env.groups.iter();
    groups
        .filter(|(key, _)| observed.iter().any(|leaf| leaf.key.overlaps(key)))
        .map(|(key, own)| Ok((batch::key_to_python(py, key)?, [batch, own].concat())))
        .collect()
}

/// The column for something that a policy writes beside its action.
fn extra_column(names: &[String], value: &Bound<'_, PyAny>, batch: &[usize]) -> PyResult<Column> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let key = NestedKey::from(names.as_slice());
    let value = output(&key, value)?;
    let Some(shape) = value.shape().strip_prefix(batch) else {
        return Err(PyTypeError::new_err(format!(
            "the policy's output {key:?} has shape {:?}: expected it to begin with {batch:?}, the shape of the batch that it \
             was given",
            value.shape()
        )));
    };
    Ok(Column::extra(LeafSpec::new(key, value.dtype(), shape)))
}

impl Known {
    /// One step: passes the observations and writes the outputs to `out`.
    ///
    /// # Errors
    /// The exception that the policy raises; [`PolicyError::Failed`] for outputs of another number,
    /// shape or element type than at first.
    fn act(
        &mut self,
        py: Python<'_>,
        input: &PolicyIn<'_>,
        mut out: RowsMut<'_>,
    ) -> Result<(), PolicyError> {
        let seeded = self.seed(py, input.envs);
        seeded.map_err(|raised| PolicyError::failed(self.roots.raised(py, raised)))?;
        // Where the policy is served, each call has another number of rows.
        if let [rows] = &mut self.batch[..] {
            *rows = out.envs();
        }
        let mut arguments = Vec::with_capacity(self.leaves.len() + 1);
        for (index, leaf) in &self.leaves {
            let rows = observations(input.obs, *index, leaf, &self.batch)?;
            arguments.push(batch::as_input(py, rows).map_err(PolicyError::failed)?);
        }
        if self.wants_first {
            let first = Tensor::from_slice(self.known.begins(input.envs), &self.batch);
            let first = first.map_err(PolicyError::failed)?;
            arguments.push(batch::to_torch(py, first).map_err(PolicyError::failed)?);
        }
        if self.wants_places {
            let places = (0..out.envs()).map(|row| input.envs.place(row) as i64);
            let places = Tensor::from_slice(&places.collect::<Vec<_>>(), &self.batch);
            let places = places.map_err(PolicyError::failed)?;
            arguments.push(batch::to_torch(py, places).map_err(PolicyError::failed)?);
        }
        let called = self.call(py, arguments);
        let values = called.map_err(|raised| PolicyError::failed(self.roots.raised(py, raised)))?;
        if values.len() != self.columns.len() {
            return Err(PolicyError::failed(format!(
                "expected {} outputs, as when it was first called, got {}",
                self.columns.len(),
                values.len()
            )));
        }
        for (index, (column, value)) in self.columns.iter().zip(values.iter()).enumerate() {
            let value = output(&column.leaf.key, &value).map_err(PolicyError::failed)?;
            column.write(&value, &self.batch, index, &mut out)?;
        }
        if self.wants_first {
            self.known.keep(input.envs);
        }
        Ok(())
    }

    /// Seeds torch's generator in a worker process, where frames do not go on from those before: at
    /// the start, after a seed, and where the worker has taken the place of a lost one. Each worker
    /// gets a seed of its own.
    fn seed(&mut self, py: Python<'_>, envs: &EnvRows) -> PyResult<()> {
        let (Some(seeded_to), Some(&frame)) = (&mut self.seeded_to, envs.frames().first()) else {
            return Ok(());
        };
        let goes_on = *seeded_to == frame;
        *seeded_to = frame + 1;
        match goes_on {
            true => Ok(()),
            false => seed_torch(py, envs.noise(0).bits()).map(drop),
        }
    }

    /// Saves or loads what the object remembers of each row, and torch's generator in a worker
    /// process.
    fn visit_state(
        &mut self,
        py: Python<'_>,
        state: &mut StateVisitor<'_>,
    ) -> Result<(), EnvError> {
        self.known.visit_state(state)?;
        state.value(&mut self.seeded_to)?;
        let is_worker = self.seeded_to.is_some();
        let failed = |raised: PyErr| EnvError::failed(self.roots.raised(py, raised));
        let object = self.object.bind(py);
        let mut bytes = Vec::new();
        if !state.is_loading() {
            let saved = gil::call_method(object, "state", (is_worker,)).map_err(failed)?;
            bytes = saved.extract().map_err(failed)?;
        }
        state.value(&mut bytes)?;
        if state.is_loading() {
            let bytes = PyBytes::new(py, &bytes);
            gil::call_method(object, "set_state", (bytes,)).map_err(failed)?;
        }
        Ok(())
    }

    /// Calls the object's `act`, which returns a tuple.
    fn call<'py>(
        &self,
        py: Python<'py>,
        arguments: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let values = gil::call(self.act.bind(py), PyTuple::new(py, arguments)?, None)?;
        Ok(values.cast_into()?)
    }
}

/// An output of a policy, whose key an error names.
fn output(key: &NestedKey, value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    batch::from_torch(value).map_err(|error| {
        PyTypeError::new_err(format!(
            "the policy's output {key:?}: {}",
            error.value(value.py())
        ))
    })
}

/// A copy of the observations of one leaf. The engine lends them for a step only, and Python may
/// keep the copy for longer.
fn observations(
    obs: Rows<'_>,
    index: usize,
    leaf: &LeafSpec,
    batch: &[usize],
) -> Result<Tensor, PolicyError> {
    let shape = [batch, &leaf.shape].concat();
    if leaf.dtype == DType::Bytes {
        let values = obs.strings(Key::new(index)).map_err(PolicyError::failed)?;
        return Tensor::from_strings(&values, shape).map_err(PolicyError::failed);
    }
    let copied =
        for_dtype!(leaf.dtype, T => Tensor::from_slice(obs.get::<T>(Key::new(index))?, shape));
    copied.map_err(PolicyError::failed)
}

impl Policy for TorchPolicy {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let bound = attach(|py| self.checked(py, self.probe(py, binding)))?;
        let columns = bound.columns.iter().map(|column| column.leaf.clone());
        let spec = PolicySpec::new(columns.collect()).backend(Backend::Framework);
        let spec = spec.states(match bound.wants_places {
            true => States::ByPlace,
            false => States::ByRow,
        });
        self.bound = Some(bound);
        Ok(spec)
    }

    fn needs_first_rows(&self) -> bool {
        true
    }

    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        let Some(bound) = &mut self.bound else {
            return Err(PolicyError::NotBound {
                policy: "torch policy",
            });
        };
        input.check_rows(out.envs())?;
        attach(|py| bound.act(py, input, out))
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.call_with("load", weights)
    }

    fn check(&self, weights: &Weights) -> Result<(), PolicyError> {
        self.call_with("check", weights)
    }

    fn weights(&self) -> Weights {
        attach(|py| {
            let read = || {
                let object = self.object(py)?;
                let weights = gil::call_method(object.bind(py), "weights", ())?;
                batch::from_python(&weights)
            };
            read().unwrap_or_else(|raised: PyErr| {
                // This method cannot return an error. Parameters that cannot be read are missing in
                // a saved state, so the reason is shown now, by `sys.unraisablehook`.
                raised.write_unraisable(py, None);
                Weights::new([])
            })
        })
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        match &mut self.bound {
            Some(bound) => attach(|py| bound.visit_state(py, state)),
            None => Ok(()),
        }
    }
}

/// Seeds torch's generator, if this process has imported torch; whether it has.
///
/// # Errors
/// What torch raises.
pub(crate) fn seed_torch(py: Python<'_>, seed: u64) -> PyResult<bool> {
    gil::ports(py)?
        .call_method1(intern!(py, "seed_torch"), (seed,))?
        .extract()
}
