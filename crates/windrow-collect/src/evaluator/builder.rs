use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tensordict::TensorDict;
#[cfg(target_os = "linux")]
use windrow_peer::WorkerProgram;
use windrow_policy::{ExplorationType, Policy, PolicyRecipe};
use windrow_sync::Interrupt;

use super::Evaluator;
use super::choices::{BusyPolicy, Metrics, OnResult, WriteRecordings};
use super::recipe::{Recipe, limited};
use super::report::Evaluation;
use super::requests::EvaluatorRequests;
use super::run::{EvaluationOptions, Runner};
use crate::build::check_step_timeout;
use crate::config::builder::EnvMaker;
#[cfg(target_os = "linux")]
use crate::config::builder::WorkerStart;
#[cfg(all(target_os = "linux", feature = "remote"))]
use crate::config::launcher::Launcher;
use crate::config::options::CollectorConfig;
use crate::config::plan::{OnLoss, Placement};
use crate::error::{ArgumentError, BuildError};

/// How long a killed process may take to end.
const GRACE: Duration = Duration::from_secs(1);

/// Builds an [`Evaluator`]. [`build`](Self::build) checks all options.
///
/// ```
/// use std::time::Duration;
/// use windrow_collect::{BusyPolicy, Evaluator};
/// use windrow_policy::{ExplorationType, RandomPolicy};
///
/// let evaluator = Evaluator::builder("Pendulum-v1")
///     .policy_factory(|_worker| RandomPolicy::new())
///     .num_trajectories(4)
///     .num_envs(4)
///     .max_steps(20)
///     .seed(1)
///     .exploration_type(ExplorationType::Mean)
///     .busy_policy(BusyPolicy::Skip)
///     .log_prefix("test")
///     .on_result(|result| println!("step {}: {}", result.step, result.reward))
///     .shutdown_timeout(Duration::from_secs(1))
///     .build()?;
/// let numbers = evaluator.evaluate(None, None)?.to_map();
/// assert_eq!(numbers["test/episode_length"], 20.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EvaluatorBuilder {
    env: EnvMaker,
    policies: Vec<PolicyRecipe>,
    /// Of the collector that plays the episodes.
    config: CollectorConfig,
    #[cfg(target_os = "linux")]
    start: WorkerStart,
    num_trajectories: usize,
    max_steps: Option<usize>,
    busy_policy: BusyPolicy,
    on_result: Option<OnResult>,
    log_prefix: Arc<str>,
    metrics: Option<Metrics>,
    write_recordings: Option<WriteRecordings>,
    patience: Duration,
    lazy: bool,
    /// Reports environments that do not return while a call waits for them.
    reports: Interrupt,
}

impl EvaluatorBuilder {
    pub(super) fn new(env: EnvMaker) -> Self {
        Self {
            env,
            policies: Vec::new(),
            config: CollectorConfig {
                placement: Some(Placement::Threads),
                exploration_type: ExplorationType::Deterministic,
                ..CollectorConfig::default()
            },
            #[cfg(target_os = "linux")]
            start: WorkerStart::default(),
            num_trajectories: 10,
            max_steps: None,
            busy_policy: BusyPolicy::default(),
            on_result: None,
            log_prefix: "eval".into(),
            metrics: None,
            write_recordings: None,
            patience: Duration::from_secs(5),
            lazy: false,
            reports: Interrupt::never(),
        }
    }

    /// The policy to evaluate. The evaluator acts with a clone and leaves the policy in training
    /// alone. Required, unless there is a [factory](Self::policy_factory) or a
    /// [recipe](Self::policy_recipe).
    #[must_use]
    pub fn policy(self, policy: impl Policy + Clone + 'static) -> Self {
        self.policy_recipe(PolicyRecipe::of(policy))
    }

