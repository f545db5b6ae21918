use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey};
use windrow_slab::{Key, Row, Rows, SlabError};

use crate::{
    Attach, BoundTransform, EnvError, Observations, Outcomes, Reset, StateVisitor, Transform,
    VecEnvError,
};

/// Fails as soon as the environments write an infinite number or NaN.
///
/// After a reset, the `float32` and `float64` observations of the environments that were reset have
/// to be finite; after a step, those of all environments and their rewards. The spec stays as it
/// is. Observations that other transforms append are checked when this one is around them.
///
/// The error is [`EnvError::NotFinite`], about the first environment concerned.
///
/// ```
/// use windrow_env::testing::{FailAt, FailingEnv, Failure};
/// use windrow_env::{CartPole, EnvError, FiniteCheck, NotFinite, Reset, Serial, VecEnv};
/// use windrow_slab::RowBlock;
///
/// let broken = || FailingEnv::new(CartPole::v1(), FailAt::Reset(2), Failure::Nan);
/// let mut envs = Serial::from_fn(4, broken)?.transformed(FiniteCheck {})?;
/// let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 4)?;
/// let reset = [Reset { env: 3, seed: None }];
/// envs.reset(&reset, obs.rows_mut())?;
///
/// let error = envs.reset(&reset, obs.rows_mut()).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "environment 3: element 0 of observation \"observation\" is NaN, expected a finite number"
/// );
/// assert!(matches!(error.source, EnvError::NotFinite(NotFinite::Observation { element: 0, .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FiniteCheck {}

/// A finding of a [`FiniteCheck`].
///
/// ```
/// use windrow_env::NotFinite;
///
/// let found = NotFinite::Reward { reward: f32::NEG_INFINITY };
/// assert_eq!(found.to_string(), "the reward is -inf, expected a finite number");
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NotFinite {
    /// An element of an observation.
    #[error("element {element} of observation {leaf:?} is {value}, expected a finite number")]
    Observation {
        /// Name of the observation.
        leaf: NestedKey,
        /// Which of the environment's elements, row-major.
        element: usize,
        /// The element.
        value: f64,
    },
    /// A reward.
    #[error("the reward is {reward}, expected a finite number")]
    Reward {
        /// The reward.
        reward: f32,
    },
}

/// An observation of real numbers, which may be infinite or NaN.
#[derive(Debug, Clone)]
struct Leaf {
    name: NestedKey,
    key: FloatKey,
}

#[derive(Debug, Clone, Copy)]
enum FloatKey {
    F32(Key<f32>),
    F64(Key<f64>),
}

impl Transform for FiniteCheck {
    type Bound = Checking;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Checking, EnvError> {
        let mut leaves = Vec::new();
        for (i, leaf) in envs.inner().observation_leaves().into_iter().enumerate() {
            let key = match leaf.dtype {
                DType::F32 => FloatKey::F32(Key::new(i)),
                DType::F64 => FloatKey::F64(Key::new(i)),
                other if other.is_float() => {
                    let expected = "float32 or float64 to be checked";
                    return Err(envs.inner().unfit(&leaf.key, expected, other.name()));
                }
                _ => continue,
            };
            leaves.push(Leaf {
                name: leaf.key,
                key,
            });
        }
        Ok(Checking { leaves })
    }
}

/// Checks every real number that is written.
#[derive(Debug)]
pub struct Checking {
    leaves: Vec<Leaf>,
}

