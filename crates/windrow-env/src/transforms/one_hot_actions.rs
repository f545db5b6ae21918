use serde::{Deserialize, Serialize};
use tensordict::{DType, for_dtype};
use windrow_slab::{Key, Rows, RowsMut};

use crate::number::Number;
use crate::{
    Attach, BoundTransform, EnvError, Observations, Outcomes, Reset, Spec, StateVisitor, Transform,
    VecEnvError, largest,
};

/// Takes discrete actions as vectors instead of indices: the largest element is the choice.
///
/// The vectors are `int64`, one at the choice and zero elsewhere, as one-hot policies write them;
/// or `float32` scores, as networks do. The first of equally large elements is chosen. Several
/// choices lie side by side.
///
/// ```
/// use windrow_env::{CartPole, OneHotActions, Serial, Spec, VecEnv};
///
/// let envs = Serial::from_fn(8, CartPole::v1)?.transformed(OneHotActions::new())?;
/// assert_eq!(envs.spec().action, Spec::one_hot(2));
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OneHotActions {
    /// Whether the vectors are `float32` scores, compared as they are.
    pub scores: bool,
}

impl OneHotActions {
    /// Vectors of `int64`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Vectors of `float32` scores, compared as they are.
    #[must_use]
    pub fn of_scores() -> Self {
        Self { scores: true }
    }
}

impl Transform for OneHotActions {
    type Bound = Decoding;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Decoding, EnvError> {
        let nvec = match &envs.spec.action {
            action @ (Spec::Discrete { .. } | Spec::MultiDiscrete { .. }) => action.choices(),
            _ => None,
        };
        let Some(nvec) = nvec.map(<[usize]>::to_vec) else {
            let expected = "a discrete action, which has a one-hot form";
            let got = format!("{:?}", envs.spec.action);
            return Err(envs.spec.unfit(&"action".into(), expected, got));
        };
        envs.replace_actions();
        envs.spec.action = match self.scores {
            true => Spec::unbounded(DType::F32, [nvec.iter().sum()]),
            false => Spec::OneHot { nvec: nvec.clone() },
        };
        Ok(Decoding {
            dtype: envs
                .spec
                .action
                .dtype()
                .expect("Either has an element type."),
            nvec: nvec.into(),
        })
    }
}

/// Turns vectors into indices.
#[derive(Debug)]
pub struct Decoding {
    nvec: Box<[usize]>,
    dtype: DType,
}

impl BoundTransform for Decoding {
    fn act(&mut self, actions: Rows<'_>, mut inner: RowsMut<'_>) -> Result<(), VecEnvError> {
        let indices = inner.get_mut(Key::<i64>::new(0));
        let indices = indices.map_err(|error| EnvError::from(error).of(0))?;
        for_dtype!(self.dtype, T => decode::<T>(&self.nvec, actions, indices))
    }

    fn reset(&mut self, _: &[Reset], _: Observations<'_>) -> Result<(), VecEnvError> {
        Ok(())
    }

    #[inline]
    fn step(&mut self, _: Observations<'_>, _: Outcomes<'_>) -> Result<(), VecEnvError> {
        Ok(())
    }

    fn visit_state(&mut self, _: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        Ok(())
    }
}

/// Writes the index of the largest element of each vector to `to`.
fn decode<T: Number>(nvec: &[usize], actions: Rows<'_>, to: &mut [i64]) -> Result<(), VecEnvError> {
    let width = nvec.iter().sum::<usize>().max(1);
    let vectors = actions.get(Key::<T>::new(0));
    let vectors = vectors.map_err(|error| EnvError::from(error).of(0))?;
    let rows = vectors
        .chunks_exact(width)
        .zip(to.chunks_exact_mut(nvec.len().max(1)));
    for (env, (mut vector, indices)) in rows.enumerate() {
        for (&n, index) in nvec.iter().zip(indices) {
            let (choices, others) = vector.split_at(n);
            *index = choose(choices).map_err(|error| error.of(env))?;
            vector = others;
        }
    }
    Ok(())
}

