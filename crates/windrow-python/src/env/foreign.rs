//! Environments behind an adapter written in Python, which speaks in whole arrays.
//!
//! `windrow.torchrl._adapter.Adapter` is the one adapter: TorchRL's environments speak in
//! TensorDicts, and what these hold, masks, groups, rewards of agents and states, is sorted out in
//! Python. The engine calls an adapter's methods in the worker's thread, with the interpreter's
//! lock:
//!
//! - `describe()` once, when the environments are made: a [`Description`].
//! - `reads(keys)` once, when the policy is bound: the columns that `step` gets as its state, in
//!   this order.
//! - `reset(envs, seeds)`, and `step(actions, state)` for all environments.
//! - `close()` when the environments are dropped.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use tensordict::{DType, NestedKey};
use windrow::envs::{EnvError, EnvSpec, Outcomes, Reset, StateVisitor, VecEnv, VecEnvError};
use windrow::{LeafSpec, RowBlock, Rows, RowsMut};

use super::cast::Losses;
use super::describe::Description;
use super::read::Leaf;
use super::rows::{Origin, Target, copy_rows};
use super::source::Held;
use super::write::Writer;
use crate::batch;
use crate::gil::{self, attach};

/// Environments that a Python object steps: `reset(envs, seeds)` and `step(actions, state)` take
/// and return lists of arrays, one for each leaf, with a leading dimension for the environments.
/// The state has the columns that `reads(keys)` named.
pub(super) struct ForeignEnvs {
    spec: EnvSpec,
    num_envs: usize,
    /// The adapter; closes it when it is dropped.
    held: Held,
    /// From arrays of observations to rows.
    observed: Vec<Leaf>,
    /// From rows to arrays of actions.
    acted: Vec<Writer>,
    /// Leaves that the environments may read in addition to actions and observations, if the policy
    /// writes them.
    state: Vec<LeafSpec>,
    /// The writers of those leaves and observations that the policy does write. Filled by `bind`.
    written: Vec<Writer>,
    /// Rows of all environments, which a reset of some returns.
    scratch: RowBlock,
    /// The readers of reward, `terminated` and `truncated`.
    outcome: [Leaf; 3],
}

impl ForeignEnvs {
    /// The environments of `held`, and whether they have batch dimensions. Where they are in
    /// several and `is_flat`, these are to be one.
    ///
    /// # Errors
    /// [`EnvError::Failed`] when it is no such adapter.
    pub(super) fn new(py: Python<'_>, held: Held, is_flat: bool) -> Result<(Self, bool), EnvError> {
        let describe = || -> PyResult<(EnvSpec, Vec<LeafSpec>, usize, bool)> {
            let described = gil::call_method(held.object.bind(py), "describe", ())?;
            let described: Description = described.extract()?;
            let Description {
                num_envs,
                is_batched,
                ..
            } = described;
            let (mut spec, state) = described.into_specs()?;
            // As for Gymnasium: the user may have seeded it.
            spec.keeps_seed = true;
            spec.any_integers = true;
            if is_flat || spec.dimensions.len() < 2 {
                spec.dimensions.clear();
            }
            Ok((spec, state.leaf_specs("state"), num_envs, is_batched))
        };
        let (spec, state, num_envs, is_batched) = describe().map_err(EnvError::failed)?;
        let observed = spec.observation_leaves();
        let envs = Self {
            scratch: RowBlock::new(&observed, num_envs)?,
            observed: read_leaves(&observed, "observation", &spec.id),
            acted: write_leaves(&spec.action_leaves()),
            state,
            written: Vec::new(),
            outcome: outcome_leaves(&spec.id),
            spec,
            num_envs,
            held,
        };
        Ok((envs, is_batched))
    }

    /// Has the adapter reset some environments, and copies their rows to `obs`.
    fn reset_some(
        &mut self,
        py: Python<'_>,
        resets: &[Reset],
        obs: &mut RowsMut<'_>,
    ) -> Result<(), VecEnvError> {
        let first = resets.first().map_or(0, |reset| reset.env);
        let at = |source: EnvError| VecEnvError { env: first, source };
        let envs: Vec<_> = resets.iter().map(|reset| reset.env).collect();
        let seeds: Vec<_> = resets.iter().map(|reset| reset.seed).collect();
        let reset = self.held.object.bind(py).getattr(intern!(py, "reset"));
        let arrays = reset
            .and_then(|reset| gil::call(&reset, (envs, seeds), None))
            .map_err(|raised| at(self.held.failed(py, raised)))?;
        // The adapter returns rows for all environments. Only those that were reset are copied: the
        // others' rows in `obs` must stay.
        let mut scratch = Target::All(self.scratch.rows_mut());
        read_all(&self.observed, &arrays, &mut scratch).map_err(at)?;
        let envs = resets.iter().map(|reset| reset.env);
        copy_rows(envs, self.scratch.rows(), obs)
    }

