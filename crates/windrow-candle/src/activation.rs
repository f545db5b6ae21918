//! Activations of windrow in candle's operations, each with a gradient that is finite wherever the
//! value is.

use candle_core::{Result, Tensor, bail};
use windrow_policy::nn::Activation;

/// `alpha` and the factor of [`Activation::SELU`].
const SELU: (f64, f64) = (1.673_263_2, 1.050_701);

/// Applies `activation` to every element of `x`.
pub(crate) fn activate(activation: Activation, x: &Tensor) -> Result<Tensor> {
    let number = f64::from;
    match activation {
        Activation::Tanh => x.tanh(),
        Activation::ReLU => x.relu(),
        Activation::Sigmoid => sigmoid(x),
        Activation::SiLU => x * sigmoid(x)?,
        Activation::GELU => x.gelu_erf(),
        Activation::GELUTanh => x.gelu(),
        Activation::ELU { alpha } => elu(x, number(alpha), 1.0),
        Activation::LeakyReLU { slope } => {
            let (above, below) = halves(x)?;
            above + (below * number(slope))?
        }
        Activation::CELU { alpha } => elu(x, number(alpha), 1.0 / number(alpha)),
        Activation::SELU => elu(x, SELU.0, 1.0)? * SELU.1,
        Activation::Softplus { beta, threshold } => {
            let (beta, threshold) = (number(beta), number(threshold));
            let scaled = (x * beta)?;
            let curve = (softplus(&scaled)? / beta)?;
            scaled.gt(threshold)?.where_cond(x, &curve)
        }
        Activation::Mish => x * softplus(x)?.tanh()?,
        Activation::Hardtanh { low, high } => between(x, number(low), number(high)),
        Activation::Hardsigmoid => hardsigmoid(x),
        Activation::Hardswish => x * hardsigmoid(x)?,
        Activation::Softsign => x / (x.abs()? + 1.0)?,
        Activation::LogSigmoid => softplus(&x.neg()?)?.neg(),
        Activation::Tanhshrink => x - x.tanh()?,
        Activation::Softshrink { lambda } => x - between(x, -number(lambda), number(lambda))?,
        Activation::Hardshrink { lambda } => {
            let near = x.abs()?.le(number(lambda))?;
            near.where_cond(&constant(x, 0.0)?, x)
        }
        Activation::Threshold { threshold, value } => {
            let low = x.le(number(threshold))?;
            low.where_cond(&constant(x, number(value))?, x)
        }
        other => bail!("expected an activation that windrow-candle has, got {other:?}"),
    }
}

/// `1 / (1 + exp(-x))`, whose gradient is no quotient of infinities.
fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x * 0.5)?.tanh()?.affine(0.5, 0.5)
}

/// `ln(1 + exp(x))`, without overflow.
fn softplus(x: &Tensor) -> Result<Tensor> {
    let tail = (x.abs()?.neg()?.exp()? + 1.0)?.log()?;
    x.relu()? + tail
}

/// `x`, or `alpha (exp(rate x) - 1)` below zero.
fn elu(x: &Tensor, alpha: f64, rate: f64) -> Result<Tensor> {
    let (above, below) = halves(x)?;
    above + (((below * rate)?.exp()? - 1.0)? * alpha)?
}

/// `x` where it is above zero, and `x` elsewhere; zeros otherwise.
fn halves(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let (above, zeros) = (x.gt(0.0)?, x.zeros_like()?);
    Ok((above.where_cond(x, &zeros)?, above.where_cond(&zeros, x)?))
}

fn between(x: &Tensor, low: f64, high: f64) -> Result<Tensor> {
    let below_high = x.gt(high)?.where_cond(&constant(x, high)?, x)?;
    x.lt(low)?.where_cond(&constant(x, low)?, &below_high)
}

fn hardsigmoid(x: &Tensor) -> Result<Tensor> {
    between(&x.affine(1.0 / 6.0, 0.5)?, 0.0, 1.0)
}

/// `value` in each element, of the type and shape of `x`.
fn constant(x: &Tensor, value: f64) -> Result<Tensor> {
    x.zeros_like()? + value
}
