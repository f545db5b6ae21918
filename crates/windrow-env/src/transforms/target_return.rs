use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey};
use windrow_slab::{Key, LeafSpec};

use super::elementwise::{Real, for_real, paired, reward};
use crate::{
    Attach, BoundTransform, EnvError, Observations, Outcomes, Reset, Spec, SpecError, StateVisitor,
    Transform, VecEnvError, serde_form,
};

/// How rewards change the target during an episode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TargetMode {
    /// Each reward is subtracted.
    #[default]
    Reduce,
    /// It stays as it is.
    Constant,
}

/// Observes the return that is still to be earned, such as a policy reads that is conditioned on
/// it.
///
/// ```
/// use windrow_env::{CartPole, Serial, TargetReturn, VecEnv};
///
/// let envs = Serial::from_fn(8, CartPole::v1)?.transformed(TargetReturn::new(200.0))?;
/// let leaves = envs.spec().observation_leaves();
/// assert_eq!(leaves[1].key, "target_return".into());
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetReturn {
    /// The target that is observed after a reset.
    pub target_return: f64,
    /// How rewards change it.
    #[serde(default)]
    pub mode: TargetMode,
    /// Names of the rewards; `None` for the reward of the step.
    #[serde(default, with = "serde_form::key::list")]
    pub in_keys: Option<Vec<NestedKey>>,
    /// Names of the targets; `None` for `target_return` beside each reward.
    #[serde(default, with = "serde_form::key::list")]
    pub out_keys: Option<Vec<NestedKey>>,
}

impl TargetReturn {
    /// A target from which each reward is subtracted.
    #[must_use]
    pub fn new(target_return: f64) -> Self {
        Self {
            target_return,
            mode: TargetMode::Reduce,
            in_keys: None,
            out_keys: None,
        }
    }
}

impl Transform for TargetReturn {
    type Bound = Remaining;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Remaining, EnvError> {
        if !self.target_return.is_finite() {
            let error = SpecError::Argument {
                argument: "target_return",
                of: format!("TargetReturn of {}", envs.inner().id),
                expected: "a finite number".to_owned(),
                got: self.target_return.to_string(),
            };
            return Err(error.into());
        }
        let in_keys = self.in_keys.clone().unwrap_or_else(|| vec![reward()]);
        let beside = |key: &NestedKey| {
            let names = key.components();
            let names = names[..names.len() - 1].iter().map(AsRef::as_ref);
            let names: Vec<&str> = names.chain(["target_return"]).collect();
            NestedKey::from(names.as_slice())
        };
        let out_keys =
            (self.out_keys.clone()).unwrap_or_else(|| in_keys.iter().map(beside).collect());
        let pairs = paired(envs, &in_keys, Some(&out_keys))?;
        let targets = pairs
            .into_iter()
            .map(|names| Target::new(envs, names, self.target_return));
        Ok(Remaining {
            first: self.target_return,
            change: match self.mode {
                TargetMode::Reduce => Change::Subtract,
                TargetMode::Constant => Change::Keep,
            },
            targets: targets.collect::<Result<_, _>>()?,
        })
    }
}

/// The rest of the target, or the sum of rewards, in each episode.
#[derive(Debug)]
pub struct Remaining {
    first: f64,
    change: Change,
    targets: Vec<Target>,
}

/// How rewards change a number.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    Add,
    Subtract,
    Keep,
}

impl Remaining {
    /// The sum of the rewards `names.0`, as `names.1`.
    pub(super) fn sum(
        envs: &mut Attach<'_>,
        names: (&NestedKey, &NestedKey),
    ) -> Result<Self, EnvError> {
        Ok(Self {
            first: 0.0,
            change: Change::Add,
            targets: vec![Target::new(envs, names, 0.0)?],
        })
    }
}

#[derive(Debug)]
struct Target {
    /// Leaf with the reward; `None` for that of the step.
    from: Option<usize>,
    to: usize,
    dtype: DType,
    /// Of all environments, each a number of `dtype`.
    left: Vec<f64>,
}

impl Target {
    fn new(
        envs: &mut Attach<'_>,
        names: (&NestedKey, &NestedKey),
        first: f64,
    ) -> Result<Self, EnvError> {
        let (key, out) = names;
        let (from, leaf) = match *key == reward() {
            true => (None, LeafSpec::new(reward(), DType::F32, [1])),
            false => (envs.observation(key)).map(|(from, leaf)| (Some(from), leaf))?,
        };
        if !matches!(leaf.dtype, DType::F32 | DType::F64) {
            let got = leaf.dtype.name();
            return Err(envs.inner().unfit(key, "float32 or float64", got));
        }
        let to = envs.append(out, Spec::unbounded(leaf.dtype, &leaf.shape))?;
        Ok(Self {
            from,
            to,
            dtype: leaf.dtype,
            left: vec![first; leaf.elements() * envs.num_envs()],
        })
    }

