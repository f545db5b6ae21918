use serde::{Deserialize, Serialize};
use tensordict::NestedKey;
use windrow_slab::{Key, Row, RowMut};

use super::relayout::{FillLeaf, ObservationLayout, Relayout};
use crate::{Attach, EnvError, Spec, SpecError, Transform};

/// Observes choices as vectors instead of indices: `int64`, one at the choice and zero elsewhere.
/// Several choices lie side by side.
///
/// A network reads such vectors, such as those of `FrozenLake-v1`.
///
/// ```
/// use windrow_env::{OneHotObservations, Spec, VecEnv, make_vec};
///
/// let lakes = make_vec("FrozenLake-v1", 8)?.transformed(OneHotObservations {})?;
/// assert_eq!(lakes.spec().observation, Spec::one_hot(16));
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneHotObservations {}

impl OneHotObservations {
    /// Whether `spec` observes any choices as indices.
    #[must_use]
    pub fn apply_to(spec: &Spec) -> bool {
        spec.leaves("observation")
            .into_iter()
            .any(|(_, leaf)| is_index(leaf))
    }
}

fn is_index(leaf: &Spec) -> bool {
    matches!(leaf, Spec::Discrete { .. } | Spec::MultiDiscrete { .. })
}

impl Transform for OneHotObservations {
    type Bound = Relayout<Vectors>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let spec = &envs.spec;
        if !Self::apply_to(&spec.observation) {
            let expected = "a choice, which has a one-hot form";
            let got = format!("{:?}", spec.observation);
            return Err(spec.unfit(&"observation".into(), expected, got));
        }
        let leaves = spec
            .observation
            .leaves("observation")
            .into_iter()
            .enumerate();
        let indices = leaves.filter(|(_, (_, leaf))| is_index(leaf));
        let made = indices.map(|(from, (key, leaf))| Vectors {
            env: spec.id.clone(),
            key,
            nvec: leaf.choices().expect("An index has choices.").to_vec(),
            from,
            to: 0,
        });
        let made: Vec<Vectors> = made.collect();
        let keys: Vec<NestedKey> = made.iter().map(|vectors| vectors.key.clone()).collect();
        let mut layout = ObservationLayout::of(&spec.observation, "observation");
        for vectors in &made {
            let nvec = vectors.nvec.clone();
            layout.put(&vectors.key, Spec::OneHot { nvec }, None);
        }
        let made = made.into_iter().zip(&keys).collect();
        layout.lay(envs, made, |vectors, to| vectors.to = to)
    }
}

/// The vectors of one leaf.
#[derive(Debug)]
pub struct Vectors {
    env: String,
    key: NestedKey,
    nvec: Vec<usize>,
    from: usize,
    to: usize,
}

impl FillLeaf for Vectors {
    fn next(&mut self, _: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        let indices = from.get(Key::<i64>::new(self.from))?;
        let vectors = to.get_mut(Key::<i64>::new(self.to))?;
        vectors.fill(0);
        let mut first = 0;
        for (&index, &n) in indices.iter().zip(&self.nvec) {
            let Some(chosen) = usize::try_from(index).ok().filter(|&chosen| chosen < n) else {
                return Err(SpecError::Leaf {
                    env: self.env.clone(),
                    leaf: self.key.clone(),
                    expected: format!("an integer from 0 to {}", n.saturating_sub(1)),
                    got: index.to_string(),
                }
                .into());
            };
            vectors[first + chosen] = 1;
            first += n;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use windrow_slab::RowBlock;

    use super::*;
    use crate::{CartPole, Env, EnvSpec, Outcome, Reset, Serial, VecEnv, make_vec};

    /// Observes what it is made with.
    struct Shown(EnvSpec, Vec<i64>);

    impl Env for Shown {
        fn spec(&self) -> &EnvSpec {
            &self.0
        }

        fn reset(&mut self, _: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
            obs.write(Key::new(0), &self.1)?;
            Ok(obs.write(Key::new(1), &[2.5f32])?)
        }

        fn step(&mut self, _: Row<'_>, _: RowMut<'_>) -> Result<Outcome, EnvError> {
            Ok(Outcome::default())
        }
    }

    #[test]
    fn choices_are_one_where_they_are_and_other_leaves_stay() {
        let seen = |shown: [i64; 2]| {
            let observation = Spec::composite([
                ("cards", Spec::MultiDiscrete { nvec: vec![3, 2] }),
                ("speed", Spec::unbounded(tensordict::DType::F32, [])),
            ]);
            let spec = EnvSpec::new("Shown", observation, Spec::discrete(2));
            let envs = Serial::new(vec![Shown(spec, shown.to_vec())]).unwrap();
            let mut envs = envs.transformed(OneHotObservations {}).unwrap();
            let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 1).unwrap();
            let reset = envs.reset(&[Reset { env: 0, seed: None }], obs.rows_mut());
            reset.map_err(|error| error.to_string())?;
            let vectors = obs.rows().get(Key::<i64>::new(0)).unwrap().to_vec();
            Ok::<_, String>((vectors, obs.rows().get(Key::<f32>::new(1)).unwrap()[0]))
        };
        assert_eq!(seen([2, 0]), Ok((vec![0, 0, 1, 1, 0], 2.5)));
        assert_eq!(seen([0, 1]), Ok((vec![1, 0, 0, 0, 1], 2.5)));
        let error = seen([3, 0]).unwrap_err();
        assert!(
            error.ends_with("\"cards\" of Shown: expected an integer from 0 to 2, got 3"),
            "{error}"
        );
    }

    #[test]
    fn nested_choices_keep_their_names() {
        let envs = make_vec("Blackjack-v1", 2).unwrap();
        let envs = envs.transformed(OneHotObservations {}).unwrap();
        let leaves = envs.spec().observation.leaves("observation");
        let expected = [32, 11, 2].into_iter().enumerate();
        let expected: Vec<_> = expected
            .map(|(place, n)| {
                (
                    ("observation", place.to_string().as_str()).into(),
                    Spec::one_hot(n),
                )
            })
            .collect();
        let leaves: Vec<(NestedKey, Spec)> = leaves
            .into_iter()
            .map(|(key, leaf)| (key, leaf.clone()))
            .collect();
        assert_eq!(leaves, expected);
    }

    #[test]
    fn numbers_have_no_such_form() {
        let envs = Serial::from_fn(1, CartPole::v1).unwrap();
        let error = envs
            .transformed(OneHotObservations {})
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("expected a choice, which has a one-hot form"),
            "{error}"
        );
    }
}
