//! Reinforcement-learning data collection: a policy runs in many environments, batches of
//! experience come back.
//!
//! ```
//! use windrow::Collector;
//!
//! let mut collector = Collector::builder("Pendulum-v1")
//!     .frames_per_batch(200)
//!     .total_frames(1000)
//!     .build()?;
//! for batch in &mut collector {
//!     let batch = batch?;
//!     let rewards = batch.as_slice::<f32>(("next", "reward"))?;
//!     assert_eq!(rewards.len(), 200);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Workers in threads collect side by side, and take up newer weights of a policy; an evaluator
//! plays whole episodes with them:
//!
//! ```
//! use windrow::{Evaluator, Head, MultiSyncCollector, NetworkPolicy, Policy, nn::Sequential};
//!
//! let net = Sequential::new().linear(4, 16).tanh().linear(16, 2);
//! let policy = NetworkPolicy::new(net, Head::Categorical);
//! let mut collector = MultiSyncCollector::builder("CartPole-v1")
//!     .policy(policy.clone())
//!     .num_workers(2)
//!     .frames_per_batch(100)
//!     .build()?;
//! let evaluator = Evaluator::builder("CartPole-v1").policy(policy).num_trajectories(3).build()?;
//! for version in 1..3 {
//!     let batch = collector.next().ok_or("no batch")??;
//!     assert_eq!(batch.numel(), 100);
//!     let weights = collector.policy_weights(); // or learn
//!     assert_eq!(collector.update_policy_weights(&weights)?, version);
//!     assert_eq!(evaluator.evaluate(Some(&weights), None)?.num_episodes, 3);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The names used most stand here. The others, in the order of the data flow:
//!
//! * [`envs`]: environments, their specs, transforms, and native classic control and toy texts that
//!   follow Gymnasium.
//! * [`policy`]: what a policy implements, random actions, served policies and weights; [`nn`]:
//!   small networks, evaluated without a framework.
//! * [`postproc`]: changes to a batch before it is delivered, such as [`Gae`](postproc::Gae).
//! * [`replay`]: buffers that keep batches and sample from them; shuffled
//!   [`Minibatches`](replay::Minibatches) of a batch.
//! * `remote`, with the feature of that name: policies and weights that a server in another process
//!   or on another machine has.
//! * [`tensordict`]: named, nested tensors; saving and loading as safetensors.
//!
//! # Errors
//!
//! Each operation has an error of its own: [`BuildError`] of builders, [`NextError`] of batches,
//! [`ControlError`] of weights, pauses, states and the end, [`EvaluateError`] of evaluations. A
//! function with several operations returns `Box<dyn std::error::Error>`, or the error of a crate
//! such as `anyhow`. No error repeats its source: they print both, and so does [`error_chain`].
//!
//! ```
//! use windrow::{BuildError, Collector, ErrorKind, error_chain};
//!
//! let error = Collector::builder("CartPol-v1").frames_per_batch(100).build().unwrap_err();
//! assert!(matches!(error, BuildError::Env { worker: 0, .. }));
//! assert_eq!(error.kind(), ErrorKind::Argument);
//! assert!(error_chain(&error).contains("did you mean CartPole-v1?"));
//! ```
//!
//! # Waiting
//!
//! The iterator waits for the next batch. [`Collector::try_next`] does not, and
//! [`Collector::into_stream`] wakes a task or a thread that waits for several things.
//! [`CollectorBuilder::interrupt`] ends a wait, such as after Ctrl-C.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicBool, Ordering};
//!
//! use windrow::{AsyncCollector, Interrupt, NextError};
//!
//! let stop = Arc::new(AtomicBool::new(false));
//! let asked = Arc::clone(&stop);
//! let mut collector = AsyncCollector::builder("CartPole-v1")
//!     .frames_per_batch(10_000_000)
//!     .interrupt(Interrupt::when(move || asked.load(Ordering::Relaxed)))
//!     .build()?;
//! stop.store(true, Ordering::Relaxed);
//! assert!(matches!(collector.next(), Some(Err(NextError::WaitInterrupted(_)))));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Events
//!
//! A subscriber of `tracing` gets events with the target `windrow_collect`: of each worker that was
//! lost, that starts over, or that others go on without; of weights that were refused; and of
//! writes to a replay buffer that took a second or more. Without a subscriber they cost nothing.
//!
//! # Rows
//!
//! An environment and a policy read and write [`Row`]s and [`Rows`], whose entries a [`Key`] names.
#![forbid(unsafe_code)]

