//! The observations and actions of environments, in plain values for Python.
//!
//! One form serves both directions: windrow's environments are described to Python in it, and
//! adapters written in Python describe theirs. `python/windrow/envs/_described.py` reads and writes
//! the same form.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use tensordict::{DType, NestedKey, Shape};
use windrow::envs::{EnvSpec, Spec};

use crate::batch::key_to_python;

/// A key as tensordict spells it: a string, or a tuple of strings.
#[derive(Debug, Clone)]
pub(crate) struct Key(pub(crate) NestedKey);

impl<'a, 'py> FromPyObject<'a, 'py> for Key {
    type Error = PyErr;

    fn extract(key: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(name) = key.extract::<&str>() {
            return Ok(Self(name.into()));
        }
        let names: Vec<String> = key.extract()?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Ok(Self(names.as_slice().into()))
    }
}

impl<'py> IntoPyObject<'py> for Key {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        key_to_python(py, &self.0)
    }
}

/// An element type under its name: `"float32"`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Type(pub(super) DType);

impl<'a, 'py> FromPyObject<'a, 'py> for Type {
    type Error = PyErr;

    fn extract(name: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let name: String = name.extract()?;
        let all = DType::NUMBERS.into_iter().chain([DType::Bytes]);
        let known = all.into_iter().find(|dtype| dtype.name() == name);
        known.map(Self).ok_or_else(|| {
            PyTypeError::new_err(format!("elements of type {name} are not supported"))
        })
    }
}

impl<'py> IntoPyObject<'py> for Type {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.0.name().into_pyobject(py)?.into_any())
    }
}

/// One leaf: its key, the kind of its domain, element type, shape for one environment, number of
/// each choice, bounds, and of a leaf of bytes what a policy is given where there is nothing.
#[derive(FromPyObject, IntoPyObject)]
pub(super) struct LeafForm(
    Key,
    String,
    Type,
    Vec<usize>,
    Option<Vec<usize>>,
    Option<Vec<f64>>,
    Option<Vec<f64>>,
    Vec<u8>,
);

/// Environments as a dictionary of Python's with these entries.
#[derive(FromPyObject, IntoPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Description {
    pub(super) id: String,
    pub(super) num_envs: usize,
    /// Whether batches have a dimension for the environments, even if there is one.
    pub(super) is_batched: bool,
    /// Dimensions that the environments are in, where these are several.
    pub(super) dimensions: Vec<usize>,
    pub(super) max_episode_steps: Option<usize>,
    pub(super) observation: Vec<LeafForm>,
    pub(super) action: Vec<LeafForm>,
    /// Leaves that environments read in addition to their actions, where a policy writes them.
    pub(super) state: Vec<LeafForm>,
    /// Observations that are rewards.
    pub(super) rewards: Vec<Key>,
    /// Observations that states of policies begin with.
    pub(super) primed: Vec<Key>,
    /// Observations that are flags of groups.
    pub(super) flags: Vec<Key>,
    /// Observations beside the environment's own, such as entries of `info`.
    pub(super) info: Vec<Key>,
    /// Actions, each with the observation that says which choices are legal.
    pub(super) masks: Vec<(Key, Key)>,
    /// Nested dictionaries that have dimensions of their own, with these.
    pub(super) groups: Vec<(Key, Vec<usize>)>,
    /// Observations that batches have as differences under `"next"`, each with the element type of
    /// these.
    pub(super) deltas: Vec<(Key, String)>,
}

impl Description {
    /// `num_envs` environments of `spec`.
    ///
    /// # Errors
    /// `TypeError` for a domain that has no form in Python.
    pub(super) fn of(spec: &EnvSpec, num_envs: usize, is_batched: bool) -> PyResult<Self> {
        let keys = |keys: &[NestedKey]| keys.iter().cloned().map(Key).collect();
        Ok(Self {
            id: spec.id.clone(),
            num_envs,
            is_batched,
            dimensions: spec.dimensions.clone(),
            max_episode_steps: spec.max_episode_steps,
            observation: leaves_of(&spec.observation, "observation", &spec.examples)?,
            action: leaves_of(&spec.action, "action", &[])?,
            state: Vec::new(),
            rewards: keys(&spec.rewards),
            primed: keys(&spec.states),
            flags: keys(&spec.flags),
            info: keys(&spec.info),
            masks: (spec.masks.iter().cloned())
                .map(|(action, mask)| (Key(action), Key(mask)))
                .collect(),
            groups: (spec.groups.iter())
                .map(|(key, own)| (Key(key.clone()), own.to_vec()))
                .collect(),
            deltas: (spec.deltas.iter().cloned())
                .map(|(key, dtype)| (Key(key), dtype))
                .collect(),
        })
    }

