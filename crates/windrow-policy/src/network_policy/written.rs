//! A network policy as it is written down, without its parameters.

use serde::{Deserialize, Serialize};
use tensordict::NestedKey;
use windrow_env::written;

use super::NetworkPolicy;
use crate::Head;
use crate::nn::{Activation, Layer, LayerNorm, Linear, Sequential};

/// Everything but the parameters.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WrittenNetwork {
    layers: Vec<WrittenLayer>,
    head: Head,
    #[serde(default, with = "written::key::list")]
    in_keys: Option<Vec<NestedKey>>,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    return_log_prob: bool,
    #[serde(default)]
    return_params: bool,
}

/// A layer by its kind and its sizes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum WrittenLayer {
    Linear {
        inputs: usize,
        outputs: usize,
        bias: bool,
    },
    Activation(Activation),
    LayerNorm {
        features: usize,
        #[serde(with = "written::float")]
        eps: f32,
    },
    Flatten,
}

impl From<&Layer> for WrittenLayer {
    fn from(layer: &Layer) -> Self {
        match layer {
            Layer::Linear(linear) => Self::Linear {
                inputs: linear.inputs,
                outputs: linear.outputs,
                bias: linear.has_bias,
            },
            Layer::Activation(activation) => Self::Activation(*activation),
            Layer::LayerNorm(norm) => Self::LayerNorm {
                features: norm.features,
                eps: norm.eps,
            },
            Layer::Flatten => Self::Flatten,
        }
    }
}

impl From<WrittenLayer> for Layer {
    fn from(written: WrittenLayer) -> Self {
        match written {
            WrittenLayer::Linear {
                inputs,
                outputs,
                bias,
            } => Self::Linear(Linear::zeros(inputs, outputs, bias)),
            WrittenLayer::Activation(activation) => Self::Activation(activation),
            WrittenLayer::LayerNorm { features, eps } => {
                let norm = LayerNorm::new(features);
                Self::LayerNorm(LayerNorm { eps, ..norm })
            }
            WrittenLayer::Flatten => Self::Flatten,
        }
    }
}

impl From<&NetworkPolicy> for WrittenNetwork {
    fn from(policy: &NetworkPolicy) -> Self {
        Self {
            layers: policy.net.layers().iter().map(Into::into).collect(),
            head: policy.head.clone(),
            in_keys: (!policy.in_keys.is_empty()).then(|| policy.in_keys.clone()),
            prefix: policy.prefix.clone(),
            return_log_prob: policy.log_prob,
            return_params: policy.params,
        }
    }
}

/// The policy before its parameters are loaded.
impl From<WrittenNetwork> for NetworkPolicy {
    fn from(written: WrittenNetwork) -> Self {
        let layers = written.layers.into_iter().map(Into::into);
        let mut policy = Self::new(Sequential::of_layers(layers), written.head)
            .prefix(written.prefix)
            .return_log_prob(written.return_log_prob)
            .return_params(written.return_params);
        policy.in_keys = written.in_keys.unwrap_or_default();
        policy
    }
}
