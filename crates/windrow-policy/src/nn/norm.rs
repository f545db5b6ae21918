use super::aligned::LINE;
use super::kernel::total;
use super::layer::{Values, filled};

/// Subtracts a row's mean, divides by its deviation, then scales and shifts each feature.
///
/// Source: PyTorch's documentation of `torch.nn.LayerNorm` (the variance is the biased one).
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNorm {
    /// `[features]`.
    pub(crate) weight: Values,
    /// `[features]`.
    pub(crate) bias: Values,
    /// Added to the variance.
    pub(crate) eps: f32,
    pub(crate) features: usize,
}

impl LayerNorm {
    /// Over `features` numbers, with weight one, bias zero and PyTorch's `eps` of 1e-5; without
    /// parameters if there is no memory for them.
    pub(crate) fn new(features: usize) -> Self {
        Self {
            weight: filled(1.0, features).unwrap_or_default().into(),
            bias: filled(0.0, features).unwrap_or_default().into(),
            eps: 1e-5,
            features,
        }
    }

    /// Numbers in a row.
    #[must_use]
    pub fn features(&self) -> usize {
        self.features
    }

    /// Added to the variance.
    #[must_use]
    pub fn eps(&self) -> f32 {
        self.eps
    }
}

/// Sum in an order that does not depend on the vector length: 16 partial sums, then a tree.
#[inline(always)]
pub(super) fn sum(values: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut parts = [0.0; LINE];
    let (lines, rest) = values.as_chunks::<LINE>();
    for line in lines {
        for (part, &x) in parts.iter_mut().zip(line) {
            *part += f(x);
        }
    }
    for (part, &x) in parts.iter_mut().zip(rest) {
        *part += f(x);
    }
    total(parts)
}
