use serde::{Deserialize, Serialize};
use tensordict::NestedKey;

use super::target_return::Remaining;
use crate::{Attach, EnvError, Transform, serde_form};

/// Observes the sum of rewards of each episode.
///
/// Appends the observation `episode_reward`, `float32 [1]`: 0 after a reset, then the sum of the
/// rewards up to and including this step's, added up in `float32` in the order of the steps. After
/// the last step of an episode it is the return. A bare observation becomes the named one it is
/// delivered as, `{"observation": …, "episode_reward": …}`.
///
/// ```
/// use windrow_env::{CartPole, Outcomes, Reset, RewardSum, Serial, VecEnv};
/// use windrow_slab::RowBlock;
///
/// let mut envs = Serial::from_fn(1, CartPole::v1)?.transformed(RewardSum::new())?;
/// let sum = envs.spec().observation_key::<f32>("episode_reward")?;
/// let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 1)?;
/// let actions = RowBlock::new(&envs.spec().action_leaves(), 1)?;
///
/// envs.reset(&[Reset { env: 0, seed: Some(0) }], obs.rows_mut())?;
/// assert_eq!(obs.rows().get(sum)?, [0.0]);
/// for earned in [1.0, 2.0, 3.0] {
///     let outcomes = Outcomes { reward: &mut [0.0], terminated: &mut [false], truncated: &mut [false] };
///     envs.step(actions.rows(), obs.rows_mut(), outcomes)?;
///     assert_eq!(obs.rows().get(sum)?, [earned]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RewardSum {
    /// Name of the reward: that of the step, or an observation that is one, whose shape and element
    /// type the sum has then.
    #[serde(with = "serde_form::key")]
    pub in_key: NestedKey,
    /// Name of the sum.
    #[serde(with = "serde_form::key")]
    pub out_key: NestedKey,
}

impl Default for RewardSum {
    fn default() -> Self {
        Self {
            in_key: "reward".into(),
            out_key: "episode_reward".into(),
        }
    }
}

impl RewardSum {
    /// Sums rewards.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sums the reward `key`, such as that of agents.
    #[must_use]
    pub fn of(mut self, key: impl Into<NestedKey>) -> Self {
        self.in_key = key.into();
        self
    }

    /// The sum is observed as `key`.
    #[must_use]
    pub fn named(mut self, key: impl Into<NestedKey>) -> Self {
        self.out_key = key.into();
        self
    }
}

impl Transform for RewardSum {
    type Bound = Remaining;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Remaining, EnvError> {
        Remaining::sum(envs, (&self.in_key, &self.out_key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::LedgerEnv;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{CartPole, RewardScaling, Serial, VecEnv};

    /// Environments 0 and 1 have the index of their first long episode, so that they do not end
    /// meanwhile.
    fn ledgers() -> Serial<LedgerEnv> {
        let long = |&env: &i64| (0..4).all(|episode| LedgerEnv::length(env, episode, 50) > 5);
        let envs = (0..).filter(long).take(2).map(LedgerEnv::new);
        Serial::new(envs.map(|env| env.with_max_length(50)).collect()).unwrap()
    }

    #[test]
    fn sums_up_each_environments_episode_by_itself() {
        let mut envs = VecDriver::new(ledgers().transformed(RewardSum::new()).unwrap());
        let sums = |envs: &VecDriver<_>| envs.seen::<f32>("episode_reward");
        envs.reset(&[0, 1]).unwrap();
        assert_eq!(sums(&envs), [0.0, 0.0]);
        let mut expected = [0.0, 0.0];
        for step in 0..5 {
            if step == 2 {
                envs.reset(&[1]).unwrap();
                expected[1] = 0.0;
                assert_eq!(sums(&envs), expected);
            }
            envs.step(0i64).unwrap();
            for (sum, reward) in expected.iter_mut().zip(&envs.reward) {
                assert!(*reward > 0.0);
                *sum += reward;
            }
            assert_eq!(sums(&envs), expected);
        }
    }

    #[test]
    fn a_step_that_fails_earns_nothing() {
        let envs = Serial::from_fn(2, CartPole::v1).unwrap();
        let mut envs = VecDriver::new(envs.transformed(RewardSum::new()).unwrap());
        envs.reset(&[0, 1]).unwrap();
        envs.step(1i64).unwrap();
        assert_eq!(envs.step(7i64).unwrap_err().env, 0);
        envs.step(1i64).unwrap();
        assert_eq!(envs.seen::<f32>("episode_reward"), [2.0, 2.0]);
    }

    #[test]
    fn a_second_sum_is_refused() {
        let envs = Serial::from_fn(1, CartPole::v1).unwrap();
        let once = envs.transformed(RewardSum::new()).unwrap();
        assert_eq!(
            once.transformed(RewardSum::new()).unwrap_err().to_string(),
            "frames of CartPole-v1 have \"episode_reward\" already: a new observation needs another name"
        );
    }

    #[test]
    fn rewards_of_their_own_names_are_summed_too() {
        let mut scaling = RewardScaling::new(0.0, 3.0);
        scaling.out_keys = Some(vec!["scaled".into()]);
        let scaled = ledgers().transformed(scaling).unwrap();
        let sum = RewardSum::new().of("scaled");
        let mut envs = VecDriver::new(scaled.transformed(sum).unwrap());
        envs.reset(&[0, 1]).unwrap();
        let mut expected = [0.0, 0.0];
        for _ in 0..3 {
            envs.step(0i64).unwrap();
            for (sum, reward) in expected.iter_mut().zip(&envs.reward) {
                *sum += reward * 3.0;
            }
            assert_eq!(envs.seen::<f32>("episode_reward"), expected);
        }
    }
}
