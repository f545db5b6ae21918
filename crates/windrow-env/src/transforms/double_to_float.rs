use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey};
use windrow_slab::{Key, LeafSpec, Row, RowMut};

use crate::joined::copy_leaf;
use crate::{
    Attach, Effect, EnvError, Observations, Outcomes, Reset, Spec, Transform, VecEnvError, written,
};

/// Turns observations of `float64` into such of `float32`, as networks take them.
///
/// ```
/// use windrow_env::DoubleToFloat;
///
/// let all = DoubleToFloat::new();
/// let some = DoubleToFloat::of([("body", "speed")]);
/// assert_ne!(all, some);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DoubleToFloat {
    /// Names of the observations, which hold `float64`; `None` for all that do.
    #[serde(with = "written::key::list")]
    pub in_keys: Option<Vec<NestedKey>>,
}

impl DoubleToFloat {
    /// Narrows all observations of `float64`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Narrows the observations `keys`.
    #[must_use]
    pub fn of(keys: impl IntoIterator<Item = impl Into<NestedKey>>) -> Self {
        Self {
            in_keys: Some(keys.into_iter().map(Into::into).collect()),
        }
    }
}

impl Transform for DoubleToFloat {
    type Effect = Narrowing;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Narrowing, EnvError> {
        for key in self.in_keys.iter().flatten() {
            let (_, leaf) = envs.observation(key)?;
            if leaf.dtype != DType::F64 {
                let got = leaf.dtype.name();
                return Err(envs.inner().unfit(&leaf.key, "float64 to be narrowed", got));
            }
        }
        let is_meant = |leaf: &LeafSpec| match &self.in_keys {
            None => leaf.dtype == DType::F64,
            Some(keys) => keys.contains(&leaf.key),
        };
        let leaves = envs.inner().observation_leaves().into_iter();
        let leaves: Vec<_> = leaves.map(|leaf| (leaf.dtype, is_meant(&leaf))).collect();
        for (i, _) in leaves
            .iter()
            .enumerate()
            .filter(|(_, (_, narrowed))| *narrowed)
        {
            if let Some(Spec::Unbounded { dtype, .. } | Spec::Bounded { dtype, .. }) =
                envs.spec.observation.leaf_mut(i)
            {
                *dtype = DType::F32;
            }
        }
        envs.replace_observations();
        Ok(Narrowing { leaves })
    }
}

/// Copies leaves and narrows some of them.
#[derive(Debug)]
pub struct Narrowing {
    /// The environments' leaves, and whether each is narrowed.
    leaves: Vec<(DType, bool)>,
}

impl Narrowing {
    fn convert(
        &self,
        envs: impl Iterator<Item = usize>,
        obs: Observations<'_>,
    ) -> Result<(), VecEnvError> {
        let (from, mut to) = obs.apart()?;
        for env in envs {
            // An environment that does not exist was reported by the inner ones.
            if let (Some(from), Some(to)) = (from.env(env), to.env_mut(env)) {
                self.convert_row(from, to).map_err(|error| error.of(env))?;
            }
        }
        Ok(())
    }

    fn convert_row(&self, from: Row<'_>, mut to: RowMut<'_>) -> Result<(), EnvError> {
        for (i, &(dtype, narrowed)) in self.leaves.iter().enumerate() {
            if !narrowed {
                copy_leaf(dtype, i, from, &mut to)?;
                continue;
            }
            let doubles = from.get(Key::<f64>::new(i))?;
            for (float, &double) in to.get_mut(Key::<f32>::new(i))?.iter_mut().zip(doubles) {
                *float = double as f32;
            }
        }
        Ok(())
    }
}

impl Effect for Narrowing {
    fn reset(&mut self, resets: &[Reset], obs: Observations<'_>) -> Result<(), VecEnvError> {
        self.convert(resets.iter().map(|reset| reset.env), obs)
    }

    fn step(&mut self, obs: Observations<'_>, _: Outcomes<'_>) -> Result<(), VecEnvError> {
        self.convert(0..obs.rows.envs(), obs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{Env, EnvSpec, Outcome, Serial, StepCounter, VecEnv};

    /// Counts in three element types.
    #[derive(Clone, Debug)]
    struct Counts(EnvSpec, i32);

    fn counts() -> Serial<Counts> {
        let low = vec![0.0; 2];
        let observation = Spec::composite([
            ("whole", Spec::unbounded(DType::I32, [1])),
            (
                "real",
                Spec::composite([
                    (
                        "double",
                        Spec::Bounded {
                            dtype: DType::F64,
                            shape: [2].into_iter().collect(),
                            high: vec![9.0; 2],
                            low,
                        },
                    ),
                    ("other", Spec::unbounded(DType::F64, [1])),
                ]),
            ),
        ]);
        let spec = EnvSpec::new("Counts", observation, Spec::discrete(2));
        Serial::new(vec![Counts(spec, 0); 2]).unwrap()
    }

    impl Counts {
        fn show(&self, mut obs: RowMut<'_>) -> Result<(), EnvError> {
            let count = f64::from(self.1);
            obs.write(Key::new(0), &[self.1])?;
            obs.write(Key::new(1), &[count, count + 0.1])?;
            Ok(obs.write(Key::new(2), &[-count])?)
        }
    }

    impl Env for Counts {
        fn spec(&self) -> &EnvSpec {
            &self.0
        }

        fn reset(&mut self, _: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
            self.1 = 0;
            self.show(obs)
        }

        fn step(&mut self, _: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
            self.1 += 1;
            self.show(obs)?;
            Ok(Outcome::default())
        }
    }

    #[test]
    fn doubles_become_floats_and_the_rest_stays() {
        let narrowed = counts().transformed(DoubleToFloat::new()).unwrap();
        let mut envs = VecDriver::new(narrowed.transformed(StepCounter::new()).unwrap());
        envs.reset(&[0, 1]).unwrap();
        envs.step(0i64).unwrap();
        envs.reset(&[1]).unwrap();
        let key = envs.envs.spec().observation_key::<f32>(("real", "double"));
        assert_eq!(key.unwrap().leaf(), 1);
        assert_eq!(envs.seen::<i32>("whole"), [1, 0]);
        assert_eq!(envs.seen::<i64>("step_count"), [1, 0]);
        assert_eq!(envs.seen_at::<f32>(1), [1.0, 1.1, 0.0, 0.1]);
        assert_eq!(envs.seen_at::<f32>(2), [-1.0, 0.0]);
    }

    #[test]
    fn some_can_be_named() {
        let some = DoubleToFloat::of([("real", "other")]);
        let envs = counts().transformed(some).unwrap();
        let dtypes = envs.spec().observation_leaves();
        let dtypes: Vec<_> = dtypes.iter().map(|leaf| leaf.dtype).collect();
        assert_eq!(dtypes, [DType::I32, DType::F64, DType::F32]);
        let error = |key: &str| {
            let made = counts().transformed(DoubleToFloat::of([key]));
            made.unwrap_err().to_string()
        };
        assert_eq!(
            error("whole"),
            "\"whole\" of Counts: expected float64 to be narrowed, got int32"
        );
        assert!(error("none").starts_with("Counts has no observation \"none\"; it has \"whole\""));
    }
}