/// The programs of the README and of the site's pages, which must compile.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/batches.md")]
    struct Batches;
    #[doc = include_str!("../../../docs/checkpoints.md")]
    struct Checkpoints;
    #[doc = include_str!("../../../docs/choosing.md")]
    struct Choosing;
    #[doc = include_str!("../../../docs/environments.md")]
    struct Environments;
    #[doc = include_str!("../../../docs/evaluation.md")]
    struct Evaluation;
    #[doc = include_str!("../../../docs/index.md")]
    struct Index;
    #[doc = include_str!("../../../docs/policies.md")]
    struct Policies;
    #[doc = include_str!("../../../docs/processes.md")]
    struct Processes;
    #[doc = include_str!("../../../docs/replay.md")]
    struct Replay;
    #[doc = include_str!("../../../docs/start-rust.md")]
    struct StartRust;
    #[doc = include_str!("../../../docs/weights.md")]
    struct Weights;
}

#[doc(hidden)]
pub mod binding;

#[doc(inline)]
pub use ::tensordict::{DType, LeafSpec, Tensor, TensorDict, TensorError};
#[doc(inline)]
pub use windrow_collect::{
    ArgumentError, BuildError, ControlError, ErrorKind, EvaluateError, FaultKind, Interrupted,
    NextError, ProfileError, ResumeError, SentError, Stuck, WorkerError, WorkerFault,
};
#[doc(inline)]
pub use windrow_collect::{
    AsyncBatchedCollector, AsyncCollector, BatchStream, BusyPolicy, CatResults, Collector,
    CollectorBuilder, CollectorConfig, Delivery, Evaluation, Evaluator, EvaluatorBuilder,
    FramesPerBatch, Handle, Hooks, Inference, Interrupt, LastStage, MultiAsyncCollector,
    MultiCollector, MultiSyncCollector, OnLoss, Paused, Phase, PhaseProfile, Placement, PolicyLag,
    ProfileConfig, ProfileSummary, Profiler, ProfilerRecipe, SinkWriter, Stats, TrajFormat,
    TrajectoryBatcher, WorkerProfile, WorkerStats,
};
#[cfg(all(target_os = "linux", feature = "remote"))]
#[doc(inline)]
pub use windrow_collect::{CommandLauncher, Invitation, Launched, Launcher};
#[cfg(target_os = "linux")]
#[doc(inline)]
pub use windrow_collect::{
    MemberError, Nursery, Parallel, ParallelEnvs, ParallelHandle, ProcessError, WorkerMain,
    WorkerMainError, WorkerProgram, worker_main,
};
#[doc(inline)]
#[cfg(feature = "gym")]
pub use windrow_env::CartPole;
pub use windrow_env::{Env, EnvError, EnvSpec, Spec, VecEnv};
#[doc(inline)]
pub use windrow_policy::{
    ExplorationType, Head, InferenceServer, NetworkPolicy, Policy, PolicyError, PolicyRecipe,
    RandomPolicy, Registry, ServerConfig, ServerStats, Weights, nn, policy_fn,
};
#[doc(inline)]
pub use windrow_replay::{
    LazyMemmapStorage, LazyTensorStorage, ListStorage, MaxRewardWriter, PrioritizedSampler,
    PrioritizedSliceSampler, RandomSampler, RateLimiter, ReplayBuffer, ReplayBufferBuilder,
    ReplayError, SamplerWithoutReplacement, SliceSampler, SliceSamplerWithoutReplacement,
};
#[doc(inline)]
pub use windrow_slab::{Key, Row, RowBlock, RowMut, Rows, RowsMut, SlabError};
#[doc(inline)]
pub use windrow_sync::error_chain;

