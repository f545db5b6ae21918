use pulp::Simd;
use serde::{Deserialize, Serialize};
use windrow_env::serde_form;

use super::elementwise::each;
use super::math;
use crate::heads::softplus;

/// An element-wise function between two layers; named and defined as the PyTorch module.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Activation {
    /// Hyperbolic tangent.
    Tanh,
    /// `max(x, 0)`.
    ReLU,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x sigmoid(x)`.
    SiLU,
    /// `x Φ(x)`, by the error function: the default form of PyTorch.
    GELU,
    /// `x Φ(x)`, with `Φ` approximated by `tanh`: `approximate="tanh"` of PyTorch.
    GELUTanh,
    /// `x`, or `alpha (exp(x) - 1)` below zero.
    ELU {
        /// Limit of `-ELU(x)` for `x` to minus infinity; 1 in PyTorch unless said otherwise.
        #[serde(with = "serde_form::float")]
        alpha: f32,
    },
    /// `x`, or `slope x` below zero.
    LeakyReLU {
        /// 0.01 in PyTorch unless said otherwise.
        #[serde(with = "serde_form::float")]
        slope: f32,
    },
    /// `x`, or `alpha (exp(x / alpha) - 1)` below zero.
    CELU {
        /// 1 in PyTorch unless said otherwise.
        #[serde(with = "serde_form::float")]
        alpha: f32,
    },
    /// [`ELU`](Self::ELU) with `alpha` 1.67326…, times 1.05070….
    SELU,
    /// `ln(1 + exp(beta x)) / beta`; `x` where `beta x` is above `threshold`.
    Softplus {
        /// 1 in PyTorch unless said otherwise.
        #[serde(with = "serde_form::float")]
        beta: f32,
        /// 20 in PyTorch unless said otherwise.
        #[serde(with = "serde_form::float")]
        threshold: f32,
    },
    /// `x tanh(softplus(x))`.
    Mish,
    /// `x` between two bounds; `ReLU6` is the one between 0 and 6.
    Hardtanh {
        /// -1 in PyTorch unless said otherwise.
        #[serde(with = "serde_form::float")]
        low: f32,
        /// 1 in PyTorch unless said otherwise.
        #[serde(with = "serde_form::float")]
        high: f32,
    },
    /// `x / 6 + 1/2`, between 0 and 1.
    Hardsigmoid,
    /// `x hardsigmoid(x)`.
    Hardswish,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `ln sigmoid(x)`.
    LogSigmoid,
    /// `x - tanh(x)`.
    Tanhshrink,
    /// `x` moved towards zero by `lambda`, and no further.
    Softshrink {
        /// 0.5 in PyTorch unless said otherwise.
        #[serde(with = "serde_form::float")]
        lambda: f32,
    },
    /// `x`, or zero where `|x|` is at most `lambda`.
    Hardshrink {
        /// 0.5 in PyTorch unless said otherwise.
        #[serde(with = "serde_form::float")]
        lambda: f32,
    },
    /// `x`, or `value` where `x` is at most `threshold`.
    Threshold {
        /// The largest `x` that is replaced.
        #[serde(with = "serde_form::float")]
        threshold: f32,
        /// The value that replaces it.
        #[serde(with = "serde_form::float")]
        value: f32,
    },
}

/// `alpha` and the factor of [`Activation::SELU`].
const SELU: (f32, f32) = (1.673_263_2, 1.050_701);

impl Activation {
    /// Name of the PyTorch module.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tanh => "Tanh",
            Self::ReLU => "ReLU",
            Self::Sigmoid => "Sigmoid",
            Self::SiLU => "SiLU",
            Self::GELU | Self::GELUTanh => "GELU",
            Self::ELU { .. } => "ELU",
            Self::LeakyReLU { .. } => "LeakyReLU",
            Self::CELU { .. } => "CELU",
            Self::SELU => "SELU",
            Self::Softplus { .. } => "Softplus",
            Self::Mish => "Mish",
            Self::Hardtanh { .. } => "Hardtanh",
            Self::Hardsigmoid => "Hardsigmoid",
            Self::Hardswish => "Hardswish",
            Self::Softsign => "Softsign",
            Self::LogSigmoid => "LogSigmoid",
            Self::Tanhshrink => "Tanhshrink",
            Self::Softshrink { .. } => "Softshrink",
            Self::Hardshrink { .. } => "Hardshrink",
            Self::Threshold { .. } => "Threshold",
        }
    }

    /// Applies the function to every element; the length of `values` is a multiple of the lanes.
    #[inline(always)]
    pub(crate) fn apply<S: Simd>(self, simd: S, values: &mut [f32]) {
        match self {
            Self::Tanh => map::<S>(
                values,
                #[inline(always)]
                |x| math::tanh(simd, x),
            ),
            Self::ReLU => map::<S>(
                values,
                #[inline(always)]
                |x| math::relu(simd, x),
            ),
            Self::Sigmoid => map::<S>(
                values,
                #[inline(always)]
                |x| math::sigmoid(simd, x),
            ),
            Self::SiLU => map::<S>(
                values,
                #[inline(always)]
                |x| math::silu(simd, x),
            ),
            Self::GELU => map::<S>(
                values,
                #[inline(always)]
                |x| math::gelu(simd, x),
            ),
            Self::GELUTanh => map::<S>(
                values,
                #[inline(always)]
                |x| math::gelu_tanh(simd, x),
            ),
            Self::ELU { alpha } => map::<S>(
                values,
                #[inline(always)]
                |x| math::elu(simd, x, alpha),
            ),
            Self::Tanhshrink => map::<S>(
                values,
                #[inline(always)]
                |x| simd.sub_f32s(x, math::tanh(simd, x)),
            ),
            other => other.apply_plain(values),
        }
    }

    /// As [`apply`](Self::apply), in plain loops that the compiler may vectorise.
    #[inline(always)]
    fn apply_plain(self, values: &mut [f32]) {
        match self {
            Self::LeakyReLU { slope } => each(values, |x| if x > 0.0 { x } else { slope * x }),
            Self::CELU { alpha } => each(values, |x| elu(x, alpha, 1.0 / alpha)),
            Self::SELU => each(values, |x| SELU.1 * elu(x, SELU.0, 1.0)),
            Self::Softplus { beta, threshold } => each(values, |x| match beta * x > threshold {
                true => x,
                false => softplus(beta * x) / beta,
            }),
            Self::Mish => each(values, |x| x * softplus(x).tanh()),
            Self::Hardtanh { low, high } => each(values, |x| between(x, low, high)),
            Self::Hardsigmoid => each(values, hardsigmoid),
            Self::Hardswish => each(values, |x| x * hardsigmoid(x)),
            Self::Softsign => each(values, |x| x / (1.0 + x.abs())),
            Self::LogSigmoid => each(values, |x| -softplus(-x)),
            Self::Softshrink { lambda } => each(values, |x| x - between(x, -lambda, lambda)),
            Self::Hardshrink { lambda } => {
                each(values, |x| if x.abs() <= lambda { 0.0 } else { x });
            }
            Self::Threshold { threshold, value } => {
                each(values, |x| if x <= threshold { value } else { x });
            }
            Self::Tanh
            | Self::ReLU
            | Self::Sigmoid
            | Self::SiLU
            | Self::GELU
            | Self::GELUTanh
            | Self::ELU { .. }
            | Self::Tanhshrink => {}
        }
    }
}

#[inline(always)]
fn elu(x: f32, alpha: f32, rate: f32) -> f32 {
    if x > 0.0 {
        x
    } else {
        alpha * (rate * x).exp_m1()
    }
}

/// As `clamp`, without its panic for bounds in the wrong order.
#[inline(always)]
fn between(x: f32, low: f32, high: f32) -> f32 {
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

#[inline(always)]
fn hardsigmoid(x: f32) -> f32 {
    between(x / 6.0 + 0.5, 0.0, 1.0)
}

#[inline(always)]
fn map<S: Simd>(values: &mut [f32], f: impl Fn(S::f32s) -> S::f32s) {
    for x in S::as_mut_simd_f32s(values).0 {
        *x = f(*x);
    }
}
