//! Where candle meets windrow: networks that candle trains, columns of a batch as its tensors and back.

use anyhow::Result;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};
use rand::RngExt;
use rand_distr::StandardNormal;
use rand_pcg::Pcg64;
use windrow::tensordict::{self, TensorDict};

/// Largest norm of a gradient; longer ones are scaled down to it.
const MAX_GRADIENT: f64 = 0.5;

/// Linear layers with tanh in between, and the optimizer of their parameters.
pub(crate) struct Network {
    layers: Vec<Layer>,
    adam: AdamW,
}

/// `weight`: `[outputs, inputs]`, `bias`: `[outputs]`.
struct Layer {
    weight: Var,
    bias: Var,
}

impl Network {
    /// Layers between `sizes` values, all weights drawn so that values keep their scale; the last layer's times `gain`.
    pub(crate) fn new(sizes: &[usize], gain: f32, rng: &mut Pcg64) -> Result<Self> {
        let mut layers = Vec::new();
        for (i, pair) in sizes.windows(2).enumerate() {
            let (inputs, outputs) = (pair[0], pair[1]);
            let gain = if i + 2 == sizes.len() {
                gain
            } else {
                2f32.sqrt()
            };
            let scale = gain / (inputs as f32).sqrt();
            let weight = (0..inputs * outputs)
                .map(|_| scale * rng.sample::<f32, _>(StandardNormal))
                .collect();
            layers.push(Layer {
                weight: Var::from_vec(weight, (outputs, inputs), &Device::Cpu)?,
                bias: Var::zeros(outputs, DType::F32, &Device::Cpu)?,
            });
        }
        let parameters = layers
            .iter()
            .flat_map(|layer| [layer.weight.clone(), layer.bias.clone()]);
        let options = ParamsAdamW {
            eps: 1e-5,
            weight_decay: 0.0,
            ..ParamsAdamW::default()
        };
        let adam = AdamW::new(parameters.collect(), options)?;
        Ok(Self { layers, adam })
    }

    /// `input`: `[rows, inputs]`; the result: `[rows, outputs]`.
    pub(crate) fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let mut values = input.clone();
        for (i, Layer { weight, bias }) in self.layers.iter().enumerate() {
            if i > 0 {
                values = values.tanh()?;
            }
            values = values.matmul(&weight.t()?)?.broadcast_add(bias)?;
        }
        Ok(values)
    }

    /// Takes one step that makes `loss` smaller.
    pub(crate) fn descend(&mut self, loss: &Tensor, learning_rate: f64) -> Result<()> {
        let mut gradients = loss.backward()?;
        let parameters = || {
            self.layers
                .iter()
                .flat_map(|layer| [&layer.weight, &layer.bias])
        };
        let mut square = 0.0;
        for gradient in parameters().filter_map(|parameter| gradients.get(parameter)) {
            square += f64::from(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?);
        }
        let scale = MAX_GRADIENT / square.sqrt();
        if scale < 1.0 {
            for parameter in parameters() {
                if let Some(gradient) = gradients.remove(parameter) {
                    gradients.insert(parameter, (gradient * scale)?);
                }
            }
        }
        self.adam.set_learning_rate(learning_rate);
        Ok(self.adam.step(&gradients)?)
    }

    /// The parameters under the names that PyTorch gives to those of `nn.Sequential(Linear, Tanh, Linear, …)`.
    pub(crate) fn weights(&self) -> Result<TensorDict> {
        let mut weights = TensorDict::new([]);
        for (i, layer) in self.layers.iter().enumerate() {
            for (name, parameter) in [("weight", &layer.weight), ("bias", &layer.bias)] {
                let values = parameter.flatten_all()?.to_vec1::<f32>()?;
                let tensor = tensordict::Tensor::from_vec(values, parameter.dims())?;
                weights.set(format!("{}.{name}", 2 * i).as_str(), tensor)?;
            }
        }
        Ok(weights)
    }
}

/// A column as candle's tensor, `[frames, width]`.
pub(crate) fn floats(column: &tensordict::Tensor, width: usize) -> Result<Tensor> {
    let values = column.to_vec::<f32>()?;
    Ok(Tensor::from_vec(
        values,
        (column.len() / width, width),
        &Device::Cpu,
    )?)
}

/// A column of indices as candle's tensor, `[frames, 1]`.
pub(crate) fn indices(column: &tensordict::Tensor) -> Result<Tensor> {
    let values = column.to_vec::<i64>()?;
    Ok(Tensor::from_vec(values, (column.len(), 1), &Device::Cpu)?)
}