/// Environments, their specs, and transforms.
///
/// An environment of your own implements [`Env`], or [`VecEnv`] for many at once:
///
/// ```
/// use windrow::envs::testing::check_env;
/// use windrow::envs::{Env, EnvError, EnvRng, EnvSpec, Outcome, Spec, TimeLimit};
/// use windrow::{Collector, Key, Row, RowMut};
///
/// /// A walk on a line that ends five steps away from its start.
/// struct Walk {
///     spec: EnvSpec,
///     rng: EnvRng,
///     place: Option<f32>,
/// }
///
/// const PLACE: Key<f32> = Key::new(0);
/// const MOVE: Key<i64> = Key::new(0);
///
/// impl Walk {
///     fn new() -> Result<Self, EnvError> {
///         let spec = EnvSpec::new("Walk", Spec::bounded(&[-7.0], &[7.0])?, Spec::discrete(2));
///         Ok(Self { spec, rng: EnvRng::new(), place: None })
///     }
/// }
///
/// impl Env for Walk {
///     fn spec(&self) -> &EnvSpec {
///         &self.spec
///     }
///
///     fn reset(&mut self, seed: Option<u64>, mut obs: RowMut<'_>) -> Result<(), EnvError> {
///         let place = self.rng.for_reset(seed).uniform(-1.0, 1.0) as f32;
///         self.place = Some(place);
///         Ok(obs.write(PLACE, &[place])?)
///     }
///
///     fn step(&mut self, action: Row<'_>, mut obs: RowMut<'_>) -> Result<Outcome, EnvError> {
///         let place = self.place.as_mut().ok_or(EnvError::NotReset)?;
///         *place += if action.scalar(MOVE)? == 1 { 1.0 } else { -1.0 };
///         obs.write(PLACE, &[*place])?;
///         Ok(Outcome { reward: -1.0, terminated: place.abs() >= 5.0, truncated: false })
///     }
/// }
///
/// let walk = || TimeLimit::new(Walk::new()?, 100);
/// check_env(&mut walk()?, 42)?;
/// let mut collector = Collector::builder(walk).frames_per_batch(50).total_frames(100).build()?;
/// assert_eq!(collector.by_ref().filter(Result::is_ok).count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Transforms go around environments, in a recipe that can be written down or by hand:
///
/// ```
/// use windrow::envs::{CartPole, EnvRecipe, RewardSum, Serial, StepCounter, Transformed, VecEnv};
/// use windrow::Collector;
///
/// let recipe = EnvRecipe::of("CartPole-v1").with_transform(StepCounter::new()).with_transform(RewardSum::new());
/// let mut collector = Collector::builder(recipe).frames_per_batch(50).total_frames(50).build()?;
/// let batch = collector.next().ok_or("no batch")??;
/// assert!(batch.get(("next", "episode_reward")).is_ok());
///
/// let envs = Transformed::new(Serial::from_fn(8, CartPole::v1)?, &StepCounter::new().with_max_steps(200))?;
/// assert_eq!(envs.spec().max_episode_steps, Some(200));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A pool steps environments in threads, and hands over those that are ready:
///
/// ```
/// use windrow::Key;
/// use windrow::envs::{AsyncEnvPool, RecvOptions, Reset};
///
/// let pool = AsyncEnvPool::of(&["CartPole-v1"; 4], 2)?;
/// pool.async_reset_send(&[0, 1, 2, 3].map(|env| Reset { env, seed: Some(env as u64) }))?;
/// drop(pool.async_reset_recv(RecvOptions::at_least(4))?);
/// pool.async_step_and_maybe_reset_send_with(&[0, 1, 2, 3], |_, mut actions| {
///     Ok(actions.get_mut(Key::<i64>::new(0))?.fill(1))
/// })?;
/// for answer in pool.async_step_and_maybe_reset_recv(RecvOptions::at_least(2))?.iter() {
///     assert_eq!(answer.reward(), [1.0]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// On Linux, `Parallel` runs each environment in a process of its own, for steps that take long:
///
/// ```no_run
/// # #[cfg(target_os = "linux")]
/// use windrow::{Collector, Parallel, worker_main};
///
/// # #[cfg(target_os = "linux")]
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     worker_main(|_registry| Ok(()))?;
///     let envs = Parallel::new(4, "CartPole-v1")?;
///     let mut collector = Collector::builder(envs).frames_per_batch(400).build()?;
///     assert_eq!(collector.next().ok_or("no batch")??.numel(), 400);
///     Ok(())
/// }
/// # #[cfg(not(target_os = "linux"))]
/// # fn main() {}
/// ```
pub mod envs {
    #[doc(inline)]
    pub use windrow_env::{
        Arguments, ByName, ChoiceCode, EXACT_REWARD, Env, EnvError, EnvFactory, EnvRecipe,
        EnvRegistry, EnvRng, EnvSpec, IntoEnv, IntoVecEnv, Joined, Maker, NamedEnv, NextStep,
        NumpyRng, Outcome, Outcomes, Reset, Serial, Spec, SpecError, StateVisitor, TimeLimit,
        VecEnv, VecEnvError, largest, make, make_vec, not_apart, sole, testing,
    };
    // Gymnasium's classic control and toy texts.
    #[cfg(feature = "gym")]
    #[doc(inline)]
    pub use windrow_env::{
        Acrobot, Blackjack, CartPole, CliffWalking, FrozenLake, MountainCar, MountainCarContinuous,
        Pendulum, Taxi,
    };
    // Tasks over models of MuJoCo.
    #[cfg(feature = "mujoco")]
    #[doc(inline)]
    pub use windrow_env::{
        Field, MUJOCO_IDS, MujocoEnv, MujocoEnvs, MujocoModel, MujocoTask, Setting, Settings,
        Simulation, mujoco_arguments, mujoco_version,
    };
    // A pool steps those of its environments whose actions are there.
    #[doc(inline)]
    pub use windrow_env::{Answer, AsyncEnvPool, Command, PoolError, PoolOutput, RecvOptions};
    // Transforms, and what one of your own implements.
    #[doc(inline)]
    pub use windrow_env::all_transforms::*;
    #[doc(inline)]
    pub use windrow_env::{
        AnyTransform, Attach, BoundTransform, DoneKey, Gathered, Gathering, Gathers, Interpolation,
        Keys, Lockstep, NotFinite, Observations, Padding, Sampling, Statistics, TargetMode,
        Transform, Transformed,
    };
}

