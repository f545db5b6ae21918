//! Choices from logits.

use pulp::bytemuck::cast_slice;
use pulp::{Arch, Simd, WithSimd};
use windrow_env::{ChoiceCode, largest};

use crate::nn::exp;
use crate::{PolicyError, PolicyIn};

/// One or several choices out of logits that lie next to each other.
#[derive(Debug, Clone)]
pub(crate) struct Categorical {
    /// Choices of each action element.
    counts: Box<[usize]>,
    /// Logits of a row.
    width: usize,
    /// How choices are written.
    code: ChoiceCode,
    /// `exp` of the logits less their largest one, `[rows, width]`, then padding.
    weights: Vec<f32>,
    arch: Arch,
}

/// Inputs and outputs of [`Categorical::act`].
pub(crate) struct Choose<'a, 'b> {
    pub(crate) input: &'a PolicyIn<'b>,
    /// `[rows, width]`.
    pub(crate) logits: &'a [f32],
    pub(crate) sample: bool,
    /// `[rows, choices]`, or `[rows, width]` where they are one-hot.
    pub(crate) actions: &'a mut [i64],
    /// `[rows]`; `None` if they are not recorded.
    pub(crate) log_probs: Option<&'a mut [f32]>,
}

impl Categorical {
    pub(crate) fn new(counts: Box<[usize]>, code: ChoiceCode) -> Self {
        Self {
            width: counts.iter().sum(),
            counts,
            code,
            weights: Vec::new(),
            arch: Arch::new(),
        }
    }

    /// Chooses for every row.
    ///
    /// # Errors
    /// [`PolicyError::NotFinite`] for the first row whose logits are no distribution.
    pub(crate) fn act(&mut self, choose: Choose<'_, '_>) -> Result<(), PolicyError> {
        let Choose {
            input,
            logits,
            sample,
            actions,
            mut log_probs,
        } = choose;
        self.exponentiate(logits);
        actions.fill(0);
        let elements = self.code.elements(&self.counts);
        for row in 0..input.envs.len() {
            let logits = &logits[row * self.width..][..self.width];
            let weights = &self.weights[row * self.width..][..self.width];
            let actions = &mut actions[row * elements..][..elements];
            let mut noise = input.envs.noise(row);
            let (mut first, mut log_prob) = (0, 0.0);
            for (i, &count) in self.counts.iter().enumerate() {
                let weights = &weights[first..first + count];
                let total: f32 = weights.iter().sum();
                if !total.is_finite() {
                    return Err(not_a_distribution(
                        input,
                        row,
                        &logits[first..first + count],
                    ));
                }
                let choice = match sample {
                    true => pick(weights, noise.f32() * total),
                    false => largest(&logits[first..first + count]),
                };
                self.code.write(actions, i, first, choice);
                if log_probs.is_some() {
                    log_prob += log_softmax(&logits[first..first + count], choice, total);
                }
                first += count;
            }
            if let Some(log_probs) = &mut log_probs {
                log_probs[row] = log_prob;
            }
        }
        Ok(())
    }

    /// Fills `weights`.
    fn exponentiate(&mut self, logits: &[f32]) {
        let len = logits.len().next_multiple_of(16);
        if self.weights.len() != len {
            self.weights.clear();
            self.weights.resize(len, 0.0);
        }
        let mut first = 0;
        while first < logits.len() {
            for &count in &self.counts {
                let logits = &logits[first..first + count];
                let top = max(logits);
                for (weight, logit) in self.weights[first..].iter_mut().zip(logits) {
                    *weight = logit - top;
                }
                first += count;
            }
        }
        match logits.len() {
            0..=FEW => self
                .arch
                .dispatch(ExpFew(&mut self.weights[..logits.len()])),
            _ => self.arch.dispatch(Exp(&mut self.weights)),
        }
    }
}

/// Weights up to which each fills a vector of its own: numbers that were just written one by one
/// cannot be read as a vector before they have reached the cache.
const FEW: usize = 4;

struct ExpFew<'a>(&'a mut [f32]);

impl WithSimd for ExpFew<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for x in self.0 {
            let filled = exp(simd, simd.splat_f32s(*x));
            *x = cast_slice(std::slice::from_ref(&filled))[0];
        }
    }
}

struct Exp<'a>(&'a mut [f32]);

impl WithSimd for Exp<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for x in S::as_mut_simd_f32s(self.0).0 {
            *x = exp(simd, *x);
        }
    }
}

fn max(values: &[f32]) -> f32 {
    values.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// The index where the running sum of `weights` exceeds `threshold`. Does not branch on the random
/// number, which no processor could predict.
pub(crate) fn pick(weights: &[f32], threshold: f32) -> usize {
    let (mut sum, mut index) = (0.0, 0);
    for &weight in weights {
        sum += weight;
        index += usize::from(threshold >= sum);
    }
    if index < weights.len() {
        index
    } else {
        last_possible(weights)
    }
}

/// The last choice with a positive weight, for a threshold that rounding has put at the sum of all
/// weights.
#[cold]
fn last_possible(weights: &[f32]) -> usize {
    weights.iter().rposition(|&w| w > 0.0).unwrap_or(0)
}

fn log_softmax(logits: &[f32], choice: usize, total: f32) -> f32 {
    logits[choice] - max(logits) - total.ln()
}

#[cold]
fn not_a_distribution(input: &PolicyIn<'_>, row: usize, logits: &[f32]) -> PolicyError {
    let bad = |x: &&f32| x.is_nan() || **x == f32::INFINITY;
    PolicyError::NotFinite {
        what: "logit",
        value: *logits.iter().find(bad).unwrap_or(&f32::NEG_INFINITY),
        env: input.envs.ids()[row],
        frame: input.envs.frames()[row],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_choices_are_never_picked() {
        assert_eq!(pick(&[0.0, 1.0, 0.0, 2.0, 0.0], 0.0), 1);
        assert_eq!(pick(&[0.0, 1.0, 0.0, 2.0, 0.0], 0.999), 1);
        assert_eq!(pick(&[0.0, 1.0, 0.0, 2.0, 0.0], 1.0), 3);
        assert_eq!(pick(&[0.0, 1.0, 0.0, 2.0, 0.0], 3.0), 3);
        assert_eq!(pick(&[1.0], 1.0), 0);
    }
}
