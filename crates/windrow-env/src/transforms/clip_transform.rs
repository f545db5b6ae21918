use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey};
use windrow_slab::LeafSpec;

use super::elementwise::{Elementwise, ElementwiseOp, Real, columns, reward};
use crate::{Attach, EnvError, Spec, SpecError, Transform, serde_form};

/// Clips observations, rewards and actions to the numbers between `low` and `high`.
///
/// ```
/// use windrow_env::{ClipTransform, Pendulum, Serial, VecEnv};
///
/// let clip = ClipTransform::new(["observation", "reward"], -1.0, 1.0);
/// let envs = Serial::from_fn(8, Pendulum::v1)?.transformed(clip)?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClipTransform {
    /// Names of the observations, or `reward`.
    #[serde(with = "serde_form::key::list")]
    pub in_keys: Option<Vec<NestedKey>>,
    /// Names of the results, which are then observed in addition; `None` replaces the clipped ones.
    #[serde(with = "serde_form::key::list")]
    pub out_keys: Option<Vec<NestedKey>>,
    /// Names of the actions, which are clipped before environments take them.
    #[serde(with = "serde_form::key::list")]
    pub in_keys_inv: Option<Vec<NestedKey>>,
    /// The least number; `None` for no such bound.
    pub low: Option<f64>,
    /// The greatest number; `None` for no such bound.
    pub high: Option<f64>,
}

impl ClipTransform {
    /// Clips `keys`, which are observations or `reward`.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = impl Into<NestedKey>>, low: f64, high: f64) -> Self {
        Self {
            in_keys: Some(keys.into_iter().map(Into::into).collect()),
            low: Some(low),
            high: Some(high),
            ..Self::default()
        }
    }
}

impl Transform for ClipTransform {
    type Bound = Elementwise<Clipping>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let clipping = Clipping::new(["low", "high"], [self.low, self.high], &envs.inner().id)?;
        let in_keys = self.in_keys.clone().unwrap_or_default();
        let bounds = |leaf: &LeafSpec| clipping.spec(leaf);
        let columns = columns(envs, &in_keys, self.out_keys.as_deref(), bounds)?;
        let actions = self.in_keys_inv.as_deref().unwrap_or_default();
        Elementwise::new(columns, clipping).with_actions(envs, actions)
    }
}

/// Clips rewards to the numbers between `clamp_min` and `clamp_max`.
///
/// ```
/// use windrow_env::{Pendulum, RewardClipping, Serial, VecEnv};
///
/// let envs = Serial::from_fn(8, Pendulum::v1)?.transformed(RewardClipping::new(-1.0, 1.0))?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RewardClipping {
    /// The least reward; `None` for no such bound.
    pub clamp_min: Option<f64>,
    /// The greatest reward; `None` for no such bound.
    pub clamp_max: Option<f64>,
    /// Names of the rewards; `None` for the reward of the step.
    #[serde(with = "serde_form::key::list")]
    pub in_keys: Option<Vec<NestedKey>>,
    /// Names of the results, which are then observed in addition; `None` replaces the rewards.
    #[serde(with = "serde_form::key::list")]
    pub out_keys: Option<Vec<NestedKey>>,
}

impl RewardClipping {
    /// Clips the reward of the step.
    #[must_use]
    pub fn new(clamp_min: f64, clamp_max: f64) -> Self {
        Self {
            clamp_min: Some(clamp_min),
            clamp_max: Some(clamp_max),
            ..Self::default()
        }
    }
}

impl Transform for RewardClipping {
    type Bound = Elementwise<Clipping>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let names = ["clamp_min", "clamp_max"];
        let bounds = [self.clamp_min, self.clamp_max];
        let clipping = Clipping::new(names, bounds, &envs.inner().id)?;
        let in_keys = self.in_keys.clone().unwrap_or_else(|| vec![reward()]);
        let bounds = |leaf: &LeafSpec| clipping.spec(leaf);
        let columns = columns(envs, &in_keys, self.out_keys.as_deref(), bounds)?;
        Ok(Elementwise::new(columns, clipping))
    }
}

/// Clips numbers; NaN stays NaN.
#[derive(Debug)]
pub struct Clipping {
    low: Option<f64>,
    high: Option<f64>,
}

impl Clipping {
    /// Clips to `bounds`, the values of the arguments `names`.
    fn new(names: [&str; 2], bounds: [Option<f64>; 2], env: &str) -> Result<Self, EnvError> {
        let [low, high] = bounds;
        let interval = low.unwrap_or(f64::NEG_INFINITY)..=high.unwrap_or(f64::INFINITY);
        if interval.is_empty() || (low, high) == (None, None) {
            let of = format!("a transform of {env} that clips");
            let [lower, upper] = names;
            let expected = format!("{lower}, {upper} or both, {lower} not above {upper}");
            let shown =
                bounds.map(|bound| bound.map_or("none".to_owned(), |bound| bound.to_string()));
            let got = format!("{lower}={} and {upper}={}", shown[0], shown[1]);
            let argument = "bounds";
            return Err(SpecError::Argument {
                argument,
                of,
                expected,
                got,
            }
            .into());
        }
        Ok(Self { low, high })
    }

