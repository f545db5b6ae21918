use tensordict::NestedKey;

use super::appended::{Appended, Appendix};
use crate::{EnvError, EnvSpec, Outcomes, VecEnv};

/// Environments that also observe how many steps their episode has lasted, and may be truncated by it.
///
/// Appends the observation `step_count`, `int64 [1]`: 0 at a reset, one more at each step. A bare observation becomes
/// the named one it is delivered as, `{"observation": …, "step_count": …}`.
///
/// ```
/// use windrow_env::{CartPole, Serial, StepCounter, VecEnv};
///
/// let envs = Serial::from_fn(8, CartPole::new)?;
/// let counted = StepCounter::new(envs)?.with_max_steps(200)?;
/// assert_eq!(counted.spec().max_episode_steps, Some(200));
/// let names = counted.spec().observation_leaves().into_iter().map(|leaf| leaf.key.last().to_owned());
/// assert_eq!(names.collect::<Vec<_>>(), ["observation", "step_count"]);
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
pub type StepCounter<V> = Appended<V, Steps>;

/// How many steps an episode has lasted.
#[derive(Debug, Clone)]
pub struct Steps {
    limit: i64,
}

impl Appendix for Steps {
    type Value = i64;
    const FIRST: i64 = 0;

    #[inline(always)]
    fn change(&mut self, counts: &mut [i64], outcomes: Outcomes<'_>) {
        for (count, truncated) in counts.iter_mut().zip(outcomes.truncated) {
            *count += 1;
            *truncated |= *count >= self.limit;
        }
    }
}

impl<V: VecEnv> StepCounter<V> {
    /// `envs`, counted but not limited.
    ///
    /// # Errors
    /// As [`named`](Self::named).
    pub fn new(envs: V) -> Result<Self, EnvError> {
        Self::named(envs, "step_count")
    }

    /// As [`new`](Self::new), with the count under the name `key`.
    ///
    /// # Errors
    /// [`EnvError::Spec`] when something else has that name.
    pub fn named(envs: V, key: impl Into<NestedKey>) -> Result<Self, EnvError> {
        Self::append(envs, &key.into(), Steps { limit: i64::MAX })
    }

    /// Truncates an episode after `max_steps` steps, besides what truncates it already.
    ///
    /// # Errors
    /// [`EnvError::Spec`] when `max_steps` is 0.
    pub fn with_max_steps(mut self, max_steps: usize) -> Result<Self, EnvError> {
        self.own.limit = limit(&self.spec, max_steps)?;
        let limit = &mut self.spec.max_episode_steps;
        *limit = Some(limit.unwrap_or(max_steps).min(max_steps));
        Ok(self)
    }
}

/// `max_steps` as a count of steps.
///
/// # Errors
/// [`EnvError::Spec`] when it is 0.
pub(super) fn limit(spec: &EnvSpec, max_steps: usize) -> Result<i64, EnvError> {
    if max_steps == 0 {
        return Err(EnvError::Spec(format!(
            "a step counter needs at least one step, got max_steps = 0 for {}",
            spec.id
        )));
    }
    Ok(i64::try_from(max_steps).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use tensordict::DType;

    use super::*;
    use crate::testing::CountingEnv;
    use crate::wrappers::vec_driver::VecDriver;
    use crate::{CartPole, Serial};

    fn counting(max_steps: usize) -> VecDriver<StepCounter<Serial<CountingEnv>>> {
        let envs = Serial::from_fn(2, || CountingEnv::new(3, 0)).unwrap();
        let counter = StepCounter::new(envs).unwrap();
        VecDriver::new(counter.with_max_steps(max_steps).unwrap())
    }

    /// The counts and the flags after a step with ones.
    fn step(envs: &mut VecDriver<impl VecEnv>) -> (Vec<i64>, Vec<bool>, Vec<bool>) {
        envs.step(1i8).unwrap();
        let flags = (envs.terminated.clone(), envs.truncated.clone());
        (envs.seen("step_count"), flags.0, flags.1)
    }

    #[test]
    fn counts_each_environment_by_itself() {
        let mut envs = counting(3);
        envs.reset(&[0, 1]).unwrap();
        assert_eq!(envs.seen::<i64>("step_count"), [0, 0]);
        assert_eq!(
            step(&mut envs),
            (vec![1, 1], vec![false; 2], vec![false; 2])
        );
        envs.reset(&[1]).unwrap();
        assert_eq!(envs.seen::<i64>("step_count"), [1, 0]);
        assert_eq!(step(&mut envs).0, [2, 1]);
        assert_eq!(step(&mut envs).2, [true, false]);
        // Terminated by the count of ones and truncated by the count of steps.
        let (steps, terminated, truncated) = step(&mut envs);
        assert_eq!(
            (steps, terminated, truncated),
            (vec![4, 3], vec![true, false], vec![true; 2])
        );
        assert_eq!(envs.seen::<i32>("observation"), [4, 3]);
    }

    #[test]
    fn appends_to_a_composite() {
        let inner = Serial::from_fn(1, CartPole::v1).unwrap();
        let once = StepCounter::new(inner).unwrap();
        assert_eq!(once.spec().max_episode_steps, Some(500));
        let leaves = once.spec().observation_leaves();
        assert_eq!(
            (leaves[1].dtype, leaves[1].shape.as_slice()),
            (DType::I64, &[1][..])
        );
        assert_eq!(
            StepCounter::new(once).unwrap_err().to_string(),
            "CartPole-v1 observes \"step_count\" already: an observation appended to it needs another name"
        );
    }

    #[test]
    fn no_step_at_all_is_an_error() {
        let envs = StepCounter::new(Serial::from_fn(1, CartPole::new).unwrap()).unwrap();
        assert_eq!(
            envs.with_max_steps(0).unwrap_err().to_string(),
            "a step counter needs at least one step, got max_steps = 0 for CartPole-v1"
        );
    }
}
