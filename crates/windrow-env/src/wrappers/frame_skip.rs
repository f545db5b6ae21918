use windrow_slab::{Row, RowMut};

use crate::{Env, EnvError, EnvSpec, Outcome, SpecError};

/// An environment that takes every action several times, or until the episode ends: rewards add up, and only the last
/// observation counts.
///
/// Limits inside count every step, limits outside every action.
#[derive(Debug, Clone)]
pub struct FrameSkip<E> {
    env: E,
    steps: usize,
}

impl<E: Env> FrameSkip<E> {
    /// `env`, which takes every action `steps` times.
    ///
    /// # Errors
    /// [`SpecError::Argument`] when `steps` is 0.
    pub fn new(env: E, steps: usize) -> Result<Self, EnvError> {
        if steps == 0 {
            return Err(SpecError::no_steps("frame_skip", env.spec()));
        }
        Ok(Self { env, steps })
    }

    /// The environment that takes every action once.
    pub fn into_inner(self) -> E {
        self.env
    }
}

impl<E: Env> Env for FrameSkip<E> {
    fn spec(&self) -> &EnvSpec {
        self.env.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.env.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let mut outcome = self.env.step(action, obs.reborrow())?;
        for _ in 1..self.steps {
            if outcome.terminated || outcome.truncated {
                break;
            }
            let next = self.env.step(action, obs.reborrow())?;
            outcome = Outcome {
                reward: outcome.reward + next.reward,
                ..next
            };
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Driver;
    use crate::testing::CountingEnv;
    use crate::{CartPole, TimeLimit};

    #[test]
    fn actions_are_repeated_until_the_episode_ends() {
        let mut env = Driver::new(FrameSkip::new(CountingEnv::new(4, 0), 3).unwrap());
        env.reset(None);
        assert!(!env.step(1i8).unwrap().terminated);
        assert_eq!(env.observation::<i32>(), [3]);
        assert!(env.step(1i8).unwrap().terminated);
        assert_eq!(env.observation::<i32>(), [5]);
    }

    #[test]
    fn rewards_add_up_and_limits_inside_count_every_step() {
        let limited = TimeLimit::new(CartPole::new(), 5).unwrap();
        let mut env = Driver::new(FrameSkip::new(limited, 3).unwrap());
        env.reset(Some(0));
        let first = env.step(0i64).unwrap();
        assert_eq!((first.reward, first.truncated), (3.0, false));
        let second = env.step(1i64).unwrap();
        assert_eq!((second.reward, second.truncated), (2.0, true));
    }

    #[test]
    fn an_action_is_taken_once_at_least() {
        let error = FrameSkip::new(CartPole::new(), 0).unwrap_err().to_string();
        assert!(
            error.ends_with("frame_skip of CartPole-v1: expected 1 step or more, got 0"),
            "{error}"
        );
    }
}