    fn earn<T: Real>(&mut self, rewards: &[T], change: Change) {
        let earned = self.left.iter_mut().zip(rewards);
        match change {
            Change::Add => earned.for_each(|(left, x)| *left = (T::of(*left) + *x).double()),
            Change::Subtract => earned.for_each(|(left, x)| *left = (T::of(*left) - *x).double()),
            Change::Keep => {}
        }
    }

    /// Shows what is left, of the elements in `which`.
    fn show<T: Real>(
        &self,
        obs: &mut Observations<'_>,
        which: std::ops::Range<usize>,
    ) -> Result<(), EnvError> {
        let places = obs.rows.get_mut(Key::<T>::new(self.to))?;
        let places = places
            .get_mut(which.clone())
            .expect("The inner environments report one that does not exist.");
        for (place, left) in places.iter_mut().zip(&self.left[which]) {
            *place = T::of(*left);
        }
        Ok(())
    }
}

impl BoundTransform for Remaining {
    fn reset(&mut self, resets: &[Reset], mut obs: Observations<'_>) -> Result<(), VecEnvError> {
        let envs = obs.rows.envs();
        for target in &mut self.targets {
            let elements = target.left.len() / envs.max(1);
            for &Reset { env, .. } in resets.iter().filter(|reset| reset.env < envs) {
                let own = env * elements..(env + 1) * elements;
                target.left[own.clone()].fill(self.first);
                for_real!(target.dtype, T => target.show::<T>(&mut obs, own))
                    .map_err(|error| error.of(env))?;
            }
        }
        Ok(())
    }

    #[inline]
    fn step(
        &mut self,
        mut obs: Observations<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        for target in &mut self.targets {
            let done = for_real!(target.dtype, T => (|| {
                match target.from {
                    None => target.earn(outcomes.reward, self.change),
                    Some(from) => {
                        target.earn::<T>(obs.rows.as_rows().get(Key::new(from))?, self.change);
                    }
                }
                target.show::<T>(&mut obs, 0..target.left.len())
            })());
            done.map_err(|error: EnvError| error.of(0))?;
        }
        Ok(())
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        let mut targets = self.targets.iter_mut();
        targets.try_for_each(|target| state.values(&mut target.left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{CartPole, Serial, VecEnv};

    fn targets(transform: TargetReturn) -> VecDriver<impl VecEnv> {
        let envs = Serial::from_fn(2, CartPole::v1).unwrap();
        let mut envs = VecDriver::new(envs.transformed(transform).unwrap());
        envs.reset(&[0, 1]).unwrap();
        assert_eq!(envs.seen::<f32>("target_return"), [3.0, 3.0]);
        envs.step(1i64).unwrap();
        envs
    }

    #[test]
    fn rewards_are_taken_off_until_the_next_episode() {
        let mut envs = targets(TargetReturn::new(3.0));
        assert_eq!(envs.seen::<f32>("target_return"), [2.0, 2.0]);
        envs.reset(&[1]).unwrap();
        assert_eq!(envs.seen::<f32>("target_return"), [2.0, 3.0]);
        envs.step(0i64).unwrap();
        assert_eq!(envs.seen::<f32>("target_return"), [1.0, 2.0]);
    }

    #[test]
    fn a_constant_target_stays() {
        let mode = TargetMode::Constant;
        let envs = targets(TargetReturn {
            mode,
            ..TargetReturn::new(3.0)
        });
        assert_eq!(envs.seen::<f32>("target_return"), [3.0, 3.0]);
    }

    #[test]
    fn the_reward_has_to_be_there() {
        let envs = Serial::from_fn(2, CartPole::v1).unwrap();
        let nested = TargetReturn {
            in_keys: Some(vec![("agents", "reward").into()]),
            ..TargetReturn::new(3.0)
        };
        let error = envs.transformed(nested).unwrap_err().to_string();
        assert!(
            error.contains("has no observation (\"agents\", \"reward\")"),
            "{error}"
        );
    }

    #[test]
    fn a_target_is_a_finite_number() {
        for target in [f64::NAN, f64::INFINITY] {
            let envs = Serial::from_fn(2, CartPole::v1).unwrap();
            let error = envs.transformed(TargetReturn::new(target)).unwrap_err();
            let expected = "target_return of TargetReturn of CartPole-v1: expected a finite number";
            assert_eq!(error.to_string(), format!("{expected}, got {target}"));
        }
    }
}
