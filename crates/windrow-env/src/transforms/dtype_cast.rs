use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey, for_dtype};
use windrow_slab::{Key, LeafSpec, Row, RowMut};

use super::elementwise::{paired, reward};
use crate::number::Number;
use crate::{
    Attach, BoundTransform, EnvError, Observations, Outcomes, Reset, Spec, StateVisitor, Transform,
    VecEnvError, serde_form,
};

/// Casts observations and rewards of one element type to another, as PyTorch does: casts to
/// integers truncate, and anything but 0 becomes true.
///
/// ```
/// use tensordict::DType;
/// use windrow_env::{DTypeCastTransform, Pendulum, Serial, VecEnv};
///
/// let cast = DTypeCastTransform::new(DType::F32, DType::F64);
/// let envs = Serial::from_fn(8, Pendulum::v1)?.transformed(cast)?;
/// assert_eq!(envs.spec().observation_leaves()[0].dtype, DType::F64);
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DTypeCastTransform {
    /// Element type that environments write.
    pub dtype_in: DType,
    /// Element type seen from outside.
    pub dtype_out: DType,
    /// Names of the entries that are cast, all of `dtype_in`; `None` for all observations and
    /// rewards of it.
    #[serde(default, with = "serde_form::key::list")]
    pub in_keys: Option<Vec<NestedKey>>,
    /// Names of the results, which are then observed in addition; `None` replaces the cast ones.
    #[serde(default, with = "serde_form::key::list")]
    pub out_keys: Option<Vec<NestedKey>>,
}

impl DTypeCastTransform {
    /// Casts all observations and rewards of `dtype_in` to `dtype_out`.
    #[must_use]
    pub fn new(dtype_in: DType, dtype_out: DType) -> Self {
        Self {
            dtype_in,
            dtype_out,
            in_keys: None,
            out_keys: None,
        }
    }
}

impl Transform for DTypeCastTransform {
    type Bound = Casting;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Casting, EnvError> {
        let mut casting = Casting::of(envs);
        let all = || {
            let leaves = envs.inner().observation_leaves().into_iter();
            let mut keys: Vec<_> = (leaves.filter(|leaf| leaf.dtype == self.dtype_in))
                .map(|leaf| leaf.key)
                .collect();
            let is_plain = envs.observation(&reward()).is_err();
            if self.dtype_in == DType::F32 && is_plain {
                keys.push(reward());
            }
            keys
        };
        let in_keys = self.in_keys.clone().unwrap_or_else(all);
        for names in paired(envs, &in_keys, self.out_keys.as_deref())? {
            casting.cast(envs, names, Some(self.dtype_in), self.dtype_out)?;
        }
        envs.replace_observations();
        Ok(casting)
    }
}

/// Turns rewards into 1, where they are greater than 0, or 0, as `int8`.
///
/// ```
/// use windrow_env::{BinarizeReward, Pendulum, Serial, VecEnv};
///
/// let envs = Serial::from_fn(8, Pendulum::v1)?.transformed(BinarizeReward::default())?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BinarizeReward {
    /// Names of the rewards, `[..., 1]`; `None` for the reward of the step.
    #[serde(with = "serde_form::key::list")]
    pub in_keys: Option<Vec<NestedKey>>,
    /// Names of the results, which are then observed in addition; `None` replaces the rewards.
    #[serde(with = "serde_form::key::list")]
    pub out_keys: Option<Vec<NestedKey>>,
}

impl Transform for BinarizeReward {
    type Bound = Casting;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Casting, EnvError> {
        let mut casting = Casting::of(envs);
        casting.binary = true;
        let in_keys = self.in_keys.clone().unwrap_or_else(|| vec![reward()]);
        for names in paired(envs, &in_keys, self.out_keys.as_deref())? {
            let key = names.0;
            if let Ok((_, leaf)) = envs.observation(key)
                && leaf.shape.last() != Some(&1)
            {
                let got = format!("{:?}", leaf.shape.as_slice());
                return Err(envs.inner().unfit(key, "a shape that ends in 1", got));
            }
            casting.cast(envs, names, None, DType::I8)?;
        }
        envs.replace_observations();
        Ok(casting)
    }
}

/// Where numbers come from.
#[derive(Debug, Clone, Copy, PartialEq)]
enum From {
    Leaf(usize, DType),
    /// The reward of the step.
    Step,
}

/// Casts leaves, and copies those that are not cast.
#[derive(Debug)]
pub struct Casting {
    /// The leaves seen from outside: what they come from, and the element type they have.
    leaves: Vec<(From, DType, bool)>,
    /// Whether casting is a comparison with 0.
    binary: bool,
    /// Whether the reward of the step is binary from here on.
    binary_step: bool,
}

