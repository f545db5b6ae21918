//! A network policy as it is written down, without its parameters.

use serde::{Deserialize, Serialize};
use tensordict::NestedKey;
use windrow_env::serde_form;

use super::NetworkPolicy;
use crate::Head;
use crate::nn::{Activation, Layer, LayerNorm, Linear, Sequential};

/// Everything but the parameters.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkRepr {
    layers: Vec<LayerRepr>,
    head: Head,
    #[serde(default, with = "serde_form::key::list")]
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
enum LayerRepr {
    Linear {
        inputs: usize,
        outputs: usize,
        bias: bool,
    },
    Activation(Activation),
    LayerNorm {
        features: usize,
        #[serde(with = "serde_form::float")]
        eps: f32,
    },
    Flatten,
}

impl From<&Layer> for LayerRepr {
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

impl From<LayerRepr> for Layer {
    fn from(written: LayerRepr) -> Self {
        match written {
            LayerRepr::Linear {
                inputs,
                outputs,
                bias,
            } => Self::Linear(Linear::zeros(inputs, outputs, bias)),
            LayerRepr::Activation(activation) => Self::Activation(activation),
            LayerRepr::LayerNorm { features, eps } => {
                let norm = LayerNorm::new(features);
                Self::LayerNorm(LayerNorm { eps, ..norm })
            }
            LayerRepr::Flatten => Self::Flatten,
        }
    }
}

impl From<&NetworkPolicy> for NetworkRepr {
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
impl From<NetworkRepr> for NetworkPolicy {
    fn from(written: NetworkRepr) -> Self {
        let layers = written.layers.into_iter().map(Into::into);
        let mut policy = Self::new(Sequential::of_layers(layers), written.head)
            .prefix(written.prefix)
            .return_log_prob(written.return_log_prob)
            .return_params(written.return_params);
        policy.in_keys = written.in_keys.unwrap_or_default();
        policy
    }
}
