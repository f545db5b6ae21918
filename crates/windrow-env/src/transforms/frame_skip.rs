use serde::{Deserialize, Serialize};
use tensordict::{DType, for_dtype};
use windrow_slab::{Key, Rows, RowsMut};

use crate::number::Number;
use crate::{
    Attach, BoundTransform, EnvError, Observations, Outcomes, Reset, SpecError, Transform, VecEnv,
    VecEnvError,
};

/// Takes every action several times, or until the episode ends: rewards add up, and only the last observation counts.
///
/// It steps one environment by itself. An [`EnvRecipe`](crate::EnvRecipe) puts it, and all transforms inside of it, around each of
/// several.
///
/// ```
/// use windrow_env::{CartPole, FrameSkipTransform, Serial, VecEnv};
///
/// let envs = Serial::from_fn(1, CartPole::v1)?.transformed(FrameSkipTransform::new(4))?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameSkipTransform {
    /// How often each action is taken; at least 1.
    pub frame_skip: usize,
}

impl FrameSkipTransform {
    /// Each action is taken `frame_skip` times.
    #[must_use]
    pub fn new(frame_skip: usize) -> Self {
        Self { frame_skip }
    }
}

impl Transform for FrameSkipTransform {
    type Bound = Repeating;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Repeating, EnvError> {
        if self.frame_skip == 0 {
            return Err(SpecError::no_steps("frame_skip", envs.inner()));
        }
        if self.frame_skip > 1 {
            envs.one_environment("FrameSkipTransform")?;
        }
        let leaves = envs.inner().observation_leaves();
        let rewards = leaves.iter().enumerate();
        let rewards = rewards.filter(|(_, leaf)| {
            leaf.dtype != DType::Bytes && envs.inner().rewards.contains(&leaf.key)
        });
        Ok(Repeating {
            steps: self.frame_skip,
            rewards: rewards
                .map(|(i, leaf)| (leaf.dtype, i, vec![0.0; leaf.elements()]))
                .collect(),
        })
    }
}

/// Steps several times.
#[derive(Debug)]
pub struct Repeating {
    steps: usize,
    /// Observations that are rewards, and their sums.
    rewards: Vec<(DType, usize, Vec<f64>)>,
}

impl Repeating {
    /// Adds the rewards among observations up, from zero at the `first` of the steps, and shows the sums.
    fn sum(&mut self, obs: &mut RowsMut<'_>, is_first: bool) -> Result<(), VecEnvError> {
        for (dtype, leaf, sums) in &mut self.rewards {
            for_dtype!(*dtype, T => {
                let seen = obs.get_mut(Key::<T>::new(*leaf));
                let seen = seen.map_err(|error| EnvError::from(error).of(0))?;
                for (sum, seen) in sums.iter_mut().zip(seen) {
                    *sum = seen.number() + if is_first { 0.0 } else { *sum };
                    *seen = T::nearest(*sum);
                }
            });
        }
        Ok(())
    }
}

impl BoundTransform for Repeating {
    fn reset(&mut self, _: &[Reset], _: Observations<'_>) -> Result<(), VecEnvError> {
        Ok(())
    }

    #[inline]
    fn step(&mut self, _: Observations<'_>, _: Outcomes<'_>) -> Result<(), VecEnvError> {
        Ok(())
    }

    fn step_envs<V: VecEnv>(
        &mut self,
        envs: &mut V,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        mut outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        envs.step(actions, obs.reborrow(), outcomes.reborrow())?;
        if self.steps == 1 {
            return Ok(());
        }
        self.sum(&mut obs, true)?;
        for _ in 1..self.steps {
            if outcomes.terminated[0] || outcomes.truncated[0] {
                break;
            }
            let earned = outcomes.reward[0];
            envs.step(actions, obs.reborrow(), outcomes.reborrow())?;
            outcomes.reward[0] += earned;
            self.sum(&mut obs, false)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CountingEnv;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{CartPole, EnvRecipe, EnvRegistry, Serial, StepCounter};

    #[test]
    fn actions_are_repeated_until_the_episode_ends() {
        let envs = Serial::from_fn(1, || CountingEnv::new(4, 0)).unwrap();
        let counted = envs.transformed(StepCounter::new()).unwrap();
        let skipping = counted.transformed(FrameSkipTransform::new(3)).unwrap();
        let outside = StepCounter::new().named("actions");
        let mut envs = VecDriver::new(skipping.transformed(outside).unwrap());
        envs.reset(&[0]).unwrap();
        for (frames, actions, ended) in [(3, 1, false), (5, 2, true)] {
            envs.step(1i8).unwrap();
            assert_eq!(envs.seen::<i64>("step_count"), [frames]);
            assert_eq!(envs.seen::<i64>("actions"), [actions]);
            assert_eq!(envs.terminated, [ended]);
        }
    }

    #[test]
    fn rewards_add_up() {
        let envs = Serial::from_fn(1, CartPole::v1).unwrap();
        let mut envs = VecDriver::new(envs.transformed(FrameSkipTransform::new(3)).unwrap());
        envs.reset_seeded(&[0], 0).unwrap();
        envs.step(0i64).unwrap();
        assert_eq!(envs.reward, [3.0]);
    }

    #[test]
    fn a_recipe_puts_it_around_each_of_several() {
        let mut registry = EnvRegistry::new();
        let mut limit = 1;
        let made = std::sync::Arc::new(std::sync::Mutex::new(move || {
            limit += 2;
            CountingEnv::new(limit, 0)
        }));
        registry
            .register("Count", move || made.lock().unwrap()())
            .unwrap();
        let recipe = EnvRecipe::of("Count")
            .with_transform(StepCounter::new())
            .with_transform(FrameSkipTransform::new(5))
            .with_transform(StepCounter::new().named("actions"));
        let mut envs = VecDriver::new(recipe.build_from(&registry, 2).unwrap());
        envs.reset(&[0, 1]).unwrap();
        envs.step(1i8).unwrap();
        // The first one ended in the middle, the other did not.
        assert_eq!(envs.seen::<i64>("step_count"), [4, 5]);
        assert_eq!(envs.seen::<i64>("actions"), [1, 1]);
        assert_eq!(envs.terminated, [true, false]);
    }

    #[test]
    fn what_cannot_be_done_is_an_error() {
        let error = |envs, times| {
            let envs = Serial::from_fn(envs, CartPole::v1).unwrap();
            let skipping = envs.transformed(FrameSkipTransform::new(times));
            skipping.unwrap_err().to_string()
        };
        assert_eq!(
            error(1, 0),
            "frame_skip of CartPole-v1: expected 1 step or more, got 0"
        );
        assert_eq!(
            error(2, 3),
            "environments of FrameSkipTransform: expected one, which it steps by itself: put it around each of them, got 2"
        );
    }
}
