//! Graphs that `windrow.policies.lower` has read out of a module.
//!
//! The engine evaluates such a graph without the interpreter. Its parameters have the names that
//! they have in the user's module; weights of the module that the graph does not read, such as
//! those of a critic, are kept and given back. Before a graph is used, `windrow.policies.lower`
//! compares it with the module on a few rows ([`evaluate_graph`]).

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Deserialize;
use tensordict::{NestedKey, Tensor, TensorDict};
use windrow::error_chain;
use windrow::policy::{GraphPolicy, Policy, PolicyError};

use crate::batch;

/// A graph and its weights.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Description<'py> {
    /// The policy as JSON, as `serde` writes it.
    graph: String,
    /// The weights of the user's module: tensors, or the bytes that a worker process was sent.
    weights: Bound<'py, PyAny>,
    /// Names of the weights that the graph reads.
    used: Vec<String>,
    /// Whether the policy reads `is_init`, which environments then have to observe.
    pub(super) reads_init: bool,
}

/// Under this name, a policy's state beside its weights is published with them, as bytes: see
/// `windrow.policies.beside`.
pub(crate) const BESIDE: &str = "_windrow_beside";

/// A graph that replaces the present one, because the module computes something else by now, other
/// than by its weights.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Changed<Graph> {
    /// The policy as JSON, as in [`Description`].
    graph: Graph,
    used: Vec<String>,
}

/// A graph, and all weights of the user's module.
#[derive(Clone)]
pub(crate) struct Network {
    pub(super) policy: GraphPolicy,
    used: Vec<String>,
    /// The state beside the weights that the graph was read with; none where the graph never
    /// changes.
    beside: Option<Tensor>,
    /// The weights that the graph does not read.
    rest: TensorDict,
    pub(super) reads_init: bool,
}

impl Network {
    /// The graph that `described` describes.
    ///
    /// # Errors
    /// `ValueError` for a graph whose values do not fit each other, and for weights that do not
    /// fit.
    pub(super) fn new(described: &Description<'_>) -> PyResult<Self> {
        let mut policy =
            GraphPolicy::from_json(&described.graph).map_err(|error| invalid(&error))?;
        let weights = match described.weights.cast::<PyBytes>() {
            Ok(bytes) => TensorDict::from_bytes(bytes.as_bytes())
                .map_err(|error| PyValueError::new_err(error_chain(&error)))?,
            Err(_) => batch::from_python(&described.weights)?,
        };
        let used = described.used.clone();
        let Split { own, rest, beside } =
            split(&used, &weights).map_err(|error| invalid(&error))?;
        policy.load(&own).map_err(|error| invalid(&error))?;
        Ok(Self {
            policy,
            used,
            beside: beside.map(|beside| beside.detach()),
            rest: rest.detach(),
            reads_init: described.reads_init,
        })
    }

    /// As [`Policy::load`], with all weights of the user's module, and the graph that the module is
    /// by now.
    pub(super) fn load(&mut self, weights: &TensorDict) -> Result<(), PolicyError> {
        let changed = self.changed(weights)?;
        let used = changed.as_ref().map_or(&self.used, |changed| &changed.used);
        let Split { own, rest, beside } = self.fitted(used, weights)?;
        match changed {
            None => self.policy.load(&own)?,
            Some(Changed { mut graph, used }) => {
                graph.load(&own)?;
                self.policy.replace(graph)?;
                self.used = used;
                self.beside = beside.map(|beside| beside.detach());
            }
        }
        self.rest = rest.detach();
        Ok(())
    }

    /// As [`Policy::check`], with all weights of the user's module.
    pub(super) fn check(&self, weights: &TensorDict) -> Result<(), PolicyError> {
        match self.changed(weights)? {
            None => self.policy.check(&self.fitted(&self.used, weights)?.own),
            Some(Changed { graph, used }) => graph.check(&self.fitted(&used, weights)?.own),
        }
    }

    /// As [`Policy::weights`], with all weights of the user's module and the state beside them.
    pub(super) fn weights(&self) -> TensorDict {
        let mut all = self.policy.weights();
        let beside = self
            .beside
            .iter()
            .map(|tensor| (NestedKey::from(BESIDE), tensor));
        for (name, tensor) in self.rest.leaves().chain(beside) {
            // Cannot fail, since no name occurs twice.
            let _ = all.set(name, tensor.detach());
        }
        all
    }

