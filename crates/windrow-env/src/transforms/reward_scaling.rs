use serde::{Deserialize, Serialize};
use tensordict::NestedKey;

use super::elementwise::{Elementwise, ElementwiseOp, Real, columns, reward};
use crate::{Attach, EnvError, Spec, SpecError, Transform, serde_form};

/// Scales and shifts rewards: `reward * scale + loc`, or `(reward - loc) / scale` where
/// `standard_normal`.
///
/// ```
/// use windrow_env::{CartPole, RewardScaling, Serial, VecEnv};
///
/// let envs = Serial::from_fn(8, CartPole::v1)?.transformed(RewardScaling::new(0.0, 0.1))?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardScaling {
    /// The summand, or the number that is subtracted first; finite.
    pub loc: f64,
    /// The factor, or divisor; finite, and 1e-6 at least.
    pub scale: f64,
    /// Which of the two formulas holds.
    #[serde(default)]
    pub standard_normal: bool,
    /// Names of the rewards; `None` for the reward of the step.
    #[serde(default, with = "serde_form::key::list")]
    pub in_keys: Option<Vec<NestedKey>>,
    /// Names of the results, which are then observed in addition; `None` replaces the rewards.
    #[serde(default, with = "serde_form::key::list")]
    pub out_keys: Option<Vec<NestedKey>>,
}

impl RewardScaling {
    /// Rewards become `reward * scale + loc`.
    #[must_use]
    pub fn new(loc: f64, scale: f64) -> Self {
        Self {
            loc,
            scale,
            standard_normal: false,
            in_keys: None,
            out_keys: None,
        }
    }

    /// Rewards become `(reward - loc) / scale`.
    #[must_use]
    pub fn standardize(loc: f64, scale: f64) -> Self {
        Self {
            standard_normal: true,
            ..Self::new(loc, scale)
        }
    }
}

impl Transform for RewardScaling {
    type Bound = Elementwise<Scaling>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        for (argument, given) in [("loc", self.loc), ("scale", self.scale)] {
            if !given.is_finite() {
                let of = format!("RewardScaling of {}", envs.inner().id);
                let (expected, got) = ("a finite number".to_owned(), given.to_string());
                return Err(SpecError::Argument {
                    argument,
                    of,
                    expected,
                    got,
                }
                .into());
            }
        }
        let in_keys = self.in_keys.clone().unwrap_or_else(|| vec![reward()]);
        let free = |leaf: &windrow_slab::LeafSpec| Spec::unbounded(leaf.dtype, &leaf.shape);
        let columns = columns(envs, &in_keys, self.out_keys.as_deref(), free)?;
        // The smallest scale is one of float32, whatever rewards are.
        let scaling = Scaling {
            loc: self.loc,
            scale: self.scale.max(f64::from(1e-6f32)),
            standard_normal: self.standard_normal,
        };
        Ok(Elementwise::new(columns, scaling))
    }
}

/// Scales and shifts numbers.
#[derive(Debug)]
pub struct Scaling {
    loc: f64,
    scale: f64,
    standard_normal: bool,
}

impl ElementwiseOp for Scaling {
    #[inline]
    fn change<T: Real>(&mut self, _: usize, _: usize, values: &mut [T]) -> Result<(), EnvError> {
        let (loc, scale) = (T::of(self.loc), T::of(self.scale));
        match self.standard_normal {
            false => values.iter_mut().for_each(|x| *x = *x * scale + loc),
            true => values.iter_mut().for_each(|x| *x = (*x - loc) / scale),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{CartPole, RewardSum, Serial, VecEnv};

    fn scaled(scaling: RewardScaling) -> VecDriver<impl VecEnv> {
        let envs = Serial::from_fn(2, CartPole::v1).unwrap();
        let envs = envs.transformed(scaling).unwrap();
        let mut envs = VecDriver::new(envs.transformed(RewardSum::new()).unwrap());
        envs.reset(&[0, 1]).unwrap();
        envs.step(1i64).unwrap();
        envs
    }

    #[test]
    fn rewards_are_scaled_for_what_is_around() {
        let envs = scaled(RewardScaling::new(0.5, 3.0));
        assert_eq!(envs.reward, [3.5; 2]);
        assert_eq!(envs.seen::<f32>("episode_reward"), [3.5; 2]);
        assert_eq!(
            scaled(RewardScaling::standardize(0.5, 4.0)).reward,
            [0.125; 2]
        );
    }

    #[test]
    fn results_may_have_a_name_of_their_own() {
        let mut scaling = RewardScaling::new(0.0, 2.0);
        scaling.out_keys = Some(vec!["scaled".into()]);
        let envs = scaled(scaling);
        assert_eq!(envs.reward, [1.0; 2]);
        assert_eq!(envs.seen::<f32>("scaled"), [2.0; 2]);
        assert_eq!(envs.envs.spec().rewards, ["scaled".into()]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let error = |scaling: RewardScaling| {
            let envs = Serial::from_fn(1, CartPole::v1).unwrap();
            envs.transformed(scaling).unwrap_err().to_string()
        };
        assert_eq!(
            error(RewardScaling::new(f64::NAN, 1.0)),
            "loc of RewardScaling of CartPole-v1: expected a finite number, got NaN"
        );
        let mut scaling = RewardScaling::new(0.0, 1.0);
        scaling.out_keys = Some(Vec::new());
        assert_eq!(
            error(scaling.clone()),
            "out_keys of a transform of CartPole-v1: expected as many as in_keys, 1, got 0"
        );
        scaling.out_keys = None;
        scaling.in_keys = Some(vec!["other".into()]);
        assert!(error(scaling).starts_with("CartPole-v1 has no observation \"other\""));
    }
}
