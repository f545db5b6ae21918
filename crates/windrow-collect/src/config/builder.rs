//! The builder of a collector, and the objects that it holds beside the plain options:
//! environments, policies, functions.

use std::error::Error;
use std::sync::Arc;

use tensordict::TensorDict;
use windrow_env::EnvFactory;
#[cfg(target_os = "linux")]
use windrow_peer::WorkerProgram;
use windrow_policy::{Policy, PolicyRecipe, WeightUpdater, Weights};
use windrow_slab::Sink;
use windrow_sync::Interrupt;

use crate::config::hooks::Hooks;
#[cfg(all(target_os = "linux", feature = "remote"))]
use crate::config::launcher::Launcher;
use crate::config::options::CollectorConfig;
#[cfg(all(target_os = "linux", feature = "remote"))]
use crate::config::plan::Placement;
use crate::error::IsInterruption;

/// Steps of each environment in a batch, given the number of environments.
pub(crate) type StepRule = Box<dyn Fn(usize) -> usize + Send>;

/// Options of a [`Collector`](crate::Collector); [`build`](Self::build) checks them all.
pub struct CollectorBuilder {
    pub(crate) config: CollectorConfig,
    /// One for all workers, or one for each.
    pub(crate) envs: Vec<EnvMaker>,
    pub(crate) policy: PolicyRecipe,
    /// Steps of each environment in a batch, given the number of environments, in place of
    /// `frames_per_batch`: for who cannot know how many there will be.
    pub(crate) steps_per_batch: Option<StepRule>,
    pub(crate) sink: Option<Box<dyn Sink>>,
    pub(crate) is_interruption: IsInterruption,
    pub(crate) interrupt: Interrupt,
    pub(crate) hooks: Hooks,
    pub(crate) weight_source: Option<WeightSource>,
    pub(crate) updater: Option<Box<dyn WeightUpdater>>,
    #[cfg(target_os = "linux")]
    pub(crate) start: WorkerStart,
}

/// How worker processes are started.
#[cfg(target_os = "linux")]
#[derive(Clone, Default)]
pub(crate) struct WorkerStart {
    /// Runs as a worker process, in place of this program.
    pub(crate) program: Option<WorkerProgram>,
    /// Starts workers somewhere else, in place of processes on this machine.
    #[cfg(feature = "remote")]
    pub(crate) launcher: Option<Arc<dyn Launcher>>,
    /// See [`CollectorBuilder::refused_values`].
    #[cfg(feature = "remote")]
    pub(crate) refused_values: Option<u8>,
}

/// Makes the environments of a worker.
pub(crate) type EnvMaker = Arc<dyn EnvFactory + Send + Sync>;

/// Gives new weights.
pub(crate) type WeightSource = Box<dyn FnMut() -> Weights + Send>;

impl CollectorBuilder {
    pub(crate) fn new(env: EnvMaker, config: CollectorConfig) -> Self {
        Self {
            config,
            envs: vec![env],
            policy: PolicyRecipe::random(),
            steps_per_batch: None,
            sink: None,
            is_interruption: |_| false,
            interrupt: Interrupt::never(),
            hooks: Hooks::default(),
            weight_source: None,
            updater: None,
            #[cfg(target_os = "linux")]
            start: WorkerStart::default(),
        }
    }

