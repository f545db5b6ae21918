use tensordict::{DType, for_dtype};
use windrow_slab::{Key, RowBlock, Rows, RowsMut};

use crate::number::Number;
use crate::{EnvError, EnvSpec, Outcomes, Reset, Spec, VecEnv, VecEnvError};

/// Environments with discrete actions that are given as vectors instead of indices: the largest element is the choice.
///
/// The vectors are `int64`, one at the choice and zero elsewhere, as one-hot policies write them; or `float32` scores,
/// as networks do. The first of equally large elements is chosen. Several choices lie side by side.
///
/// ```
/// use windrow_env::{CartPole, OneHotActions, Serial, Spec, VecEnv};
///
/// let envs = OneHotActions::new(Serial::from_fn(8, CartPole::v1)?)?;
/// assert_eq!(envs.spec().action, Spec::one_hot(2));
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug)]
pub struct OneHotActions<V> {
    envs: V,
    spec: EnvSpec,
    nvec: Box<[usize]>,
    dtype: DType,
    indices: RowBlock,
}

impl<V: VecEnv> OneHotActions<V> {
    /// `envs`, whose actions are one-hot vectors of `int64`.
    ///
    /// # Errors
    /// [`EnvError::Spec`] when their action is not a single leaf of indices.
    pub fn new(envs: V) -> Result<Self, EnvError> {
        Self::build(envs, |nvec| Spec::OneHot { nvec })
    }

    /// `envs`, whose actions are vectors of `float32` scores, compared as they are.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_scores(envs: V) -> Result<Self, EnvError> {
        Self::build(envs, |nvec| {
            Spec::unbounded(DType::F32, [nvec.iter().sum()])
        })
    }

    fn build(envs: V, encode: impl FnOnce(Vec<usize>) -> Spec) -> Result<Self, EnvError> {
        let mut spec = envs.spec().clone();
        let nvec = match &spec.action {
            action @ (Spec::Discrete { .. } | Spec::MultiDiscrete { .. }) => action.choices(),
            _ => None,
        };
        let Some(nvec) = nvec.map(<[usize]>::to_vec) else {
            return Err(EnvError::Spec(format!(
                "one-hot actions stand for indices: expected a discrete action of {}, got {:?}",
                spec.id, spec.action
            )));
        };
        let indices = RowBlock::new(&spec.action_leaves(), envs.num_envs())?;
        spec.action = encode(nvec.clone());
        Ok(Self {
            dtype: spec.action.dtype().unwrap_or(DType::I64),
            nvec: nvec.into(),
            envs,
            spec,
            indices,
        })
    }

    /// The environments that take indices.
    pub fn into_inner(self) -> V {
        self.envs
    }
}

/// Writes the index of the largest element of each vector to `to`: the outer error is one of the rows, the inner one of
/// an environment.
fn decode<T: Number>(
    nvec: &[usize],
    actions: Rows<'_>,
    to: &mut [i64],
) -> Result<Result<(), VecEnvError>, EnvError> {
    let width = nvec.iter().sum::<usize>().max(1);
    let rows = actions
        .get(Key::<T>::new(0))?
        .chunks_exact(width)
        .zip(to.chunks_exact_mut(nvec.len().max(1)));
    for (env, (mut vector, indices)) in rows.enumerate() {
        for (&n, index) in nvec.iter().zip(indices) {
            let (choices, others) = vector.split_at(n);
            match largest(choices) {
                Ok(choice) => *index = choice,
                Err(source) => return Ok(Err(VecEnvError { env, source })),
            }
            vector = others;
        }
    }
    Ok(Ok(()))
}

fn largest<T: Number>(choices: &[T]) -> Result<i64, EnvError> {
    let mut best = (0, f64::NEG_INFINITY);
    for (i, choice) in choices.iter().enumerate() {
        let value = choice.number();
        if value.is_nan() {
            return Err(EnvError::Action {
                expected: "scores that can be compared".into(),
                got: format!("NaN as score of choice {i}"),
            });
        }
        if value > best.1 {
            best = (i, value);
        }
    }
    Ok(best.0 as i64)
}

impl<V: VecEnv> VecEnv for OneHotActions<V> {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.envs.num_envs()
    }

    fn reset(&mut self, resets: &[Reset], obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        self.envs.reset(resets, obs)
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        let broken = |error: EnvError| VecEnvError {
            env: 0,
            source: error,
        };
        let mut rows = self.indices.rows_mut();
        let indices = rows
            .get_mut(Key::<i64>::new(0))
            .map_err(|error| broken(error.into()))?;
        let decoded = for_dtype!(self.dtype, T => decode::<T>(&self.nvec, actions, indices));
        decoded.map_err(broken)??;
        self.envs.step(self.indices.rows(), obs, outcomes)
    }

    fn panicked_at(&self) -> Option<usize> {
        self.envs.panicked_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CartPole, Env, Outcome, Pendulum, Serial};
    use windrow_slab::{Row, RowMut};

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
        mut envs: OneHotActions<Serial<Echo>>,
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
        let envs = OneHotActions::new(echoes()).unwrap();
        assert_eq!(envs.spec().action, Spec::OneHot { nvec: vec![2, 3] });
        let got = indices(envs, [0i64, 1, 0, 0, 1, 1, 0, 0, 1, 0]);
        assert_eq!(got.unwrap(), [1, 2, 0, 1]);
    }

    #[test]
    fn scores_are_compared_before_anything_is_rounded() {
        let envs = OneHotActions::of_scores(echoes()).unwrap();
        assert_eq!(envs.spec().action_leaves()[0].dtype, DType::F32);
        let scores = [0.2f32, 0.3, -0.9, -0.1, -0.5, 0.4, 0.4, 0.0, 0.0, f32::MIN];
        assert_eq!(indices(envs, scores).unwrap(), [1, 1, 0, 0]);
    }

    #[test]
    fn scores_that_are_no_numbers_are_an_error() {
        let envs = OneHotActions::of_scores(echoes()).unwrap();
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
        let error = OneHotActions::new(envs).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "one-hot actions stand for indices: expected a discrete action of Pendulum-v1"
            ),
            "{error}"
        );
        let envs = OneHotActions::new(Serial::from_fn(1, CartPole::v1).unwrap()).unwrap();
        assert!(OneHotActions::new(envs).is_err());
    }
}
