//! The evaluator's thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tensordict::{Tensor, TensorDict, TensorError};
use windrow_env::{EnvError, StepCounter, VecEnv};
use windrow_policy::ExplorationType;

use super::board::{Job, Presence, Shared, Snapshot};
use super::choices::{EnvMaker, Metrics, OnResult, PolicyChoice};
use super::report::{About, DONE, Episodes, Evaluation, KEYS, MASK};
use crate::build::entropy;
use crate::{CollectError, Collector, TrajFormat, TrajectoryBatcher, WorkerError, WorkerFault};

/// Steps of a batch: enough to make the cost of a batch negligible, and few enough to waste little after the last
/// episode.
const STEPS: usize = 32;

/// How environments and policy are made.
pub(super) struct Recipe {
    pub(super) env: EnvMaker,
    pub(super) policy: PolicyChoice,
    pub(super) num_envs: usize,
    pub(super) max_steps: Option<usize>,
    /// The seed of every evaluation; `None` draws another one for each.
    pub(super) seed: Option<u64>,
    pub(super) exploration_type: ExplorationType,
}

impl Recipe {
    fn collector(&self) -> Result<(Collector, usize), CollectError> {
        let (maker, asked, max_steps) = (Arc::clone(&self.env), self.num_envs, self.max_steps);
        let make = move || limited(maker.build(asked)?, max_steps);
        let env = make().map_err(|source| CollectError::Env { worker: 0, source })?;
        // Their number is known only when they are made, and the size of a batch depends on it.
        let num_envs = env.num_envs();
        let made = Mutex::new(Some(env));
        let once = move || {
            let made = made.lock().unwrap_or_else(PoisonError::into_inner).take();
            made.map_or_else(&make, Ok)
        };
        let steps = max_steps.map_or(STEPS, |steps| steps.min(STEPS));
        let mut builder = Collector::builder(once)
            .frames_per_batch(num_envs * steps)
            .exploration_type(self.exploration_type);
        if let Some(seed) = self.seed {
            builder = builder.seed(seed);
        }
        Ok(((self.policy)(builder).build()?, num_envs))
    }
}

/// `env`, truncated after `max_steps` steps. An environment that counts its steps itself keeps its count.
fn limited(env: Box<dyn VecEnv>, max_steps: Option<usize>) -> Result<Box<dyn VecEnv>, EnvError> {
    let Some(steps) = max_steps else {
        return Ok(env);
    };
    let counts = env.spec().observation_leaves();
    let counts = counts.iter().any(|leaf| leaf.key.first() == "step_count");
    let key = if counts {
        "eval_step_count"
    } else {
        "step_count"
    };
    let counter = StepCounter::new().named(key).with_max_steps(steps);
    Ok(Box::new(env.transformed(counter)?))
}

/// What an evaluation collects and computes.
pub(super) struct Wanted {
    pub(super) num_trajectories: usize,
    pub(super) metrics: Option<Metrics>,
    pub(super) on_result: Option<OnResult>,
    pub(super) log_prefix: Arc<str>,
}

/// The state of the thread, and its work.
pub(super) struct Runner {
    recipe: Recipe,
    wanted: Wanted,
    shared: Arc<Shared>,
    /// With the number of its environments; `None` after a failure.
    collector: Option<(Collector, usize)>,
    /// The weights given last, for a collector that is made anew.
    weights: Option<Snapshot>,
}

impl Runner {
    pub(super) fn new(recipe: Recipe, wanted: Wanted, shared: Arc<Shared>) -> Self {
        Self {
            recipe,
            wanted,
            shared,
            collector: None,
            weights: None,
        }
    }

    /// Makes environments and policy and reports the result to `ready`, if there is one; then serves requests until a
    /// shutdown.
    pub(super) fn run(self, ready: Option<&Sender<Result<(), CollectError>>>) {
        let shared = Arc::clone(&self.shared);
        // Dropped last: the thread counts as ended only after the user's environments and policy were dropped.
        let _presence = Presence(&shared);
        let mut runner = self;
        if let Some(ready) = ready {
            let made = contained(|| runner.ensure_collector());
            let failed = made.is_err();
            // `build` waits for this.
            let _ = ready.send(made);
            if failed {
                return;
            }
        }
        while let Some(job) = shared.next() {
            let result = contained(|| runner.evaluate(job));
            match &result {
                Ok(evaluation) => runner.tell(evaluation),
                // Environments and policy can be used again.
                Err(CollectError::Metrics { .. }) => {}
                Err(_) => runner.give_up(),
            }
            shared.deliver(result);
        }
    }

    fn ensure_collector(&mut self) -> Result<(), CollectError> {
        if self.collector.is_some() {
            return Ok(());
        }
        let (mut collector, num_envs) = self.recipe.collector()?;
        if let Some(Snapshot { weights, .. }) = &self.weights {
            collector.update_policy_weights(weights)?;
        }
        self.shared.stop_with(collector.handle())?;
        self.collector = Some((collector, num_envs));
        Ok(())
    }

