use serde::{Deserialize, Serialize};
use tensordict::NestedKey;

use super::appended::{Appended, Appendix};
use crate::{Attach, EnvError, Outcomes, Transform, serde_form};

/// Observes whether each episode has just begun.
///
/// Appends the observation `is_init`, `bool [1]`: true after a reset, false after a step. A
/// recurrent policy clears its memory where it is true. A bare observation becomes the named one it
/// is delivered as, `{"observation": …, "is_init": …}`.
///
/// ```
/// use windrow_env::{CartPole, InitTracker, Reset, Serial, VecEnv};
/// use windrow_slab::RowBlock;
///
/// let mut envs = Serial::from_fn(2, CartPole::v1)?.transformed(InitTracker::new())?;
/// let is_init = envs.spec().observation_key::<bool>("is_init")?;
/// let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 2)?;
/// envs.reset(&[Reset { env: 1, seed: None }], obs.rows_mut())?;
/// assert_eq!(obs.rows().get(is_init)?, [false, true]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InitTracker {
    /// Name of the mark.
    #[serde(with = "serde_form::key")]
    pub init_key: NestedKey,
}

impl Default for InitTracker {
    fn default() -> Self {
        Self {
            init_key: "is_init".into(),
        }
    }
}

impl InitTracker {
    /// Marks first observations.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The mark is observed as `key`.
    #[must_use]
    pub fn named(mut self, key: impl Into<NestedKey>) -> Self {
        self.init_key = key.into();
        self
    }
}

impl Transform for InitTracker {
    type Bound = Appended<Beginning>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        Appended::new(envs, &self.init_key, Beginning)
    }
}

/// Whether an episode has just begun.
#[derive(Debug)]
pub struct Beginning;

impl Appendix for Beginning {
    type Value = bool;
    const FIRST: bool = true;

    #[inline(always)]
    fn change(&mut self, flags: &mut [bool], _: Outcomes<'_>) {
        flags.fill(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CountingEnv;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{CartPole, Serial, VecEnv};

    #[test]
    fn marks_what_follows_a_reset_and_nothing_else() {
        let envs = Serial::from_fn(3, || CountingEnv::new(9, 0)).unwrap();
        let mut envs = VecDriver::new(envs.transformed(InitTracker::new()).unwrap());
        let flags = |envs: &VecDriver<_>| envs.seen::<bool>("is_init");
        envs.reset(&[0, 1, 2]).unwrap();
        assert_eq!(flags(&envs), [true; 3]);
        envs.step(1i8).unwrap();
        assert_eq!(flags(&envs), [false; 3]);
        envs.reset(&[2, 0]).unwrap();
        assert_eq!(flags(&envs), [true, false, true]);
        for _ in 0..2 {
            envs.step(0i8).unwrap();
            assert_eq!(flags(&envs), [false; 3]);
        }
        assert_eq!(envs.seen::<i32>("observation"), [0, 1, 0]);
    }

    #[test]
    fn errors_of_the_inner_environments_come_through() {
        let envs = Serial::from_fn(2, CartPole::v1).unwrap();
        let mut envs = VecDriver::new(envs.transformed(InitTracker::new()).unwrap());
        envs.reset(&[0]).unwrap();
        assert_eq!(
            envs.step(0i64).unwrap_err().to_string(),
            "environment 1: step was called before reset"
        );
        assert_eq!(envs.reset(&[2]).unwrap_err().env, 2);
    }

    #[test]
    fn a_second_mark_is_refused() {
        let envs = Serial::from_fn(1, CartPole::v1).unwrap();
        let once = envs.transformed(InitTracker::new()).unwrap();
        assert_eq!(
            once.transformed(InitTracker::new())
                .unwrap_err()
                .to_string(),
            "frames of CartPole-v1 have \"is_init\" already: a new observation needs another name"
        );
    }
}
