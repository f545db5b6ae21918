use tensordict::NestedKey;

use super::appended::{Appended, Appendix};
use super::step_counter::limit;
use crate::{EnvError, Outcomes, VecEnv};

/// Environments that also observe whether their episode has lasted a number of steps, which does not end it.
///
/// Appends an observation `bool [1]`: false after a reset, true from the last of these steps on. For an episode that also
/// ends there, see [`StepCounter`](crate::StepCounter).
///
/// ```
/// use windrow_env::{CartPole, LimitFlag, Serial, VecEnv};
///
/// let envs = LimitFlag::new(Serial::from_fn(8, CartPole::v1)?, "late", 200)?;
/// assert_eq!(envs.spec().max_episode_steps, Some(500));
/// envs.spec().observation_key::<bool>("late")?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
pub type LimitFlag<V> = Appended<V, Late>;

/// Whether an episode has lasted so many steps.
#[derive(Debug, Clone)]
pub struct Late {
    limit: i64,
    counts: Vec<i64>,
}

impl Appendix for Late {
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
}

impl<V: VecEnv> LimitFlag<V> {
    /// `envs`, with a flag under the name `key` that is raised after `max_steps` steps.
    ///
    /// # Errors
    /// [`EnvError::Spec`] when `max_steps` is 0, or something else has that name.
    pub fn new(envs: V, key: impl Into<NestedKey>, max_steps: usize) -> Result<Self, EnvError> {
        let late = Late {
            limit: limit(envs.spec(), max_steps)?,
            counts: vec![0; envs.num_envs()],
        };
        Self::append(envs, &key.into(), late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CountingEnv;
    use crate::wrappers::vec_driver::VecDriver;
    use crate::{Serial, StepCounter};

    #[test]
    fn is_raised_at_the_limit_and_stays_until_a_reset() {
        let envs = Serial::from_fn(2, || CountingEnv::new(9, 0)).unwrap();
        let counted = StepCounter::new(envs).unwrap();
        let mut envs = VecDriver::new(LimitFlag::new(counted, ("steps", "late"), 2).unwrap());
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
        let error = LimitFlag::new(envs, "late", 0).unwrap_err().to_string();
        assert!(error.contains("got max_steps = 0"), "{error}");
    }
}
