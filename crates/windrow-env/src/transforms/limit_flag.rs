use serde::{Deserialize, Serialize};
use tensordict::NestedKey;

use super::appended::{Appended, Appendix};
use super::step_counter::steps;
use crate::{Attach, EnvError, Outcomes, StateVisitor, Transform, serde_form};

/// A flag that is raised once an episode has lasted a number of steps. It does not end the episode.
///
/// Appends an observation `bool [1]`: false after a reset, true from the last of these steps on.
/// For an episode that also ends there, see [`StepCounter`](crate::StepCounter).
///
/// ```
/// use windrow_env::{CartPole, LimitFlag, Serial, VecEnv};
///
/// let envs = Serial::from_fn(8, CartPole::v1)?.transformed(LimitFlag::new("late", 200))?;
/// assert_eq!(envs.spec().max_episode_steps, Some(500));
/// envs.spec().observation_key::<bool>("late")?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitFlag {
    /// Name of the flag.
    #[serde(with = "serde_form::key")]
    pub key: NestedKey,
    /// Steps after which it is raised; at least 1.
    pub max_steps: usize,
}

impl LimitFlag {
    /// A flag under the name `key` that is raised after `max_steps` steps.
    #[must_use]
    pub fn new(key: impl Into<NestedKey>, max_steps: usize) -> Self {
        Self {
            key: key.into(),
            max_steps,
        }
    }
}

impl Transform for LimitFlag {
    type Bound = Appended<Reached>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let reached = Reached {
            limit: steps(&envs.spec, self.max_steps)?,
            counts: vec![0; envs.num_envs()],
        };
        Appended::new(envs, &self.key, reached)
    }
}

/// Whether an episode has reached this number of steps.
#[derive(Debug)]
pub struct Reached {
    limit: i64,
    counts: Vec<i64>,
}

impl Appendix for Reached {
    type Value = bool;
    const FIRST: bool = false;

    fn begin(&mut self, env: usize) {
        self.counts[env] = 0;
    }

    #[inline(always)]
    fn change(&mut self, flags: &mut [bool], _: Outcomes<'_>) {
        for (flag, count) in flags.iter_mut().zip(&mut self.counts) {
            *count += 1;
            *flag = *count >= self.limit;
        }
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.values(&mut self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CountingEnv;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{Serial, StepCounter, VecEnv};

    #[test]
    fn is_raised_at_the_limit_and_stays_until_a_reset() {
        let envs = Serial::from_fn(2, || CountingEnv::new(9, 0)).unwrap();
        let counted = envs.transformed(StepCounter::new()).unwrap();
        let flagged = counted.transformed(LimitFlag::new(("steps", "late"), 2));
        let mut envs = VecDriver::new(flagged.unwrap());
        let late = |envs: &VecDriver<_>| envs.seen_at::<bool>(2);
        envs.reset(&[0, 1]).unwrap();
        assert_eq!(late(&envs), [false; 2]);
        envs.step(1i8).unwrap();
        assert_eq!(late(&envs), [false; 2]);
        envs.reset(&[1]).unwrap();
        envs.step(1i8).unwrap();
        assert_eq!(late(&envs), [true, false]);
        envs.step(1i8).unwrap();
        assert_eq!(late(&envs), [true; 2]);
        assert_eq!(envs.truncated, [false; 2]);
        envs.reset(&[0]).unwrap();
        assert_eq!(late(&envs), [false, true]);
    }

    #[test]
    fn no_step_at_all_is_an_error() {
        let envs = Serial::from_fn(1, CountingEnv::default).unwrap();
        let flagged = envs.transformed(LimitFlag::new("late", 0));
        assert_eq!(
            flagged.unwrap_err().to_string(),
            "max_steps of Counting: expected 1 step or more, got 0"
        );
    }
}