impl Casting {
    /// Without any cast yet.
    fn of(envs: &Attach<'_>) -> Self {
        let leaves = envs.inner().observation_leaves().into_iter().enumerate();
        let copied = |(i, leaf): (usize, LeafSpec)| (From::Leaf(i, leaf.dtype), leaf.dtype, false);
        Self {
            leaves: leaves.map(copied).collect(),
            binary: false,
            binary_step: false,
        }
    }

    /// Casts `names.0` to `dtype`, as `names.1`. It holds `expected`, where that matters.
    fn cast(
        &mut self,
        envs: &mut Attach<'_>,
        names: (&NestedKey, &NestedKey),
        expected: Option<DType>,
        dtype: DType,
    ) -> Result<(), EnvError> {
        let (key, out) = names;
        if dtype == DType::Bytes {
            let expected = "a type of numbers to cast to";
            return Err(envs.inner().unfit(key, expected, dtype.name()));
        }
        let of_step = *key == reward();
        let (from, leaf) = match envs.observation(key) {
            Err(_) if of_step => (From::Step, LeafSpec::new(reward(), DType::F32, [1])),
            found => found.map(|(i, leaf)| (From::Leaf(i, leaf.dtype), leaf))?,
        };
        if let Some(expected) = expected.filter(|expected| *expected != leaf.dtype) {
            let got = leaf.dtype.name();
            return Err(envs
                .inner()
                .unfit(key, format!("{} to be cast", expected.name()), got));
        }
        let is_reward = of_step || envs.inner().rewards.contains(key);
        let spec = match dtype {
            DType::I8 if self.binary => Spec::Binary {
                shape: leaf.shape.clone(),
            },
            _ => Spec::unbounded(dtype, &leaf.shape),
        };
        self.binary_step |= self.binary && of_step && out == key;
        match from {
            From::Leaf(i, _) if out == key => {
                if let Some(place) = envs.spec.observation.leaf_mut(i) {
                    *place = recast(place, spec);
                }
                self.leaves[i] = (from, dtype, true);
                return Ok(());
            }
            From::Step if out == key => envs.spec.append_reward(spec)?,
            _ => {
                let place = envs.append(out, spec)?;
                if is_reward {
                    envs.spec.rewards.push(out.clone());
                }
                place
            }
        };
        self.leaves.push((from, dtype, true));
        Ok(())
    }

    fn convert(
        &self,
        envs: impl Iterator<Item = usize>,
        obs: Observations<'_>,
        rewards: Option<&[f32]>,
    ) -> Result<(), VecEnvError> {
        let (from, mut to) = obs.apart()?;
        for env in envs {
            // An environment that does not exist was reported by the inner ones.
            if let (Some(from), Some(to)) = (from.env(env), to.env_mut(env)) {
                let reward = rewards.and_then(|rewards| rewards.get(env).copied());
                self.convert_row(from, to, reward)
                    .map_err(|error| error.of(env))?;
            }
        }
        Ok(())
    }

    fn convert_row(
        &self,
        from: Row<'_>,
        mut to: RowMut<'_>,
        reward: Option<f32>,
    ) -> Result<(), EnvError> {
        for (i, &(source, dtype, is_cast)) in self.leaves.iter().enumerate() {
            match (source, reward) {
                (From::Leaf(..), _) if !is_cast => to.copy_leaf(i, from, i)?,
                (From::Leaf(leaf, was), _) => for_dtype!(was, T => {
                    self.cast_to(dtype, i, from.get(Key::<T>::new(leaf))?, &mut to)?;
                }),
                (From::Step, Some(reward)) => self.cast_to(dtype, i, &[reward], &mut to)?,
                (From::Step, None) => {}
            }
        }
        Ok(())
    }

    fn cast_to<T: Number>(
        &self,
        dtype: DType,
        leaf: usize,
        values: &[T],
        to: &mut RowMut<'_>,
    ) -> Result<(), EnvError> {
        for_dtype!(dtype, U => {
            let places = to.get_mut(Key::<U>::new(leaf))?;
            match self.binary {
                true => cast(values, places, |number| f64::from(u8::from(number > 0.0))),
                false => cast(values, places, kept::<U>),
            }
        });
        Ok(())
    }
}

fn cast<T: Number, U: Number>(values: &[T], places: &mut [U], number: impl Fn(f64) -> f64) {
    for (place, value) in places.iter_mut().zip(values) {
        *place = U::nearest(number(value.number()));
    }
}