    /// Makes the policy to evaluate, for policies that cannot be cloned. The evaluator's thread
    /// calls `make` with 0, the number of its only worker.
    #[must_use]
    pub fn policy_factory<P>(self, make: impl Fn(usize) -> P + Send + Sync + 'static) -> Self
    where
        P: Policy + 'static,
    {
        self.policy_recipe(PolicyRecipe::opaque(make))
    }

    /// Makes the policy to evaluate by `recipe`, such as one of a name that the program has
    /// registered.
    #[must_use]
    pub fn policy_recipe(mut self, recipe: PolicyRecipe) -> Self {
        self.policies.push(recipe);
        self
    }

    /// Where environments and policy run: in the evaluator's thread ([`Placement::Threads`], the
    /// default), or in a process of their own ([`Placement::Processes`]), which gives the same
    /// results for the same seed. Weights reach the process by shared memory.
    ///
    /// A process is this program, run again, which begins with [`worker_main`](crate::worker_main).
    /// It makes environments and policies of ids, names and recipes; code cannot be sent to it. If
    /// it ends by itself, also between two evaluations, that is the error of an evaluation, and the
    /// next one starts another.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use windrow_collect::{Evaluator, Placement, worker_main};
    /// use windrow_policy::RandomPolicy;
    ///
    /// fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     worker_main(|_registry| Ok(()))?;
    ///     let evaluator = Evaluator::builder("CartPole-v1")
    ///         .policy(RandomPolicy::new())
    ///         .placement(Placement::Processes)
    ///         .step_timeout(Duration::from_secs(60))
    ///         .build()?;
    ///     assert_eq!(evaluator.evaluate(None, None)?.num_episodes, 10);
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn placement(mut self, placement: Placement) -> Self {
        self.config.placement = Some(placement);
        self
    }

    /// Runs `program` as the worker process, as
    /// [`CollectorBuilder::worker_program`](crate::CollectorBuilder::worker_program).
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn worker_program(mut self, program: WorkerProgram) -> Self {
        self.start.program = Some(program);
        self
    }

    /// Lets `launcher` start the worker somewhere else, as
    /// [`CollectorBuilder::launcher`](crate::CollectorBuilder::launcher).
    #[cfg(all(target_os = "linux", feature = "remote"))]
    #[must_use]
    pub fn launcher(mut self, launcher: impl Launcher + 'static) -> Self {
        self.start.launcher = Some(Arc::new(launcher));
        self.placement(Placement::Processes)
    }

    /// The time without a step after which the process counts as hung and is killed, as
    /// [`CollectorBuilder::step_timeout`](crate::CollectorBuilder::step_timeout): the evaluation
    /// then fails. Needs [`Placement::Processes`].
    #[must_use]
    pub fn step_timeout(mut self, timeout: Duration) -> Self {
        self.config.step_timeout = Some(timeout);
        self
    }

    /// Reports environments that do not return for long while a call waits for an evaluation. The
    /// time and the receiver are those of [`Interrupt::reporting`] on `interrupt`. A report ends no
    /// wait.
    #[must_use]
    pub fn reporting_as(mut self, interrupt: &Interrupt) -> Self {
        self.reports = interrupt.only_reports();
        self
    }

    /// Handles an environment that fails, and a process that ends or hangs. By default, the
    /// evaluation fails. With [`OnLoss::Restart`], environments and policy are made anew, and the
    /// evaluation plays other episodes in place of those that were lost; [`Evaluator::take_losses`]
    /// returns the errors. [`build`](Self::build) refuses [`OnLoss::Continue`], since an evaluator
    /// has one worker.
    #[must_use]
    pub fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.config.on_loss = on_loss;
        self
    }

    /// Whole episodes of each evaluation; 10 by default.
    #[must_use]
    pub fn num_trajectories(mut self, episodes: usize) -> Self {
        self.num_trajectories = episodes;
        self
    }

    /// Truncates episodes after this many steps. Adds the observation `"step_count"`, or
    /// `"eval_step_count"` where the environment counts its steps itself.
    #[must_use]
    pub fn max_steps(mut self, steps: usize) -> Self {
        self.max_steps = Some(steps);
        self
    }

    /// Environments that step together; by default one, or as many as a vector of environments has.
    /// More than there are [episodes](Self::num_trajectories) are of no use.
    #[must_use]
    pub fn num_envs(mut self, num_envs: usize) -> Self {
        self.config.num_envs = Some(num_envs);
        self
    }

