use tensordict::DType;
use windrow_slab::{Key, Rows, RowsMut};

use crate::{EnvError, EnvSpec, Outcomes, Reset, Spec, VecEnv, VecEnvError};

const STEP_COUNT: &str = "step_count";

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
#[derive(Debug, Clone)]
pub struct StepCounter<V> {
    envs: V,
    spec: EnvSpec,
    /// The count, which is the last leaf: the others keep the places they have without it.
    key: Key<i64>,
    counts: Vec<i64>,
    limit: i64,
}

impl<V: VecEnv> StepCounter<V> {
    /// `envs`, counted but not limited.
    ///
    /// # Errors
    /// [`EnvError::Spec`] when an observation is called `step_count` already.
    pub fn new(envs: V) -> Result<Self, EnvError> {
        let leaves = envs.spec().observation_leaves();
        if let Some(leaf) = leaves.iter().find(|leaf| leaf.key.last() == STEP_COUNT) {
            return Err(EnvError::Spec(format!(
                "{} observes {} already: it cannot be counted a second time",
                envs.spec().id,
                leaf.key
            )));
        }
        let mut spec = envs.spec().clone();
        spec.observation = with_count(spec.observation);
        Ok(Self {
            key: Key::new(leaves.len()),
            counts: vec![0; envs.num_envs()],
            limit: i64::MAX,
            envs,
            spec,
        })
    }

    /// Truncates an episode after `max_steps` steps, besides what truncates it already.
    ///
    /// # Errors
    /// [`EnvError::Spec`] when `max_steps` is 0.
    pub fn with_max_steps(mut self, max_steps: usize) -> Result<Self, EnvError> {
        if max_steps == 0 {
            return Err(EnvError::Spec(format!(
                "a step counter needs at least one step, got max_steps = 0 for {}",
                self.spec.id
            )));
        }
        self.limit = i64::try_from(max_steps).unwrap_or(i64::MAX);
        let limit = &mut self.spec.max_episode_steps;
        *limit = Some(limit.unwrap_or(max_steps).min(max_steps));
        Ok(self)
    }
}

fn with_count(observation: Spec) -> Spec {
    let mut entries = match observation {
        Spec::Composite(entries) => entries,
        bare => vec![("observation".to_owned(), bare)],
    };
    entries.push((STEP_COUNT.to_owned(), Spec::unbounded(DType::I64, [1])));
    Spec::Composite(entries)
}

impl<V: VecEnv> VecEnv for StepCounter<V> {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.envs.num_envs()
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        self.envs.reset(resets, obs.reborrow())?;
        let seen = column(&mut obs, self.key)?;
        for &Reset { env, .. } in resets {
            // An environment that does not exist was reported by the inner ones.
            if let (Some(count), Some(seen)) = (self.counts.get_mut(env), seen.get_mut(env)) {
                (*count, *seen) = (0, 0);
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.envs
            .step(actions, obs.reborrow(), outcomes.reborrow())?;
        let seen = column(&mut obs, self.key)?;
        let places = seen.iter_mut().zip(outcomes.truncated);
        for (count, (seen, truncated)) in self.counts.iter_mut().zip(places) {
            *count += 1;
            *seen = *count;
            *truncated |= *count >= self.limit;
        }
        Ok(())
    }
}

fn column<'a>(obs: &'a mut RowsMut<'_>, key: Key<i64>) -> Result<&'a mut [i64], VecEnvError> {
    obs.get_mut(key).map_err(|error| VecEnvError {
        env: 0,
        source: error.into(),
    })
}

#[cfg(test)]
mod tests {
    use windrow_slab::RowBlock;

    use super::*;
    use crate::testing::CountingEnv;
    use crate::{CartPole, Serial};

    fn counting(max_steps: usize) -> StepCounter<Serial<CountingEnv>> {
        let envs = Serial::from_fn(2, || CountingEnv::new(3, 0)).unwrap();
        StepCounter::new(envs)
            .unwrap()
            .with_max_steps(max_steps)
            .unwrap()
    }

    /// Steps all with ones, and gives the counts and the flags.
    fn step(envs: &mut impl VecEnv, obs: &mut RowBlock) -> (Vec<i64>, Vec<bool>, Vec<bool>) {
        let mut actions = RowBlock::new(&envs.spec().action_leaves(), 2).unwrap();
        actions
            .rows_mut()
            .get_mut(Key::<i8>::new(0))
            .unwrap()
            .fill(1);
        let (mut reward, mut terminated, mut truncated) =
            (vec![0.0; 2], vec![false; 2], vec![false; 2]);
        let outcomes = Outcomes {
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
        };
        envs.step(actions.rows(), obs.rows_mut(), outcomes).unwrap();
        (counts(obs), terminated, truncated)
    }

    fn counts(obs: &RowBlock) -> Vec<i64> {
        obs.rows().get(Key::<i64>::new(1)).unwrap().to_vec()
    }

    #[test]
    fn counts_each_environment_by_itself() {
        let mut envs = counting(3);
        let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 2).unwrap();
        let all = [0, 1].map(|env| Reset { env, seed: None });
        envs.reset(&all, obs.rows_mut()).unwrap();
        assert_eq!(counts(&obs), [0, 0]);
        assert_eq!(
            step(&mut envs, &mut obs),
            (vec![1, 1], vec![false; 2], vec![false; 2])
        );
        envs.reset(&all[1..], obs.rows_mut()).unwrap();
        assert_eq!(counts(&obs), [1, 0]);
        assert_eq!(step(&mut envs, &mut obs).0, [2, 1]);
        assert_eq!(step(&mut envs, &mut obs).2, [true, false]);
        // Terminated by the count of ones and truncated by the count of steps.
        let (steps, terminated, truncated) = step(&mut envs, &mut obs);
        assert_eq!(
            (steps, terminated, truncated),
            (vec![4, 3], vec![true, false], vec![true; 2])
        );
        assert_eq!(obs.rows().get(Key::<i32>::new(0)).unwrap(), [4, 3]);
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
            "CartPole-v1 observes \"step_count\" already: it cannot be counted a second time"
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