    /// Gives the adapter actions and states as arrays, and reads what it returns.
    fn step_all(
        &self,
        py: Python<'_>,
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), EnvError> {
        let rows = Origin::All(actions);
        let actions: Vec<_> = self
            .acted
            .iter()
            .map(|leaf| leaf.write(py, rows))
            .collect::<Result<_, _>>()?;
        let actions = PyList::new(py, actions).map_err(EnvError::failed)?;
        let state: Vec<_> = self
            .written
            .iter()
            .map(|leaf| leaf.write(py, rows))
            .collect::<Result<_, _>>()?;
        let step = self.held.object.bind(py).getattr(intern!(py, "step"));
        let result = step
            .and_then(|step| gil::call(&step, (actions, state), None))
            .map_err(|raised| self.held.failed(py, raised))?;
        let values = result
            .cast::<PyTuple>()
            .map_err(|error| EnvError::failed(PyErr::from(error)))?;
        let value = |index| values.get_item(index).map_err(EnvError::failed);
        read_all(&self.observed, &value(0)?, &mut Target::All(obs))?;
        read_outcomes(&self.outcome, &[value(1)?, value(2)?, value(3)?], outcomes)
    }
}

/// The readers of arrays, one for each leaf. `role` and `id` name them in errors.
pub(super) fn read_leaves(leaves: &[LeafSpec], role: &str, id: &str) -> Vec<Leaf> {
    let leaf = |(index, leaf): (usize, &LeafSpec)| Leaf {
        name: format!("{role} {:?} of {id}", leaf.key),
        index,
        dtype: leaf.dtype,
        shape: leaf.shape.to_vec(),
        losses: Losses::default(),
    };
    leaves.iter().enumerate().map(leaf).collect()
}

/// The writers of arrays, one for each leaf.
pub(super) fn write_leaves(leaves: &[LeafSpec]) -> Vec<Writer> {
    let leaves = leaves.iter().enumerate();
    leaves
        .map(|(index, leaf)| write_leaf(index, leaf))
        .collect()
}

/// The writer of an array of the leaf `index`, in the leaf's own element type.
fn write_leaf(index: usize, leaf: &LeafSpec) -> Writer {
    Writer::Array {
        leaf: index,
        dtype: leaf.dtype,
        shape: leaf.shape.to_vec(),
        cast: None,
    }
}

/// Reads a sequence of arrays, one for each leaf.
pub(super) fn read_all(
    leaves: &[Leaf],
    arrays: &Bound<'_, PyAny>,
    target: &mut Target<'_>,
) -> Result<(), EnvError> {
    for leaf in leaves {
        let array = arrays.get_item(leaf.index).map_err(EnvError::failed)?;
        leaf.read(&array, target)?;
    }
    Ok(())
}

/// Reward, `terminated` and `truncated` as leaves of their own.
pub(super) fn outcome_leaves(id: &str) -> [Leaf; 3] {
    let leaf = |name: &str, dtype| Leaf {
        name: format!("{name} of {id}"),
        index: 0,
        dtype,
        shape: Vec::new(),
        losses: Losses::default(),
    };
    [
        leaf("reward", DType::F32),
        leaf("terminated", DType::Bool),
        leaf("truncated", DType::Bool),
    ]
}

/// Reads reward, `terminated` and `truncated` of all environments from arrays `[num_envs]`.
pub(super) fn read_outcomes(
    leaves: &[Leaf; 3],
    values: &[Bound<'_, PyAny>; 3],
    outcomes: Outcomes<'_>,
) -> Result<(), EnvError> {
    let Outcomes {
        reward,
        terminated,
        truncated,
    } = outcomes;
    let lead = Some(reward.len());
    leaves[0].read_slice(&values[0], lead, reward)?;
    leaves[1].read_slice(&values[1], lead, terminated)?;
    leaves[2].read_slice(&values[2], lead, truncated)
}

impl VecEnv for ForeignEnvs {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.num_envs
    }

    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        // Actions may come in the policy's own integer types.
        let actions = columns.get(..self.acted.len()).unwrap_or(columns);
        self.acted = write_leaves(actions);
        let next = NestedKey::from("next");
        let find = |key: &NestedKey| columns.iter().position(|column| column.key == *key);
        // What a policy writes under "next" too is a state of its own; and a reward has no place at
        // a root. The environment reads neither.
        let mut observed = self.spec.observation_leaves();
        observed.retain(|leaf| find(&next.join(&leaf.key)).is_none());
        observed.retain(|leaf| !self.spec.rewards.contains(&leaf.key));
        let mut keys = Vec::new();
        for leaf in self.state.iter().chain(&observed) {
            let Some(index) = find(&leaf.key) else {
                continue;
            };
            let written = &columns[index];
            // Shapes may differ by dimensions of 1; a shape of as many elements is the adapter's to
            // arrange.
            if written.elements() != leaf.elements() {
                return Err(EnvError::Foreign(format!(
                    "state {:?} of {}: expected {:?}, the policy writes {:?}",
                    leaf.key,
                    self.spec.id,
                    leaf.shape.as_slice(),
                    written.shape.as_slice()
                )));
            }
            self.written.push(write_leaf(index, written));
            keys.push(&leaf.key);
        }
        let tell = |py: Python<'_>| -> PyResult<()> {
            let keys = keys.iter().map(|key| batch::key_to_python(py, key));
            let keys = keys.collect::<PyResult<Vec<_>>>()?;
            let adapter = self.held.object.bind(py);
            gil::call_method(adapter, "reads", (keys,))?;
            Ok(())
        };
        attach(tell).map_err(EnvError::failed)
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        attach(|py| self.reset_some(py, resets, &mut obs))
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
        state.section(format!("{} x {}", self.num_envs, self.spec.id))?;
        self.held.visit_state(state)
    }
}
