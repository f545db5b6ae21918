use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey};

use super::dtype_cast::{Casting, DTypeCastTransform};
use crate::{Attach, EnvError, Transform, serde_form};

/// Converts `float64` observations to `float32`, the type of networks.
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
    #[serde(with = "serde_form::key::list")]
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
    type Bound = Casting;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Casting, EnvError> {
        let cast = DTypeCastTransform::new(DType::F64, DType::F32);
        let in_keys = self.in_keys.clone();
        DTypeCastTransform { in_keys, ..cast }.attach(envs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{Env, EnvSpec, Outcome, Serial, Spec, StepCounter, VecEnv};
    use windrow_slab::{Key, Row, RowMut};

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
            "\"whole\" of Counts: expected float64 to be cast, got int32"
        );
        assert!(error("none").starts_with("Counts has no observation \"none\"; it has \"whole\""));
    }
}
