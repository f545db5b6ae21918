use tensordict::{DType, Shape};
use windrow_slab::{Key, Row, RowMut};

use crate::{Env, EnvError, EnvSpec, Outcome, Spec, StateVisitor};

/// An environment that counts the ones among its actions.
///
/// Observation `int32 [1]`: the count. Action binary `int8 [1]`, added to it. Reward 0. Terminates
/// when the count exceeds `max_steps`: after `max_steps - start + 1` steps if all actions are 1.
///
/// ```
/// use windrow_env::testing::CountingEnv;
/// use windrow_env::{Env, EnvFactory};
///
/// let env = CountingEnv::default(); // counts from 0 to 6
/// assert_eq!(env.spec().id, "Counting");
/// let envs = (|| CountingEnv::new(100, 42)).build(3)?; // count from 42 to 101
/// assert_eq!(envs.num_envs(), 3);
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone)]
pub struct CountingEnv {
    spec: EnvSpec,
    max_steps: i32,
    start: i32,
    count: Option<i32>,
}

const COUNT: Key<i32> = Key::new(0);
const INCREMENT: Key<i8> = Key::new(0);

impl CountingEnv {
    /// Counts from `start`, until the count exceeds `max_steps`.
    #[must_use]
    pub fn new(max_steps: i32, start: i32) -> Self {
        let action = Spec::Binary {
            shape: Shape::from_slice(&[1]),
        };
        Self {
            spec: EnvSpec::new("Counting", Spec::unbounded(DType::I32, [1]), action),
            max_steps,
            start,
            count: None,
        }
    }
}

impl Default for CountingEnv {
    /// Counts from 0, until the count exceeds 5.
    fn default() -> Self {
        Self::new(5, 0)
    }
}

impl Env for CountingEnv {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, _seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        self.count = Some(self.start);
        Ok(obs.write(COUNT, &[self.start])?)
    }

    fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let count = self.count.as_mut().ok_or(EnvError::NotReset)?;
        let increment = match action.scalar(INCREMENT)? {
            increment @ (0 | 1) => i32::from(increment),
            other => {
                return Err(EnvError::Action {
                    expected: "0 or 1".into(),
                    got: other.to_string(),
                });
            }
        };
        *count += increment;
        obs.write(COUNT, &[*count])?;
        Ok(Outcome {
            reward: 0.0,
            terminated: *count > self.max_steps,
            truncated: false,
        })
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.value(&mut self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Driver;

    #[test]
    fn episodes_last_one_step_more_than_the_maximum() {
        let mut env = Driver::new(CountingEnv::default());
        for _ in 0..2 {
            env.reset(None);
            assert_eq!(env.observation::<i32>(), [0]);
            let (steps, end) = env.run(1i8);
            assert_eq!((steps, end.reward, end.truncated), (6, 0.0, false));
            assert_eq!(env.observation::<i32>(), [6]);
        }
    }

    #[test]
    fn zeros_do_not_count() {
        let mut env = Driver::new(CountingEnv::new(5, 4));
        env.reset(None);
        env.step(0i8).unwrap();
        assert_eq!(env.observation::<i32>(), [4]);
    }

    #[test]
    fn errors_are_typed() {
        let mut env = Driver::new(CountingEnv::default());
        assert!(matches!(env.step(1i8), Err(EnvError::NotReset)));
        env.reset(None);
        let error = env.step(2i8).unwrap_err();
        assert_eq!(
            error.to_string(),
            "action out of range: expected 0 or 1, got 2"
        );
    }
}