    /// The graph that `weights` bring, unless it is the present one.
    ///
    /// # Errors
    /// [`PolicyError::Unreadable`] for other bytes than those of `windrow.policies.beside`.
    fn changed(&self, weights: &TensorDict) -> Result<Option<Changed<GraphPolicy>>, PolicyError> {
        let Ok(brought) = weights.get(BESIDE) else {
            return Ok(None);
        };
        if self
            .beside
            .as_ref()
            .is_some_and(|own| own.same_bits(brought))
        {
            return Ok(None);
        }
        let unreadable =
            |reason: String| PolicyError::failed(format!("a graph cannot be read: {reason}"));
        let bytes = brought.to_vec::<u8>().map_err(PolicyError::failed)?;
        let written = bytes
            .split_first_chunk()
            .and_then(|(length, rest)| {
                rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)
            })
            .ok_or_else(|| unreadable("it is cut short".to_owned()))?;
        let changed: Changed<String> =
            serde_json::from_slice(written).map_err(|error| unreadable(error_chain(&error)))?;
        Ok(Some(Changed {
            graph: GraphPolicy::from_json(&changed.graph)?,
            used: changed.used,
        }))
    }

    /// `weights` apart, of which the graph reads those in `used`.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] for a weight that is missing, or of another shape, or that the
    /// module does not have.
    fn fitted(&self, used: &[String], weights: &TensorDict) -> Result<Split, PolicyError> {
        let parts = split(used, weights)?;
        for (name, tensor) in parts.rest.leaves() {
            match self.rest.get(name.clone()) {
                Ok(known) if known.shape() == tensor.shape() => {}
                Ok(known) => {
                    return Err(PolicyError::failed(format!(
                        "{name:?}: expected shape {:?}, got {:?}",
                        known.shape(),
                        tensor.shape()
                    )));
                }
                // The graph before read it.
                Err(_) if is_among(&name, &self.used) => {}
                Err(_) => {
                    return Err(PolicyError::failed(format!(
                        "the policy has no weight called {name:?}"
                    )));
                }
            }
        }
        let missing = self
            .rest
            .leaves()
            .find(|(name, _)| weights.get(name.clone()).is_err());
        if let Some((missing, _)) = missing {
            return Err(PolicyError::failed(format!(
                "the weight {missing:?} is missing"
            )));
        }
        Ok(parts)
    }
}

/// Weights of a module, apart.
struct Split {
    /// Those that the graph reads.
    own: TensorDict,
    rest: TensorDict,
    /// The state beside the weights.
    beside: Option<Tensor>,
}

/// `weights` apart, of which the graph reads those in `used`.
fn split(used: &[String], weights: &TensorDict) -> Result<Split, PolicyError> {
    let (mut own, mut rest) = (TensorDict::new([]), TensorDict::new([]));
    let mut beside = None;
    for (name, tensor) in weights.leaves() {
        if matches!(name.components(), [name] if **name == *BESIDE) {
            beside = Some(tensor.clone());
            continue;
        }
        let to = match is_among(&name, used) {
            true => &mut own,
            false => &mut rest,
        };
        to.set(name, tensor).map_err(PolicyError::failed)?;
    }
    Ok(Split { own, rest, beside })
}

fn is_among(name: &NestedKey, names: &[String]) -> bool {
    matches!(name.components(), [name] if names.iter().any(|own| **own == **name))
}

fn invalid(error: &PolicyError) -> PyErr {
    PyValueError::new_err(error_chain(&error))
}

/// The values that a described graph gives for the rows in `inputs`, tensors `[rows, width]` of
/// float32: those of its outputs, then its next states, `[rows, width]` each. Runs in the calling
/// thread with the interpreter's lock: it takes one small step.
#[pyfunction]
pub(crate) fn evaluate_graph<'py>(
    py: Python<'py>,
    description: &Bound<'py, PyAny>,
    inputs: &Bound<'py, PyAny>,
    rows: usize,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let Network { mut policy, .. } = Network::new(&description.extract()?)?;
    let inputs = inputs.try_iter()?.map(|input| {
        let input = batch::from_torch(&input?)?;
        input
            .to_vec::<f32>()
            .map_err(|error| PyValueError::new_err(error_chain(&error)))
    });
    let inputs = inputs.collect::<PyResult<Vec<_>>>()?;
    let given: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
    let values = policy
        .evaluate(&given, rows)
        .map_err(|error| invalid(&error))?;
    let tensors = values.into_iter().map(|values| {
        let width = values.len() / rows.max(1);
        let tensor = Tensor::from_vec(values, [rows, width]);
        batch::to_torch(
            py,
            tensor.map_err(|error| PyValueError::new_err(error_chain(&error)))?,
        )
    });
    tensors.collect()
}
