//! Where candle meets windrow: the same network in both, and tensors from one to the other.

use anyhow::Result;
use candle_core::{Device, Tensor, Var, WithDType};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};
use windrow::{Weights, tensordict};

/// What lies between two layers.
type Activation = fn(&Tensor) -> candle_core::Result<Tensor>;

/// Linear layers with an activation in between, and the optimizer of their parameters.
pub(crate) struct Network {
    layers: Vec<Layer>,
    activation: Activation,
    adam: AdamW,
}

/// `weight`: `[outputs, inputs]`, `bias`: `[outputs]`.
struct Layer {
    weight: Var,
    bias: Var,
}

impl Network {
    /// Begins with `weights`: `"0.weight"`, `"0.bias"`, `"2.weight"` and so on, since every activation takes a number
    /// too.
    pub(crate) fn new(weights: &Weights, activation: Activation) -> Result<Self> {
        let variable = |name: String| -> Result<Var> {
            Ok(Var::from_tensor(&to_candle::<f32>(weights.get(&name)?)?)?)
        };
        let layers = (0..weights.len() / 2)
            .map(|i| {
                Ok(Layer {
                    weight: variable(format!("{}.weight", 2 * i))?,
                    bias: variable(format!("{}.bias", 2 * i))?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let options = ParamsAdamW {
            eps: 1e-5,
            weight_decay: 0.0,
            ..ParamsAdamW::default()
        };
        let adam = AdamW::new(parameters(&layers).cloned().collect(), options)?;
        Ok(Self {
            layers,
            activation,
            adam,
        })
    }

    /// `input`: `[rows, inputs]`; the result: `[rows, outputs]`.
    pub(crate) fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let mut values = input.clone();
        for (i, Layer { weight, bias }) in self.layers.iter().enumerate() {
            if i > 0 {
                values = (self.activation)(&values)?;
            }
            values = values.matmul(&weight.t()?)?.broadcast_add(bias)?;
        }
        Ok(values)
    }

    /// Takes one step that makes `loss` smaller.
    pub(crate) fn descend(&mut self, loss: &Tensor, learning_rate: f64) -> Result<()> {
        self.adam.set_learning_rate(learning_rate);
        Ok(self.adam.backward_step(loss)?)
    }

    /// Goes the given share of the way to the parameters of `other`.
    pub(crate) fn follow(&self, other: &Self, share: f64) -> Result<()> {
        for (own, other) in parameters(&self.layers).zip(parameters(&other.layers)) {
            let between = (own.affine(1.0 - share, 0.0)? + other.affine(share, 0.0)?)?;
            own.set(&between)?;
        }
        Ok(())
    }

    /// A copy of the parameters, under the names that they came with.
    pub(crate) fn weights(&self) -> Result<Weights> {
        let names = (0..).flat_map(|i| ["weight", "bias"].map(|name| format!("{}.{name}", 2 * i)));
        let mut weights = Weights::new([]);
        for (name, parameter) in names.zip(parameters(&self.layers)) {
            weights.set(name, to_windrow(parameter)?)?;
        }
        Ok(weights)
    }
}

fn parameters(layers: &[Layer]) -> impl Iterator<Item = &Var> {
    layers.iter().flat_map(|layer| [&layer.weight, &layer.bias])
}

/// A copy for candle, of the same shape.
pub(crate) fn to_candle<T>(tensor: &windrow::Tensor) -> Result<Tensor>
where
    T: tensordict::Element + WithDType,
{
    let values = tensor.to_vec::<T>()?;
    Ok(Tensor::from_vec(values, tensor.shape(), &Device::Cpu)?)
}

/// A copy for windrow, of the same shape.
pub(crate) fn to_windrow(tensor: &Tensor) -> Result<windrow::Tensor> {
    let values = tensor.flatten_all()?.to_vec1::<f32>()?;
    Ok(windrow::Tensor::from_vec(values, tensor.dims())?)
}
