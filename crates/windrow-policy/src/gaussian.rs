//! Real-valued actions from means and deviations.

use std::f32::consts::{LN_2, TAU};

use crate::heads::{Prepared, softplus};
use crate::{PolicyError, PolicyIn};

/// Bounds that a squashed action is stretched to, one pair for each action element.
pub(crate) type Bounds = Box<[(f32, f32)]>;

/// Independent normal distributions, squashed into bounds or not.
#[derive(Debug, Clone)]
pub(crate) struct Gaussian {
    /// Action elements.
    pub(crate) actions: usize,
    /// How the network's second half becomes deviations; without, they are a parameter.
    pub(crate) mapping: Option<Prepared>,
    pub(crate) bounds: Option<Bounds>,
}

/// What [`Gaussian::act`] reads and writes.
pub(crate) struct Draw<'a, 'b> {
    pub(crate) input: &'a PolicyIn<'b>,
    /// The network's outputs, `[rows, actions]` or `[rows, 2 * actions]`.
    pub(crate) outputs: &'a [f32],
    /// Logarithms of the deviations, `[actions]`, when they are a parameter.
    pub(crate) log_std: &'a [f32],
    pub(crate) sample: bool,
    /// `[rows, actions]`.
    pub(crate) actions: &'a mut [f32],
    /// `[rows, actions]`.
    pub(crate) scales: &'a mut [f32],
    /// `[rows]`, unless nobody wants them.
    pub(crate) log_probs: Option<&'a mut [f32]>,
}

impl Gaussian {
    /// Numbers that the network writes for a row.
    pub(crate) fn width(&self) -> usize {
        self.actions * if self.mapping.is_some() { 2 } else { 1 }
    }

    /// Draws (or takes the most likely) action for every row, with its log-probability.
    ///
    /// # Errors
    /// [`PolicyError::NotFinite`] for the first row with a mean or deviation that is not a finite number.
    pub(crate) fn act(&self, draw: Draw<'_, '_>) -> Result<(), PolicyError> {
        let mut log_probs = draw.log_probs;
        let rows = draw
            .outputs
            .chunks_exact(self.width())
            .zip(draw.actions.chunks_exact_mut(self.actions))
            .zip(draw.scales.chunks_exact_mut(self.actions));
        for (row, ((outputs, actions), scales)) in rows.enumerate() {
            let (means, raw) = outputs.split_at(self.actions);
            match self.mapping {
                Some(mapping) => write(scales, raw.iter().map(|&x| mapping.apply(x))),
                None => write(scales, draw.log_std.iter().map(|x| x.exp())),
            }
            check(draw.input, row, "mean", means)?;
            check(draw.input, row, "deviation", scales)?;
            write(actions, means.iter().copied());
            if draw.sample {
                let mut noise = draw.input.envs.noise(row);
                for (action, scale) in actions.iter_mut().zip(&*scales) {
                    *action += scale * noise.normal() as f32;
                }
            }
            if let Some(log_probs) = &mut log_probs {
                log_probs[row] = self.log_prob(means, scales, actions);
            }
            self.squash(actions);
        }
        Ok(())
    }

    /// Logarithm of the density at `x`, not yet squashed.
    fn log_prob(&self, means: &[f32], scales: &[f32], x: &[f32]) -> f32 {
        let mut log_prob = 0.0;
        for (i, &x) in x.iter().enumerate() {
            let deviate = (x - means[i]) / scales[i];
            log_prob -= 0.5 * deviate * deviate + scales[i].ln() + 0.5 * TAU.ln();
            if let Some(bounds) = &self.bounds {
                let (low, high) = bounds[i];
                // Logarithm of the derivative of tanh, in a form that does not cancel.
                log_prob -= 2.0 * (LN_2 - x - softplus(-2.0 * x)) + (0.5 * (high - low)).ln();
            }
        }
        log_prob
    }

    fn squash(&self, actions: &mut [f32]) {
        for (x, &(low, high)) in actions.iter_mut().zip(self.bounds.iter().flatten()) {
            // The middle of the bounds, plus half their distance, rounds past a bound at times.
            let half = 0.5 * (high - low);
            *x = (0.5 * (high + low) + half * x.tanh()).clamp(low, high);
        }
    }
}

fn write(to: &mut [f32], from: impl Iterator<Item = f32>) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from;
    }
}

/// Whether all `values` of a row are finite.
pub(crate) fn check(
    input: &PolicyIn<'_>,
    row: usize,
    what: &'static str,
    values: &[f32],
) -> Result<(), PolicyError> {
    match values.iter().find(|x| !x.is_finite()) {
        None => Ok(()),
        Some(&value) => Err(PolicyError::NotFinite {
            what,
            value,
            env: input.envs.ids()[row],
            frame: input.envs.frames()[row],
        }),
    }
}
