use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensordict::DType;
use windrow_slab::{Key, Row, RowMut};

use crate::{Env, EnvError, EnvSpec, Outcome, Spec, StateVisitor};

/// How the episodes of a [`LedgerEnv`] end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Ending {
    /// All by termination.
    Terminated,
    /// All by truncation.
    Truncated,
    /// Each by termination, by truncation, or by both at once, as [`LedgerEnv::ending`] says.
    #[default]
    Mixed,
}

/// An environment whose frames say which they are.
///
/// The observation is `[env, episode, t]`: the index of the environment, the number of its episode
/// since it was seeded, and the steps taken in that, all from 0; `int64 [3]` or, by
/// [`with_f64`](Self::with_f64), `float64 [3]`. [`with_text`](Self::with_text) adds a text, whose
/// length varies. The action is one of [`ACTIONS`](Self::ACTIONS) choices. Rewards, lengths and
/// endings are pure functions of these numbers, and public: a test recomputes them from delivered
/// observations.
///
/// A seeded reset starts again with episode 0. A step after the end of an episode is an error.
///
/// ```
/// use windrow_env::testing::LedgerEnv;
/// use windrow_env::{Serial, VecEnv};
///
/// let mut index = 0;
/// let envs = Serial::from_fn(4, || {
///     index += 1;
///     LedgerEnv::new(index - 1).with_max_length(10)
/// })?;
/// assert_eq!(envs.num_envs(), 4);
/// assert!(LedgerEnv::length(3, 0, 10) <= 10);
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone)]
pub struct LedgerEnv {
    spec: EnvSpec,
    index: Option<i64>,
    follows_seed: bool,
    max_length: i64,
    ending: Ending,
    step_time: Duration,
    place: Option<EpisodePosition>,
}

/// Where an environment is in its ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct EpisodePosition {
    episode: i64,
    t: i64,
    over: bool,
}

impl LedgerEnv {
    /// Number of choices of an action.
    pub const ACTIONS: usize = 4;

    /// The environment with index `env`; episodes of 1 to 20 steps and mixed endings.
    #[must_use]
    pub fn new(env: i64) -> Self {
        Self::with_index(Some(env))
    }

    /// An environment that takes its index from the seed of each seeded reset, so that environments
    /// seeded with 0, 1, 2, … differ although one function makes them all.
    #[must_use]
    pub fn from_seed() -> Self {
        Self::with_index(None)
    }

    fn with_index(index: Option<i64>) -> Self {
        let observation = Spec::unbounded(DType::I64, [3]);
        Self {
            spec: EnvSpec::new("Ledger", observation, Spec::discrete(Self::ACTIONS)),
            follows_seed: index.is_none(),
            index,
            max_length: 20,
            ending: Ending::default(),
            step_time: Duration::ZERO,
            place: None,
        }
    }

    /// Episodes of 1 to `max_length` steps; at least 1.
    #[must_use]
    pub fn with_max_length(mut self, max_length: i64) -> Self {
        self.max_length = max_length.max(1);
        self
    }

    /// How episodes end.
    #[must_use]
    pub fn with_ending(mut self, ending: Ending) -> Self {
        self.ending = ending;
        self
    }

    /// Observations as `float64` instead of `int64`.
    #[must_use]
    pub fn with_f64(mut self) -> Self {
        self.spec.observation = Spec::unbounded(DType::F64, [3]);
        self
    }

    /// Observes the [text](Self::text) of each frame as well, under `"text"`, beside
    /// `"observation"`.
    #[must_use]
    pub fn with_text(mut self) -> Self {
        let numbers = self.spec.observation;
        let text = Spec::unbounded(DType::Bytes, []);
        self.spec.observation = Spec::composite([("observation", numbers), ("text", text)]);
        self
    }

    /// What is written of `[env, episode, t]`: nothing, some words, or rarely a long text.
    #[must_use]
    pub fn text([env, episode, t]: [i64; 3]) -> String {
        let number = hash(&[4, env, episode, t]);
        let words = match number % 32 {
            0 => 0,
            1 => 2000,
            few => few,
        };
        let words = (0..words).map(|word| format!("{env} {episode} {t} {word}"));
        words.collect::<Vec<_>>().join(", ")
    }

    /// Makes every step take at least this long.
    #[must_use]
    pub fn with_step_time(mut self, step_time: Duration) -> Self {
        self.step_time = step_time;
        self
    }

    /// Reward of taking `action` at `[env, episode, t]`: in `[0, 1)`, exact in `float32`.
    #[must_use]
    pub fn reward([env, episode, t]: [i64; 3], action: i64) -> f32 {
        const UNIT: f32 = 1.0 / (1 << 24) as f32;
        (hash(&[1, env, episode, t, action]) >> 40) as f32 * UNIT
    }

    /// Steps of episode `episode` of environment `env`: from 1 to `max_length`.
    #[must_use]
    pub fn length(env: i64, episode: i64, max_length: i64) -> i64 {
        let max_length = max_length.max(1).unsigned_abs();
        1 + (hash(&[2, env, episode]) % max_length).cast_signed()
    }

    /// Whether episode `episode` of environment `env` is terminated and whether truncated by
    /// [`Ending::Mixed`].
    #[must_use]
    pub fn ending(env: i64, episode: i64) -> (bool, bool) {
        match hash(&[3, env, episode]) % 5 {
            0 | 1 => (true, false),
            2 | 3 => (false, true),
            _ => (true, true),
        }
    }

