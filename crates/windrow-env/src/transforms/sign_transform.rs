use serde::{Deserialize, Serialize};
use tensordict::NestedKey;
use windrow_slab::LeafSpec;

use super::elementwise::{Elementwise, ElementwiseOp, Real, columns};
use crate::{Attach, EnvError, Spec, Transform, serde_form};

/// Turns observations, rewards and actions into their signs: -1, 0 or 1.
///
/// ```
/// use windrow_env::{Pendulum, Serial, SignTransform, VecEnv};
///
/// let envs = Serial::from_fn(8, Pendulum::v1)?.transformed(SignTransform::of(["reward"]))?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SignTransform {
    /// Names of the observations, or `reward`.
    #[serde(with = "serde_form::key::list")]
    pub in_keys: Option<Vec<NestedKey>>,
    /// Names of the signs, which are then observed in addition; `None` replaces the originals.
    #[serde(with = "serde_form::key::list")]
    pub out_keys: Option<Vec<NestedKey>>,
    /// Names of the actions that environments get as signs.
    #[serde(with = "serde_form::key::list")]
    pub in_keys_inv: Option<Vec<NestedKey>>,
}

impl SignTransform {
    /// The signs of `keys`, which are observations or `reward`.
    #[must_use]
    pub fn of(keys: impl IntoIterator<Item = impl Into<NestedKey>>) -> Self {
        Self {
            in_keys: Some(keys.into_iter().map(Into::into).collect()),
            ..Self::default()
        }
    }
}

impl Transform for SignTransform {
    type Bound = Elementwise<Signs>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let in_keys = self.in_keys.clone().unwrap_or_default();
        let bounds = |leaf: &LeafSpec| Spec::Bounded {
            dtype: leaf.dtype,
            shape: leaf.shape.clone(),
            low: vec![-1.0; leaf.elements()],
            high: vec![1.0; leaf.elements()],
        };
        let columns = columns(envs, &in_keys, self.out_keys.as_deref(), bounds)?;
        let actions = self.in_keys_inv.as_deref().unwrap_or_default();
        Elementwise::new(columns, Signs).with_actions(envs, actions)
    }
}

/// Turns numbers into their signs.
#[derive(Debug)]
pub struct Signs;

impl ElementwiseOp for Signs {
    #[inline]
    fn change<T: Real>(&mut self, _: usize, _: usize, values: &mut [T]) -> Result<(), EnvError> {
        let (zero, one) = (T::default(), T::of(1.0));
        for x in values {
            let above = if *x > zero { one } else { zero };
            let below = if *x < zero { one } else { zero };
            *x = above - below;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{Pendulum, Serial, VecEnv};

    #[test]
    fn numbers_become_their_signs() {
        let mut values = [-0.5f32, 0.0, -0.0, 3.0, f32::NEG_INFINITY, f32::NAN];
        Signs.change(0, 0, &mut values).unwrap();
        assert_eq!(values, [-1.0, 0.0, 0.0, 1.0, -1.0, 0.0]);
    }

    #[test]
    fn those_of_rewards_are_observed_beside_them_where_they_have_a_name() {
        let mut signs = SignTransform::of(["reward"]);
        signs.out_keys = Some(vec!["sign".into()]);
        let envs = Serial::from_fn(2, Pendulum::v1).unwrap();
        let mut envs = VecDriver::new(envs.transformed(signs).unwrap());
        envs.reset(&[0, 1]).unwrap();
        envs.step(1.0f32).unwrap();
        assert!(envs.reward.iter().all(|reward| *reward < 0.0));
        assert_eq!(envs.seen::<f32>("sign"), [-1.0; 2]);
    }
}
