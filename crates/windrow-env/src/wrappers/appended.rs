use tensordict::Element;
use windrow_slab::{Key, Rows, RowsMut, SlabError};

use crate::{EnvError, EnvSpec, Outcomes, Reset, Spec, VecEnv, VecEnvError};

/// Environments that also observe one number of type `T` each, which changes with every step.
///
/// Its leaf `[1]` comes after all others, which so keep their places: the inner environments write into the same rows.
/// A bare observation becomes the named one it is delivered as.
#[derive(Debug, Clone)]
pub(super) struct Appended<V, T: Element> {
    envs: V,
    pub(super) spec: EnvSpec,
    key: Key<T>,
    values: Vec<T>,
    /// What a reset sets a value to.
    first: T,
}

impl<V: VecEnv, T: Element> Appended<V, T> {
    /// `envs` with the observation `name`, which is `first` after a reset.
    ///
    /// # Errors
    /// [`EnvError::Spec`] when there is an observation `name` already.
    pub(super) fn new(envs: V, name: &str, first: T) -> Result<Self, EnvError> {
        let mut spec = envs.spec().clone();
        let leaf = spec.observation_leaves().len();
        let mut entries = match spec.observation {
            Spec::Composite(entries) => entries,
            bare => vec![("observation".to_owned(), bare)],
        };
        if entries.iter().any(|(entry, _)| entry == name) {
            return Err(EnvError::Spec(format!(
                "{} observes {name:?} already: an observation appended to it needs another name",
                spec.id
            )));
        }
        entries.push((name.to_owned(), Spec::unbounded(T::DTYPE, [1])));
        spec.observation = Spec::Composite(entries);
        Ok(Self {
            spec,
            key: Key::new(leaf),
            values: vec![first; envs.num_envs()],
            first,
            envs,
        })
    }

    pub(super) fn num_envs(&self) -> usize {
        self.envs.num_envs()
    }

    pub(super) fn panicked_at(&self) -> Option<usize> {
        self.envs.panicked_at()
    }

    pub(super) fn into_inner(self) -> V {
        self.envs
    }

    /// Resets the environments named, and their values.
    ///
    /// # Errors
    /// Those of the inner environments, and rows of another layout.
    pub(super) fn reset(
        &mut self,
        resets: &[Reset],
        mut obs: RowsMut<'_>,
    ) -> Result<(), VecEnvError> {
        self.envs.reset(resets, obs.reborrow())?;
        let seen = column(&mut obs, self.key, self.values.len())?;
        for &Reset { env, .. } in resets {
            // An environment that does not exist was reported by the inner ones.
            if let (Some(value), Some(seen)) = (self.values.get_mut(env), seen.get_mut(env)) {
                (*value, *seen) = (self.first, self.first);
            }
        }
        Ok(())
    }

    /// Steps all environments, lets `change` turn the values before into those after, and writes these.
    ///
    /// # Errors
    /// Those of the inner environments, and rows of another layout.
    pub(super) fn step(
        &mut self,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
        change: impl FnOnce(&mut [T], Outcomes<'_>),
    ) -> Result<(), VecEnvError> {
        self.envs
            .step(actions, obs.reborrow(), outcomes.reborrow())?;
        let seen = column(&mut obs, self.key, self.values.len())?;
        change(&mut self.values, outcomes);
        seen.copy_from_slice(&self.values);
        Ok(())
    }
}

/// The values of `envs` environments.
fn column<'a, T: Element>(
    obs: &'a mut RowsMut<'_>,
    key: Key<T>,
    envs: usize,
) -> Result<&'a mut [T], VecEnvError> {
    let broken = |error: SlabError| VecEnvError {
        env: 0,
        source: error.into(),
    };
    let seen = obs.get_mut(key).map_err(broken)?;
    if seen.len() != envs {
        return Err(broken(SlabError::Length {
            leaf: key.leaf(),
            expected: seen.len(),
            got: envs,
        }));
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use tensordict::{DType, Shape};
    use windrow_slab::{LeafSpec, Row, RowBlock, RowMut};

    use super::*;
    use crate::testing::CountingEnv;
    use crate::{Env, Outcome, Serial};

    /// An environment that is nothing but its spec.
    struct Observing(EnvSpec);

    impl Env for Observing {
        fn spec(&self) -> &EnvSpec {
            &self.0
        }

        fn reset(&mut self, _: Option<u64>, _: RowMut<'_>) -> Result<(), EnvError> {
            Ok(())
        }

        fn step(&mut self, _: Row<'_>, _: RowMut<'_>) -> Result<Outcome, EnvError> {
            Ok(Outcome::default())
        }
    }

    /// The leaves of `observation` and one called `extra`.
    fn extended(observation: Spec) -> Result<Vec<LeafSpec>, EnvError> {
        let env = Observing(EnvSpec::new("Test", observation, Spec::discrete(2)));
        let appended = Appended::new(Serial::new(vec![env])?, "extra", 0i64)?;
        Ok(appended.spec.observation_leaves())
    }

    #[test]
    fn a_bare_observation_gets_its_name() {
        let expected = [
            LeafSpec::new("observation", DType::I32, [1]),
            LeafSpec::new("extra", DType::I64, [1]),
        ];
        let bare = Spec::unbounded(DType::I32, [1]);
        assert_eq!(extended(bare).unwrap(), expected);
    }

    #[test]
    fn only_names_of_the_same_level_collide() {
        let below = |outer: &str, inner: &str| {
            let leaf = Spec::Binary {
                shape: Shape::from_slice(&[2]),
            };
            extended(Spec::composite([(outer, Spec::composite([(inner, leaf)]))]))
        };
        let expected = [
            LeafSpec::new(("body", "extra"), DType::I8, [2]),
            LeafSpec::new("extra", DType::I64, [1]),
        ];
        assert_eq!(below("body", "extra").unwrap(), expected);
        assert_eq!(
            below("extra", "body").unwrap_err().to_string(),
            "Test observes \"extra\" already: an observation appended to it needs another name"
        );
    }

    #[test]
    fn rows_of_another_layout_are_an_error() {
        let envs = Serial::from_fn(2, || CountingEnv::new(9, 0)).unwrap();
        let mut appended = Appended::new(envs, "extra", 0i64).unwrap();
        let resets = [Reset { env: 0, seed: None }];
        let leaves = appended.spec.observation_leaves();
        let mut error = |leaves: &[LeafSpec], envs| {
            let mut obs = RowBlock::new(leaves, envs).unwrap();
            let error = appended.reset(&resets, obs.rows_mut()).unwrap_err();
            error.to_string()
        };
        assert_eq!(
            error(&leaves[..1], 2),
            "environment 0: environment broke its spec: leaf 1 does not exist: the spec has 1 leaves"
        );
        assert_eq!(
            error(&leaves, 1),
            "environment 0: environment broke its spec: leaf 1 holds 1 elements a row, got 2"
        );
    }
}
