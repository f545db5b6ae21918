use serde::{Deserialize, Serialize};
use tensordict::NestedKey;

use super::appended::{Appended, Appendix};
use crate::{Attach, EnvError, EnvSpec, Outcomes, SpecError, Transform, serde_form};

/// Observes how many steps each episode has lasted, and may truncate it by that.
///
/// Appends the observation `step_count`, `int64 [1]`: 0 at a reset, one more at each step. A bare
/// observation becomes the named one it is delivered as, `{"observation": …, "step_count": …}`.
///
/// ```
/// use windrow_env::{CartPole, Serial, StepCounter, VecEnv};
///
/// let envs = Serial::from_fn(8, CartPole::new)?;
/// let counted = envs.transformed(StepCounter::new().with_max_steps(200))?;
/// assert_eq!(counted.spec().max_episode_steps, Some(200));
/// let names = counted.spec().observation_leaves().into_iter().map(|leaf| leaf.key.last().to_owned());
/// assert_eq!(names.collect::<Vec<_>>(), ["observation", "step_count"]);
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepCounter {
    /// Name of the count.
    #[serde(with = "serde_form::key")]
    pub step_count_key: NestedKey,
    /// Name of the count where frames have something else under the first; without one, that is an
    /// error.
    #[serde(with = "serde_form::key::optional")]
    pub or_step_count_key: Option<NestedKey>,
    /// Steps after which an episode is truncated, if it lasts so long; at least 1.
    pub max_steps: Option<usize>,
}

impl Default for StepCounter {
    fn default() -> Self {
        Self {
            step_count_key: "step_count".into(),
            or_step_count_key: None,
            max_steps: None,
        }
    }
}

impl StepCounter {
    /// Counts steps, without a limit.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The count is observed as `key`.
    #[must_use]
    pub fn named(mut self, key: impl Into<NestedKey>) -> Self {
        self.step_count_key = key.into();
        self
    }

    /// The count is observed as `key` where frames have something else under its name, as those of
    /// environments that count their steps themselves.
    #[must_use]
    pub fn or_named(mut self, key: impl Into<NestedKey>) -> Self {
        self.or_step_count_key = Some(key.into());
        self
    }

    /// Truncates an episode after `max_steps` steps, in addition to what truncates it already.
    #[must_use]
    pub fn with_max_steps(mut self, max_steps: usize) -> Self {
        self.max_steps = Some(max_steps);
        self
    }
}

impl Transform for StepCounter {
    type Bound = Appended<Steps>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let mut limit = i64::MAX;
        if let Some(max_steps) = self.max_steps {
            limit = steps(&envs.spec, max_steps)?;
            let least = &mut envs.spec.max_episode_steps;
            *least = Some(least.unwrap_or(max_steps).min(max_steps));
        }
        let counted = Appended::new(envs, &self.step_count_key, Steps { limit });
        match (counted, &self.or_step_count_key) {
            (Err(EnvError::Spec(error)), Some(key))
                if matches!(*error, SpecError::NameTaken { .. }) =>
            {
                Appended::new(envs, key, Steps { limit })
            }
            (counted, _) => counted,
        }
    }
}

/// How many steps an episode has lasted.
#[derive(Debug)]
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

/// `max_steps` as a count of steps of the environments of `spec`.
///
/// # Errors
/// [`SpecError::Argument`] when it is 0.
pub(super) fn steps(spec: &EnvSpec, max_steps: usize) -> Result<i64, EnvError> {
    if max_steps == 0 {
        return Err(SpecError::no_steps("max_steps", spec));
    }
    Ok(i64::try_from(max_steps).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use tensordict::DType;

    use super::*;
    use crate::testing::CountingEnv;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{CartPole, Serial, VecEnv};

    fn counting(max_steps: usize) -> VecDriver<impl VecEnv> {
        let envs = Serial::from_fn(2, || CountingEnv::new(3, 0)).unwrap();
        let counter = StepCounter::new().with_max_steps(max_steps);
        VecDriver::new(envs.transformed(counter).unwrap())
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
        let once = inner.transformed(StepCounter::new()).unwrap();
        assert_eq!(once.spec().max_episode_steps, Some(500));
        let leaves = once.spec().observation_leaves();
        assert_eq!(
            (leaves[1].dtype, leaves[1].shape.as_slice()),
            (DType::I64, &[1][..])
        );
        assert_eq!(
            once.transformed(StepCounter::new())
                .unwrap_err()
                .to_string(),
            "frames of CartPole-v1 have \"step_count\" already: a new observation needs another name"
        );
    }

    #[test]
    fn another_name_is_used_only_where_the_first_is_taken() {
        let counter = StepCounter::new().or_named(("own", "steps"));
        let envs = Serial::from_fn(1, CartPole::new).unwrap();
        let once = envs.transformed(counter.clone()).unwrap();
        let twice = once.transformed(counter.clone()).unwrap();
        let keys = twice.spec().observation_leaves().into_iter();
        let keys: Vec<_> = keys.map(|leaf| leaf.key).collect();
        let expected = [
            "observation".into(),
            "step_count".into(),
            ("own", "steps").into(),
        ];
        assert_eq!(keys, expected);
        assert!(twice.transformed(counter).is_err());
    }

    #[test]
    fn no_step_at_all_is_an_error() {
        let envs = Serial::from_fn(1, CartPole::new).unwrap();
        let none = StepCounter::new().with_max_steps(0);
        assert_eq!(
            envs.transformed(none).unwrap_err().to_string(),
            "max_steps of CartPole-v1: expected 1 step or more, got 0"
        );
    }
}
