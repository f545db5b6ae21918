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
use windrow::envs::{ChoiceCode, EnvError, EnvSpec, StateVisitor};
use windrow::policy::{Binding, GraphPolicy, Policy, PolicyError, PolicyIn, PolicySpec};
use windrow::{RowsMut, error_chain};

use super::columns::other_code;
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

/// How many environments a graph holds for. Branches of the module may depend on that number, and a
/// graph has one side of each.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Holds {
    /// First and last number of environments that step together, with a dimension for them; none
    /// where there is no last one.
    rows: Vec<[Option<usize>; 2]>,
    /// Whether the graph holds for one environment without that dimension.
    single: bool,
}

impl Holds {
    /// For any number of environments, where no branch was taken yet.
    fn any() -> Self {
        Self {
            rows: vec![[Some(1), None]],
            single: true,
        }
    }

    /// Checks that the graph holds for `num_envs` environments, which have a dimension where they
    /// are `batched`. `way` says what to do otherwise.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] where it does not.
    fn check(&self, (num_envs, batched): (usize, bool), way: &str) -> Result<(), PolicyError> {
        let is_within = |&[low, high]: &[Option<usize>; 2]| {
            (low.unwrap_or(0)..=high.unwrap_or(usize::MAX)).contains(&num_envs)
        };
        let holds = match batched {
            true => self.rows.iter().any(is_within),
            false => self.single,
        };
        if holds {
            return Ok(());
        }
        let got = match batched {
            true => format!("{num_envs} that step together"),
            false => "one alone".to_owned(),
        };
        Err(PolicyError::failed(format!(
            "the graph of the policy does not hold for these environments of a worker: expected {self}, got {got}; {way}"
        )))
    }
}

impl std::fmt::Display for Holds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranges = self
            .rows
            .iter()
            .map(|&[low, high]| match (low.unwrap_or(1), high) {
                (low, Some(high)) if high == low => low.to_string(),
                (low, Some(high)) => format!("{low} to {high}"),
                (low, None) => format!("{low} or more"),
            });
        let ranges: Vec<_> = ranges.collect();
        let together = format!("{} that step together", ranges.join(", "));
        let alone = self.single.then(|| "one alone".to_owned());
        let together = (!ranges.is_empty()).then_some(together);
        let all: Vec<_> = alone.into_iter().chain(together).collect();
        f.write_str(&all.join(", or "))
    }
}

/// What is published of a policy beside its weights, as JSON.
#[derive(Deserialize)]
struct Published {
    /// The policy as JSON, as in [`Description`]; none where no graph holds any more, so that the
    /// policy is called.
    graph: Option<String>,
    used: Vec<String>,
    #[serde(flatten)]
    holds: Holds,
    /// The module that is called has the weights already, since it is the user's own.
    #[serde(default)]
    live: bool,
}

/// What weights bring with them.
enum Brought {
    Nothing,
    /// A graph that replaces the present one, because the module computes something else by now,
    /// other than by its weights.
    Graph {
        graph: Box<GraphPolicy>,
        used: Vec<String>,
        holds: Holds,
    },
    /// No graph holds any more.
    Lost(Lost),
}

/// How a policy is called since no graph of it holds any more.
pub(super) struct Lost {
    /// See [`Published::live`].
    pub(super) live: bool,
    /// The policy for a process that has nothing of it, pickled; empty where nobody needs it.
    pub(super) pickled: Vec<u8>,
}

/// A graph, and all weights of the user's module.
#[derive(Clone)]
pub(crate) struct Network {
    policy: GraphPolicy,
    used: Vec<String>,
    /// The state beside the weights that the graph was read with; none where the graph never
    /// changes.
    beside: Option<Tensor>,
    /// The weights that the graph does not read.
    rest: TensorDict,
    holds: Holds,
    /// The environments that the policy was bound to, and whether they have a dimension.
    bound: Option<(usize, bool)>,
    pub(super) reads_init: bool,
}