    fn evaluate(&mut self, job: Job) -> Result<Evaluation, CollectError> {
        self.ensure_collector()?;
        let Some((collector, num_envs)) = &mut self.collector else {
            return Err(CollectError::ShutDown);
        };
        if let Some(snapshot) = job.weights {
            collector.update_policy_weights(&snapshot.weights)?;
            self.weights = Some(snapshot);
        }
        let seed = self.recipe.seed.unwrap_or_else(entropy);
        let began = Instant::now();
        collector.set_seed(seed, false);
        let columns = if self.wanted.metrics.is_some() {
            Columns::All
        } else {
            Columns::Reported
        };
        let quota = Quota::new(self.wanted.num_trajectories, *num_envs);
        let trajectories = collect(collector, quota, columns, &self.shared)?;
        let took = began.elapsed();
        let metrics = match &mut self.wanted.metrics {
            Some(metrics) => metrics(&trajectories).map_err(|source| CollectError::Metrics {
                step: job.step,
                source,
            })?,
            None => Vec::new(),
        };
        let about = About {
            step: job.step,
            policy_version: self.weights.as_ref().map_or(0, |given| given.version),
            seed,
            log_prefix: Arc::clone(&self.wanted.log_prefix),
            metrics,
            took,
        };
        Ok(Episodes::of(&trajectories)?.report(about))
    }

    fn tell(&mut self, evaluation: &Evaluation) {
        if let Some(on_result) = &mut self.wanted.on_result {
            // The panic hook has reported a panic, and the result is not affected.
            let _ = catch_unwind(AssertUnwindSafe(|| on_result(evaluation)));
        }
    }

    /// Drops a collector that has failed.
    fn give_up(&mut self) {
        let collector = self.collector.take();
        // It may panic again while it is dropped.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(collector)));
    }
}

/// Turns a panic of user code into the error of a worker, as collectors do.
fn contained<T>(run: impl FnOnce() -> Result<T, CollectError>) -> Result<T, CollectError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let fault = WorkerFault::panic(panic.as_ref());
        Err(WorkerError::new(0, None, fault).into())
    })
}

/// The columns that are kept of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Columns {
    All,
    /// The columns that a report reads.
    Reported,
}

/// The first episodes of each environment that begin from now on, `[num_trajectories, longest]`.
fn collect(
    collector: &mut Collector,
    mut quota: Quota,
    columns: Columns,
    shared: &Shared,
) -> Result<TensorDict, CollectError> {
    let mut batcher = TrajectoryBatcher::new(quota.total(), TrajFormat::Padded)?;
    loop {
        let batch = collector.next().unwrap_or(Err(CollectError::ShutDown))?;
        // A batch that a shutdown has cut short does not count.
        shared.check()?;
        let mut batch = match columns {
            Columns::All => batch,
            Columns::Reported => reported(&batch)?,
        };
        batch.set(MASK, quota.mask(&batch)?)?;
        batcher.push(&batch)?;
        if let Some(trajectories) = batcher.pop()? {
            return Ok(trajectories);
        }
    }
}

fn reported(batch: &TensorDict) -> Result<TensorDict, TensorError> {
    let keys: Vec<&[&str]> = KEYS
        .into_iter()
        .filter(|key| batch.contains_key(key))
        .collect();
    batch.select(&keys)
}

/// How many episodes each environment still has to play.
#[derive(Debug)]
struct Quota {
    owed: Vec<usize>,
}

impl Quota {
    /// Shares `episodes` out; where there is a remainder, the first environments have one more.
    fn new(episodes: usize, num_envs: usize) -> Self {
        let envs = num_envs.max(1);
        let owed = (0..envs).map(|env| episodes / envs + usize::from(env < episodes % envs));
        Self {
            owed: owed.collect(),
        }
    }

    fn total(&self) -> usize {
        self.owed.iter().sum()
    }

    /// Which frames of `batch`, `[time]` or `[env, time]`, belong to episodes that count: `bool`, of that shape.
    fn mask(&mut self, batch: &TensorDict) -> Result<Tensor, TensorError> {
        let steps = batch.numel() / self.owed.len();
        let done = batch.get(DONE)?.to_vec::<bool>()?;
        let mut mask = Vec::with_capacity(done.len());
        for (owed, done) in self.owed.iter_mut().zip(done.chunks(steps.max(1))) {
            for &done in done {
                mask.push(*owed > 0);
                *owed = owed.saturating_sub(usize::from(done));
            }
        }
        Tensor::from_vec(mask, batch.batch_size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn episodes_are_shared_out() {
        assert_eq!(Quota::new(10, 4).owed, [3, 3, 2, 2]);
        assert_eq!(Quota::new(2, 4).owed, [1, 1, 0, 0]);
        assert_eq!(Quota::new(5, 1).total(), 5);
    }

    #[test]
    fn only_the_first_episodes_of_each_environment_count() {
        let mut batch = TensorDict::new([2, 4]);
        let done = vec![true, false, true, true, false, false, false, true];
        let done = Tensor::from_vec(done, [2, 4]).unwrap();
        batch.set(("next", "done"), done).unwrap();
        let mut quota = Quota::new(3, 2);
        let mask = quota.mask(&batch).unwrap().to_vec::<bool>().unwrap();
        assert_eq!(mask, [true, true, true, false, true, true, true, true]);
        assert_eq!(quota.total(), 0);
    }
}
