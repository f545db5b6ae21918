use serde::{Deserialize, Serialize};
use tensordict::DType;
use windrow_slab::{LeafSpec, RowBlock, Rows, RowsMut};

use crate::number::numbers;
use crate::{
    Attach, BoundTransform, EnvError, EnvRng, EnvSpec, NumpyRng, Observations, Outcomes, Reset,
    Spec, StateVisitor, Transform, VecEnv, VecEnvError,
};

/// How often an episode may end within its random steps.
const TRIALS: usize = 10;

/// Begins each episode with some steps under random actions, which are not delivered.
///
/// It steps one environment by itself. An [`EnvRecipe`](crate::EnvRecipe) puts it, and all
/// transforms inside of it, around each of several. Legal actions are drawn where the environments
/// have masks.
///
/// ```
/// use windrow_env::{CartPole, NoopResetEnv, Serial, VecEnv};
///
/// let envs = Serial::from_fn(1, CartPole::v1)?.transformed(NoopResetEnv::new(5))?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NoopResetEnv {
    /// Number of steps, or where it is `random`, the number that it is below.
    pub noops: usize,
    /// Whether the number is drawn for each episode, from 0 on.
    pub random: bool,
}

impl Default for NoopResetEnv {
    fn default() -> Self {
        Self {
            noops: 30,
            random: true,
        }
    }
}

impl NoopResetEnv {
    /// A random number of steps below `noops`, drawn for each episode.
    #[must_use]
    pub fn new(noops: usize) -> Self {
        Self {
            noops,
            random: true,
        }
    }

    /// The same number of steps in each episode.
    #[must_use]
    pub fn always(noops: usize) -> Self {
        Self {
            noops,
            random: false,
        }
    }
}

impl Transform for NoopResetEnv {
    type Bound = Beginning;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Beginning, EnvError> {
        envs.one_environment("NoopResetEnv")?;
        // It draws actions of the types that the spec has.
        envs.spec.any_integers = false;
        let leaves = envs.inner().observation_leaves();
        let actions = envs.inner().action.leaves("action");
        let masks = envs.inner().masks.iter().map(|(action, mask)| {
            let action = actions.iter().position(|(key, _)| key == action);
            let is_mask = |leaf: &LeafSpec| leaf.key == *mask && leaf.dtype != DType::Bytes;
            let mask = leaves.iter().position(is_mask);
            Some((action?, mask?))
        });
        Ok(Beginning {
            of: *self,
            rng: EnvRng::new(),
            actions: RowBlock::new(&envs.inner().action_leaves(), 1)?,
            masks: masks.flatten().collect(),
            leaves,
        })
    }
}

/// Takes random steps after each reset.
#[derive(Debug)]
pub struct Beginning {
    of: NoopResetEnv,
    rng: EnvRng,
    actions: RowBlock,
    /// Actions that are choices, and the observations that mark the legal ones.
    masks: Vec<(usize, usize)>,
    leaves: Vec<LeafSpec>,
}

