use std::sync::Arc;

use crate::Noise;

use super::{Activation, LayerNorm};

/// The numbers of a parameter, which copies of a network and its graph share.
pub(crate) type Values = Arc<Vec<f32>>;

/// `y = x Wᵀ + b`.
///
/// Source: PyTorch's documentation of `torch.nn.Linear`, for names, shapes and initial values.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// `[outputs, inputs]`, row-major.
    pub(crate) weight: Values,
    /// `[outputs]`; all zero when `has_bias` is false.
    pub(crate) bias: Values,
    pub(crate) has_bias: bool,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
}

impl Linear {
    /// A layer from `inputs` to `outputs` numbers, all parameters zero; without parameters if there
    /// is no memory for them, which [`Sequential::check`](super::Sequential::check) reports.
    pub(crate) fn zeros(inputs: usize, outputs: usize, has_bias: bool) -> Self {
        let elements = inputs.checked_mul(outputs);
        let parameters = elements.and_then(|n| Some((filled(0.0, n)?, filled(0.0, outputs)?)));
        let (weight, bias) = parameters.unwrap_or_default();
        Self {
            weight: weight.into(),
            bias: bias.into(),
            has_bias,
            inputs,
            outputs,
        }
    }

    /// Numbers that the layer reads for each row.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Numbers that it writes for each row.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Weight `[outputs, inputs]`, row-major.
    #[must_use]
    pub fn weight(&self) -> &[f32] {
        &self.weight
    }

    /// Bias `[outputs]`, if the layer has one.
    #[must_use]
    pub fn bias(&self) -> Option<&[f32]> {
        self.has_bias.then_some(self.bias.as_slice())
    }

    /// Draws all parameters uniformly between plus and minus `1 / √inputs`.
    fn init(&mut self, mut noise: Noise) {
        let bound = 1.0 / (self.inputs.max(1) as f32).sqrt();
        let mut draw = || (2.0 * noise.f32() - 1.0) * bound;
        Arc::make_mut(&mut self.weight).fill_with(&mut draw);
        if self.has_bias {
            Arc::make_mut(&mut self.bias).fill_with(draw);
        }
    }
}

/// `len` times `value`; `None` if there is no memory.
pub(super) fn filled(value: f32, len: usize) -> Option<Vec<f32>> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).ok()?;
    values.resize(len, value);
    Some(values)
}

/// One layer of a [`Sequential`](super::Sequential).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Layer {
    /// An affine map.
    Linear(Linear),
    /// An element-wise function.
    Activation(Activation),
    /// Normalisation over the features of a row.
    LayerNorm(LayerNorm),
    /// Flattens a value of any shape. Rows are flat here already, so it changes nothing.
    Flatten,
}

impl Layer {
    /// Name of the PyTorch module.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Linear(_) => "Linear",
            Self::Activation(activation) => activation.name(),
            Self::LayerNorm(_) => "LayerNorm",
            Self::Flatten => "Flatten",
        }
    }

    /// Numbers that the layer needs in each row, when that is fixed.
    pub(crate) fn inputs(&self) -> Option<usize> {
        match self {
            Self::Linear(linear) => Some(linear.inputs),
            Self::LayerNorm(norm) => Some(norm.features()),
            Self::Activation(_) | Self::Flatten => None,
        }
    }

    /// Numbers that it writes for each row, when that is fixed.
    pub(crate) fn outputs(&self) -> Option<usize> {
        match self {
            Self::Linear(linear) => Some(linear.outputs),
            other => other.inputs(),
        }
    }

    /// Whether there is memory for all parameters.
    pub(crate) fn is_whole(&self) -> bool {
        match self {
            Self::Linear(Linear {
                weight,
                bias,
                inputs,
                outputs,
                ..
            }) => inputs.checked_mul(*outputs) == Some(weight.len()) && bias.len() == *outputs,
            Self::LayerNorm(norm) => [norm.weight.len(), norm.bias.len()] == [norm.features(); 2],
            Self::Activation(_) | Self::Flatten => true,
        }
    }

    /// Sets the parameters to PyTorch's initial values, layer `number` of a network with `seed`.
    pub(crate) fn init(&mut self, seed: u64, number: usize) {
        if let Self::Linear(linear) = self {
            linear.init(Noise::new(seed, 0, 0).branch(number + 1));
        }
    }

    /// Name, values and shape of each parameter, in PyTorch's order.
    pub(crate) fn parameters(&self) -> Vec<(&'static str, &Values, Vec<usize>)> {
        match self {
            Self::Linear(linear) => {
                let weight = (linear.outputs, linear.inputs);
                let mut all = vec![("weight", &linear.weight, vec![weight.0, weight.1])];
                if linear.has_bias {
                    all.push(("bias", &linear.bias, vec![linear.outputs]));
                }
                all
            }
            Self::LayerNorm(norm) => {
                let shape = vec![norm.features()];
                vec![
                    ("weight", &norm.weight, shape.clone()),
                    ("bias", &norm.bias, shape),
                ]
            }
            Self::Activation(_) | Self::Flatten => Vec::new(),
        }
    }

    /// Replaces the parameters, given in the order of [`parameters`](Self::parameters) and of the
    /// same lengths.
    pub(crate) fn set_parameters(&mut self, values: &mut impl Iterator<Item = Vec<f32>>) {
        let mut set = |parameter: &mut Values| {
            if let Some(values) = values.next() {
                *parameter = values.into();
            }
        };
        match self {
            Self::Linear(linear) => {
                set(&mut linear.weight);
                if linear.has_bias {
                    set(&mut linear.bias);
                }
            }
            Self::LayerNorm(norm) => {
                set(&mut norm.weight);
                set(&mut norm.bias);
            }
            Self::Activation(_) | Self::Flatten => {}
        }
    }
}
