use serde::{Deserialize, Serialize};
use tensordict::{DType, for_dtype};
use windrow_slab::{Key, Rows, RowsMut};

use crate::number::Number;
use crate::{
    Attach, BoundTransform, EnvError, Observations, Outcomes, Reset, SpecError, StateVisitor,
    Transform, VecEnv, VecEnvError,
};

/// Takes every action several times, or until the episode ends: rewards add up, and only the last
/// observation counts.
///
/// Of several environments, those whose episodes go on are stepped without the others. Where
/// environments can only [step together](VecEnv::step_apart), as those of a transform inside of
/// this one, an [`EnvRecipe`](crate::EnvRecipe) puts both around each of them.
///
/// ```
/// use windrow_env::{CartPole, FrameSkipTransform, Serial, VecEnv};
///
/// let envs = Serial::from_fn(8, CartPole::v1)?.transformed(FrameSkipTransform::new(4))?;
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
            envs.apart("FrameSkipTransform")?;
        }
        let leaves = envs.inner().observation_leaves();
        let rewards = leaves.iter().enumerate();
        let rewards = rewards.filter(|(_, leaf)| {
            leaf.dtype != DType::Bytes && envs.inner().rewards.contains(&leaf.key)
        });
        let num_envs = envs.num_envs();
        Ok(Repeating {
            steps: self.frame_skip,
            rewards: rewards
                .map(|(i, leaf)| (leaf.dtype, i, vec![0.0; leaf.elements() * num_envs]))
                .collect(),
            earned: vec![0.0; num_envs],
            live: Vec::with_capacity(num_envs),
        })
    }
}

/// Steps several times.
#[derive(Debug)]
pub struct Repeating {
    steps: usize,
    /// Observations that are rewards, and their sums.
    rewards: Vec<(DType, usize, Vec<f64>)>,
    /// What each environment has earned in the steps so far.
    earned: Vec<f32>,
    /// The environments that were stepped last.
    live: Vec<usize>,
}

impl Repeating {
    /// Adds the rewards among observations up, from zero at the `first` of the steps, and shows the
    /// sums.
    fn sum(&mut self, obs: &mut RowsMut<'_>, is_first: bool) -> Result<(), VecEnvError> {
        for (dtype, leaf, sums) in &mut self.rewards {
            if is_first {
                sums.fill(0.0);
            }
            for_dtype!(*dtype, T => {
                let seen = obs.get_mut(Key::<T>::new(*leaf));
                let seen = seen.map_err(|error| EnvError::from(error).of(0))?;
                add_up(seen, sums, &self.live, self.earned.len());
            });
        }
        Ok(())
    }
}

/// Adds rewards of `live` ones of `envs` environments to their sums, and shows these.
fn add_up<T: Number>(seen: &mut [T], sums: &mut [f64], live: &[usize], envs: usize) {
    let width = sums.len() / envs;
    for env in live {
        let own = env * width..(env + 1) * width;
        for (sum, seen) in sums[own.clone()].iter_mut().zip(&mut seen[own]) {
            *sum += seen.number();
            *seen = T::nearest(*sum);
        }
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
        self.live.clear();
        self.live.extend(0..outcomes.reward.len());
        self.earned.copy_from_slice(outcomes.reward);
        self.sum(&mut obs, true)?;
        for _ in 1..self.steps {
            self.live
                .retain(|env| !(outcomes.terminated[*env] || outcomes.truncated[*env]));
            if self.live.is_empty() {
                break;
            }
            envs.step_some(&self.live, actions, obs.reborrow(), outcomes.reborrow())?;
            for env in &self.live {
                self.earned[*env] += outcomes.reward[*env];
                outcomes.reward[*env] = self.earned[*env];
            }
            self.sum(&mut obs, false)?;
        }
        Ok(())
    }

    fn visit_state(&mut self, _: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CountingEnv;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{CartPole, EnvRecipe, EnvRegistry, Joined, Serial, StepCounter};

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
    fn one_vector_gives_the_numbers_of_several_that_are_joined() {
        let skip = FrameSkipTransform::new(4);
        let mut registry = EnvRegistry::new();
        registry.register("Pole", CartPole::v1).unwrap();
        let recipe = EnvRecipe::of("Pole").with_transform(skip);
        let flat = recipe.build_from(&registry, 5).unwrap();
        assert!(!flat.step_apart(), "a transform is around all of them");
        let single = || recipe.build_from(&registry, 1).unwrap();
        let joined = Joined::new((0..5).map(|_| single()).collect()).unwrap();
        let mut both = [
            VecDriver::new(flat),
            VecDriver::new(Box::new(joined) as Box<dyn VecEnv>),
        ];
        let all = [0, 1, 2, 3, 4];
        let [flat, joined] = &mut both;
        flat.reset_seeded(&all, 3).unwrap();
        joined.reset_seeded(&all, 3).unwrap();
        let mut ended = 0;
        for step in 0..60 {
            flat.step(i64::from(step % 3 == 0)).unwrap();
            joined.step(i64::from(step % 3 == 0)).unwrap();
            assert_eq!(
                flat.seen::<f32>("observation"),
                joined.seen::<f32>("observation")
            );
            assert_eq!(flat.reward, joined.reward);
            assert_eq!(flat.terminated, joined.terminated);
            let over: Vec<_> = all
                .into_iter()
                .filter(|env| flat.terminated[*env])
                .collect();
            ended += over.len();
            flat.reset_seeded(&over, step as u64).unwrap();
            joined.reset_seeded(&over, step as u64).unwrap();
        }
        assert!(ended > 5);
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
            let counted = envs.transformed(StepCounter::new()).unwrap();
            let skipping = counted.transformed(FrameSkipTransform::new(times));
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
