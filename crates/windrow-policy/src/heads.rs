//! How a network's outputs become a distribution over actions.

use serde::{Deserialize, Serialize};
use windrow_env::serde_form;

/// The meaning of a network's outputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Head {
    /// The action itself, for real-valued actions; for a discrete one the choice with the largest
    /// number.
    Deterministic,
    /// Logits of the choices of a discrete action; of each choice in turn for several.
    Categorical,
    /// Independent normal distributions. Samples are not cut to the bounds of the action.
    Normal(Scale),
    /// Independent normal distributions, squashed by `tanh` into the bounds of the action.
    TanhNormal(Scale),
}

/// Where the deviations of a normal distribution come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Scale {
    /// The network writes the means, then the numbers that are mapped to deviations.
    Mapped(ScaleMapping),
    /// The network writes the means only; the logarithms of the deviations are a parameter of their
    /// own. A deviation that would round to 0 is the smallest normal number instead, about 1e-38.
    Parameter {
        /// Name of the parameter, `[actions]`, among the weights: `"log_std"`.
        name: String,
        /// Its value before anything is loaded.
        #[serde(with = "serde_form::float")]
        initial: f32,
    },
}

impl Scale {
    /// The second half of the network's outputs through `biased_softplus_1.0`.
    #[must_use]
    pub fn softplus() -> Self {
        Self::Mapped(ScaleMapping::default())
    }

    /// A parameter `"log_std"` that starts at 0.
    #[must_use]
    pub fn log_std() -> Self {
        Self::Parameter {
            name: "log_std".into(),
            initial: 0.0,
        }
    }
}

/// How a number becomes a deviation.
///
/// Source: the documentation of `NormalParamExtractor` and `biased_softplus` in tensordict.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ScaleMapping {
    /// `softplus(x + c) + 0.01` with the `c` that gives `bias` at `x = 0`, and at least 1e-4.
    BiasedSoftplus {
        /// Deviation at `x = 0`; above 0.01.
        #[serde(with = "serde_form::float")]
        bias: f32,
    },
    /// `exp(x)`, and at least 1e-4.
    Exp,
}

impl Default for ScaleMapping {
    fn default() -> Self {
        Self::BiasedSoftplus { bias: 1.0 }
    }
}

/// The constant that [`ScaleMapping::BiasedSoftplus`] adds to the softplus.
const SOFTPLUS_FLOOR: f32 = 0.01;
/// No deviation is smaller.
const SMALLEST_SCALE: f32 = 1e-4;

impl ScaleMapping {
    /// The deviation that `x` stands for.
    #[must_use]
    pub fn apply(self, x: f32) -> f32 {
        self.prepare().apply(x)
    }

    /// Computes once the part that does not depend on `x`.
    pub(crate) fn prepare(self) -> Prepared {
        Prepared(match self {
            Self::BiasedSoftplus { bias } => Some((bias - SOFTPLUS_FLOOR).exp_m1().max(1e-6).ln()),
            Self::Exp => None,
        })
    }
}

/// A [`ScaleMapping`] ready for use: the shift before the softplus, or none for the exponential.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prepared(Option<f32>);

impl Prepared {
    pub(crate) fn apply(self, x: f32) -> f32 {
        let scale = match self.0 {
            Some(shift) => softplus(x + shift) + SOFTPLUS_FLOOR,
            None => x.exp(),
        };
        // `max` would replace NaN, which the check of the result has to see.
        if scale < SMALLEST_SCALE {
            SMALLEST_SCALE
        } else {
            scale
        }
    }
}

/// `ln(1 + exp(x))`, without overflow.
pub(crate) fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p() + if x.is_nan() { x } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_at_zero_gives_the_bias() {
        for bias in [0.5, 1.0, 3.0] {
            let scale = ScaleMapping::BiasedSoftplus { bias }.apply(0.0);
            assert!((scale - bias).abs() < 1e-6, "{bias}: {scale}");
        }
    }

    #[test]
    fn scales_have_a_floor_and_keep_nan() {
        assert_eq!(ScaleMapping::Exp.apply(-100.0), 1e-4);
        assert!((ScaleMapping::default().apply(-100.0) - 0.01).abs() < 1e-7);
        assert!((ScaleMapping::default().apply(100.0) - 100.55).abs() < 0.1);
        assert!(ScaleMapping::default().apply(f32::NAN).is_nan());
        assert!(ScaleMapping::Exp.apply(f32::NAN).is_nan());
    }
}
