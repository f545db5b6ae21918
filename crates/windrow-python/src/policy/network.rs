//! Networks from their description in Python, which `windrow._lower` has read out of a module.
//!
//! The engine evaluates such a network without the interpreter. Its parameters have names of the engine's own; weights from Python, and
//! weights for Python, have the names of the user's module, and are renamed on the way. Before a network is used, `windrow._lower`
//! compares it with the module on a few rows ([`evaluate_network`]).

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tensordict::{DType, Tensor, TensorDict, for_dtype};
use windrow::env::EnvSpec;
use windrow::nn::{Activation, Sequential};
use windrow::policy::{Binding, EnvRows, Policy, PolicyError, PolicyIn, Scale, ScaleMapping};
use windrow::slab::{Key, RowBlock};
use windrow::tensordict::NestedKey;
use windrow::{Head, NetworkPolicy, Spec};

use crate::batch;
use crate::collector::options::exploration_type;

/// A network, its head and its weights.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Description<'py> {
    layers: Vec<Layer>,
    /// The distribution of actions, under its name in [`Head`].
    head: String,
    /// The mapping from the network's outputs to standard deviations: `"exp"`, or `"softplus"` with `bias`. None where the deviations are
    /// a parameter, which is raised to `least`.
    scale: Option<String>,
    bias: f32,
    least: f32,
    /// The observations that the network reads, side by side.
    in_keys: Vec<Vec<String>>,
    return_log_prob: bool,
    return_params: bool,
    /// The parameters, under the names of the user's module: tensors, or the bytes that a worker process was sent.
    weights: Bound<'py, PyAny>,
    /// Pairs of a name of the network's own and one of the user's module.
    names: Vec<(String, String)>,
    /// Lower and upper bounds of a squashed distribution.
    bounds: Option<(Vec<f32>, Vec<f32>)>,
}

/// Name of the PyTorch module, and its numbers.
type Layer = (String, Vec<f64>);

/// A network with the names that the user's module has for its parameters.
#[derive(Clone)]
pub(crate) struct Network {
    pub(super) policy: NetworkPolicy,
    names: Vec<(String, String)>,
    bounds: Option<(Vec<f32>, Vec<f32>)>,
    /// The least deviation that comes from a parameter.
    least: f32,
    /// That parameter as it was loaded, before it was raised to `least`: Python gets its own values back.
    log_std: Option<Tensor>,
}

/// The network's own name for the logarithms of deviations that are a parameter.
const LOG_STD: &str = "log_std";

impl Network {
    /// The network that `described` describes.
    ///
    /// # Errors
    /// `ValueError` for layers or heads that are not known, and for weights that do not fit.
    pub(super) fn new(described: &Description<'_>) -> PyResult<Self> {
        let mut net = Sequential::new();
        for layer in &described.layers {
            net = add(net, layer)?;
        }
        let mut policy = NetworkPolicy::new(net, head(described)?)
            .return_log_prob(described.return_log_prob)
            .return_params(described.return_params);
        for key in &described.in_keys {
            let names: Vec<&str> = key.iter().map(String::as_str).collect();
            policy = policy.in_key(NestedKey::from(names.as_slice()));
        }
        let mut network = Self {
            policy,
            names: described.names.clone(),
            bounds: described.bounds.clone(),
            least: described.least,
            log_std: None,
        };
        let weights = match described.weights.cast::<PyBytes>() {
            Ok(bytes) => TensorDict::from_bytes(bytes.as_bytes())
                .map_err(|error| PyValueError::new_err(error.to_string()))?,
            Err(_) => batch::from_python(&described.weights)?,
        };
        network.load(&weights).map_err(|error| invalid(&error))?;
        Ok(network)
    }