    /// Runs `program` as worker processes, in place of this program: one that begins with
    /// [`worker_main`](crate::worker_main) and knows the same names.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn worker_program(mut self, program: WorkerProgram) -> Self {
        self.start.program = Some(program);
        self
    }

    /// Lets `launcher` start the workers somewhere else. They are [processes](Placement::Processes)
    /// to the collector, wherever they run: what these can, they can.
    #[cfg(all(target_os = "linux", feature = "remote"))]
    #[must_use]
    pub fn launcher(mut self, launcher: impl Launcher + 'static) -> Self {
        self.start.launcher = Some(Arc::new(launcher));
        self.placement(Placement::Processes)
    }

    /// Refuses values of variable size that begin with the byte `first` from workers of a
    /// [launcher](Self::launcher), and errors in the program's own form that begin with it. By
    /// default, nothing is refused. This is for programs that read some values as more than data,
    /// such as pickled objects, and mark these by their first byte.
    #[cfg(all(target_os = "linux", feature = "remote"))]
    #[must_use]
    pub fn refused_values(mut self, first: u8) -> Self {
        self.start.refused_values = Some(first);
        self
    }

    /// Sets all plain options at once. Placement, delivery, inference and
    /// [`merge_statistics`](Self::merge_statistics) stay as they are, such as the collector's name
    /// says, where `config` says nothing of them.
    #[must_use]
    pub fn config(mut self, config: CollectorConfig) -> Self {
        self.config = config.or_named(&self.config);
        self
    }

    /// One environment factory for each worker, in place of one for all.
    #[must_use]
    pub fn worker_envs<F>(mut self, envs: impl IntoIterator<Item = F>) -> Self
    where
        F: EnvFactory + Send + Sync + 'static,
    {
        self.envs = envs
            .into_iter()
            .map(|env| Arc::new(env) as EnvMaker)
            .collect();
        self
    }

    /// The policy; each worker gets a clone. Without one, actions are drawn uniformly from the
    /// action space.
    ///
    /// Clones need weights of their own: those that share them, as behind an `Arc`, would take up
    /// newer weights in the middle of a batch. With several workers, or one in a thread, they are
    /// refused; use [`policy_factory`](Self::policy_factory).
    #[must_use]
    pub fn policy(mut self, policy: impl Policy + Clone + 'static) -> Self {
        self.policy = PolicyRecipe::of(policy);
        self
    }

    /// Makes the policy of worker `n`, for policies that differ from worker to worker or cannot be
    /// cloned. All must write the same columns.
    #[must_use]
    pub fn policy_factory<P>(mut self, make: impl Fn(usize) -> P + Send + Sync + 'static) -> Self
    where
        P: Policy + 'static,
    {
        self.policy = PolicyRecipe::opaque(make);
        self
    }

    /// Makes the policy of each worker by `recipe`, such as one that was written down.
    #[must_use]
    pub fn policy_recipe(mut self, recipe: PolicyRecipe) -> Self {
        self.policy = recipe;
        self
    }

    /// Writes every batch to `buffer` before it is delivered: a replay buffer or any other
    /// [`Sink`]. [`Collector::start`](crate::Collector::start) does so in the background.
    ///
    /// Padding is not written: a batch with `("collector", "mask")` is written as `[frames]`. With
    /// [`trajs_per_batch`](Self::trajs_per_batch), whatever its number, only whole trajectories are
    /// written, one after the other as `[frames]`: in one write all those that the frames of one
    /// batch complete, or in groups of [`trajs_per_write`](Self::trajs_per_write).
    ///
    /// The collector is attached to `buffer` during each call for a batch, or from its start to its
    /// end; readers of the buffer can then wait for its frames.
    #[must_use]
    pub fn replay_buffer(mut self, buffer: impl Sink + 'static) -> Self {
        self.sink = Some(Box::new(buffer));
        self
    }

    /// Checks `interrupt` while a call waits: for environments to be made, workers elsewhere, the
    /// end of a pause's last part, the answer of a worker, or the end of threads. Its error ends
    /// the call as [`NextError::WaitInterrupted`](crate::NextError::WaitInterrupted),
    /// `BuildError::WaitInterrupted` or `ControlError::WaitInterrupted`; the collector can be used
    /// further.
    #[must_use]
    pub fn interrupt(mut self, interrupt: Interrupt) -> Self {
        self.interrupt = interrupt;
        self
    }

    /// Tells which errors of environments and policies are interruptions, such as the answer to a
    /// signal. An interruption ends the call that waits for a batch, whatever
    /// [`on_loss`](Self::on_loss) says. If workers run in the calling thread, it is returned as
    /// [`NextError::Interrupted`](crate::NextError::Interrupted), and the next call collects the
    /// interrupted part anew, with new episodes. Workers in processes are asked by
    /// `WorkerMain::interruptions`: such an interruption ends the collector with an error of kind
    /// [`FaultKind::Interruption`](crate::FaultKind::Interruption).
    #[doc(hidden)]
    #[must_use]
    pub fn interruptions(mut self, is_one: IsInterruption) -> Self {
        self.is_interruption = is_one;
        self
    }

    /// The source of weights for
    /// [`Collector::update_policy_weights_from_source`](crate::Collector::update_policy_weights_from_source)
    /// and [`update_at_each_batch`](Self::update_at_each_batch).
    #[must_use]
    pub fn weight_source(mut self, source: impl FnMut() -> Weights + Send + 'static) -> Self {
        self.weight_source = Some(Box::new(source));
        self
    }

    /// How new weights reach the workers.
    #[must_use]
    pub fn weight_updater(mut self, updater: impl WeightUpdater + 'static) -> Self {
        self.updater = Some(Box::new(updater));
        self
    }

    /// Called before each batch is asked for.
    #[must_use]
    pub fn pre_collect_hook(mut self, hook: impl FnMut() + Send + 'static) -> Self {
        self.hooks.pre_collect_hook = Some(Box::new(hook));
        self
    }

    /// Called with each batch as it is delivered.
    #[must_use]
    pub fn post_collect_hook(mut self, hook: impl FnMut(&TensorDict) + Send + 'static) -> Self {
        self.hooks.post_collect_hook = Some(Box::new(hook));
        self
    }

    /// Changes each batch before it is delivered. Several are applied in the order given.
    #[must_use]
    pub fn postproc<E>(
        mut self,
        mut postproc: impl FnMut(TensorDict) -> Result<TensorDict, E> + Send + 'static,
    ) -> Self
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.hooks
            .postproc
            .push(Box::new(move |batch| postproc(batch).map_err(Into::into)));
        self
    }
}

impl std::fmt::Debug for CollectorBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CollectorBuilder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
