use std::fmt::Debug;

use tensordict::{Element, NestedKey};
use windrow_slab::{Key, LeafSpec, Rows, RowsMut, SlabError};

use crate::{EnvError, EnvSpec, Outcomes, Reset, Spec, VecEnv, VecEnvError};

/// Names that frames have beside those of observations and actions.
const TAKEN: [&str; 6] = [
    "done",
    "terminated",
    "truncated",
    "reward",
    "next",
    "collector",
];

/// Environments that also observe one number each, which changes with every step: see
/// [`StepCounter`](crate::StepCounter), [`LimitFlag`](crate::LimitFlag), [`RewardSum`](crate::RewardSum) and
/// [`InitTracker`](crate::InitTracker).
///
/// Its leaf `[1]` comes after all others, which so keep their places: the inner environments write into the same rows.
/// A bare observation becomes the named one it is delivered as.
#[derive(Debug, Clone)]
pub struct Appended<V, A: Appendix> {
    envs: V,
    pub(super) spec: EnvSpec,
    key: Key<A::Value>,
    values: Vec<A::Value>,
    pub(super) own: A,
}

/// What is observed of each environment beside its own observations.
pub trait Appendix: Clone + Debug + Send {
    /// Type of the number.
    type Value: Element;

    /// What it is after a reset.
    const FIRST: Self::Value;

    /// Environment `env`, which exists, begins an episode.
    fn begin(&mut self, _env: usize) {}

    /// Turns the numbers before a step into those after it, `[num_envs]`; `outcomes` are the step's.
    fn change(&mut self, values: &mut [Self::Value], outcomes: Outcomes<'_>);
}

impl<V: VecEnv, A: Appendix> Appended<V, A> {
    /// `envs` with the observation `key`.
    ///
    /// # Errors
    /// [`EnvError::Spec`] when something else has that name.
    pub(super) fn append(envs: V, key: &NestedKey, own: A) -> Result<Self, EnvError> {
        let leaf = Spec::unbounded(A::Value::DTYPE, [1]);
        let (spec, index) = with_leaf(envs.spec(), key, leaf)?;
        Ok(Self {
            spec,
            key: Key::new(index),
            values: vec![A::FIRST; envs.num_envs()],
            own,
            envs,
        })
    }

    /// The environments without what is appended.
    pub fn into_inner(self) -> V {
        self.envs
    }
}

/// `spec` with the observation `leaf` behind all others, and its place among them.
///
/// # Errors
/// [`EnvError::Spec`] when something else is called `key`.
pub(super) fn with_leaf(
    spec: &EnvSpec,
    key: &NestedKey,
    leaf: Spec,
) -> Result<(EnvSpec, usize), EnvError> {
    let mut spec = spec.clone();
    let taken = |name: &str| {
        let actions = spec.action.leaves("action");
        TAKEN.contains(&name) || actions.iter().any(|(key, _)| key.first() == name)
    };
    if taken(key.first()) {
        return Err(EnvError::Spec(format!(
            "frames of {} have {key} already: an observation appended to it needs another name",
            spec.id
        )));
    }
    let index = spec.observation_leaves().len();
    let mut entries = match spec.observation {
        Spec::Composite(entries) => entries,
        bare => vec![("observation".to_owned(), bare)],
    };
    if !push_last(&mut entries, key.components(), leaf) {
        return Err(EnvError::Spec(format!(
            "{} observes {key} already: an observation appended to it needs another name",
            spec.id
        )));
    }
    spec.observation = Spec::Composite(entries);
    Ok((spec, index))
}

/// Adds `leaf` behind all others; whether its name was free and leaves that place to it.
fn push_last<N: AsRef<str>>(entries: &mut Vec<(String, Spec)>, names: &[N], leaf: Spec) -> bool {
    let [name, below @ ..] = names else {
        return false;
    };
    let name = name.as_ref();
    match entries.iter().position(|(entry, _)| entry == name) {
        None => {
            let nested = below.iter().rev().fold(leaf, |inner, name| {
                Spec::composite([(name.as_ref(), inner)])
            });
            entries.push((name.to_owned(), nested));
            true
        }
        Some(at) if at + 1 == entries.len() => match &mut entries[at].1 {
            Spec::Composite(inner) => push_last(inner, below, leaf),
            _ => false,
        },
        Some(_) => false,
    }
}

impl<V: VecEnv, A: Appendix> VecEnv for Appended<V, A> {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.envs.num_envs()
    }

    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        self.envs.bind(columns)
    }

    fn panicked_at(&self) -> Option<usize> {
        self.envs.panicked_at()
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        self.envs.reset(resets, obs.reborrow())?;
        let seen = column(&mut obs, self.key, self.values.len())?;
        for &Reset { env, .. } in resets {
            // An environment that does not exist was reported by the inner ones.
            if let (Some(value), Some(seen)) = (self.values.get_mut(env), seen.get_mut(env)) {
                (*value, *seen) = (A::FIRST, A::FIRST);
                self.own.begin(env);
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.envs
            .step(actions, obs.reborrow(), outcomes.reborrow())?;
        let seen = column(&mut obs, self.key, self.values.len())?;
        self.own.change(&mut self.values, outcomes);
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
    use windrow_slab::{Row, RowBlock, RowMut};

    use super::*;
    use crate::testing::CountingEnv;
    use crate::{Env, Outcome, Serial, StepCounter};

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
        let appended = StepCounter::named(Serial::new(vec![env])?, key)?;
        Ok(appended.spec.observation_leaves())
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
            "Test observes \"extra\" already: an observation appended to it needs another name"
        );
    }

    #[test]
    fn a_nested_name_takes_the_last_place_or_none() {
        let leaf = || Spec::unbounded(DType::F32, [1]);
        let tree = || {
            let body = Spec::composite([("joints", leaf())]);
            let stats = Spec::composite([("sum", leaf())]);
            Spec::composite([("body", body), ("stats", stats)])
        };
        let keys = |key: (&str, &str)| {
            let leaves = extended_by(tree(), key.into());
            leaves.map(|leaves| leaves.last().unwrap().key.clone())
        };
        for key in [("new", "extra"), ("stats", "extra")] {
            assert_eq!(keys(key).unwrap(), key.into());
        }
        for key in [("body", "extra"), ("stats", "sum")] {
            let error = keys(key).unwrap_err().to_string();
            assert!(error.starts_with("Test observes (\""), "{error}");
        }
    }

    #[test]
    fn names_of_other_entries_of_a_frame_are_taken() {
        for name in ["action", "done", "reward", "next", "collector"] {
            let error = extended_by(Spec::unbounded(DType::F32, [1]), name.into()).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "frames of Test have {name:?} already: an observation appended to it needs another name"
                )
            );
        }
    }

    #[test]
    fn rows_of_another_layout_are_an_error() {
        let envs = Serial::from_fn(2, || CountingEnv::new(9, 0)).unwrap();
        let mut appended = StepCounter::named(envs, "extra").unwrap();
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
