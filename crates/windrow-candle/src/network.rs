//! A network of windrow whose parameters learn.

use candle_core::{D, DType, Device, Module, Tensor, Var, bail};
use windrow_policy::nn::{Activation, Layer, Sequential};
use windrow_policy::{Misfit, Weights};

use crate::activation::activate;
use crate::{CandleError, Vars};

/// A [`Sequential`] network of windrow over candle's variables, for the learner of a policy that
/// collects.
///
/// [`forward`](Module::forward) takes `[.., inputs]` and returns `[.., outputs]`, such as
/// `[envs, time, 4]` and `[envs, time, 2]`. Its numbers are those of windrow but for the order of
/// sums and the last bits of functions: the README has the bound. Every layer and activation has a
/// gradient.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use windrow::nn::Sequential;
/// use windrow_candle::{Network, Vars};
///
/// let net = Sequential::new().linear(4, 64).tanh().linear(64, 2);
/// let vars = Vars::new(&net.weights_prefixed("actor."), &Device::Cpu)?;
/// let actor = Network::new(&net, "actor.", &vars)?;
/// let logits = actor.forward(&Tensor::zeros((8, 16, 4), candle_core::DType::F32, &Device::Cpu)?)?;
/// assert_eq!(logits.dims(), [8, 16, 2]);
/// let gradients = logits.sum_all()?.backward()?;
/// assert!(gradients.get(vars.get("actor.0.weight")?).is_some());
/// # Ok::<(), windrow_candle::CandleError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Network {
    /// Numbers in a row of the input; `None` when no layer fixes it.
    inputs: Option<usize>,
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
enum Step {
    /// `weight`: `[outputs, inputs]`, `bias`: `[outputs]`.
    Linear {
        weight: Var,
        bias: Option<Var>,
    },
    /// Both `[features]`.
    LayerNorm {
        weight: Var,
        bias: Var,
        eps: f64,
    },
    Activation(Activation),
}

impl Network {
    /// The layers of `net`, with those of `vars` whose names start with `prefix`: `"actor."` for
    /// `"actor.0.weight"`. `vars` may have others.
    ///
    /// # Errors
    /// [`CandleError::Policy`] naming the layers that do not fit each other, or every variable that
    /// is missing or of another shape; [`CandleError::Candle`] for a layer that this crate does not
    /// have.
    pub fn new(net: &Sequential, prefix: &str, vars: &Vars) -> Result<Self, CandleError> {
        net.check()?;
        check(&net.weights_prefixed(prefix), vars)?;
        let mut steps = Vec::new();
        for (number, layer) in net.layers().iter().enumerate() {
            let var = |name: &str| vars.get(&format!("{prefix}{number}.{name}")).cloned();
            steps.push(match layer {
                Layer::Linear(linear) => Step::Linear {
                    weight: var("weight")?,
                    bias: linear.bias().map(|_| var("bias")).transpose()?,
                },
                Layer::LayerNorm(norm) => Step::LayerNorm {
                    weight: var("weight")?,
                    bias: var("bias")?,
                    eps: f64::from(norm.eps()),
                },
                Layer::Activation(activation) => {
                    // Fails for one that is not known.
                    activate(*activation, &Tensor::zeros(1, DType::F32, &Device::Cpu)?)?;
                    Step::Activation(*activation)
                }
                // Rows are flat already.
                Layer::Flatten => continue,
                other => Err(candle_core::Error::msg(format!(
                    "layer {number}: expected one that windrow-candle has, got {}",
                    other.name()
                )))?,
            });
        }
        Ok(Self {
            inputs: net.inputs(),
            steps,
        })
    }
}

/// Checks that `vars` has each of `parameters`, of the same shape.
fn check(parameters: &Weights, vars: &Vars) -> Result<(), CandleError> {
    let misfits = parameters.leaves().filter_map(|(key, parameter)| {
        let (name, expected) = (key.to_string(), parameter.shape());
        match vars.get(&name) {
            Err(_) => Some(Misfit::Missing {
                name,
                expected: expected.into(),
            }),
            Ok(var) if var.dims() != expected => Some(Misfit::Shape {
                name,
                expected: expected.into(),
                got: var.dims().into(),
            }),
            Ok(_) => None,
        }
    });
    CandleError::of_misfits(misfits.collect())
}

impl Module for Network {
    fn forward(&self, input: &Tensor) -> candle_core::Result<Tensor> {
        let (mut values, dims) = (input.clone(), input.dims());
        if let Some(inputs) = self.inputs {
            if dims.last() != Some(&inputs) {
                bail!("input of the network: expected shape [.., {inputs}], got {dims:?}");
            }
            values = values.reshape((input.elem_count() / inputs, inputs))?;
        }
        for step in &self.steps {
            values = step.forward(&values)?;
        }
        let Some(outputs) = self.inputs.and(values.dims().last().copied()) else {
            return Ok(values);
        };
        let rows = &dims[..dims.len() - 1];
        values.reshape([rows, &[outputs]].concat())
    }
}

impl Step {
    /// `values`: `[rows, inputs]`.
    fn forward(&self, values: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Linear { weight, bias } => {
                let values = values.matmul(&weight.t()?)?;
                match bias {
                    Some(bias) => values.broadcast_add(bias),
                    None => Ok(values),
                }
            }
            // That of candle-nn has no gradient.
            Self::LayerNorm { weight, bias, eps } => {
                let centred = values.broadcast_sub(&values.mean_keepdim(D::Minus1)?)?;
                let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
                let scaled = centred.broadcast_div(&(variance + *eps)?.sqrt()?)?;
                scaled.broadcast_mul(weight)?.broadcast_add(bias)
            }
            Self::Activation(activation) => activate(*activation, values),
        }
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
