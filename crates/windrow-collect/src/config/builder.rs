use std::sync::{Arc, Mutex, PoisonError};

use tensordict::TensorDict;
use windrow_env::EnvFactory;
use windrow_policy::{
    ExplorationType, Policy, RandomPolicy, VanillaWeightUpdater, WeightUpdater, Weights,
};
use windrow_slab::Sink;

use crate::CollectError;
use crate::build::build;
use crate::config::plan::{CatResults, Delivery, OnLoss, Placement, Plan};
use crate::deliver::collector::Collector;
use crate::deliver::stage::{Hooks, LastStage};
use crate::shared::publisher::WeightSource;
use crate::shared::reports::IsInterruption;
use crate::trajectories::TrajFormat;
use crate::worker::cursor::CursorOptions;

/// Slabs that a collector may grow to when batches are kept alive.
const MAX_SLABS: usize = 64;

/// Chooses what a [`Collector`] does. Everything is checked by [`build`](Self::build).
pub struct CollectorBuilder {
    pub(crate) plan: Plan,
    pub(crate) envs: Vec<EnvMaker>,
    pub(crate) num_workers: Option<usize>,
    pub(crate) num_envs: Option<usize>,
    pub(crate) policy: PolicyMaker,
    pub(crate) frames_per_batch: Frames,
    pub(crate) total_frames: Option<u64>,
    pub(crate) partial_last_batch: bool,
    pub(crate) round_up: bool,
    pub(crate) max_frames_per_traj: Option<usize>,
    pub(crate) init_random_frames: u64,
    pub(crate) exploration_type: ExplorationType,
    pub(crate) seed: Option<u64>,
    pub(crate) noise_seed: Option<u64>,
    pub(crate) track_traj_ids: bool,
    pub(crate) track_policy_version: bool,
    pub(crate) return_same_td: bool,
    pub(crate) max_slabs: usize,
    pub(crate) cursor: CursorOptions,
    pub(crate) cat_results: CatResults,
    pub(crate) preemptive_threshold: Option<f64>,
    pub(crate) on_loss: OnLoss,
    pub(crate) is_interruption: IsInterruption,
    pub(crate) trajs_per_batch: Option<usize>,
    pub(crate) traj_format: TrajFormat,
    pub(crate) split_trajs: bool,
    pub(crate) trajs_per_write: Option<usize>,
    pub(crate) update_at_each_batch: bool,
    pub(crate) hooks: Hooks,
    pub(crate) weight_source: Option<WeightSource>,
    pub(crate) updater: Box<dyn WeightUpdater>,
    pub(crate) sink: Option<Box<dyn Sink>>,
}

/// Makes the environments of a worker.
pub(crate) type EnvMaker = Arc<dyn EnvFactory + Send + Sync>;

/// Makes the policy of worker `n`.
pub(crate) type PolicyMaker = Arc<dyn Fn(usize) -> Box<dyn Policy> + Send + Sync>;

/// Frames of a batch, as they were asked for.
#[derive(Debug, Clone)]
pub(crate) enum Frames {
    Missing,
    /// Over all workers of a batch.
    Batch(usize),
    /// For each worker.
    Workers(Vec<usize>),
}

impl CollectorBuilder {
    pub(crate) fn new(env: EnvMaker, plan: Plan) -> Self {
        Self {
            plan,
            envs: vec![env],
            num_workers: None,
            num_envs: None,
            policy: Arc::new(|_| Box::new(RandomPolicy::new())),
            frames_per_batch: Frames::Missing,
            total_frames: None,
            partial_last_batch: false,
            round_up: false,
            max_frames_per_traj: None,
            init_random_frames: 0,
            exploration_type: ExplorationType::default(),
            seed: None,
            noise_seed: None,
            track_traj_ids: true,
            track_policy_version: false,
            return_same_td: false,
            max_slabs: MAX_SLABS,
            cursor: CursorOptions::default(),
            cat_results: CatResults::default(),
            preemptive_threshold: None,
            on_loss: OnLoss::default(),
            is_interruption: |_| false,
            trajs_per_batch: None,
            traj_format: TrajFormat::default(),
            split_trajs: false,
            trajs_per_write: None,
            update_at_each_batch: false,
            hooks: Hooks::default(),
            weight_source: None,
            updater: Box::new(VanillaWeightUpdater::new()),
            sink: None,
        }
    }

