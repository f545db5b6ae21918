use pulp::Simd;
use serde::{Deserialize, Serialize};
use windrow_env::written;

use super::math;

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
        #[serde(with = "written::float")]
        alpha: f32,
    },
}

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
        }
    }
}

#[inline(always)]
fn map<S: Simd>(values: &mut [f32], f: impl Fn(S::f32s) -> S::f32s) {
    for x in S::as_mut_simd_f32s(values).0 {
        *x = f(*x);
    }
}
