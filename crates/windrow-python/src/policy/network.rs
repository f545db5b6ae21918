//! Graphs that `windrow._lower` has read out of a module.
//!
//! The engine evaluates such a graph without the interpreter. Its parameters have the names that they have in the user's module; weights of
//! the module that the graph does not read, such as those of a critic, are kept and given back. Before a graph is used, `windrow._lower`
//! compares it with the module on a few rows ([`evaluate_graph`]).

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tensordict::{Tensor, TensorDict};
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

/// A graph, and all weights of the user's module.
#[derive(Clone)]
pub(crate) struct Network {
    pub(super) policy: GraphPolicy,
    used: Vec<String>,
    /// The weights that the graph does not read.
    rest: TensorDict,
    pub(super) reads_init: bool,
}

impl Network {
    /// The graph that `described` describes.
    ///
    /// # Errors
    /// `ValueError` for a graph whose values do not fit each other, and for weights that do not fit.
    pub(super) fn new(described: &Description<'_>) -> PyResult<Self> {
        let mut policy =
            GraphPolicy::from_json(&described.graph).map_err(|error| invalid(&error))?;
        let weights = match described.weights.cast::<PyBytes>() {
            Ok(bytes) => TensorDict::from_bytes(bytes.as_bytes())
                .map_err(|error| PyValueError::new_err(error.to_string()))?,
            Err(_) => batch::from_python(&described.weights)?,
        };
        let used = described.used.clone();
        let (own, rest) = split(&used, &weights).map_err(|error| invalid(&error))?;
        policy.load(&own).map_err(|error| invalid(&error))?;
        Ok(Self {
            policy,
            used,
            rest: rest.detach(),
            reads_init: described.reads_init,
        })
    }

    /// As [`Policy::load`], with all weights of the user's module.
    pub(super) fn load(&mut self, weights: &TensorDict) -> Result<(), PolicyError> {
        let (own, rest) = self.fitted(weights)?;
        self.policy.load(&own)?;
        self.rest = rest.detach();
        Ok(())
    }

    /// As [`Policy::check`], with all weights of the user's module.
    pub(super) fn check(&self, weights: &TensorDict) -> Result<(), PolicyError> {
        self.policy.check(&self.fitted(weights)?.0)
    }

    /// As [`Policy::weights`], with all weights of the user's module.
    pub(super) fn weights(&self) -> TensorDict {
        let mut all = self.policy.weights();
        for (name, tensor) in self.rest.leaves() {
            // Cannot fail, since no name occurs twice.
            let _ = all.set(name, tensor.detach());
        }
        all
    }

    /// The weights that the graph reads, and the others.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] for a weight that is missing, or of another shape, or that the module does not have.
    fn fitted(&self, weights: &TensorDict) -> Result<(TensorDict, TensorDict), PolicyError> {
        let (own, rest) = split(&self.used, weights)?;
        for (name, tensor) in rest.leaves() {
            match self.rest.get(name.clone()) {
                Ok(known) if known.shape() == tensor.shape() => {}
                Ok(known) => {
                    return Err(PolicyError::failed(format!(
                        "{name}: expected shape {:?}, got {:?}",
                        known.shape(),
                        tensor.shape()
                    )));
                }
                Err(_) => {
                    return Err(PolicyError::failed(format!(
                        "the policy has no weight called {name}"
                    )));
                }
            }
        }
        if let Some((missing, _)) = self
            .rest
            .leaves()
            .find(|(name, _)| rest.get(name.clone()).is_err())
        {
            return Err(PolicyError::failed(format!(
                "the weight {missing} is missing"
            )));
        }
        Ok((own, rest))
    }
}

/// `weights` with the names `used`, and the others.
fn split(used: &[String], weights: &TensorDict) -> Result<(TensorDict, TensorDict), PolicyError> {
    let (mut own, mut rest) = (TensorDict::new([]), TensorDict::new([]));
    for (name, tensor) in weights.leaves() {
        let is_used = matches!(name.components(), [name] if used.iter().any(|own| **own == **name));
        let to = if is_used { &mut own } else { &mut rest };
        to.set(name, tensor).map_err(PolicyError::failed)?;
    }
    Ok((own, rest))
}

fn invalid(error: &PolicyError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The values that a described graph gives for the rows in `inputs`, tensors `[rows, width]` of float32: those of its outputs, then its
/// next states, `[rows, width]` each. Runs in the calling thread with the interpreter's lock: it takes one small step.
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
            .map_err(|error| PyValueError::new_err(error.to_string()))
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
            tensor.map_err(|error| PyValueError::new_err(error.to_string()))?,
        )
    });
    tensors.collect()
}
