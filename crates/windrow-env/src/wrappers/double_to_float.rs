use tensordict::{DType, NestedKey};
use windrow_slab::{Key, LeafSpec, Row, RowBlock, RowMut, Rows, RowsMut};

use crate::joined::copy_leaf;
use crate::{EnvError, EnvSpec, Outcomes, Reset, Spec, VecEnv, VecEnvError};

/// Environments whose observations of `float64` become such of `float32`, as networks take them.
#[derive(Debug)]
pub struct DoubleToFloat<V> {
    envs: V,
    spec: EnvSpec,
    /// What the environments write.
    doubles: RowBlock,
    /// Its leaves, and whether each is narrowed.
    leaves: Vec<(LeafSpec, bool)>,
}

impl<V: VecEnv> DoubleToFloat<V> {
    /// `envs`, with all observations of `float64` narrowed.
    ///
    /// # Errors
    /// [`EnvError::Row`] when the observations are too large.
    pub fn new(envs: V) -> Result<Self, EnvError> {
        let leaves = envs.spec().observation_leaves().into_iter();
        let leaves = leaves.map(|leaf| {
            let is_wide = leaf.dtype == DType::F64;
            (leaf, is_wide)
        });
        let leaves = leaves.collect();
        Self::build(envs, leaves)
    }

    /// `envs`, with the observations `keys` narrowed.
    ///
    /// # Errors
    /// [`EnvError::Spec`] when there is no such observation, or it does not hold `float64`.
    pub fn of(envs: V, keys: &[NestedKey]) -> Result<Self, EnvError> {
        let leaves = envs.spec().observation_leaves();
        for key in keys {
            let found = leaves.iter().find(|leaf| leaf.key == *key);
            if found.is_none_or(|leaf| leaf.dtype != DType::F64) {
                let got = found.map_or("no such observation", |leaf| leaf.dtype.name());
                return Err(EnvError::Spec(format!(
                    "observation {key} of {} cannot be narrowed: expected float64, got {got}",
                    envs.spec().id
                )));
            }
        }
        let named = |leaf: LeafSpec| {
            let named = keys.contains(&leaf.key);
            (leaf, named)
        };
        let leaves = leaves.into_iter().map(named).collect();
        Self::build(envs, leaves)
    }

    fn build(envs: V, leaves: Vec<(LeafSpec, bool)>) -> Result<Self, EnvError> {
        let mut spec = envs.spec().clone();
        let mut narrowed = leaves.iter().map(|(_, narrowed)| *narrowed);
        narrow(&mut spec.observation, &mut narrowed);
        Ok(Self {
            doubles: RowBlock::new(&envs.spec().observation_leaves(), envs.num_envs())?,
            envs,
            spec,
            leaves,
        })
    }

    /// The environments that observe `float64`.
    pub fn into_inner(self) -> V {
        self.envs
    }

    fn convert(
        &self,
        envs: impl Iterator<Item = usize>,
        obs: &mut RowsMut<'_>,
    ) -> Result<(), VecEnvError> {
        for env in envs {
            // An environment that does not exist was reported by the inner ones.
            if let (Some(from), Some(to)) = (self.doubles.rows().env(env), obs.env_mut(env)) {
                self.convert_row(from, to)
                    .map_err(|source| VecEnvError { env, source })?;
            }
        }
        Ok(())
    }

    fn convert_row(&self, from: Row<'_>, mut to: RowMut<'_>) -> Result<(), EnvError> {
        for (i, (leaf, narrowed)) in self.leaves.iter().enumerate() {
            if !narrowed {
                copy_leaf(leaf.dtype, i, from, &mut to)?;
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

/// Makes those leaves `float32` that `narrowed` says, depth first.
fn narrow(spec: &mut Spec, narrowed: &mut impl Iterator<Item = bool>) {
    match spec {
        Spec::Composite(entries) => {
            for (_, entry) in entries {
                narrow(entry, narrowed);
            }
        }
        leaf => {
            if narrowed.next() == Some(true)
                && let Spec::Unbounded { dtype, .. } | Spec::Bounded { dtype, .. } = leaf
            {
                *dtype = DType::F32;
            }
        }
    }
}

impl<V: VecEnv> VecEnv for DoubleToFloat<V> {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.envs.num_envs()
    }

    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        self.envs.bind(columns)
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        self.envs.reset(resets, self.doubles.rows_mut())?;
        self.convert(resets.iter().map(|reset| reset.env), &mut obs)
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.envs.step(actions, self.doubles.rows_mut(), outcomes)?;
        self.convert(0..self.envs.num_envs(), &mut obs)
    }

    fn panicked_at(&self) -> Option<usize> {
        self.envs.panicked_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wrappers::vec_driver::VecDriver;
    use crate::{Env, Outcome, Serial, StepCounter};

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
        let narrowed = DoubleToFloat::new(counts()).unwrap();
        let mut envs = VecDriver::new(StepCounter::new(narrowed).unwrap());
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
        let key = NestedKey::from(("real", "other"));
        let envs = DoubleToFloat::of(counts(), std::slice::from_ref(&key)).unwrap();
        let dtypes = envs.spec().observation_leaves();
        let dtypes: Vec<_> = dtypes.iter().map(|leaf| leaf.dtype).collect();
        assert_eq!(dtypes, [DType::I32, DType::F64, DType::F32]);
        let error = |key: &str| {
            let made = DoubleToFloat::of(counts(), &[NestedKey::from(key)]);
            made.unwrap_err().to_string()
        };
        assert_eq!(
            error("whole"),
            "observation \"whole\" of Counts cannot be narrowed: expected float64, got int32"
        );
        assert!(error("none").ends_with("got no such observation"));
    }
}