/// What a policy implements, and policies that are there.
///
/// ```
/// use windrow::policy::{Binding, Policy, PolicyError, PolicyIn, PolicySpec, Weights, policy_fn};
/// use windrow::{Collector, DType, Head, Key, LeafSpec, NetworkPolicy, RowsMut, nn::Sequential};
///
/// /// Chooses action 1 always.
/// #[derive(Clone)]
/// struct Right;
///
/// const ACTION: Key<i64> = Key::new(0);
///
/// impl Policy for Right {
///     fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
///         Ok(PolicySpec::new(binding.spec.action_leaves()))
///     }
///
///     fn act(&mut self, _: &PolicyIn<'_>, mut out: RowsMut<'_>) -> Result<(), PolicyError> {
///         out.get_mut(ACTION)?.fill(1);
///         Ok(())
///     }
///
///     fn load(&mut self, _: &Weights) -> Result<(), PolicyError> {
///         Ok(())
///     }
/// }
///
/// // The same as a function, and a network that is evaluated here.
/// let left = policy_fn([LeafSpec::new("action", DType::I64, [])], |_, mut out| {
///     out.get_mut(ACTION)?.fill(0);
///     Ok(())
/// });
/// let net = Sequential::new().linear(4, 64).tanh().linear(64, 2);
/// let net = NetworkPolicy::new(net, Head::Categorical);
///
/// let cartpole = || Collector::builder("CartPole-v1").frames_per_batch(50).total_frames(50);
/// for collector in [cartpole().policy(Right), cartpole().policy(left), cartpole().policy(net)] {
///     assert_eq!(collector.build()?.filter(Result::is_ok).count(), 1);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An [`InferenceServer`] evaluates one policy for many threads; a collector starts one of its own:
///
/// ```
/// use windrow::nn::Sequential;
/// use windrow::policy::{InferenceServer, PolicyRecipe, ServerConfig, WeightStore};
/// use windrow::{AsyncBatchedCollector, Head, NetworkPolicy, Policy};
///
/// let net = Sequential::new().linear(4, 64).tanh().linear(64, 2);
/// let policy = NetworkPolicy::new(net, Head::Categorical);
/// let mut collector = AsyncBatchedCollector::builder("CartPole-v1")
///     .policy(policy.clone())
///     .num_workers(2)
///     .frames_per_batch(50)
///     .total_frames(100)
///     .build()?;
/// assert_eq!(collector.by_ref().filter(Result::is_ok).count(), 2);
/// assert!(collector.server_stats().is_some_and(|stats| stats.rows >= 100));
///
/// let weights = policy.weights();
/// let recipe = PolicyRecipe::of(policy);
/// let server = InferenceServer::start(&recipe, WeightStore::new(1).into(), ServerConfig::new())?;
/// assert_eq!(server.update_policy_weights(&weights)?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod policy {
    #[doc(inline)]
    pub use windrow_policy::{
        Backend, Binding, EnvRows, ExplorationType, Explore, FnPolicy, GraphPolicy, Head,
        InferenceServer, IntoPolicy, KnownRows, Misfit, NamedPolicy, NetworkPolicy, Noise,
        OrnsteinUhlenbeck, Policy, PolicyError, PolicyIn, PolicyRecipe, PolicyRegistry, PolicySpec,
        RandomPolicy, Registry, Scale, ScaleMapping, Schedule, Served, ServerConfig, ServerStats,
        States, Weights, WeightsError, policy_fn,
    };
    // How new weights reach the workers.
    #[doc(inline)]
    pub use windrow_policy::{Published, Pushed, VanillaWeightUpdater, WeightStore, WeightUpdater};
}

