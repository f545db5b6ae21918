use super::aligned::LINE;
use super::kernel::total;
use super::layer::filled;

/// Subtracts a row's mean, divides by its deviation, then scales and shifts each feature.
///
/// Source: PyTorch's documentation of `torch.nn.LayerNorm` (the variance is the biased one).
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNorm {
    /// `[features]`.
    pub(crate) weight: Vec<f32>,
    /// `[features]`.
    pub(crate) bias: Vec<f32>,
    /// Added to the variance.
    pub(crate) eps: f32,
    pub(crate) features: usize,
}

impl LayerNorm {
    /// Over `features` numbers, with weight one, bias zero and PyTorch's `eps` of 1e-5; without
    /// parameters if there is no memory for them.
    pub(crate) fn new(features: usize) -> Self {
        Self {
            weight: filled(1.0, features).unwrap_or_default(),
            bias: filled(0.0, features).unwrap_or_default(),
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

    /// Normalises rows of `stride` elements, the first `features` of which count, in place.
    #[inline(always)]
    pub(crate) fn apply(&self, rows: &mut [f32], stride: usize) {
        let features = self.features();
        for row in rows.chunks_exact_mut(stride) {
            let row = &mut row[..features];
            let count = features as f32;
            let mean = sum(row, |x| x) / count;
            let variance = sum(row, |x| (x - mean) * (x - mean)) / count;
            let scale = 1.0 / (variance + self.eps).sqrt();
            for ((x, weight), bias) in row.iter_mut().zip(&self.weight).zip(&self.bias) {
                *x = (*x - mean) * scale * weight + bias;
            }
        }
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