/// The choice that `scores` stand for.
pub(super) fn choose<T: Number>(scores: &[T]) -> Result<i64, EnvError> {
    if let Some(i) = scores.iter().position(|score| score.number().is_nan()) {
        return Err(EnvError::Action {
            expected: "scores that can be compared".into(),
            got: format!("NaN as score of choice {i}"),
        });
    }
    Ok(largest(scores) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CartPole, Env, EnvSpec, Outcome, Pendulum, Serial, VecEnv};
    use windrow_slab::{Row, RowBlock, RowMut};

    /// Observes the indices it was given.
    #[derive(Clone)]
    struct Echo(EnvSpec);

    impl Env for Echo {
        fn spec(&self) -> &EnvSpec {
            &self.0
        }

        fn reset(&mut self, _: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
            Ok(obs.write(Key::new(0), &[-1i64, -1])?)
        }

        fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
            obs.write(Key::new(0), action.get(Key::<i64>::new(0))?)?;
            Ok(Outcome::default())
        }
    }

    fn echoes() -> Serial<Echo> {
        let action = Spec::MultiDiscrete { nvec: vec![2, 3] };
        let spec = EnvSpec::new("Echo", Spec::unbounded(DType::I64, [2]), action);
        Serial::new(vec![Echo(spec); 2]).unwrap()
    }

    /// The indices that two environments are given for `vectors`.
    fn indices<T: Number>(
        mut envs: impl VecEnv,
        vectors: [T; 10],
    ) -> Result<Vec<i64>, VecEnvError> {
        let mut actions = RowBlock::new(&envs.spec().action_leaves(), 2).unwrap();
        let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 2).unwrap();
        let mut rows = actions.rows_mut();
        rows.get_mut(Key::new(0)).unwrap().copy_from_slice(&vectors);
        let outcomes = Outcomes {
            reward: &mut [0.0; 2],
            terminated: &mut [false; 2],
            truncated: &mut [false; 2],
        };
        envs.step(actions.rows(), obs.rows_mut(), outcomes)?;
        Ok(obs.rows().get::<i64>(Key::new(0)).unwrap().to_vec())
    }

    #[test]
    fn the_one_is_the_choice() {
        let envs = echoes().transformed(OneHotActions::new()).unwrap();
        assert_eq!(envs.spec().action, Spec::OneHot { nvec: vec![2, 3] });
        let got = indices(envs, [0i64, 1, 0, 0, 1, 1, 0, 0, 1, 0]);
        assert_eq!(got.unwrap(), [1, 2, 0, 1]);
    }

    #[test]
    fn scores_are_compared_before_anything_is_rounded() {
        let envs = echoes().transformed(OneHotActions::of_scores()).unwrap();
        assert_eq!(envs.spec().action_leaves()[0].dtype, DType::F32);
        let scores = [0.2f32, 0.3, -0.9, -0.1, -0.5, 0.4, 0.4, 0.0, 0.0, f32::MIN];
        assert_eq!(indices(envs, scores).unwrap(), [1, 1, 0, 0]);
    }

    #[test]
    fn scores_that_are_no_numbers_are_an_error() {
        let envs = echoes().transformed(OneHotActions::of_scores()).unwrap();
        let mut scores = [0f32; 10];
        scores[8] = f32::NAN;
        assert_eq!(
            indices(envs, scores).unwrap_err().to_string(),
            "environment 1: action out of range: expected scores that can be compared, got NaN as score of choice 1"
        );
    }

    #[test]
    fn only_indices_have_a_one_hot_form() {
        let envs = Serial::from_fn(1, Pendulum::v1).unwrap();
        let error = envs.transformed(OneHotActions::new()).unwrap_err();
        let error = error.to_string();
        let expected =
            "\"action\" of Pendulum-v1: expected a discrete action, which has a one-hot form, got ";
        assert!(error.starts_with(expected), "{error}");
        let envs = Serial::from_fn(1, CartPole::v1).unwrap();
        let envs = envs.transformed(OneHotActions::new()).unwrap();
        assert!(envs.transformed(OneHotActions::new()).is_err());
    }
}