    /// The spec of the environments, and that of the leaves that they read in addition to their
    /// actions.
    ///
    /// # Errors
    /// `TypeError` for a kind of domain that is unknown, or two leaves of one key.
    pub(super) fn into_specs(self) -> PyResult<(EnvSpec, Spec)> {
        let keys = |keys: Vec<Key>| keys.into_iter().map(|key| key.0).collect();
        let shown = self.observation.iter().filter(|leaf| !leaf.7.is_empty());
        let examples = shown
            .map(|leaf| (leaf.0.0.clone(), leaf.7.clone()))
            .collect();
        let mut spec = EnvSpec::new(self.id, tree(self.observation)?, tree(self.action)?);
        spec.max_episode_steps = self.max_episode_steps;
        spec.dimensions = self.dimensions;
        spec.rewards = keys(self.rewards);
        spec.states = keys(self.primed);
        spec.flags = keys(self.flags);
        spec.info = keys(self.info);
        spec.masks = (self.masks.into_iter())
            .map(|(action, mask)| (action.0, mask.0))
            .collect();
        spec.groups = (self.groups.into_iter())
            .map(|(key, own)| (key.0, Shape::from_vec(own)))
            .collect();
        spec.deltas = (self.deltas.into_iter())
            .map(|(key, dtype)| (key.0, dtype))
            .collect();
        spec.examples = examples;
        Ok((spec, tree(self.state)?))
    }
}

/// Observations of bytes, each with what a policy is given where there is none.
pub(crate) fn examples_of(spec: &EnvSpec) -> Vec<(Key, Vec<u8>)> {
    let examples = spec.examples.iter().cloned();
    examples.map(|(key, example)| (Key(key), example)).collect()
}

/// The leaves of a spec; a bare one is named after its role.
fn leaves_of(
    spec: &Spec,
    role: &str,
    examples: &[(NestedKey, Vec<u8>)],
) -> PyResult<Vec<LeafForm>> {
    let leaves = spec.leaves(role).into_iter();
    let form = |(key, leaf)| {
        let example = examples.iter().find(|(shown, _)| *shown == key);
        form_of(
            key,
            leaf,
            example.map_or_else(Vec::new, |(_, own)| own.clone()),
        )
    };
    leaves.map(form).collect()
}

/// One leaf in the form that Python has of it.
fn form_of(key: NestedKey, leaf: &Spec, example: Vec<u8>) -> PyResult<LeafForm> {
    let kind = match leaf {
        Spec::Unbounded { .. } => "unbounded",
        Spec::Bounded { .. } => "bounded",
        Spec::Discrete { .. } => "discrete",
        Spec::Binary { .. } => "binary",
        Spec::MultiDiscrete { .. } => "multi_discrete",
        Spec::OneHot { .. } => "one_hot",
        _ => "",
    };
    let (low, high) = match leaf {
        Spec::Bounded { low, high, .. } => (Some(low.clone()), Some(high.clone())),
        _ => (None, None),
    };
    match leaf.dtype() {
        Some(dtype) if !kind.is_empty() => Ok(LeafForm(
            Key(key),
            kind.to_owned(),
            Type(dtype),
            leaf.shape().to_vec(),
            leaf.choices().map(<[usize]>::to_vec),
            low,
            high,
            example,
        )),
        _ => Err(PyTypeError::new_err(format!(
            "specs of this kind have no form in Python: {leaf:?}"
        ))),
    }
}

/// The key and the spec of a leaf that Python describes. Element type and shape of choices follow
/// from their kind.
fn spec_of(leaf: LeafForm) -> PyResult<(NestedKey, Spec)> {
    let LeafForm(Key(key), kind, Type(dtype), shape, nvec, low, high, _) = leaf;
    let shape = Shape::from_vec(shape);
    let spec = match (kind.as_str(), nvec, low, high) {
        ("unbounded", ..) => Spec::Unbounded { dtype, shape },
        ("bounded", _, Some(low), Some(high)) => Spec::Bounded {
            dtype,
            shape,
            low,
            high,
        },
        ("binary", ..) => Spec::Binary { shape },
        ("discrete", Some(nvec), ..) if nvec.len() == 1 => Spec::discrete(nvec[0]),
        ("multi_discrete", Some(nvec), ..) => Spec::MultiDiscrete { nvec },
        ("one_hot", Some(nvec), ..) => Spec::OneHot { nvec },
        _ => {
            return Err(PyTypeError::new_err(format!(
                "expected the description of a leaf, got {key:?} of kind {kind:?}"
            )));
        }
    };
    Ok((key, spec))
}

/// The composite of named leaves: the leaves of a group stand where the first of them does, so an
/// adapter gives its leaves in this order.
fn tree(leaves: Vec<LeafForm>) -> PyResult<Spec> {
    let mut root = Vec::new();
    for leaf in leaves {
        let (key, spec) = spec_of(leaf)?;
        if !add(&mut root, &key, spec) {
            return Err(PyTypeError::new_err(format!(
                "two leaves are called {key:?}"
            )));
        }
    }
    Ok(Spec::Composite(root))
}

/// Puts `leaf` into the tree of `entries` under `key`; false when there is something of that name
/// already.
pub(super) fn add(entries: &mut Vec<(String, Spec)>, key: &NestedKey, leaf: Spec) -> bool {
    let Some((last, groups)) = key.components().split_last() else {
        return false;
    };
    let mut level = entries;
    for name in groups {
        let place = match level.iter().position(|(known, _)| **known == **name) {
            Some(place) => place,
            None => {
                level.push((name.to_string(), Spec::Composite(Vec::new())));
                level.len() - 1
            }
        };
        let Spec::Composite(inner) = &mut level[place].1 else {
            return false;
        };
        level = inner;
    }
    let is_new = level.iter().all(|(known, _)| **known != **last);
    if is_new {
        level.push((last.to_string(), leaf));
    }
    is_new
}
