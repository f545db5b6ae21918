//! The evaluator's thread.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use tensordict::{Tensor, TensorDict, TensorError};
use windrow_sync::{Interrupt, catch_panic};

use super::choices::{Metrics, OnResult, WriteRecordings};
use super::recipe::Recipe;
use super::report::{About, DONE, Episodes, Evaluation, KEYS, MASK};
use super::requests::{EvaluationJob, EvaluatorRequests, Snapshot, ThreadEnd};
use crate::build::entropy;
use crate::deliver::collector::Collector;
use crate::error::{BuildError, EvaluateError, NextError, WorkerError, WorkerFault};
use crate::trajectories::{TrajFormat, TrajectoryBatcher};

/// The options of one evaluation.
pub(super) struct EvaluationOptions {
    pub(super) num_trajectories: usize,
    pub(super) metrics: Option<Metrics>,
    pub(super) write_recordings: Option<WriteRecordings>,
    pub(super) on_result: Option<OnResult>,
    pub(super) log_prefix: Arc<str>,
}

/// The state of the thread, and its work.
pub(super) struct Runner {
    recipe: Recipe,
    options: EvaluationOptions,
    shared: Arc<EvaluatorRequests>,
    /// `None` after a failure.
    collector: Option<Collector>,
    /// The weights given last, for a collector that is made anew.
    weights: Option<Snapshot>,
    /// Reports workers that keep the thread waiting.
    reports: Interrupt,
}

impl Runner {
    pub(super) fn new(
        recipe: Recipe,
        options: EvaluationOptions,
        shared: Arc<EvaluatorRequests>,
        reports: Interrupt,
    ) -> Self {
        Self {
            recipe,
            options,
            shared,
            collector: None,
            weights: None,
            reports,
        }
    }

    /// Makes environments and policy and reports the result to `ready`, if there is one; then
    /// serves requests until a shutdown.
    pub(super) fn run(self, ready: Option<&Sender<Result<(), BuildError>>>) {
        let shared = Arc::clone(&self.shared);
        // Dropped last: the thread counts as ended only after the user's environments and policy
        // were dropped.
        let _thread_end = ThreadEnd(&shared);
        let mut runner = self;
        if let Some(ready) = ready {
            let made = contained(|| runner.make_collector());
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
                Ok(evaluation) => runner.report(evaluation),
                // Environments and policy can be used again.
                Err(EvaluateError::Metrics { .. } | EvaluateError::Recordings { .. }) => {}
                Err(_) => runner.end_collector(),
            }
            shared.deliver(result);
        }
        runner.end_collector();
    }

    fn make_collector(&mut self) -> Result<(), BuildError> {
        let shared = &self.shared;
        // A strong reference would be a cycle: the state has the collector's handle, which has the
        // interrupt.
        let state = Arc::downgrade(shared);
        let check = move || state.upgrade().map_or(Ok(()), |shared| shared.check_wait());
        let interrupt = Interrupt::new(check).reporting_as(&self.reports);
        let collector = self.recipe.collector(interrupt)?;
        self.shared.stop_with(collector.handle());
        self.collector = Some(collector);
        Ok(())
    }

    /// The collector, made anew after a failure, with the weights that were given last.
    fn ensure_collector(&mut self) -> Result<(), EvaluateError> {
        if self.collector.is_none() {
            self.make_collector()?;
            // Shutdowns stop it from now on, and not one that came before.
            self.shared.check()?;
            if let (Some(collector), Some(given)) = (&mut self.collector, &self.weights) {
                collector.update_policy_weights(&given.weights)?;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, job: EvaluationJob) -> Result<Evaluation, EvaluateError> {
        self.ensure_collector()?;
        let collector = self.collector.as_mut();
        let collector = collector.expect("The line above has made the collector.");
        if let Some(snapshot) = job.weights {
            collector.update_policy_weights(&snapshot.weights)?;
            self.weights = Some(snapshot);
        }
        let seed = self.recipe.config.seed.unwrap_or_else(entropy);
        let began = Instant::now();
        collector.set_seed(seed, false);
        let columns = if self.options.metrics.is_some() {
            KeptColumns::All
        } else {
            KeptColumns::Reported
        };
        let quota = Quota::new(self.options.num_trajectories, collector.stats().num_envs);
        let trajectories = collect(collector, quota, columns, &self.shared)?;
        let took = began.elapsed();
        let metrics = match &mut self.options.metrics {
            Some(metrics) => metrics(&trajectories).map_err(|source| EvaluateError::Metrics {
                step: job.step,
                source,
            })?,
            None => Vec::new(),
        };
        if let Some(write) = &mut self.options.write_recordings {
            let step = job.step;
            write(step).map_err(|source| EvaluateError::Recordings { step, source })?;
        }
        let about = About {
            step: job.step,
            policy_version: self.weights.as_ref().map_or(0, |given| given.version),
            seed,
            log_prefix: Arc::clone(&self.options.log_prefix),
            metrics,
            took,
        };
        Ok(Episodes::of(&trajectories)?.report(about))
    }

    fn report(&mut self, evaluation: &Evaluation) {
        if let Some(on_result) = &mut self.options.on_result {
            // The panic hook has reported a panic, and the result is not affected.
            let _ = catch_panic(|| on_result(evaluation));
        }
    }

    /// Ends the collector. Kills its stuck processes once the evaluator's patience is over.
    fn end_collector(&mut self) {
        let (collector, shared) = (self.collector.take(), &self.shared);
        shared.set_ending(true);
        // It may panic again while it is dropped; no caller is left to get its errors.
        let _ = catch_panic(|| {
            collector.map(|mut collector| collector.shutdown_within(shared.patience()))
        });
        shared.set_ending(false);
    }
}

/// Turns a panic of user code into the error of a worker, as collectors do.
fn contained<T, E: From<WorkerError>>(run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    catch_panic(run).unwrap_or_else(|message| {
        let fault = WorkerFault::Panic(message);
        Err(WorkerError::new(0, None, fault).into())
    })
}

/// The columns that are kept of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeptColumns {
    All,
    /// The columns that a report reads.
    Reported,
}

/// The first episodes of each environment that begin from now on, `[num_trajectories, longest]`.
fn collect(
    collector: &mut Collector,
    mut quota: Quota,
    columns: KeptColumns,
    shared: &EvaluatorRequests,
) -> Result<TensorDict, EvaluateError> {
    let batcher = TrajectoryBatcher::new(quota.total(), TrajFormat::Padded);
    let mut batcher = batcher.expect("An evaluation has an episode at least.");
    loop {
        let batch = collector.next().unwrap_or(Err(NextError::ShutDown))?;
        // A batch that a shutdown has cut short does not count.
        shared.check()?;
        let mut batch = match columns {
            KeptColumns::All => batch,
            KeptColumns::Reported => reported(&batch)?,
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
    /// Distributes `episodes` over the environments; the first ones take the remainder, one each.
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

    /// Which frames of `batch`, `[time]` or `[env, time]`, belong to episodes that count: `bool`,
    /// of that shape.
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
