//! Making an evaluator's collector, at first and after a failure.

use std::sync::Arc;

use windrow_env::{EnvError, EnvFactory, EnvRecipe, StepCounter, VecEnv};
use windrow_policy::PolicyRecipe;
use windrow_sync::Interrupt;

use crate::config::builder::CollectorBuilder;
use crate::config::builder::EnvMaker;
#[cfg(target_os = "linux")]
use crate::config::builder::WorkerStart;
use crate::config::options::CollectorConfig;
use crate::deliver::collector::Collector;
use crate::error::BuildError;

/// Steps of a batch for each episode that an environment plays: a step of an episode after the last
/// one is wasted.
const STEPS_PER_EPISODE: usize = 16;
/// Fewest steps of a batch, and those that make its cost negligible.
const STEPS: (usize, usize) = (32, 256);

/// Steps of a batch of evaluations of some episodes, none of which has more than `longest` steps.
pub(super) fn steps_per_batch(episodes: usize, num_envs: usize, longest: Option<usize>) -> usize {
    let each = (episodes / num_envs.max(1)).max(1);
    let steps = each.saturating_mul(STEPS_PER_EPISODE);
    steps
        .clamp(STEPS.0, STEPS.1)
        .min(longest.unwrap_or(usize::MAX))
}

/// How the collector is made that plays the episodes.
pub(super) struct Recipe {
    pub(super) env: EnvMaker,
    pub(super) policy: PolicyRecipe,
    pub(super) config: CollectorConfig,
    /// Episodes of an evaluation.
    pub(super) episodes: usize,
    /// Steps after which an episode is cut.
    pub(super) longest: Option<usize>,
    #[cfg(target_os = "linux")]
    pub(super) start: WorkerStart,
}

impl Recipe {
    /// A collector of one worker.
    ///
    /// # Errors
    /// As [`CollectorBuilder::build`].
    pub(super) fn collector(&self, interrupt: Interrupt) -> Result<Collector, BuildError> {
        let mut builder = CollectorBuilder::new(Arc::clone(&self.env), self.config.clone())
            .policy_recipe(self.policy.clone())
            .interrupt(interrupt);
        let (episodes, longest) = (self.episodes, self.longest);
        builder.steps_per_batch = Some(Box::new(move |num_envs| {
            steps_per_batch(episodes, num_envs, longest)
        }));
        #[cfg(target_os = "linux")]
        {
            builder.start = self.start.clone();
        }
        builder.build()
    }
}

/// Makes the environments of `env`, truncated after `max_steps` steps.
pub(super) fn limited(env: EnvMaker, max_steps: Option<usize>) -> EnvMaker {
    match max_steps {
        Some(max_steps) => Arc::new(Limited { env, max_steps }),
        None => env,
    }
}

struct Limited {
    env: EnvMaker,
    max_steps: usize,
}

impl Limited {
    /// An environment that counts its steps itself keeps its count.
    fn counter(&self) -> StepCounter {
        let counter = StepCounter::new().or_named("eval_step_count");
        counter.with_max_steps(self.max_steps)
    }
}

impl EnvFactory for Limited {
    fn build(&self, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
        let env = self.env.build(num_envs)?;
        Ok(Box::new(env.transformed(self.counter())?))
    }

    fn recipe(&self) -> Option<EnvRecipe> {
        Some(self.env.recipe()?.with_transform(self.counter()))
    }
}

#[cfg(test)]
mod tests {
    use super::steps_per_batch;

    #[test]
    fn batches_grow_with_the_episodes_of_an_environment() {
        assert_eq!(steps_per_batch(1, 1, None), 32);
        assert_eq!(steps_per_batch(10, 1, None), 160);
        assert_eq!(steps_per_batch(1000, 1, None), 256);
        assert_eq!(steps_per_batch(64, 64, None), 32);
        assert_eq!(steps_per_batch(1000, 1, Some(20)), 20);
    }
}