    /// As [`Policy::load`], with the names of the user's module.
    pub(super) fn load(&mut self, weights: &TensorDict) -> Result<(), PolicyError> {
        let mut own = self.renamed(weights, |(own, theirs)| (theirs, own))?;
        let log_std = own.get(LOG_STD).ok().cloned();
        if let Some(log_std) = &log_std
            && let Ok(values) = log_std.to_vec::<f32>()
        {
            let least = self.least.ln();
            // `max` would replace NaN, which has to stay visible.
            let raised = values.iter().map(|&x| if x < least { least } else { x });
            let raised = Tensor::from_vec(raised.collect(), log_std.shape());
            own.set(LOG_STD, raised.map_err(PolicyError::failed)?)
                .map_err(PolicyError::failed)?;
        }
        self.policy.load(&own)?;
        self.log_std = log_std;
        Ok(())
    }

    /// As [`Policy::check`], with the names of the user's module.
    pub(super) fn check(&self, weights: &TensorDict) -> Result<(), PolicyError> {
        let own = self.renamed(weights, |(own, theirs)| (theirs, own))?;
        self.policy.check(&own)
    }

    /// As [`Policy::weights`], with the names of the user's module.
    pub(super) fn weights(&self) -> TensorDict {
        let mut own = self.policy.weights();
        if let Some(log_std) = &self.log_std {
            // Cannot fail, since the name was there before.
            let _ = own.set(LOG_STD, log_std.detach());
        }
        self.renamed(&own, |(own, theirs)| (own, theirs))
            .unwrap_or(own)
    }

    /// Whether the distribution has the bounds of the environment's action.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] naming both.
    pub(super) fn check_bounds(&self, env: &EnvSpec) -> Result<(), PolicyError> {
        let (
            Some((low, high)),
            Spec::Bounded {
                low: lowest,
                high: highest,
                ..
            },
        ) = (&self.bounds, &env.action)
        else {
            return Ok(());
        };
        let same = |own: &[f32], env: &[f64]| {
            own.len() == env.len() && own.iter().zip(env).all(|(&own, &env)| own == env as f32)
        };
        if same(low, lowest) && same(high, highest) {
            return Ok(());
        }
        Err(PolicyError::failed(format!(
            "the distribution's bounds are {low:?} and {high:?}, the environment's {lowest:?} and {highest:?}"
        )))
    }

    /// `weights` under other names; `order` turns a pair of names into the old one and the new one.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] for a weight that is missing, or has no place in the network.
    fn renamed<'a>(
        &'a self,
        weights: &TensorDict,
        order: impl Fn(&'a (String, String)) -> (&'a String, &'a String),
    ) -> Result<TensorDict, PolicyError> {
        let mut renamed = TensorDict::new([]);
        for (from, to) in self.names.iter().map(order) {
            let tensor = weights.get(from.as_str()).map_err(PolicyError::failed)?;
            renamed
                .set(to.as_str(), tensor)
                .map_err(PolicyError::failed)?;
        }
        if renamed.len() < weights.len() {
            let strange = weights
                .keys()
                .find(|name| self.names.iter().all(|(a, b)| a != name && b != name));
            return Err(PolicyError::failed(format!(
                "the policy has no weight called {:?}",
                strange.unwrap_or_default()
            )));
        }
        Ok(renamed)
    }
}