/// A number as `U` can hold it.
#[inline(always)]
fn kept<U: Number>(number: f64) -> f64 {
    match U::DTYPE {
        DType::F32 | DType::F64 => number,
        DType::Bool => f64::from(u8::from(number != 0.0)),
        _ => number.trunc(),
    }
}

/// `spec` with another element type; bounds stay for real numbers.
fn recast(from: &Spec, spec: Spec) -> Spec {
    match (from, spec) {
        (Spec::Bounded { low, high, .. }, Spec::Unbounded { dtype, shape }) if dtype.is_float() => {
            Spec::Bounded {
                dtype,
                shape,
                low: low.clone(),
                high: high.clone(),
            }
        }
        (_, spec) => spec,
    }
}

impl BoundTransform for Casting {
    fn reset(&mut self, resets: &[Reset], obs: Observations<'_>) -> Result<(), VecEnvError> {
        self.convert(resets.iter().map(|reset| reset.env), obs, None)
    }

    fn step(&mut self, obs: Observations<'_>, outcomes: Outcomes<'_>) -> Result<(), VecEnvError> {
        self.convert(0..obs.rows.envs(), obs, Some(outcomes.reward))?;
        if self.binary_step {
            for reward in outcomes.reward {
                *reward = f32::from(u8::from(*reward > 0.0));
            }
        }
        Ok(())
    }

    fn visit_state(&mut self, _: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{Pendulum, RewardScaling, RewardSum, Serial, VecEnv};

    fn pendulums() -> Serial<Pendulum> {
        Serial::from_fn(2, Pendulum::new).unwrap()
    }

    #[test]
    fn all_of_a_type_are_cast_and_the_reward_with_them() {
        let cast = DTypeCastTransform::new(DType::F32, DType::F64);
        let mut plain = VecDriver::new(pendulums());
        let mut envs = VecDriver::new(pendulums().transformed(cast).unwrap());
        envs.reset_seeded(&[0, 1], 3).unwrap();
        envs.step(1.0f32).unwrap();
        plain.reset_seeded(&[0, 1], 3).unwrap();
        plain.step(1.0f32).unwrap();
        let doubles = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
        assert_eq!(
            envs.seen::<f64>("observation"),
            doubles(plain.seen("observation"))
        );
        assert_eq!(envs.seen::<f64>("reward"), doubles(plain.reward.clone()));
        assert_eq!(envs.envs.spec().rewards, [reward()]);
        assert_eq!(envs.reward, plain.reward);
    }

    #[test]
    fn results_may_have_names_of_their_own_and_whole_numbers_are_cut_off() {
        let cast = DTypeCastTransform {
            in_keys: Some(vec!["observation".into()]),
            out_keys: Some(vec!["whole".into()]),
            ..DTypeCastTransform::new(DType::F32, DType::I32)
        };
        let mut envs = VecDriver::new(pendulums().transformed(cast).unwrap());
        envs.reset_seeded(&[0, 1], 3).unwrap();
        let cut: Vec<_> = (envs.seen::<f32>("observation").iter())
            .map(|x| x.trunc() as i32)
            .collect();
        assert_eq!(envs.seen::<i32>("whole"), cut);
    }

    #[test]
    fn rewards_become_zero_or_one() {
        let shifted = pendulums()
            .transformed(RewardScaling::new(4.0, 1.0))
            .unwrap();
        let binary = shifted.transformed(BinarizeReward::default()).unwrap();
        let mut envs = VecDriver::new(binary.transformed(RewardSum::new()).unwrap());
        envs.reset_seeded(&[0, 1], 1).unwrap();
        let mut sums = [0.0, 0.0];
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..60 {
            envs.step(2.0f32).unwrap();
            let whole = envs.seen::<i8>("reward");
            seen.extend(whole.clone());
            for (sum, (reward, whole)) in sums.iter_mut().zip(envs.reward.iter().zip(whole)) {
                assert_eq!(*reward, f32::from(whole));
                *sum += reward;
            }
            assert_eq!(envs.seen::<f32>("episode_reward"), sums);
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1]);
        assert!(
            pendulums()
                .transformed(BinarizeReward {
                    in_keys: Some(vec!["observation".into()]),
                    ..BinarizeReward::default()
                })
                .unwrap_err()
                .to_string()
                .contains("a shape that ends in 1, got [3]")
        );
    }

    #[test]
    fn another_type_than_expected_is_an_error() {
        let cast = DTypeCastTransform {
            in_keys: Some(vec!["observation".into()]),
            ..DTypeCastTransform::new(DType::F64, DType::F32)
        };
        assert_eq!(
            pendulums().transformed(cast).unwrap_err().to_string(),
            "\"observation\" of Pendulum-v1: expected float64 to be cast, got float32"
        );
    }
}
