use tensordict::NestedKey;

use super::appended::{Appended, Appendix};
use crate::{EnvError, Outcomes, VecEnv};

/// Environments that also observe whether their episode has just begun.
///
/// Appends the observation `is_init`, `bool [1]`: true after a reset, false after a step. A recurrent policy clears its
/// memory where it is true. A bare observation becomes the named one it is delivered as,
/// `{"observation": …, "is_init": …}`.
///
/// ```
/// use windrow_env::{CartPole, InitTracker, Reset, Serial, VecEnv};
/// use windrow_slab::RowBlock;
///
/// let mut envs = InitTracker::new(Serial::from_fn(2, CartPole::v1)?)?;
/// let is_init = envs.spec().observation_key::<bool>("is_init")?;
/// let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 2)?;
/// envs.reset(&[Reset { env: 1, seed: None }], obs.rows_mut())?;
/// assert_eq!(obs.rows().get(is_init)?, [false, true]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type InitTracker<V> = Appended<V, Beginning>;

/// Whether an episode has just begun.
#[derive(Debug, Clone)]
pub struct Beginning;

impl Appendix for Beginning {
    type Value = bool;
    const FIRST: bool = true;

    #[inline(always)]
    fn change(&mut self, flags: &mut [bool], _: Outcomes<'_>) {
        flags.fill(false);
    }
}

impl<V: VecEnv> InitTracker<V> {
    /// `envs`, their first observations marked.
    ///
    /// # Errors
    /// As [`named`](Self::named).
    pub fn new(envs: V) -> Result<Self, EnvError> {
        Self::named(envs, "is_init")
    }

    /// As [`new`](Self::new), with the mark under the name `key`.
    ///
    /// # Errors
    /// [`EnvError::Spec`] when something else has that name.
    pub fn named(envs: V, key: impl Into<NestedKey>) -> Result<Self, EnvError> {
        Self::append(envs, &key.into(), Beginning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CountingEnv;
    use crate::wrappers::vec_driver::VecDriver;
    use crate::{CartPole, Serial};

    #[test]
    fn marks_what_follows_a_reset_and_nothing_else() {
        let envs = Serial::from_fn(3, || CountingEnv::new(9, 0)).unwrap();
        let mut envs = VecDriver::new(InitTracker::new(envs).unwrap());
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
        let mut envs = VecDriver::new(InitTracker::new(envs).unwrap());
        envs.reset(&[0]).unwrap();
        assert_eq!(
            envs.step(0i64).unwrap_err().to_string(),
            "environment 1: step was called before reset"
        );
        assert_eq!(envs.reset(&[2]).unwrap_err().env, 2);
    }

    #[test]
    fn a_second_mark_is_refused() {
        let once = InitTracker::new(Serial::from_fn(1, CartPole::v1).unwrap()).unwrap();
        assert_eq!(
            InitTracker::new(once).unwrap_err().to_string(),
            "CartPole-v1 observes \"is_init\" already: an observation appended to it needs another name"
        );
    }
}
