//! Making an evaluator's collector, at first and after a failure.

use std::sync::Arc;

use windrow_env::{EnvError, EnvFactory, EnvRecipe, StepCounter, VecEnv};
#[cfg(target_os = "linux")]
use windrow_peer::WorkerProgram;
use windrow_policy::PolicyRecipe;
use windrow_sync::Interrupt;

use crate::config::builder::CollectorBuilder;
use crate::config::builder::EnvMaker;
use crate::config::options::CollectorConfig;
use crate::deliver::collector::Collector;
use crate::error::BuildError;

/// Most steps of a batch: enough to make the cost of a batch negligible, and few enough to waste little after the last
/// episode.
pub(super) const STEPS: usize = 32;

/// How the collector is made that plays the episodes.
pub(super) struct Recipe {
    pub(super) env: EnvMaker,
    pub(super) policy: PolicyRecipe,
    pub(super) config: CollectorConfig,
    /// Steps of a batch.
    pub(super) steps: usize,
    #[cfg(target_os = "linux")]
    pub(super) worker_program: Option<WorkerProgram>,
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
        builder.steps_per_batch = Some(self.steps);
        #[cfg(target_os = "linux")]
        {
            builder.worker_program.clone_from(&self.worker_program);
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
