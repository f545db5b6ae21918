//! Real-valued actions from means and deviations.

use std::f32::consts::{LN_2, TAU};

use crate::heads::{Prepared, softplus};
use crate::{PolicyError, PolicyIn};

/// Bounds of squashed actions, one pair for each action element.
pub(crate) type Bounds = Box<[(f32, f32)]>;

/// Independent normal distributions, squashed into bounds or not.
#[derive(Debug, Clone)]
pub(crate) struct Gaussian {
    /// Action elements.
    pub(crate) actions: usize,
    /// How the network's second half becomes deviations; `None` if they are a parameter.
    pub(crate) mapping: Option<Prepared>,
    pub(crate) bounds: Option<Bounds>,
}

/// The rows that [`Gaussian::act`] reads and writes.
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
    /// `[rows]`; `None` if they are not recorded.
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
    /// [`PolicyError::NotFinite`] for the first row with a mean or deviation that is not a finite
    /// number.
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
                None => write(scales, draw.log_std.iter().map(|&x| deviation(x))),
            }
            check(draw.input, row, "mean", means)?;
            check(draw.input, row, "deviation", scales)?;
            write(actions, means.iter().copied());
            if draw.sample {
                let mut noise = draw.input.envs.noise(row);
                for (action, scale) in actions.iter_mut().zip(&*scales) {
                    // A deviation may be as large as a number gets.
                    *action = (*action + scale * noise.normal() as f32).clamp(f32::MIN, f32::MAX);
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
            let deviate = ((x - means[i]) / scales[i]).clamp(-FAR, FAR);
            log_prob -= 0.5 * deviate * deviate + scales[i].ln() + 0.5 * TAU.ln();
            if let Some(bounds) = &self.bounds {
                let (low, high) = bounds[i];
                let x = x.abs().min(FAR);
                // Logarithm of the derivative of tanh, in a form that does not cancel.
                log_prob -= 2.0 * (LN_2 - x - softplus(-2.0 * x)) + (high - low).ln() - LN_2;
            }
        }
        log_prob
    }

    fn squash(&self, actions: &mut [f32]) {
        for (x, &(low, high)) in actions.iter_mut().zip(self.bounds.iter().flatten()) {
            // The middle of the bounds, plus half their distance, rounds past a bound at times.
            let half = 0.5 * (high - low);
            *x = (0.5 * high + 0.5 * low + half * x.tanh()).clamp(low, high);
        }
    }
}

/// Distances are cut off here, so that the sum of many squares stays finite.
const FAR: f32 = 1e17;

/// The deviation whose logarithm is `log_std`: positive, even if `exp` rounds to zero.
fn deviation(log_std: f32) -> f32 {
    let scale = log_std.exp();
    // `max` would replace NaN, which the check of the result has to see.
    if scale < f32::MIN_POSITIVE {
        f32::MIN_POSITIVE
    } else {
        scale
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

#[cfg(test)]
mod tests {
    use super::*;

    fn squashed(bounds: (f32, f32), x: f32) -> f32 {
        let gaussian = Gaussian {
            actions: 1,
            mapping: None,
            bounds: Some([bounds].into()),
        };
        let mut actions = [x];
        gaussian.squash(&mut actions);
        actions[0]
    }

    #[test]
    fn squashed_actions_keep_within_bounds_that_rounding_would_leave() {
        let mut left = 0;
        for (i, j) in (1..60).flat_map(|i| (1..60).map(move |j| (i, j))) {
            let (low, high) = (-0.1 * i as f32, 0.07 * j as f32);
            let top = 0.5 * high + 0.5 * low + 0.5 * (high - low);
            left += usize::from(top > high);
            for x in [-30.0, 30.0] {
                let action = squashed((low, high), x);
                assert!(
                    (low..=high).contains(&action),
                    "{action} of [{low}, {high}]"
                );
            }
        }
        assert!(left > 0, "no bounds here are left by rounding");
    }

    #[test]
    fn bounds_as_large_as_numbers_get_have_a_middle() {
        assert_eq!(squashed((1e38, 3e38), 0.0), 2e38);
        assert_eq!(squashed((-1e38, 1e38), 30.0), 1e38);
    }

    #[test]
    fn densities_are_numbers_wherever_mean_and_deviation_are() {
        let extremes = [0.0, 1e-45, 1.0, 1e17, 1e30, f32::MAX];
        let signed = extremes.iter().flat_map(|&x| [x, -x]);
        let scales = [f32::MIN_POSITIVE, 1e-20, 1.0, 1e20, f32::MAX];
        let all = [
            None,
            Some((-1.0, 1.0)),
            Some((0.0, 1e-45)),
            Some((-1e38, 1e38)),
        ];
        for (bounds, mean) in all
            .into_iter()
            .flat_map(|bounds| signed.clone().map(move |mean| (bounds, mean)))
        {
            let gaussian = Gaussian {
                actions: 1,
                mapping: None,
                bounds: bounds.map(|bounds| [bounds].into()),
            };
            for (scale, x) in scales
                .into_iter()
                .flat_map(|scale| signed.clone().map(move |x| (scale, x)))
            {
                let density = gaussian.log_prob(&[mean], &[scale], &[x]);
                assert!(
                    density.is_finite(),
                    "{bounds:?} {mean} {scale} {x}: {density}"
                );
            }
        }
    }

    #[test]
    fn deviations_are_positive_and_keep_what_is_no_number() {
        assert_eq!(deviation(0.0), 1.0);
        assert_eq!(deviation(-80.0), (-80.0f32).exp());
        for log_std in [-100.0, -104.0, -1e30, f32::MIN] {
            assert_eq!(deviation(log_std), f32::MIN_POSITIVE);
        }
        assert!(deviation(f32::NAN).is_nan() && deviation(89.0).is_infinite());
    }
}
