//! Drives environments with random actions and keeps fingerprints of their observations.

use std::hash::{DefaultHasher, Hash, Hasher};

use tensordict::{DType, for_dtype};
use windrow_slab::{Key, LeafSpec, Row, RowBlock, RowMut};

use super::check::{CheckError, Report};
use crate::SpecError;
use crate::number::{Number, numbers};
use crate::{EnvError, EnvSpec, NumpyRng, Outcome, Outcomes, Reset, Spec, VecEnv};

/// One step or reset of one environment, small enough to keep all of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Frame {
    pub(super) env: usize,
    pub(super) step: u64,
    leaves: Vec<Fingerprint>,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Fingerprint {
    hash: u64,
    /// Every element still has the value it was filled with before.
    untouched: bool,
}

impl Frame {
    /// The first leaf that neither run wrote, each having filled it with another value before.
    pub(super) fn unwritten(&self, other: &Self) -> Option<usize> {
        let mut leaves = self.leaves.iter().zip(&other.leaves);
        leaves.position(|(a, b)| a.untouched && b.untouched && a.hash != b.hash)
    }

    /// The first difference, if any.
    pub(super) fn difference(&self, other: &Self, leaves: &[LeafSpec]) -> Option<String> {
        let mut pairs = self.leaves.iter().zip(&other.leaves);
        if let Some(leaf) = pairs.position(|(a, b)| a.hash != b.hash) {
            return Some(format!("observation {:?}", leaves[leaf].key));
        }
        let (a, b) = (self.outcome, other.outcome);
        if a.reward.to_bits() != b.reward.to_bits() {
            return Some(format!("the reward ({} and {})", a.reward, b.reward));
        }
        (a != b).then(|| "the end of the episode".to_owned())
    }
}

/// One run of some environments.
pub(super) struct Recorder<'a> {
    envs: &'a mut dyn VecEnv,
    spec: EnvSpec,
    actions: RowBlock,
    obs: RowBlock,
    rng: NumpyRng,
    /// Whether this is the second run, which fills rows with other values.
    second: bool,
    step: u64,
    /// Steps of the episode that each environment is in.
    elapsed: Vec<usize>,
    record: Record,
}

/// The frames of a run, and a report on it.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) frames: Vec<Frame>,
    pub(super) report: Report,
}

impl<'a> Recorder<'a> {
    /// Resets all environments, seeded from `seed` on, and takes `steps` random steps.
    pub(super) fn run(
        envs: &'a mut dyn VecEnv,
        seed: u64,
        second: bool,
        steps: u64,
    ) -> Result<Record, CheckError> {
        let (spec, num_envs) = (envs.spec().clone(), envs.num_envs());
        let mut run = Self {
            actions: RowBlock::new(&spec.action_leaves(), num_envs).map_err(EnvError::from)?,
            obs: RowBlock::new(&spec.observation_leaves(), num_envs).map_err(EnvError::from)?,
            envs,
            spec,
            rng: NumpyRng::new(seed),
            second,
            step: 0,
            elapsed: vec![0; num_envs],
            record: Record::default(),
        };
        let seeded = |env| Reset {
            env,
            seed: Some(seed.wrapping_add(env as u64)),
        };
        run.reset(&(0..num_envs).map(seeded).collect::<Vec<_>>())?;
        for _ in 0..steps {
            run.step()?;
        }
        Ok(run.record)
    }

    fn reset(&mut self, resets: &[Reset]) -> Result<(), CheckError> {
        let step = self.step;
        for reset in resets {
            self.fill(reset.env)?;
            self.elapsed[reset.env] = 0;
        }
        self.envs
            .reset(resets, self.obs.rows_mut())
            .map_err(|source| CheckError::Failed { step, source })?;
        self.record.report.episodes += resets.len() as u64;
        resets
            .iter()
            .try_for_each(|reset| self.keep(reset.env, Outcome::default()))
    }

    /// Takes one random step and resets the environments whose episodes it ended.
    fn step(&mut self) -> Result<(), CheckError> {
        self.step += 1;
        let (step, num_envs) = (self.step, self.envs.num_envs());
        for env in 0..num_envs {
            self.choose(env)?;
            self.fill(env)?;
        }
        let mut reward = vec![0.0; num_envs];
        let (mut terminated, mut truncated) = (vec![false; num_envs], vec![false; num_envs]);
        let outcomes = Outcomes {
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
        };
        self.envs
            .step(self.actions.rows(), self.obs.rows_mut(), outcomes)
            .map_err(|source| CheckError::Failed { step, source })?;
        let mut resets = Vec::new();
        for env in 0..num_envs {
            let outcome = Outcome {
                reward: reward[env],
                terminated: terminated[env],
                truncated: truncated[env],
            };
            self.keep(env, outcome)?;
            if self.ends(env, outcome)? {
                resets.push(Reset { env, seed: None });
            }
        }
        self.reset(&resets)
    }

