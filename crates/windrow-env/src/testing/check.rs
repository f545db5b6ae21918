use super::recorder::Recorder;
use crate::{Env, EnvError, Serial, VecEnv, VecEnvError};

/// Steps that a check takes.
const STEPS: u64 = 1000;

/// Figures of a check that found nothing wrong.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Report {
    /// Frames, over all environments.
    pub frames: u64,
    /// Episodes that were begun.
    pub episodes: u64,
    /// Episodes that were terminated.
    pub terminated: u64,
    /// Episodes that were truncated; some may have been terminated by the same step.
    pub truncated: u64,
}

/// The first mistake of an environment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// It could not be reset or stepped.
    #[error("check failed in step {step}")]
    Failed {
        /// Number of the step over all episodes; 0 is the first reset.
        step: u64,
        /// Its error.
        source: VecEnvError,
    },
    /// It left a leaf of its observation unwritten.
    #[error("environment {env} left observation {leaf} unwritten in step {step}")]
    Unwritten {
        /// Index of the environment.
        env: usize,
        /// Number of the step over all episodes; 0 is the first reset.
        step: u64,
        /// Name of the leaf.
        leaf: String,
    },
    /// An observation outside its spec, or one that is infinite.
    #[error("environment {env} left its observation spec in step {step}")]
    Observation {
        /// Index of the environment.
        env: usize,
        /// Number of the step over all episodes; 0 is the first reset.
        step: u64,
        /// The element, its value, and the expected domain.
        source: EnvError,
    },
    /// A reward that is not a finite number.
    #[error("environment {env} gave the reward {reward} in step {step}, expected a finite number")]
    Reward {
        /// Index of the environment.
        env: usize,
        /// Number of the step over all episodes; 0 is the first reset.
        step: u64,
        /// The reward.
        reward: f32,
    },
    /// The same seed and the same actions led to other data the second time.
    #[error(
        "environment {env} is not determined by seed {seed} and its actions: {what} differs in step {step} of two runs"
    )]
    NotDeterministic {
        /// Index of the environment.
        env: usize,
        /// Number of the step over all episodes; 0 is the first reset.
        step: u64,
        /// Seed of the environment.
        seed: u64,
        /// The difference: an observation leaf, the reward or a flag.
        what: String,
    },
    /// An episode longer than the spec's `max_episode_steps`.
    #[error(
        "environment {env} went on after {limit} steps of an episode, its max_episode_steps, in step {step}"
    )]
    Overlong {
        /// Index of the environment.
        env: usize,
        /// Number of the step over all episodes; 0 is the first reset.
        step: u64,
        /// The spec's limit.
        limit: usize,
    },
    /// A spec that cannot be checked.
    #[error(transparent)]
    Spec(#[from] EnvError),
}

/// Drives one environment with random actions through 1000 steps, twice, and reports the first
/// mistake.
///
/// Checked are: that every leaf of the observation is written, within its spec and finite; that
/// rewards are finite; that no episode outlasts `max_episode_steps`; and that the same seed leads
/// to the same data.
///
/// # Errors
/// The first mistake found.
pub fn check_env(env: &mut dyn Env, seed: u64) -> Result<Report, CheckError> {
    check_vec_env(&mut Serial::one_by_one(vec![env])?, seed)
}

/// As [`check_env`] for a vector of environments; environment `i` is seeded with `seed + i`.
///
/// # Errors
/// The first mistake found.
pub fn check_vec_env(envs: &mut dyn VecEnv, seed: u64) -> Result<Report, CheckError> {
    let spec = envs.spec().check();
    spec.map_err(|error| CheckError::Failed {
        step: 0,
        source: error.of(0),
    })?;
    let first = Recorder::run(envs, seed, false, STEPS)?;
    let second = Recorder::run(envs, seed, true, STEPS)?;
    let leaves = envs.spec().observation_leaves();
    for (a, b) in first.frames.iter().zip(&second.frames) {
        let (env, step) = (a.env, a.step);
        if let Some(leaf) = a.unwritten(b) {
            let leaf = format!("{:?}", leaves[leaf].key);
            return Err(CheckError::Unwritten { env, step, leaf });
        }
        if let Some(what) = a.difference(b, &leaves) {
            let seed = seed.wrapping_add(env as u64);
            return Err(CheckError::NotDeterministic {
                env,
                step,
                seed,
                what,
            });
        }
    }
    Ok(first.report)
}

#[cfg(test)]
mod tests {
    use tensordict::DType;
    use windrow_slab::{Key, Row, RowMut};
    use windrow_sync::error_chain;

    use super::*;
    use crate::gym::ids;
    use crate::testing::{CountingEnv, FailAt, FailingEnv, Failure, LedgerEnv};
    use crate::{EnvFactory, EnvSpec, Outcome, Spec, TimeLimit, make};

    #[test]
    fn native_environments_pass() {
        for id in ids() {
            let mut env = make(id).unwrap();
            let report = check_env(&mut env, 1).unwrap();
            assert_eq!(report.frames, STEPS, "{id}");
            // Without a limit, a random walk may take long.
            let is_limited = env.spec().max_episode_steps.is_some();
            assert!(report.episodes > report.terminated, "{id}");
            assert!(report.episodes > 1 || !is_limited, "{id}");
            let report = check_vec_env(&mut *id.build(3).unwrap(), 1).unwrap();
            assert_eq!(report.frames, 3 * STEPS, "{id}");
        }
    }

