use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensordict::{Element, NestedKey};
use windrow_slab::{Key, RowsMut, SlabError};

use crate::{
    Attach, BoundTransform, EnvError, Observations, Outcomes, Reset, Spec, StateVisitor,
    VecEnvError,
};

/// A leaf `[1]` behind all observations of the environments, with one number that changes with
/// every step: the common form of [`StepCounter`](crate::StepCounter),
/// [`LimitFlag`](crate::LimitFlag) and [`InitTracker`](crate::InitTracker).
#[derive(Debug)]
pub struct Appended<A: Appendix> {
    key: Key<A::Value>,
    values: Vec<A::Value>,
    own: A,
}

/// The number that is appended.
pub trait Appendix: Debug + Send {
    /// Type of the number.
    type Value: Element + Serialize + DeserializeOwned;

    /// Its value after a reset.
    const FIRST: Self::Value;

    /// Environment `env`, which exists, begins an episode.
    fn begin(&mut self, _env: usize) {}

    /// Turns the numbers before a step into those after it, `[num_envs]`; `outcomes` are the
    /// step's.
    fn change(&mut self, values: &mut [Self::Value], outcomes: Outcomes<'_>);

    /// Saves or loads what changes from step to step: by default nothing does.
    fn visit_state(&mut self, _: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        Ok(())
    }
}

impl<A: Appendix> Appended<A> {
    /// The number `own` as observation `key` of `envs`.
    ///
    /// # Errors
    /// [`SpecError::NameTaken`](crate::SpecError::NameTaken).
    pub(super) fn new(envs: &mut Attach<'_>, key: &NestedKey, own: A) -> Result<Self, EnvError> {
        let index = envs.append(key, Spec::unbounded(A::Value::DTYPE, [1]))?;
        Ok(Self {
            key: Key::new(index),
            values: vec![A::FIRST; envs.num_envs()],
            own,
        })
    }
}

impl<A: Appendix> BoundTransform for Appended<A> {
    fn reset(&mut self, resets: &[Reset], mut obs: Observations<'_>) -> Result<(), VecEnvError> {
        let seen = column(&mut obs.rows, self.key, self.values.len())?;
        for &Reset { env, .. } in resets {
            // An environment that does not exist was reported by the inner ones.
            if let (Some(value), Some(seen)) = (self.values.get_mut(env), seen.get_mut(env)) {
                (*value, *seen) = (A::FIRST, A::FIRST);
                self.own.begin(env);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn step(
        &mut self,
        mut obs: Observations<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        let seen = column(&mut obs.rows, self.key, self.values.len())?;
        self.own.change(&mut self.values, outcomes);
        seen.copy_from_slice(&self.values);
        Ok(())
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.values(&mut self.values)?;
        self.own.visit_state(state)
    }
}

/// The values of `envs` environments.
fn column<'a, T: Element>(
    obs: &'a mut RowsMut<'_>,
    key: Key<T>,
    envs: usize,
) -> Result<&'a mut [T], VecEnvError> {
    let broken = |error: SlabError| EnvError::from(error).of(0);
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
    use windrow_sync::error_chain;

    use super::*;
    use crate::testing::CountingEnv;
    use crate::{Env, EnvSpec, Outcome, Serial, StepCounter, VecEnv};

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

    /// The leaves of `observation` and one called `key`.
    fn extended_by(observation: Spec, key: NestedKey) -> Result<Vec<LeafSpec>, EnvError> {
        let env = Observing(EnvSpec::new("Test", observation, Spec::discrete(2)));
        let appended = Serial::new(vec![env])?.transformed(StepCounter::new().named(key))?;
        Ok(appended.spec().observation_leaves())
    }

    fn extended(observation: Spec) -> Result<Vec<LeafSpec>, EnvError> {
        extended_by(observation, "extra".into())
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
            "frames of Test have \"extra\" already: a new observation needs another name"
        );
    }

    #[test]
    fn a_nested_name_takes_the_last_place() {
        let leaf = || Spec::unbounded(DType::F32, [1]);
        let tree = || {
            let body = Spec::composite([("joints", leaf())]);
            let stats = Spec::composite([("sum", leaf())]);
            Spec::composite([("body", body), ("stats", stats)])
        };
        let keys = |key: &[&str]| {
            let leaves = extended_by(tree(), NestedKey::from(key))?;
            Ok::<_, EnvError>(leaves.into_iter().map(|leaf| leaf.key).collect::<Vec<_>>())
        };
        for group in ["new", "stats", "body"] {
            let expected: [NestedKey; 3] = [
                ("body", "joints").into(),
                ("stats", "sum").into(),
                (group, "extra").into(),
            ];
            assert_eq!(keys(&[group, "extra"]).unwrap(), expected);
        }
        let taken: [&[&str]; 4] = [
            &["stats", "sum"],
            &["body", "joints"],
            &["body"],
            &["body", "joints", "x"],
        ];
        for key in taken {
            let error = keys(key).unwrap_err().to_string();
            assert!(error.starts_with("frames of Test have "), "{error}");
        }
    }

    #[test]
    fn names_of_other_entries_of_a_frame_are_taken() {
        for name in ["action", "done", "reward", "next", "collector"] {
            let error = extended_by(Spec::unbounded(DType::F32, [1]), name.into()).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "frames of Test have {name:?} already: a new observation needs another name"
                )
            );
        }
    }

    #[test]
    fn rows_of_another_layout_are_an_error() {
        let envs = Serial::from_fn(2, || CountingEnv::new(9, 0)).unwrap();
        let mut appended = envs.transformed(StepCounter::new().named("extra")).unwrap();
        let resets = [Reset { env: 0, seed: None }];
        let leaves = appended.spec().observation_leaves();
        let mut error = |leaves: &[LeafSpec], envs| {
            let mut obs = RowBlock::new(leaves, envs).unwrap();
            error_chain(&appended.reset(&resets, obs.rows_mut()).unwrap_err())
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