    /// The bounds of what is clipped, with room for rounding, as TorchRL has them.
    fn spec(&self, leaf: &LeafSpec) -> Spec {
        let greatest = match leaf.dtype {
            DType::F64 => f64::MAX,
            _ => f64::from(f32::MAX),
        };
        let (low, high) = (self.low, self.high);
        let low = low.map_or(-greatest, |low| low - 1e-6);
        let high = high.map_or(greatest, |high| high + 1e-6);
        Spec::Bounded {
            dtype: leaf.dtype,
            shape: leaf.shape.clone(),
            low: vec![low; leaf.elements()],
            high: vec![high; leaf.elements()],
        }
    }
}

impl ElementwiseOp for Clipping {
    #[inline]
    fn change<T: Real>(&mut self, _: usize, _: usize, values: &mut [T]) -> Result<(), EnvError> {
        let low = T::of(self.low.unwrap_or(f64::NEG_INFINITY));
        let high = T::of(self.high.unwrap_or(f64::INFINITY));
        for x in values {
            let raised = if *x < low { low } else { *x };
            *x = if raised > high { high } else { raised };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{Pendulum, Serial, VecEnv};

    fn pendulums() -> Serial<Pendulum> {
        Serial::from_fn(3, Pendulum::new).unwrap()
    }

    fn played(clip: ClipTransform) -> VecDriver<impl VecEnv> {
        let mut envs = VecDriver::new(pendulums().transformed(clip).unwrap());
        envs.reset_seeded(&[0, 1, 2], 4).unwrap();
        envs.step(2.0f32).unwrap();
        envs
    }

    #[test]
    fn observations_and_rewards_are_clipped_and_bounded() {
        let plain = played(ClipTransform::new(["observation"; 0], -9.0, 9.0));
        let clipped = played(ClipTransform::new(["observation", "reward"], -0.5, 0.25));
        let clip = |x: &f32| x.clamp(-0.5, 0.25);
        let expected: Vec<_> = plain.seen::<f32>("observation").iter().map(clip).collect();
        assert_eq!(clipped.seen::<f32>("observation"), expected);
        let expected: Vec<_> = plain.reward.iter().map(clip).collect();
        assert_eq!(clipped.reward, expected);
        let Spec::Bounded { low, high, .. } = &clipped.envs.spec().observation else {
            panic!("no bounds: {:?}", clipped.envs.spec());
        };
        assert_eq!((low[2], high[2]), (-0.5 - 1e-6, 0.25 + 1e-6));
    }

    #[test]
    fn a_row_that_begins_is_clipped_alone() {
        let clip = ClipTransform::new(["observation"], -0.1, 0.1);
        let clip = ClipTransform {
            out_keys: Some(vec!["clipped".into()]),
            ..clip
        };
        let mut envs = played(clip);
        envs.reset_seeded(&[1], 77).unwrap();
        let seen = envs.seen::<f32>("observation");
        let expected: Vec<_> = seen.iter().map(|x| x.clamp(-0.1, 0.1)).collect();
        assert_eq!(envs.seen::<f32>("clipped"), expected);
        assert_ne!(seen, expected);
    }

    #[test]
    fn actions_are_clipped_before_environments_take_them() {
        let clip = |low, high| ClipTransform {
            in_keys_inv: Some(vec!["action".into()]),
            low: Some(low),
            high: Some(high),
            ..ClipTransform::default()
        };
        // Both are as if the action had been 0.5.
        let low = played(clip(-0.5, 0.5)).seen::<f32>("observation");
        let mut envs = VecDriver::new(pendulums());
        envs.reset_seeded(&[0, 1, 2], 4).unwrap();
        envs.step(0.5f32).unwrap();
        assert_eq!(low, envs.seen::<f32>("observation"));
        assert_ne!(low, played(clip(-3.0, 3.0)).seen::<f32>("observation"));
    }

    #[test]
    fn bounds_have_to_be_an_interval() {
        for (low, high) in [(None, None), (Some(1.0), Some(0.0)), (Some(f64::NAN), None)] {
            let clip = ClipTransform {
                low,
                high,
                ..ClipTransform::default()
            };
            let error = pendulums().transformed(clip).unwrap_err().to_string();
            assert!(
                error.starts_with("bounds of a transform of Pendulum-v1 that clips: expected low"),
                "{error}"
            );
        }
        let turned = pendulums().transformed(RewardClipping::new(1.0, -1.5));
        assert_eq!(
            turned.unwrap_err().to_string(),
            "bounds of a transform of Pendulum-v1 that clips: expected clamp_min, clamp_max or both, clamp_min not above clamp_max, \
             got clamp_min=1 and clamp_max=-1.5"
        );
        let clipping = RewardClipping::new(0.0, 1.0);
        let mut envs = VecDriver::new(pendulums().transformed(clipping).unwrap());
        envs.reset(&[0, 1, 2]).unwrap();
        envs.step(2.0f32).unwrap();
        assert_eq!(envs.reward, [0.0; 3]);
    }

    #[test]
    fn what_is_no_number_stays_so() {
        let mut clipping = Clipping::new(["low", "high"], [Some(-1.0), Some(1.0)], "Test").unwrap();
        let mut values = [f64::NAN, f64::INFINITY, -7.0, 0.5];
        clipping.change(0, 0, &mut values).unwrap();
        assert!(values[0].is_nan());
        assert_eq!(values[1..], [1.0, -1.0, 0.5]);
    }
}