impl Beginning {
    /// Takes `steps` steps; returns whether the episode continues after them.
    fn play<V: VecEnv>(
        &mut self,
        envs: &mut V,
        steps: usize,
        obs: &mut RowsMut<'_>,
    ) -> Result<bool, VecEnvError> {
        let (mut terminated, mut truncated) = ([false], [false]);
        for _ in 0..steps {
            self.draw(envs.spec(), obs.as_rows())
                .map_err(|error| error.of(0))?;
            let outcomes = Outcomes {
                reward: &mut [0.0],
                terminated: &mut terminated,
                truncated: &mut truncated,
            };
            envs.step(self.actions.rows(), obs.reborrow(), outcomes)?;
            if terminated[0] || truncated[0] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Draws an action.
    fn draw(&mut self, spec: &EnvSpec, obs: Rows<'_>) -> Result<(), EnvError> {
        let rng = self.rng.for_reset(None);
        let mut rows = self.actions.rows_mut();
        let (Some(mut row), Some(seen)) = (rows.env_mut(0), obs.env(0)) else {
            return Ok(());
        };
        spec.action.sample(&mut row, || rng.random())?;
        for &(action, mask) in &self.masks {
            let legal = numbers(seen, mask, self.leaves[mask].dtype)?;
            if let Some((_, leaf)) = spec.action.leaves("action").get(action) {
                choose(leaf, &legal, rng, |value, i| {
                    let values = row.get_mut(windrow_slab::Key::<i64>::new(action))?;
                    values[i] = value;
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}

/// Draws legal choices of an action; the first choice where none is legal.
fn choose(
    action: &Spec,
    legal: &[f64],
    rng: &mut NumpyRng,
    mut write: impl FnMut(i64, usize) -> Result<(), EnvError>,
) -> Result<(), EnvError> {
    let (mut start, nvec) = (0, action.choices().unwrap_or_default());
    for (i, &n) in nvec.iter().enumerate() {
        let own: Vec<usize> = (0..n)
            .filter(|c| legal.get(start + c).is_some_and(|&x| x != 0.0))
            .collect();
        let drawn = (rng.random() * own.len() as f64) as usize;
        let chosen = own.get(drawn).copied().unwrap_or_default();
        match action {
            Spec::OneHot { .. } => {
                (0..n).try_for_each(|c| write(i64::from(c == chosen), start + c))?
            }
            _ => write(chosen as i64, i)?,
        }
        start += n;
    }
    Ok(())
}

impl BoundTransform for Beginning {
    fn reset(&mut self, _: &[Reset], _: Observations<'_>) -> Result<(), VecEnvError> {
        Ok(())
    }

    #[inline]
    fn step(&mut self, _: Observations<'_>, _: Outcomes<'_>) -> Result<(), VecEnvError> {
        Ok(())
    }

    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        self.actions = RowBlock::new(columns, 1)?;
        Ok(())
    }

    fn reset_envs<V: VecEnv>(
        &mut self,
        envs: &mut V,
        resets: &[Reset],
        mut obs: RowsMut<'_>,
    ) -> Result<(), VecEnvError> {
        envs.reset(resets, obs.reborrow())?;
        let Some(&Reset { seed, env }) = resets.first() else {
            return Ok(());
        };
        // Not the numbers of the environment, which has the same seed.
        let rng = self
            .rng
            .for_reset(seed.map(|seed| seed ^ 0x6e6f_6f70_0000_0000));
        let steps = match self.of.random {
            true => (rng.random() * self.of.noops as f64) as usize,
            false => self.of.noops,
        };
        for _ in 0..=TRIALS {
            if self.play(envs, steps, &mut obs)? {
                return Ok(());
            }
            envs.reset(&[Reset { env, seed: None }], obs.reborrow())?;
        }
        let message = format!(
            "NoopResetEnv: {} episodes of {} ended within {steps} random steps: choose fewer noops",
            TRIALS + 1,
            envs.spec().id
        );
        Err(EnvError::Foreign(message).of(env))
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.value(&mut self.rng)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::testing::CountingEnv;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{Serial, StepCounter};

    fn begun(of: NoopResetEnv) -> VecDriver<impl VecEnv> {
        let envs = Serial::from_fn(1, || CountingEnv::new(90, 0)).unwrap();
        let counted = envs
            .transformed(StepCounter::new().with_max_steps(20))
            .unwrap();
        VecDriver::new(counted.transformed(of).unwrap())
    }

    #[test]
    fn episodes_begin_with_steps() {
        let mut envs = begun(NoopResetEnv::always(7));
        for _ in 0..3 {
            envs.reset(&[0]).unwrap();
            assert_eq!(envs.seen::<i64>("step_count"), [7]);
            let drawn = envs.seen::<i32>("observation")[0];
            assert!((0..=7).contains(&drawn), "{drawn}");
        }
        envs.step(1i8).unwrap();
        assert_eq!(envs.seen::<i64>("step_count"), [8]);
    }

    #[test]
    fn their_number_follows_from_the_seed() {
        let numbers = |seed| {
            let mut envs = begun(NoopResetEnv::new(5));
            envs.reset_seeded(&[0], seed).unwrap();
            let mut steps = vec![];
            for _ in 0..40 {
                steps.push((
                    envs.seen::<i64>("step_count")[0],
                    envs.seen::<i32>("observation")[0],
                ));
                envs.reset(&[0]).unwrap();
            }
            steps
        };
        assert_eq!(numbers(3), numbers(3));
        assert_ne!(numbers(3), numbers(4));
        let steps: HashSet<i64> = numbers(3).into_iter().map(|(steps, _)| steps).collect();
        assert_eq!(steps, (0..5).collect());
    }

    #[test]
    fn episodes_that_end_too_early_are_an_error() {
        assert_eq!(
            begun(NoopResetEnv::always(30))
                .reset(&[0])
                .unwrap_err()
                .to_string(),
            "environment 0: NoopResetEnv: 11 episodes of Counting ended within 30 random steps: choose fewer noops"
        );
    }

    #[test]
    fn drawn_choices_are_legal() {
        let mut rng = NumpyRng::new(0);
        for action in [
            Spec::MultiDiscrete { nvec: vec![2, 3] },
            Spec::OneHot { nvec: vec![2, 3] },
        ] {
            let mut row = [9i64; 5];
            for _ in 0..20 {
                let legal = [0.0, 1.0, 1.0, 0.0, 1.0];
                choose(&action, &legal, &mut rng, |value, i| {
                    row[i] = value;
                    Ok(())
                })
                .unwrap();
                let is_legal = match action {
                    Spec::OneHot { .. } => [[0, 1, 1, 0, 0], [0, 1, 0, 0, 1]].contains(&row),
                    _ => row[0] == 1 && [0, 2].contains(&row[1]),
                };
                assert!(is_legal, "{row:?}");
            }
        }
    }
}