fn invalid(error: &PolicyError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// `net` with one more layer.
///
/// # Errors
/// `ValueError` for a layer that the engine does not have.
fn add(net: Sequential, (name, numbers): &Layer) -> PyResult<Sequential> {
    let number = |i: usize| numbers.get(i).copied().unwrap_or(0.0);
    Ok(match name.as_str() {
        "Linear" if number(2) == 0.0 => {
            net.linear_without_bias(number(0) as usize, number(1) as usize)
        }
        "Linear" => net.linear(number(0) as usize, number(1) as usize),
        "LayerNorm" => net.layer_norm_with_eps(number(0) as usize, number(1) as f32),
        "Flatten" => net.flatten(),
        "Tanh" => net.tanh(),
        "ReLU" => net.relu(),
        "Sigmoid" => net.sigmoid(),
        "SiLU" => net.silu(),
        "GELU" => net.gelu(),
        "GELUTanh" => net.gelu_tanh(),
        "ELU" => net.activation(Activation::ELU {
            alpha: number(0) as f32,
        }),
        other => {
            return Err(PyValueError::new_err(format!(
                "no layer of windrow's networks is called {other}"
            )));
        }
    })
}

/// The distribution of actions.
///
/// # Errors
/// `ValueError` for a head that the engine does not have.
fn head(described: &Description<'_>) -> PyResult<Head> {
    let bias = described.bias;
    let scale = || match described.scale.as_deref() {
        Some("softplus") => Scale::Mapped(ScaleMapping::BiasedSoftplus { bias }),
        Some(_) => Scale::Mapped(ScaleMapping::Exp),
        None => Scale::log_std(),
    };
    Ok(match described.head.as_str() {
        "Deterministic" => Head::Deterministic,
        "Categorical" => Head::Categorical,
        "Normal" => Head::Normal(scale()),
        "TanhNormal" => Head::TanhNormal(scale()),
        other => {
            return Err(PyValueError::new_err(format!(
                "no head of windrow's networks is called {other}"
            )));
        }
    })
}

/// The columns that a described network writes for the rows in `inputs`, tensors `[rows, width]`, one for each key. `actions` is the
/// number of elements of an action, or of choices. Runs in the calling thread with the interpreter's lock: it takes one small step.
#[pyfunction]
pub(crate) fn evaluate_network<'py>(
    py: Python<'py>,
    description: &Bound<'py, PyAny>,
    inputs: &Bound<'py, PyAny>,
    actions: usize,
    exploration: &str,
) -> PyResult<HashMap<String, Bound<'py, PyAny>>> {
    let described: Description<'_> = description.extract()?;
    let Network { mut policy, .. } = Network::new(&described)?;
    let inputs = inputs
        .try_iter()?
        .map(|input| batch::from_torch(&input?))
        .collect::<PyResult<Vec<_>>>()?;
    let observations = described.in_keys.iter().zip(&inputs).map(|(key, input)| {
        let width = input.shape().get(1).copied().unwrap_or(1);
        (key.join("."), Spec::unbounded(DType::F32, [width]))
    });
    let env = EnvSpec::new(
        "test of a network",
        Spec::composite(observations),
        action_spec(&described, actions)?,
    );
    let rows = inputs.first().map_or(1, |input| input.shape()[0]);
    let bound = policy.bind(&Binding::new(&env, rows));
    let columns = bound.map_err(|error| invalid(&error))?.columns;
    let mut run = || -> Result<Vec<(String, Tensor)>, PolicyError> {
        let mut obs = RowBlock::new(&env.observation_leaves(), rows)?;
        for (index, input) in inputs.iter().enumerate() {
            let values = input.contiguous();
            let values = values.as_slice::<f32>().map_err(PolicyError::failed)?;
            obs.rows_mut()
                .get_mut::<f32>(Key::new(index))?
                .copy_from_slice(values);
        }
        let mut out = RowBlock::new(&columns, rows)?;
        let input = PolicyIn {
            obs: obs.rows(),
            envs: &EnvRows::new(0, (0..rows as u32).collect()),
            exploration: exploration_type(exploration).map_err(PolicyError::failed)?,
        };
        policy.act(&input, out.rows_mut())?;
        let read = columns.iter().enumerate().map(|(index, leaf)| {
            let shape = [&[rows], leaf.shape.as_slice()].concat();
            let tensor = for_dtype!(leaf.dtype, T => {
                Tensor::from_slice(out.rows().get::<T>(Key::new(index))?, shape)
            });
            Ok((
                leaf.key.last().to_owned(),
                tensor.map_err(PolicyError::failed)?,
            ))
        });
        read.collect()
    };
    run()
        .map_err(|error| invalid(&error))?
        .into_iter()
        .map(|(name, tensor)| Ok((name, batch::to_torch(py, tensor)?)))
        .collect()
}

/// The action space that the network's head fits.
fn action_spec(described: &Description<'_>, actions: usize) -> PyResult<Spec> {
    match (described.head.as_str(), &described.bounds) {
        ("Categorical", _) => Ok(Spec::discrete(actions)),
        (_, Some((low, high))) => {
            Spec::bounded(low, high).map_err(|error| PyValueError::new_err(error.to_string()))
        }
        _ => Ok(Spec::unbounded(DType::F32, [actions])),
    }
}
