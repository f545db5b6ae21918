//! Finding a network's layers from the names and shapes of its parameters.

use std::collections::BTreeMap;

use tensordict::{Shape, Tensor};

use crate::weights::dotted;
use crate::{Misfit, Weights, WeightsError};

use super::{Activation, Layer, LayerNorm, Linear, Sequential};

/// The parameters of one layer.
#[derive(Default)]
struct Found<'a> {
    weight: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
}

impl Sequential {
    /// A multilayer perceptron with the parameters in `weights`, from whose shapes the layers
    /// follow: a matrix `"n.weight"` is linear layer `n`, a vector a layer normalisation (with
    /// `eps` 1e-5), and a number without parameters between two such layers is `activation`.
    ///
    /// `weights` show no functions after the last layer with parameters: add them with
    /// [`activation`](Self::activation).
    ///
    /// # Errors
    /// [`WeightsError::Misfits`] for tensors that are no such parameters, and for the first one
    /// after a gap of several numbers, whose layers are unknown.
    pub fn from_weights(weights: &Weights, activation: Activation) -> Result<Self, WeightsError> {
        Self::from_weights_prefixed("", weights, activation)
    }

    /// As [`from_weights`](Self::from_weights), from the tensors whose names start with `prefix`;
    /// others are left alone.
    ///
    /// # Errors
    /// As [`from_weights`](Self::from_weights).
    pub fn from_weights_prefixed(
        prefix: &str,
        weights: &Weights,
        activation: Activation,
    ) -> Result<Self, WeightsError> {
        let named: Vec<_> = weights
            .leaves()
            .map(|(key, tensor)| (dotted(&key), tensor))
            .filter(|(name, _)| name.starts_with(prefix))
            .collect();
        let layers = find(prefix, &named)?;
        let mut net = Self::new();
        for (&number, found) in &layers {
            match number - net.layers().len() {
                0 => {}
                1 => net = net.activation(activation),
                _ => return Err(unexpected(prefix, number, found)),
            }
            let layer = layer(found).ok_or_else(|| unexpected(prefix, number, found))?;
            net = net.layer(layer);
        }
        net.load_prefixed(prefix, weights)?;
        Ok(net)
    }
}

/// Parameters by the number of their layer.
fn find<'a>(
    prefix: &str,
    named: &[(String, &'a Tensor)],
) -> Result<BTreeMap<usize, Found<'a>>, WeightsError> {
    let mut layers: BTreeMap<usize, Found<'_>> = BTreeMap::new();
    let mut misfits = Vec::new();
    for (name, tensor) in named {
        let number = name[prefix.len()..].split_once('.');
        match number.map(|(number, rest)| (number.parse(), rest)) {
            Some((Ok(number), "weight")) => {
                layers.entry(number).or_default().weight = Some(tensor);
            }
            Some((Ok(number), "bias")) => layers.entry(number).or_default().bias = Some(tensor),
            _ => misfits.push(misfit(name.clone(), tensor)),
        }
    }
    match misfits.is_empty() {
        true => Ok(layers),
        false => Err(WeightsError::Misfits {
            path: None,
            misfits,
        }),
    }
}

fn layer(found: &Found<'_>) -> Option<Layer> {
    match *found.weight?.shape() {
        [outputs, inputs] => Some(Layer::Linear(Linear::zeros(
            inputs,
            outputs,
            found.bias.is_some(),
        ))),
        [features] => Some(Layer::LayerNorm(LayerNorm::new(features))),
        _ => None,
    }
}

fn misfit(name: String, tensor: &Tensor) -> Misfit {
    Misfit::Unexpected {
        name,
        got: Shape::from_slice(tensor.shape()),
    }
}

fn unexpected(prefix: &str, number: usize, found: &Found<'_>) -> WeightsError {
    let parameters = [("weight", found.weight), ("bias", found.bias)];
    let misfits = parameters
        .into_iter()
        .filter_map(|(name, tensor)| Some(misfit(format!("{prefix}{number}.{name}"), tensor?)));
    WeightsError::Misfits {
        path: None,
        misfits: misfits.collect(),
    }
}