/// Postprocessing of batches before delivery.
///
/// ```
/// use windrow::Collector;
/// use windrow::postproc::MultiStep;
///
/// let returns = MultiStep::new(0.99, 3)?;
/// let mut collector = Collector::builder("CartPole-v1")
///     .frames_per_batch(50)
///     .total_frames(50)
///     .postproc(move |mut batch| returns.apply(&mut batch).map(|()| batch))
///     .build()?;
/// assert!(collector.next().is_some_and(|batch| batch.is_ok()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Advantages, and one row for each trajectory:
///
/// ```
/// use windrow::postproc::{Gae, split_trajectories};
/// use windrow::{Collector, DType, Tensor};
///
/// let gae = Gae::new(0.99, 0.95)?;
/// let mut collector = Collector::builder("CartPole-v1")
///     .frames_per_batch(60)
///     .max_frames_per_traj(5)
///     .build()?;
/// let mut batch = collector.next().ok_or("no batch")??;
/// // Where a value network would be asked:
/// batch.set("state_value", Tensor::zeros(DType::F32, [60, 1])?)?;
/// batch.set(("next", "state_value"), Tensor::zeros(DType::F32, [60, 1])?)?;
/// gae.estimate(&mut batch)?;
/// assert_eq!(split_trajectories(&batch)?.get("advantage")?.shape(), &[12, 5, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod postproc {
    #[doc(inline)]
    pub use windrow_collect::postproc::{Gae, MultiStep, split_trajectories};
}