    /// Checks and keeps the last frame of environment `env`.
    fn keep(&mut self, env: usize, outcome: Outcome) -> Result<(), CheckError> {
        let (step, reward) = (self.step, outcome.reward);
        let mut leaves = Vec::new();
        if let Some(row) = self.obs.rows().env(env) {
            for (i, leaf) in self.spec.observation_leaves().into_iter().enumerate() {
                let print = match leaf.dtype {
                    DType::Bytes => fingerprint_of_strings(row, i, self.second)?,
                    dtype => for_dtype!(dtype, T => fingerprint::<T>(row, i, self.second))?,
                };
                leaves.push(print);
            }
            if let Err(source) = check_row(&self.spec.observation, row) {
                return Err(match leaves.iter().position(|leaf| leaf.untouched) {
                    Some(leaf) => CheckError::Unwritten {
                        env,
                        step,
                        leaf: format!("{:?}", self.spec.observation_leaves()[leaf].key),
                    },
                    None => CheckError::Observation { env, step, source },
                });
            }
        }
        if !reward.is_finite() {
            return Err(CheckError::Reward { env, step, reward });
        }
        self.record.frames.push(Frame {
            env,
            step,
            leaves,
            outcome,
        });
        Ok(())
    }

    /// Counts a step of environment `env`, and says whether it ended the episode.
    fn ends(&mut self, env: usize, outcome: Outcome) -> Result<bool, CheckError> {
        let report = &mut self.record.report;
        report.frames += 1;
        report.terminated += u64::from(outcome.terminated);
        report.truncated += u64::from(outcome.truncated);
        self.elapsed[env] += 1;
        let over = outcome.terminated || outcome.truncated;
        match self.spec.max_episode_steps {
            Some(limit) if !over && self.elapsed[env] >= limit => Err(CheckError::Overlong {
                env,
                step: self.step,
                limit,
            }),
            _ => Ok(over),
        }
    }

    /// Writes a random action of environment `env`.
    fn choose(&mut self, env: usize) -> Result<(), EnvError> {
        let mut rows = self.actions.rows_mut();
        let Some(mut row) = rows.env_mut(env) else {
            return Ok(());
        };
        self.spec.action.sample(&mut row, || self.rng.random())
    }

    /// Fills the observation of environment `env` with values that it hardly ever writes.
    fn fill(&mut self, env: usize) -> Result<(), EnvError> {
        let mut rows = self.obs.rows_mut();
        let Some(mut row) = rows.env_mut(env) else {
            return Ok(());
        };
        for (i, leaf) in self.spec.observation_leaves().into_iter().enumerate() {
            match leaf.dtype {
                DType::Bytes => {
                    let (key, value) = (Key::new(i), unlikely(self.second));
                    for element in 0..leaf.elements() {
                        row.write_string(key, element, value)?;
                    }
                }
                dtype => for_dtype!(dtype, T => fill::<T>(&mut row, i, self.second))?,
            }
        }
        Ok(())
    }
}

fn fill<T: Number>(row: &mut RowMut<'_>, leaf: usize, second: bool) -> Result<(), EnvError> {
    row.get_mut(Key::<T>::new(leaf))?.fill(T::unlikely(second));
    Ok(())
}

fn fingerprint<T: Number>(
    row: Row<'_>,
    leaf: usize,
    second: bool,
) -> Result<Fingerprint, EnvError> {
    let values = row.get(Key::<T>::new(leaf))?;
    let filling = T::unlikely(second).bits();
    // FNV-1a over whole elements.
    let hash = values
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, value| {
            (hash ^ value.bits()).wrapping_mul(0x0100_0000_01b3)
        });
    Ok(Fingerprint {
        hash,
        untouched: !values.is_empty() && values.iter().all(|value| value.bits() == filling),
    })
}

/// A value that no environment writes.
fn unlikely(second: bool) -> &'static [u8] {
    match second {
        true => b"\xa5 nobody writes this",
        false => b"\x5a nobody writes this",
    }
}

fn fingerprint_of_strings(
    row: Row<'_>,
    leaf: usize,
    second: bool,
) -> Result<Fingerprint, EnvError> {
    let values = row.strings(Key::new(leaf))?;
    let mut hasher = DefaultHasher::new();
    values.hash(&mut hasher);
    let filling = unlikely(second);
    Ok(Fingerprint {
        hash: hasher.finish(),
        untouched: !values.is_empty() && values.iter().all(|value| *value == filling),
    })
}

/// Whether `row` keeps to `spec` and is finite.
fn check_row(spec: &Spec, row: Row<'_>) -> Result<(), EnvError> {
    spec.check("observation", row)?;
    for (i, (key, leaf)) in spec.leaves("observation").into_iter().enumerate() {
        let Some(dtype) = leaf.number_type() else {
            continue;
        };
        let values = numbers(row, i, dtype)?;
        if let Some(element) = values.iter().position(|value| !value.is_finite()) {
            return Err(SpecError::Value {
                leaf: key,
                element,
                value: values[element],
                expected: "a finite number".to_owned(),
            }
            .into());
        }
    }
    Ok(())
}