    fn write(&self, obs: &mut RowMut<'_>, [env, episode, t]: [i64; 3]) -> Result<(), EnvError> {
        let record = [env, episode, t];
        match self.spec.observation.dtype() {
            Some(DType::F64) => obs.write(Key::new(0), &record.map(|x| x as f64))?,
            Some(_) => obs.write(Key::new(0), &record)?,
            None => {
                obs.write(Key::new(0), &record)?;
                obs.write_string(Key::new(1), 0, Self::text(record).as_bytes())?;
            }
        }
        Ok(())
    }

    fn flags(&self, env: i64, episode: i64) -> (bool, bool) {
        match self.ending {
            Ending::Terminated => (true, false),
            Ending::Truncated => (false, true),
            Ending::Mixed => Self::ending(env, episode),
        }
    }
}

/// A hash that depends on every number and on their order.
///
/// Source: the output function of SplitMix64 (G. L. Steele, D. Lea and C. H. Flood, "Fast
/// splittable pseudorandom number generators", 2014).
fn hash(numbers: &[i64]) -> u64 {
    numbers.iter().fold(0, |sum: u64, &number| {
        let mut x = (sum ^ number.cast_unsigned()).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    })
}

impl Env for LedgerEnv {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        if let (Some(seed), true) = (seed, self.follows_seed) {
            self.index = Some(seed.cast_signed());
        }
        let env = self.index.ok_or_else(|| {
            EnvError::failed(
                "a ledger without an index takes it from a seed, but was reset without one",
            )
        })?;
        let episode = match (seed, self.place) {
            (None, Some(place)) => place.episode + 1,
            _ => 0,
        };
        self.place = Some(EpisodePosition {
            episode,
            t: 0,
            over: false,
        });
        self.write(&mut obs, [env, episode, 0])
    }

    fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        let (Some(env), Some(place)) = (self.index, self.place) else {
            return Err(EnvError::NotReset);
        };
        let EpisodePosition { episode, t, over } = place;
        if over {
            return Err(EnvError::failed(format!(
                "episode {episode} of environment {env} was over after {t} steps, but was stepped on"
            )));
        }
        let action = action.scalar(Key::<i64>::new(0))?;
        if !(0..Self::ACTIONS as i64).contains(&action) {
            return Err(EnvError::Action {
                expected: format!("an integer from 0 to {}", Self::ACTIONS - 1),
                got: action.to_string(),
            });
        }
        if !self.step_time.is_zero() {
            std::thread::sleep(self.step_time);
        }
        let over = t + 1 >= Self::length(env, episode, self.max_length);
        let (terminated, truncated) = self.flags(env, episode);
        self.place = Some(EpisodePosition {
            episode,
            t: t + 1,
            over,
        });
        self.write(&mut obs, [env, episode, t + 1])?;
        Ok(Outcome {
            reward: Self::reward([env, episode, t], action),
            terminated: over && terminated,
            truncated: over && truncated,
        })
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.value(&mut self.index)?;
        state.value(&mut self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Driver, assert_choices_are_checked};

    #[test]
    fn frames_say_which_they_are() {
        let mut env = Driver::new(LedgerEnv::new(7).with_max_length(5));
        for (seed, episode) in [(None, 0), (None, 1), (Some(3), 0), (None, 1)] {
            env.reset(seed);
            for t in 0..LedgerEnv::length(7, episode, 5) {
                assert_eq!(env.observation::<i64>(), [7, episode, t]);
                let outcome = env.step(t % 4).unwrap();
                assert_eq!(outcome.reward, LedgerEnv::reward([7, episode, t], t % 4));
                let last = t + 1 == LedgerEnv::length(7, episode, 5);
                let flags = if last {
                    LedgerEnv::ending(7, episode)
                } else {
                    (false, false)
                };
                assert_eq!((outcome.terminated, outcome.truncated), flags);
            }
        }
    }

    #[test]
    fn lengths_and_endings_vary() {
        let lengths: std::collections::BTreeSet<_> = (0..100)
            .map(|episode| LedgerEnv::length(0, episode, 5))
            .collect();
        assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        let endings: std::collections::BTreeSet<_> =
            (0..100).map(|env| LedgerEnv::ending(env, 0)).collect();
        assert_eq!(endings.len(), 3);
        assert!((0..1000).all(|t| (0.0..1.0).contains(&LedgerEnv::reward([0, 0, t], 0))));
    }

    #[test]
    fn endings_can_be_chosen() {
        for (ending, flags) in [
            (Ending::Terminated, (true, false)),
            (Ending::Truncated, (false, true)),
        ] {
            let mut env = Driver::new(LedgerEnv::new(0).with_ending(ending).with_max_length(1));
            env.reset(None);
            let (_, end) = env.run(0i64);
            assert_eq!((end.terminated, end.truncated), flags);
            assert_eq!(
                env.step(0i64).unwrap_err().to_string(),
                "episode 0 of environment 0 was over after 1 steps, but was stepped on"
            );
        }
    }

    #[test]
    fn the_index_may_come_from_the_seed() {
        let mut env = Driver::new(LedgerEnv::from_seed().with_f64());
        assert!(
            env.try_reset(None)
                .unwrap_err()
                .to_string()
                .contains("takes it from a seed")
        );
        env.reset(Some(11));
        assert_eq!(env.observation::<f64>(), [11.0, 0.0, 0.0]);
        env.reset(None);
        assert_eq!(env.observation::<f64>(), [11.0, 1.0, 0.0]);
    }

    #[test]
    fn checks_actions() {
        assert_choices_are_checked(LedgerEnv::new(0).with_max_length(i64::MAX), 4);
    }
}