/// Buffers that keep batches and sample from them.
///
/// ```
/// use windrow::replay::{LazyTensorStorage, PrioritizedSampler, ReplayBuffer};
/// use windrow::Collector;
///
/// let buffer = ReplayBuffer::builder()
///     .storage(LazyTensorStorage::new(10_000))
///     .sampler(PrioritizedSampler::new(0.6, 0.4))
///     .batch_size(32)
///     .build()?;
/// let collector = Collector::builder("CartPole-v1")
///     .frames_per_batch(100)
///     .total_frames(300)
///     .replay_buffer(buffer.clone())
///     .build()?;
/// for written in collector {
///     written?;
///     assert_eq!(buffer.sample(None)?.batch_size(), &[32]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Storages, samplers, writers and limiters can be combined:
///
/// ```
/// use windrow::replay::{
///     LazyMemmapStorage, ListStorage, MaxRewardWriter, RateLimiter, ReplayBuffer, SamplerWithoutReplacement, SliceSampler,
/// };
/// use windrow::{Collector, Tensor, TensorDict};
///
/// let slices = ReplayBuffer::builder()
///     .storage(LazyMemmapStorage::new(1_000))
///     .sampler(SliceSampler::slice_len(5))
///     .limiter(RateLimiter::min_size(50))
///     .build()?;
/// let mut collector = Collector::builder("CartPole-v1")
///     .frames_per_batch(100)
///     .replay_buffer(slices.clone())
///     .build()?;
/// collector.next().ok_or("no batch")??;
/// assert_eq!(slices.sample(20)?.batch_size(), &[20]);
///
/// let best = ReplayBuffer::builder()
///     .storage(ListStorage::new(2))
///     .sampler(SamplerWithoutReplacement::new())
///     .writer(MaxRewardWriter::new("score"))
///     .build()?;
/// let mut frames = TensorDict::new([4]);
/// frames.set("score", Tensor::from_vec(vec![3.0f32, 1.0, 4.0, 2.0], [4])?)?;
/// best.extend(&frames)?;
/// let mut drawn = best.sample(2)?.get("score")?.to_vec::<f32>()?;
/// drawn.sort_by(f32::total_cmp);
/// assert_eq!(drawn, [3.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod replay {
    #[doc(inline)]
    pub use windrow_replay::{
        Access, Boundary, Checkpoint, CheckpointWriter, Held, KeptRuns, LazyMemmapStorage,
        LazyTensorStorage, LimiterWait, ListStorage, PriorityError, RateLimiter, Recovered,
        ReplayBuffer, ReplayBufferBuilder, ReplayError, ReplayStats, RunMarks, Shortage,
        StateError, Storage, StorageRead, Waited, check_room, frames_within,
    };
    // Samplers, and what one of your own implements.
    #[doc(inline)]
    pub use windrow_replay::samplers::*;
    #[doc(inline)]
    pub use windrow_replay::{
        CloneSampler, Draw, Frames, Minibatches, NoDraw, Passes, Priorities, Reduction, RowOrder,
        RowSet, RowSpan, Run, RunKeys, Runs, SampleRng, Sampler, Slices,
    };
    #[doc(inline)]
    pub use windrow_replay::{CloneWriter, MaxRewardWriter, ReuseWriter, RoundRobinWriter, Writer};
    // What a collector writes to, which need not be a buffer of windrow.
    #[doc(inline)]
    pub use windrow_slab::{Sink, SinkError, WriterId};
    #[doc(inline)]
    pub use windrow_store::{Store, StoreError, StoreRead};
}

/// Named, nested tensors.
///
/// ```
/// use windrow::tensordict::{DType, Tensor, TensorDict};
///
/// let mut batch = TensorDict::new([2]);
/// batch.set("observation", Tensor::from_vec(vec![0.0f32, 1.0, 2.0, 3.0], [2, 2])?)?;
/// batch.set(("next", "reward"), Tensor::zeros(DType::F32, [2])?)?;
/// assert_eq!(TensorDict::from_bytes(&batch.to_bytes()?)?.as_slice::<f32>("observation")?[3], 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod tensordict {
    #[doc(inline)]
    pub use ::tensordict::{
        AsKey, Cell, DType, Element, Encoding, Entry, Extent, Group, HeapBuffer, Iter, LeafSpec,
        NestedKey, Owner, Shape, Strides, Tensor, TensorDict, TensorError, row_major,
    };
}

/// Policies and weights that a server in another process, or on another machine, has.
///
/// ```
/// use windrow::remote::{Remote, RemoteServer};
/// use windrow::{Collector, Head, NetworkPolicy, PolicyRecipe, nn::Sequential};
///
/// let net = Sequential::new().linear(4, 64).tanh().linear(64, 2);
/// let server = RemoteServer::builder(PolicyRecipe::of(NetworkPolicy::new(net, Head::Categorical))).start()?;
/// let remote = Remote::new(server.address().clone());
/// let collector = Collector::builder("CartPole-v1").policy(remote.policy()?);
/// let mut collector = collector.frames_per_batch(50).total_frames(50).build()?;
/// assert!(collector.next().is_some_and(|batch| batch.is_ok()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(all(feature = "remote", unix))]
pub mod remote {
    #[doc(inline)]
    pub use windrow_remote::{
        Address, AddressError, Limits, Remote, RemoteError, RemotePolicy, RemoteServer,
        RemoteServerBuilder, RemoteStats, RemoteWeights, Tls, Token, register,
    };
}