    #[test]
    fn test_environments_pass() {
        let report = check_env(&mut LedgerEnv::new(3), 1).unwrap();
        assert!(report.terminated > 0 && report.truncated > 0);
        check_env(&mut LedgerEnv::from_seed().with_f64(), 1).unwrap();
        check_env(&mut CountingEnv::default(), 1).unwrap();
        check_env(&mut LedgerEnv::from_seed().with_text(), 1).unwrap();
    }

    /// Writes its number and never its text.
    struct Mute(EnvSpec);

    impl Env for Mute {
        fn spec(&self) -> &EnvSpec {
            &self.0
        }

        fn reset(&mut self, _: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
            Ok(obs.write(Key::new(0), &[0.0f32])?)
        }

        fn step(&mut self, _: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
            self.reset(None, obs)?;
            Ok(Outcome::default())
        }
    }

    #[test]
    fn text_that_is_not_written_is_found() {
        let observation = Spec::composite([
            ("number", Spec::unbounded(DType::F32, [1])),
            ("text", Spec::unbounded(DType::Bytes, [])),
        ]);
        let mut env = Mute(EnvSpec::new("Mute", observation, Spec::discrete(2)));
        assert_eq!(
            check_env(&mut env, 1).unwrap_err().to_string(),
            "environment 0 left observation \"text\" unwritten in step 0"
        );
    }

    fn verdict(at: FailAt, failure: Failure) -> String {
        let ledger = LedgerEnv::new(0).with_f64();
        let mut env = FailingEnv::new(ledger, at, failure);
        error_chain(&check_env(&mut env, 1).unwrap_err())
    }

    #[test]
    fn failures_are_found() {
        assert_eq!(
            verdict(FailAt::Step(9), Failure::Error),
            "check failed in step 9: environment 0: made to fail in Step(9)"
        );
        assert_eq!(
            verdict(FailAt::Step(9), Failure::Unwritten),
            "environment 0 left observation \"observation\" unwritten in step 9"
        );
        assert_eq!(
            verdict(FailAt::Step(9), Failure::Nan),
            "environment 0 left its observation spec in step 9: element 0 of \"observation\" is NaN, expected a number"
        );
        assert!(
            verdict(FailAt::Reset(2), Failure::WrongLength).contains("leaf 0 holds 3 elements")
        );
    }

    /// Does something else every time it is seeded, or lies about its time limit.
    struct Liar {
        env: CountingEnv,
        spec: EnvSpec,
        reward: f32,
        drift: f32,
    }

    impl Liar {
        fn new(reward: f32, drift: f32, limit: Option<usize>) -> Self {
            let env = CountingEnv::new(100, 0);
            let mut spec = env.spec().clone();
            spec.max_episode_steps = limit;
            Self {
                env,
                spec,
                reward,
                drift,
            }
        }
    }

    impl Env for Liar {
        fn spec(&self) -> &EnvSpec {
            &self.spec
        }

        fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
            self.env.reset(seed, obs)
        }

        fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
            self.reward += self.drift;
            let outcome = self.env.step(action, obs)?;
            Ok(Outcome {
                reward: self.reward,
                ..outcome
            })
        }
    }

    #[test]
    fn lies_are_found() {
        let verdict = |mut env: Liar| error_chain(&check_env(&mut env, 1).unwrap_err());
        assert_eq!(
            verdict(Liar::new(0.0, 1.0, None)),
            "environment 0 is not determined by seed 1 and its actions: the reward (1 and 1001) differs in step 1 of two runs"
        );
        assert_eq!(
            verdict(Liar::new(f32::INFINITY, 0.0, None)),
            "environment 0 gave the reward inf in step 1, expected a finite number"
        );
        assert_eq!(
            verdict(Liar::new(0.0, 0.0, Some(10))),
            "environment 0 went on after 10 steps of an episode, its max_episode_steps, in step 10"
        );
        check_env(
            &mut TimeLimit::new(Liar::new(0.0, 0.0, None), 10).unwrap(),
            1,
        )
        .unwrap();
    }

    /// Takes nothing but a one among zeros.
    struct Strict(EnvSpec);

    impl Env for Strict {
        fn spec(&self) -> &EnvSpec {
            &self.0
        }

        fn reset(&mut self, _: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
            Ok(obs.write(Key::new(0), &[0.0f32])?)
        }

        fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
            self.0.action.check("action", action)?;
            self.reset(None, obs)?;
            Ok(Outcome::default())
        }
    }

    #[test]
    fn actions_of_a_check_are_in_the_domain_of_one_hot_vectors() {
        let observation = Spec::unbounded(DType::F32, [1]);
        let action = Spec::OneHot { nvec: vec![2, 3] };
        let mut env = Strict(EnvSpec::new("Strict", observation, action));
        check_env(&mut env, 1).unwrap();
    }
}