    /// Seed of every evaluation: environment `i` is reset with `seed + i`, and sampled actions
    /// derive from it too. Weights are then compared on the same episodes, and the same weights
    /// give the same result again.
    ///
    /// Without it, each evaluation draws a seed of its own, which [`Evaluation::seed`] holds.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = Some(seed);
        self
    }

    /// Whether actions are the policy's best guess (the default is
    /// [`ExplorationType::Deterministic`]) or sampled.
    #[must_use]
    pub fn exploration_type(mut self, exploration: ExplorationType) -> Self {
        self.config.exploration_type = exploration;
        self
    }

    /// Handling of a request while another is pending; [`BusyPolicy::Skip`] by default.
    #[must_use]
    pub fn busy_policy(mut self, busy_policy: BusyPolicy) -> Self {
        self.busy_policy = busy_policy;
        self
    }

    /// Called in the evaluator's thread with each result, before the result can be read. It must
    /// not wait for the evaluator. A panic ends this call only.
    #[must_use]
    pub fn on_result(mut self, on_result: impl FnMut(&Evaluation) + Send + 'static) -> Self {
        self.on_result = Some(Box::new(on_result));
        self
    }

    /// The prefix of the keys of [`Evaluation::to_map`]; `"eval"` by default.
    #[must_use]
    pub fn log_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.log_prefix = prefix.into().into();
        self
    }

    /// Computes more numbers about the episodes. The evaluator's thread calls `metrics` with all
    /// columns of a collector's batch, as [`TrajFormat::Padded`](crate::TrajFormat::Padded):
    /// `[num_trajectories, longest]` with `("collector", "mask")`, in the order of
    /// [`Evaluation::returns`]. Without metrics, observations are kept for a few steps only. An
    /// error of the metrics is the result of the evaluation.
    #[must_use]
    pub fn metrics<E>(
        mut self,
        mut metrics: impl FnMut(&TensorDict) -> Result<Vec<(String, f64)>, E> + Send + 'static,
    ) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let metrics = move |trajectories: &TensorDict| metrics(trajectories).map_err(Into::into);
        self.metrics = Some(Box::new(metrics));
        self
    }

    /// Writes what was recorded during an evaluation, such as a video. The evaluator's thread calls
    /// `write` with the step of the evaluation, after its episodes and before its result is there.
    /// Its error is the result of the evaluation.
    #[must_use]
    pub fn write_recordings<E>(
        mut self,
        mut write: impl FnMut(u64) -> Result<(), E> + Send + 'static,
    ) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.write_recordings = Some(Box::new(move |step| write(step).map_err(Into::into)));
        self
    }

    /// Makes environments and policy with the first evaluation; an error in making them is its
    /// result. For environments and policies that take long to make, or take memory that training
    /// needs first.
    #[must_use]
    pub fn lazily(mut self) -> Self {
        self.lazy = true;
        self
    }

    /// How long a shutdown waits for the running evaluation; 5 seconds by default. A process that
    /// has not ended then is killed.
    #[must_use]
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.patience = timeout;
        self
    }

    /// Starts the evaluator's thread, which makes environments and policy, and waits until they are
    /// made, unless they are made [later](Self::lazily).
    ///
    /// # Errors
    /// [`BuildError::Argument`] when a number is 0, when there is not exactly one policy, and for
    /// an impossible placement or time-out; otherwise those of
    /// [`CollectorBuilder::build`](crate::CollectorBuilder::build).
    pub fn build(mut self) -> Result<Evaluator, BuildError> {
        ArgumentError::check_positive("num_trajectories", self.num_trajectories)?;
        ArgumentError::check_positive("max_steps", self.max_steps)?;
        ArgumentError::check_positive("num_envs", self.config.num_envs)?;
        check_step_timeout(&self.config)?;
        let grace = self.place()?;
        let choices = self.policies.len();
        let Some(policy) = self.policies.pop().filter(|_| choices == 1) else {
            return Err(ArgumentError::Policies { got: choices }.into());
        };
        let shared = Arc::new(EvaluatorRequests::new());
        let runner = Runner::new(
            Recipe {
                env: limited(self.env, self.max_steps),
                policy,
                episodes: self.num_trajectories,
                longest: self.max_steps,
                config: self.config,
                #[cfg(target_os = "linux")]
                start: self.start,
            },
            EvaluationOptions {
                num_trajectories: self.num_trajectories,
                metrics: self.metrics,
                write_recordings: self.write_recordings,
                on_result: self.on_result,
                log_prefix: self.log_prefix,
            },
            Arc::clone(&shared),
            self.reports.clone(),
        );
        let lazy = self.lazy;
        let (ready, made) = channel();
        let thread = thread::Builder::new()
            .name("windrow-evaluator".to_owned())
            .spawn(move || runner.run((!lazy).then_some(&ready)))
            .map_err(BuildError::Thread)?;
        if !lazy {
            made.recv().expect("The thread reports before it ends.")?;
        }
        Ok(Evaluator {
            shared,
            thread: Mutex::new(Some(thread)),
            busy_policy: self.busy_policy,
            patience: self.patience,
            grace,
            reports: self.reports,
        })
    }

    /// Chooses the placement of the collector; returns how long killing its worker may take, if it
    /// can be killed.
    fn place(&mut self) -> Result<Duration, ArgumentError> {
        if self.config.on_loss == OnLoss::Continue {
            return Err(ArgumentError::Needs {
                name: "on_loss continue",
                needs: "several workers, where an evaluator has one: OnLoss::Restart replaces it",
            });
        }
        // A collector that is given one environment by number adds a dimension for it, which an
        // evaluation does not have.
        self.config.num_envs = self.config.num_envs.filter(|&num_envs| num_envs > 1);
        match self.config.plan().placement {
            Placement::Inline => Err(ArgumentError::Needs {
                name: "placement inline",
                needs: "a collector: an evaluator runs beside its caller, in threads or in processes",
            }),
            Placement::Threads => {
                self.config.placement = Some(Placement::Inline);
                Ok(Duration::ZERO)
            }
            Placement::Processes => Ok(GRACE),
        }
    }
}

impl std::fmt::Debug for EvaluatorBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EvaluatorBuilder")
            .field("num_trajectories", &self.num_trajectories)
            .field("max_steps", &self.max_steps)
            .field("num_envs", &self.config.num_envs)
            .field("seed", &self.config.seed)
            .field("placement", &self.config.plan().placement)
            .field("busy_policy", &self.busy_policy)
            .finish_non_exhaustive()
    }
}