    /// Workers: each has environments and a policy of its own. 1 unless told.
    #[must_use]
    pub fn num_workers(mut self, workers: usize) -> Self {
        self.num_workers = Some(workers);
        self
    }

    /// One environment factory for each worker, in place of the one that all would use.
    #[must_use]
    pub fn worker_envs<F>(mut self, envs: impl IntoIterator<Item = F>) -> Self
    where
        F: EnvFactory + Send + Sync + 'static,
    {
        self.envs = envs
            .into_iter()
            .map(|env| Arc::new(env) as EnvMaker)
            .collect();
        self.num_workers = self.num_workers.or(Some(self.envs.len()));
        self
    }

    /// Where workers run, instead of where the collector's name says. Inline, no collector runs ahead.
    #[must_use]
    pub fn placement(mut self, placement: Placement) -> Self {
        self.plan.placement = placement;
        self
    }

    /// How parts make batches, instead of how the collector's name says.
    #[must_use]
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.plan.delivery = delivery;
        self
    }

    /// Environments of each worker, which step together: batches then have a dimension for them. Without it, an
    /// environment that is one world gives batches without one, and one that is several keeps its own number.
    #[must_use]
    pub fn num_envs(mut self, num_envs: usize) -> Self {
        self.num_envs = Some(num_envs);
        self
    }

    /// Who acts; without a policy, actions are drawn uniformly from the action space. Each worker has a clone.
    #[must_use]
    pub fn policy(mut self, policy: impl Policy + Clone + 'static) -> Self {
        // Cloned by whichever thread a worker runs in, one at a time, so that policies need not be `Sync`.
        let policy = Mutex::new(policy);
        self.policy = Arc::new(move |_| {
            Box::new(
                policy
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone(),
            )
        });
        self
    }

    /// Makes the policy of worker `n`, for policies that differ from worker to worker or cannot be cloned. All of them write
    /// the same columns.
    #[must_use]
    pub fn policy_factory<P>(mut self, make: impl Fn(usize) -> P + Send + Sync + 'static) -> Self
    where
        P: Policy + 'static,
    {
        self.policy = Arc::new(move |worker| Box::new(make(worker)));
        self
    }

    /// Frames in one delivered batch, over all environments. Required.
    #[must_use]
    pub fn frames_per_batch(mut self, frames: usize) -> Self {
        self.frames_per_batch = Frames::Batch(frames);
        self
    }

    /// Frames of each worker in one delivered batch, instead of equal shares. Where a batch is one worker's, all are equal.
    #[must_use]
    pub fn frames_per_worker(mut self, frames: impl IntoIterator<Item = usize>) -> Self {
        self.frames_per_batch = Frames::Workers(frames.into_iter().collect());
        self
    }

    /// Frames to be delivered in all; without it the collector is endless. A multiple of `frames_per_batch`, unless a
    /// [short last batch](Self::partial_last_batch) is allowed.
    #[must_use]
    pub fn total_frames(mut self, frames: u64) -> Self {
        self.total_frames = Some(frames);
        self
    }

    /// Allows the last batch to be shorter than the others, so that exactly `total_frames` are delivered.
    #[must_use]
    pub fn partial_last_batch(mut self, allow: bool) -> Self {
        self.partial_last_batch = allow;
        self
    }

    /// Rounds `frames_per_batch` up to what environments that step together can deliver, instead of refusing it. Exactly
    /// `total_frames` are still delivered, a multiple of what was asked for: the last batch is as much shorter as the others
    /// are longer.
    #[must_use]
    pub fn round_up(mut self, round_up: bool) -> Self {
        self.round_up = round_up;
        self
    }

    /// Truncates episodes after this many steps. Adds the column `"step_count"`.
    #[must_use]
    pub fn max_frames_per_traj(mut self, frames: usize) -> Self {
        self.max_frames_per_traj = Some(frames);
        self
    }

    /// Frames for which the policy is ignored and actions are random, rounded up to whole batches.
    #[must_use]
    pub fn init_random_frames(mut self, frames: u64) -> Self {
        self.init_random_frames = frames;
        self
    }

    /// Begins every batch with new episodes. Where [whole trajectories](Self::trajs_per_batch) are put together, those that this
    /// cuts end there: their last frame is marked as by [`set_truncated`](Self::set_truncated).
    #[must_use]
    pub fn reset_at_each_iter(mut self, reset: bool) -> Self {
        self.cursor.reset_at_each_iter = reset;
        self
    }

    /// Marks the last step of every batch as truncated (`done`, not `terminated`). The episode itself goes on.
    #[must_use]
    pub fn set_truncated(mut self, mark: bool) -> Self {
        self.cursor.set_truncated = mark;
        self
    }

    /// Whether actions are sampled (the default) or the policy's best guess.
    #[must_use]
    pub fn exploration_type(mut self, exploration: ExplorationType) -> Self {
        self.exploration_type = exploration;
        self
    }

    /// Seed of everything random: environment `i` is reset with `seed + i`, actions are keyed by seed, environment and
    /// frame. Without it, one is drawn and told by [`Stats::seed`](crate::Stats::seed); environments that
    /// [keep their own](windrow_env::EnvSpec::keeps_seed) are then not seeded.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// What actions are keyed by where no [`seed`](Self::seed) is given and environments keep their own. Without it, such a key
    /// is drawn.
    #[must_use]
    pub fn noise_seed(mut self, seed: u64) -> Self {
        self.noise_seed = Some(seed);
        self
    }

    /// Whether frames carry `("collector", "traj_ids")`; they do by default.
    #[must_use]
    pub fn track_traj_ids(mut self, track: bool) -> Self {
        self.track_traj_ids = track;
        self
    }

    /// Whether frames carry `"policy_version"`, the version of the weights that acted, at the root and, in the same memory, under
    /// `"next"`; they do not by default.
    #[must_use]
    pub fn track_policy_version(mut self, track: bool) -> Self {
        self.track_policy_version = track;
        self
    }

    /// Delivers every batch in the same memory. The one before must be dropped by then, otherwise
    /// [`SlabError::Exhausted`](windrow_slab::SlabError::Exhausted) is returned: a batch never changes while it is held.
    #[must_use]
    pub fn return_same_td(mut self, same: bool) -> Self {
        self.return_same_td = same;
        self
    }

    /// Slabs that may be allocated when batches are kept alive (64 unless told). One more batch kept is an error.
    #[must_use]
    pub fn max_slabs(mut self, slabs: usize) -> Self {
        self.max_slabs = slabs;
        self
    }

    /// How the shares of several workers are put together.
    #[must_use]
    pub fn cat_results(mut self, how: CatResults) -> Self {
        self.cat_results = how;
        self
    }

    /// Cuts the shares of slow workers short at their next step, once this fraction of the workers is ready: from 0, where
    /// each worker makes one step at least, to 1, where nobody is cut. Synchronous collectors only. Frames that were not
    /// collected do not count.
    #[must_use]
    pub fn preemptive_threshold(mut self, fraction: f64) -> Self {
        self.preemptive_threshold = Some(fraction);
        self
    }

    /// Delivers whole trajectories, so many in a batch, put together from as many batches of `frames_per_batch` frames as it
    /// takes. `total_frames` then counts the frames collected and need not divide; those of trajectories that were not
    /// delivered in the end, or that a reset, a seed, a loaded state or the loss of a worker has left without an end, are
    /// dropped and counted in [`Stats::dropped_frames`](crate::Stats::dropped_frames).
    ///
    /// An episode that never ends is never delivered, and its frames are kept meanwhile: see
    /// [`max_frames_per_traj`](Self::max_frames_per_traj).
    #[must_use]
    pub fn trajs_per_batch(mut self, trajectories: usize) -> Self {
        self.trajs_per_batch = Some(trajectories);
        self
    }

    /// How whole trajectories lie in a batch: padded with a mask, unless told. A [replay buffer](Self::replay_buffer) is given
    /// none of the padding.
    #[must_use]
    pub fn traj_format(mut self, format: TrajFormat) -> Self {
        self.traj_format = format;
        self
    }

    /// Writes every batch to `buffer` before it is delivered: a replay buffer, or anything else that is a [`Sink`]. With
    /// [`Collector::start`], nobody needs to ask for batches.
    ///
    /// Frames that are padding are not written: a batch with `("collector", "mask")` is written as `[frames]`. With
    /// [`trajs_per_batch`](Self::trajs_per_batch), of whatever number, only whole trajectories are written, one after the other
    /// as `[frames]`: all that the frames of one batch complete in one write, or in groups of
    /// [`trajs_per_write`](Self::trajs_per_write).
    ///
    /// The collector is attached to `buffer` while it is asked for a batch, or from its start to its end: who reads from the
    /// buffer can wait for its frames then.
    #[must_use]
    pub fn replay_buffer(mut self, buffer: impl Sink + 'static) -> Self {
        self.sink = Some(Box::new(buffer));
        self
    }

    /// Whole trajectories of one write to a [replay buffer](Self::replay_buffer), at most: readers see each write at once.
    /// Needs [`trajs_per_batch`](Self::trajs_per_batch).
    #[must_use]
    pub fn trajs_per_write(mut self, trajectories: usize) -> Self {
        self.trajs_per_write = Some(trajectories);
        self
    }

    /// Delivers each batch with a row for every piece of a trajectory in it, padded; see
    /// [`split_trajectories`](crate::postproc::split_trajectories). Pieces of one trajectory in two batches stay apart.
    #[must_use]
    pub fn split_trajs(mut self, split: bool) -> Self {
        self.split_trajs = split;
        self
    }

    /// What happens when an environment fails.
    #[must_use]
    pub fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.on_loss = on_loss;
        self
    }

    /// Which errors of environments and policies are no fault of theirs but end the call that waits for a batch, such as the
    /// answer to a signal. They are delivered whatever [`on_loss`](Self::on_loss) says. Where workers run in the thread that
    /// asks, as [`CollectError::Interrupted`]: the next call collects the part anew that was under way, with new episodes.
    #[must_use]
    pub fn interruptions(mut self, is_one: IsInterruption) -> Self {
        self.is_interruption = is_one;
        self
    }

    /// Where new weights come from when none are given: [`Collector::update_policy_weights_from_source`], and
    /// [`update_at_each_batch`](Self::update_at_each_batch).
    #[must_use]
    pub fn weight_source(mut self, source: impl FnMut() -> Weights + Send + 'static) -> Self {
        self.weight_source = Some(Box::new(source));
        self
    }

    /// Fetches weights from the [source](Self::weight_source) before each batch is asked for.
    #[must_use]
    pub fn update_at_each_batch(mut self, update: bool) -> Self {
        self.update_at_each_batch = update;
        self
    }

    /// How new weights reach the workers.
    #[must_use]
    pub fn weight_updater(mut self, updater: impl WeightUpdater + 'static) -> Self {
        self.updater = Box::new(updater);
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

    /// What is done to every batch before it is delivered. Several are applied in the order given.
    #[must_use]
    pub fn postproc<E>(
        mut self,
        mut postproc: impl FnMut(TensorDict) -> Result<TensorDict, E> + Send + 'static,
    ) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.hooks
            .postproc
            .push(Box::new(move |batch| postproc(batch).map_err(Into::into)));
        self
    }

    /// Makes the environments, all workers' at once, binds the policies and lays out the memory.
    ///
    /// # Errors
    /// [`CollectError`], naming the argument, what was expected and what came.
    pub fn build(self) -> Result<Collector, CollectError> {
        self.build_unless(|| false)
    }

    /// As [`build`](Self::build), but gives up once `given_up` says so, which is asked now and then while environments of
    /// several workers are being made. Each of these is dropped once it is there.
    ///
    /// # Errors
    /// As there; [`CollectError::BuildGivenUp`] then.
    pub fn build_unless(
        mut self,
        given_up: impl FnMut() -> bool,
    ) -> Result<Collector, CollectError> {
        let hooks = std::mem::take(&mut self.hooks);
        build(self, hooks, given_up)
    }

    /// As [`build_unless`](Self::build_unless), with a last stage of the caller's, in place of the hooks and the
    /// post-processing that the builder was given.
    ///
    /// # Errors
    /// As there.
    pub fn build_with<S: LastStage>(
        self,
        stage: S,
        given_up: impl FnMut() -> bool,
    ) -> Result<Collector<S>, CollectError> {
        build(self, stage, given_up)
    }
}

impl std::fmt::Debug for CollectorBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CollectorBuilder")
            .field("plan", &self.plan)
            .field("num_workers", &self.num_workers)
            .field("num_envs", &self.num_envs)
            .field("frames_per_batch", &self.frames_per_batch)
            .field("total_frames", &self.total_frames)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}