impl Checking {
    /// Whether all environments' observations are finite.
    fn all_finite(&self, obs: Rows<'_>) -> Result<bool, SlabError> {
        for leaf in &self.leaves {
            // Without an early end, so that many elements are compared at once.
            let finite = match leaf.key {
                FloatKey::F32(key) => obs.get(key)?.iter().fold(true, |ok, x| ok & x.is_finite()),
                FloatKey::F64(key) => obs.get(key)?.iter().fold(true, |ok, x| ok & x.is_finite()),
            };
            if !finite {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks one environment's observation.
    fn check(&self, env: usize, obs: Row<'_>) -> Result<(), VecEnvError> {
        for leaf in &self.leaves {
            let found = leaf.key.find(obs);
            let found = found.map_err(|error| EnvError::from(error).of(env))?;
            if let Some((element, value)) = found {
                let leaf = leaf.name.clone();
                return Err(NotFinite::Observation {
                    leaf,
                    element,
                    value,
                }
                .of(env));
            }
        }
        Ok(())
    }

    /// Checks one environment after the other; the first failure is the error.
    #[cold]
    fn search(&self, obs: Rows<'_>, rewards: &[f32]) -> Result<(), VecEnvError> {
        for (env, (row, &reward)) in obs.iter().zip(rewards).enumerate() {
            self.check(env, row)?;
            if !reward.is_finite() {
                return Err(NotFinite::Reward { reward }.of(env));
            }
        }
        Ok(())
    }
}

impl FloatKey {
    /// The first element that is not finite, and its value.
    fn find(self, obs: Row<'_>) -> Result<Option<(usize, f64)>, SlabError> {
        Ok(match self {
            Self::F32(key) => first(obs.get(key)?.iter().map(|&x| f64::from(x))),
            Self::F64(key) => first(obs.get(key)?.iter().copied()),
        })
    }
}

fn first(values: impl Iterator<Item = f64>) -> Option<(usize, f64)> {
    values.enumerate().find(|(_, value)| !value.is_finite())
}

impl NotFinite {
    /// As the error of environment `env`.
    fn of(self, env: usize) -> VecEnvError {
        EnvError::from(self).of(env)
    }
}

impl BoundTransform for Checking {
    fn reset(&mut self, resets: &[Reset], obs: Observations<'_>) -> Result<(), VecEnvError> {
        for &Reset { env, .. } in resets {
            // An environment that does not exist was reported by the inner ones.
            if let Some(row) = obs.rows.as_rows().env(env) {
                self.check(env, row)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn step(&mut self, obs: Observations<'_>, outcomes: Outcomes<'_>) -> Result<(), VecEnvError> {
        let (obs, rewards) = (obs.rows.as_rows(), &*outcomes.reward);
        let observed = self.all_finite(obs);
        let observed = observed.map_err(|error| EnvError::from(error).of(0))?;
        if observed && rewards.iter().all(|reward| reward.is_finite()) {
            return Ok(());
        }
        self.search(obs, rewards)
    }

    fn visit_state(&mut self, _: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use windrow_slab::{RowBlock, RowMut};

    use super::*;
    use crate::testing::CountingEnv;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{Env, EnvSpec, Outcome, Serial, Spec, VecEnv};

    /// Writes zeros in a reset and what it is told in a step.
    #[derive(Clone)]
    struct Told {
        spec: EnvSpec,
        body: [f32; 2],
        far: f64,
        reward: f32,
    }

    impl Told {
        fn new(body: [f32; 2], far: f64, reward: f32) -> Self {
            let body_spec = Spec::composite([("speed", Spec::unbounded(DType::F32, [2]))]);
            let observation = Spec::composite([
                ("count", Spec::unbounded(DType::I64, [1])),
                ("body", body_spec),
                ("far", Spec::unbounded(DType::F64, [])),
            ]);
            Self {
                spec: EnvSpec::new("Told", observation, Spec::discrete(2)),
                body,
                far,
                reward,
            }
        }
    }

    impl Env for Told {
        fn spec(&self) -> &EnvSpec {
            &self.spec
        }

        fn reset(&mut self, seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
            obs.write(Key::new(0), &[i64::MAX])?;
            obs.write(Key::new(1), &[0.0f32; 2])?;
            let far = if seed == Some(13) { f64::INFINITY } else { 0.0 };
            Ok(obs.write(Key::new(2), &[far])?)
        }

        fn step(&mut self, _: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
            obs.write(Key::new(1), &self.body)?;
            obs.write(Key::new(2), &[self.far])?;
            Ok(Outcome {
                reward: self.reward,
                ..Outcome::default()
            })
        }
    }

    fn driver(envs: Vec<Told>) -> VecDriver<impl VecEnv> {
        VecDriver::new(
            Serial::new(envs)
                .unwrap()
                .transformed(FiniteCheck {})
                .unwrap(),
        )
    }

    fn fine() -> Told {
        Told::new([f32::MIN, f32::MIN_POSITIVE], f64::MAX, -1.0)
    }

    /// What the check says to a step of three environments, the second and the third being `odd`.
    fn verdict(odd: &Told) -> VecEnvError {
        let mut envs = driver(vec![fine(), odd.clone(), odd.clone()]);
        envs.reset(&[0, 1, 2]).unwrap();
        envs.step(0i64).unwrap_err()
    }

    #[test]
    fn finite_numbers_pass() {
        let mut envs = driver(vec![fine(); 3]);
        envs.reset(&[0, 1, 2]).unwrap();
        for _ in 0..3 {
            envs.step(0i64).unwrap();
        }
    }

    #[test]
    fn errors_name_the_environment_the_leaf_and_the_value() {
        assert_eq!(
            verdict(&Told::new([0.0, f32::NAN], 0.0, 0.0)).to_string(),
            "environment 1: element 1 of observation (\"body\", \"speed\") is NaN, expected a finite number"
        );
        assert_eq!(
            verdict(&Told::new([0.0; 2], f64::NEG_INFINITY, 0.0)).to_string(),
            "environment 1: element 0 of observation \"far\" is -inf, expected a finite number"
        );
        assert_eq!(
            verdict(&Told::new([0.0; 2], 0.0, f32::INFINITY)).to_string(),
            "environment 1: the reward is inf, expected a finite number"
        );
    }

    #[test]
    fn errors_can_be_told_apart_by_type() {
        let EnvError::NotFinite(found) = verdict(&Told::new([0.0; 2], f64::INFINITY, 0.0)).source
        else {
            panic!("not an error of the check");
        };
        let expected = NotFinite::Observation {
            leaf: "far".into(),
            element: 0,
            value: f64::INFINITY,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn the_first_environment_is_reported_whatever_is_wrong_with_it() {
        let reward = Told::new([0.0; 2], 0.0, f32::NAN);
        let body = Told::new([f32::NAN; 2], 0.0, 0.0);
        let mut envs = driver(vec![reward, body]);
        envs.reset(&[0, 1]).unwrap();
        assert_eq!(
            envs.step(0i64).unwrap_err().to_string(),
            "environment 0: the reward is NaN, expected a finite number"
        );
    }

    #[test]
    fn a_reset_is_answerable_for_its_own_rows() {
        let mut envs = driver(vec![Told::new([0.0; 2], f64::NAN, 0.0), fine()]);
        envs.reset(&[0, 1]).unwrap();
        assert_eq!(envs.step(0i64).unwrap_err().env, 0);
        // What the failed step left in row 0 is not for the reset of environment 1 to answer for.
        envs.reset(&[1]).unwrap();
        envs.reset(&[0]).unwrap();
        let error = envs.reset_seeded(&[0, 1], 13).unwrap_err();
        assert_eq!(
            error.to_string(),
            "environment 0: element 0 of observation \"far\" is inf, expected a finite number"
        );
        assert_eq!(envs.reset(&[2]).unwrap_err().env, 2);
    }

    #[test]
    fn the_spec_stays_as_it_is() {
        let inner = || Serial::from_fn(2, || CountingEnv::new(9, 0)).unwrap();
        let checked = inner().transformed(FiniteCheck {}).unwrap();
        assert_eq!(checked.spec(), inner().spec());
        assert_eq!(checked.num_envs(), 2);
        assert_eq!(checked.into_inner().spec(), inner().spec());
    }

    #[test]
    fn rows_of_another_layout_are_an_error() {
        let envs = Serial::from_fn(1, fine).unwrap();
        let mut envs = envs.transformed(FiniteCheck {}).unwrap();
        let leaves = envs.spec().observation_leaves();
        let mut obs = RowBlock::new(&leaves[..2], 1).unwrap();
        let reset = [Reset { env: 0, seed: None }];
        let error = envs.reset(&reset, obs.rows_mut()).unwrap_err();
        assert!(matches!(error.source, EnvError::Row(_)), "{error}");
    }
}
