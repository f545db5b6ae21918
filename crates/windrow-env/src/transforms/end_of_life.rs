use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey, for_dtype};
use windrow_slab::{Key, LeafSpec};

use crate::number::Number;
use crate::{
    Attach, BoundTransform, EnvError, Observations, Outcomes, Reset, Spec, StateVisitor, Transform,
    VecEnvError, serde_form,
};

/// Observes whether a step has cost a life or ended the episode, `bool [1]`. It ends no episode by
/// itself.
///
/// ```
/// use windrow_env::EndOfLifeTransform;
///
/// let transform = EndOfLifeTransform::default();
/// assert_eq!(transform.lives_key, "lives".into());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EndOfLifeTransform {
    /// Name of the flag.
    #[serde(with = "serde_form::key")]
    pub eol_key: NestedKey,
    /// The observation with the number of lives.
    #[serde(with = "serde_form::key")]
    pub lives_key: NestedKey,
    /// How an episode ends.
    pub done_key: DoneKey,
}

/// How an episode ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DoneKey {
    /// In either way.
    #[default]
    Done,
    /// By itself.
    Terminated,
    /// It is cut.
    Truncated,
}

impl Default for EndOfLifeTransform {
    fn default() -> Self {
        Self {
            eol_key: "end-of-life".into(),
            lives_key: "lives".into(),
            done_key: DoneKey::Done,
        }
    }
}

impl Transform for EndOfLifeTransform {
    type Bound = Lives;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Lives, EnvError> {
        let (place, leaf) = envs.observation(&self.lives_key)?;
        if leaf.elements() != 1 {
            let got = format!("the shape {:?}", leaf.shape);
            return Err(envs.inner().unfit(&leaf.key, "one number, of lives", got));
        }
        let to = envs.append(&self.eol_key, Spec::unbounded(DType::Bool, [1]))?;
        Ok(Lives {
            leaf,
            place,
            to: Key::new(to),
            done_key: self.done_key,
            before: vec![0.0; envs.num_envs()],
        })
    }
}

/// Compares lives with those before.
#[derive(Debug)]
pub struct Lives {
    leaf: LeafSpec,
    place: usize,
    to: Key<bool>,
    done_key: DoneKey,
    /// Lives of each environment before the step.
    before: Vec<f64>,
}

impl Lives {
    /// Records the lives of `envs`, and writes each flag by `flag`, given the lives before and now.
    fn note(
        &mut self,
        envs: impl Iterator<Item = usize>,
        mut obs: Observations<'_>,
        flag: impl Fn(usize, f64, f64) -> bool,
    ) -> Result<(), EnvError> {
        for env in envs {
            // An environment that does not exist was reported by the inner ones.
            let (Some(mut row), Some(before)) = (obs.rows.env_mut(env), self.before.get_mut(env))
            else {
                continue;
            };
            let lives = for_dtype!(self.leaf.dtype, T => row.as_row().scalar(Key::<T>::new(self.place))?.number());
            row.write(self.to, &[flag(env, *before, lives)])?;
            *before = lives;
        }
        Ok(())
    }
}

impl BoundTransform for Lives {
    fn reset(&mut self, resets: &[Reset], obs: Observations<'_>) -> Result<(), VecEnvError> {
        let envs = resets.iter().map(|reset| reset.env);
        self.note(envs, obs, |_, _, _| false)
            .map_err(|error| error.of(0))
    }

    fn step(&mut self, obs: Observations<'_>, outcomes: Outcomes<'_>) -> Result<(), VecEnvError> {
        let (terminated, truncated) = (outcomes.terminated, outcomes.truncated);
        let done_key = self.done_key;
        let is_done = |env: usize| match done_key {
            DoneKey::Done => terminated[env] || truncated[env],
            DoneKey::Terminated => terminated[env],
            DoneKey::Truncated => truncated[env],
        };
        let flag = |env, before, lives| before > lives || is_done(env);
        self.note(0..obs.rows.envs(), obs, flag)
            .map_err(|error| error.of(0))
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.values(&mut self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{Env, EnvSpec, Outcome, Serial, VecEnv};
    use windrow_slab::{Row, RowMut};

    /// Loses a life with every second step, and the episode with the last one.
    #[derive(Clone)]
    struct Game(EnvSpec, i64);

    impl Env for Game {
        fn spec(&self) -> &EnvSpec {
            &self.0
        }

        fn reset(&mut self, _: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
            self.1 = 0;
            Ok(obs.write(Key::new(0), &[3i64])?)
        }

        fn step(&mut self, _: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
            self.1 += 1;
            obs.write(Key::new(0), &[3 - self.1 / 2])?;
            Ok(Outcome {
                terminated: self.1 == 5,
                ..Outcome::default()
            })
        }
    }

    #[test]
    fn a_life_that_is_lost_is_marked() {
        let lives = Spec::composite([("lives", Spec::unbounded(DType::I64, []))]);
        let game = Game(EnvSpec::new("Game", lives, Spec::discrete(2)), 0);
        let envs = Serial::new(vec![game; 2]).unwrap();
        let mut envs = VecDriver::new(envs.transformed(EndOfLifeTransform::default()).unwrap());
        for _ in 0..2 {
            envs.reset(&[0, 1]).unwrap();
            assert_eq!(envs.seen::<bool>("end-of-life"), [false; 2]);
            for lost in [false, true, false, true, true] {
                envs.step(0i64).unwrap();
                assert_eq!(envs.seen::<bool>("end-of-life"), [lost; 2]);
            }
        }
    }

    #[test]
    fn lives_have_to_be_observed() {
        let envs = Serial::from_fn(1, crate::CartPole::v1).unwrap();
        let error = envs.transformed(EndOfLifeTransform::default()).unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("CartPole-v1 has no observation \"lives\""),
            "{error}"
        );
    }
}