impl Network {
    /// The graph that `described` describes, which `holds` for so many environments.
    ///
    /// # Errors
    /// `ValueError` for a graph whose values do not fit each other, and for weights that do not
    /// fit.
    pub(super) fn new(described: &Description<'_>, holds: Holds) -> PyResult<Self> {
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
            holds,
            bound: None,
            reads_init: described.reads_init,
        })
    }

    /// As [`Policy::bind`].
    ///
    /// # Errors
    /// Also [`PolicyError::Failed`] where the graph does not hold for so many environments.
    pub(super) fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        let envs = (binding.num_envs, binding.batched);
        let way = "a native policy needs such a number, and Python calls it otherwise";
        self.holds.check(envs, way)?;
        let bound = self.policy.bind(binding);
        let bound = bound.map_err(|error| self.explained(error, binding.spec))?;
        self.bound = Some(envs);
        Ok(bound)
    }

    /// `error` of the graph in environments of `env`, with the argument that changes how choices
    /// are encoded, if the graph has the other encoding.
    #[cold]
    fn explained(&self, mut error: PolicyError, env: &EnvSpec) -> PolicyError {
        let actions = env.action.leaves("action");
        let mut ways = actions.iter().zip(self.policy.outputs());
        let way = ways.find_map(|((_, spec), own)| {
            let code = ChoiceCode::of(spec);
            other_code(code, spec.choices()?, own.dtype, &own.shape, &[])
        });
        if let (PolicyError::Fit { what, got, .. }, Some(way)) = (&mut error, way)
            && what == "action"
        {
            got.push_str(way);
        }
        error
    }

    /// As [`Policy::load`], with all weights of the user's module, and the graph that the module is
    /// by now. Returns how the policy is called, where it no longer is a graph; then nothing has
    /// changed.
    pub(super) fn load(&mut self, weights: &TensorDict) -> Result<Option<Lost>, PolicyError> {
        match self.brought(weights)? {
            Brought::Nothing => {
                let Split { own, rest, .. } = self.fitted(&self.used, weights)?;
                self.policy.load(&own)?;
                self.rest = rest.detach();
            }
            Brought::Graph {
                mut graph,
                used,
                holds,
            } => {
                if let Some(envs) = self.bound {
                    let way =
                        "build it anew, or with policy_backend=\"torch\", which calls the policy";
                    holds.check(envs, way)?;
                }
                let Split { own, rest, beside } = self.fitted(&used, weights)?;
                graph.load(&own)?;
                self.policy.replace(*graph)?;
                (self.used, self.holds) = (used, holds);
                self.beside = beside.map(|beside| beside.detach());
                self.rest = rest.detach();
            }
            Brought::Lost(lost) => return Ok(Some(lost)),
        }
        Ok(None)
    }

    /// As [`Policy::check`], with all weights of the user's module.
    pub(super) fn check(&self, weights: &TensorDict) -> Result<(), PolicyError> {
        match self.brought(weights)? {
            Brought::Graph { graph, used, .. } => graph.check(&self.fitted(&used, weights)?.own),
            // A policy that is called has the same weights.
            Brought::Nothing | Brought::Lost(_) => {
                self.policy.check(&self.fitted(&self.used, weights)?.own)
            }
        }
    }

    /// As [`Policy::act`].
    pub(super) fn act(
        &mut self,
        input: &PolicyIn<'_>,
        out: RowsMut<'_>,
    ) -> Result<(), PolicyError> {
        self.policy.act(input, out)
    }

    /// As [`Policy::visit_state`].
    pub(super) fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        self.policy.visit_state(state)
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

    /// What `weights` bring with them, unless it is what this network is.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] for other bytes than those of `windrow.policies.beside`.
    fn brought(&self, weights: &TensorDict) -> Result<Brought, PolicyError> {
        let Ok(brought) = weights.get(BESIDE) else {
            return Ok(Brought::Nothing);
        };
        if self
            .beside
            .as_ref()
            .is_some_and(|own| own.same_bits(brought))
        {
            return Ok(Brought::Nothing);
        }
        let unreadable =
            |reason: String| PolicyError::failed(format!("a graph cannot be read: {reason}"));
        let bytes = brought.to_vec::<u8>().map_err(PolicyError::failed)?;
        let mut parts = Parts(&bytes);
        let mut part = || {
            parts
                .next()
                .ok_or_else(|| unreadable("it is cut short".to_owned()))
        };
        let (written, _attributes, pickled) = (part()?, part()?, part()?);
        let published: Published =
            serde_json::from_slice(written).map_err(|error| unreadable(error_chain(&error)))?;
        Ok(match published.graph {
            Some(graph) => Brought::Graph {
                graph: Box::new(GraphPolicy::from_json(&graph)?),
                used: published.used,
                holds: published.holds,
            },
            None => Brought::Lost(Lost {
                live: published.live,
                pickled: pickled.to_vec(),
            }),
        })
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

/// The parts in bytes of `windrow.policies.beside`, each behind its length.
struct Parts<'a>(&'a [u8]);

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (part, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(part)
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
    let Network { mut policy, .. } = Network::new(&description.extract()?, Holds::any())?;
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
