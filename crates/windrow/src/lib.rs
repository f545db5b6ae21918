//! Reinforcement-learning data collection: a policy runs in many environments, batches of experience come back.
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
//! The crates behind it, in the order of the data flow:
//!
//! * [`env`](mod@env): environments, their specs, transforms, and native classic control that follows Gymnasium.
//! * [`policy`]: random actions, functions, and small networks that are evaluated without a framework.
//! * [`slab`]: the memory that workers fill.
//! * [`store`]: the memory of replay buffers, which many read while one writes.
//! * [`Collector`]: the rollout loop, and batches as [`TensorDict`]s.
//! * [`replay`]: buffers that keep batches and sample from them.
//! * `remote`, with the feature of that name: policies and weights that a server in another process or on another machine has.
//! * [`postproc`]: changes to a batch, such as [`Gae`].
//! * [`tensordict`]: named, nested tensors; saving and loading as safetensors.
#![forbid(unsafe_code)]

/// The programs of the README, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

pub use tensordict::{self, DType, Tensor, TensorDict, TensorError};
pub use windrow_collect::postproc::{self, Gae};
pub use windrow_collect::{
    AsyncBatchedCollector, AsyncCollector, BusyPolicy, CatResults, CollectError, Collector,
    CollectorBuilder, CollectorConfig, Delivery, ErrorKind, Evaluation, Evaluator,
    EvaluatorBuilder, FaultKind, FramesPerBatch, Handle, Hooks, Inference, Interrupt, Interrupted,
    LastStage, MultiAsyncCollector, MultiCollector, MultiSyncCollector, OnLoss, Paused, Phase,
    PhaseProfile, Placement, PolicyLag, ProfileConfig, ProfileSummary, Profiler, ProfilerRecipe,
    SentError, SinkWriter, Stats, TrajFormat, TrajectoryBatcher, WorkerError, WorkerFault,
    WorkerProfile, WorkerStats,
};
#[cfg(target_os = "linux")]
pub use windrow_collect::{
    MemberError, Nursery, Parallel, ParallelEnvs, ParallelHandle, WorkerMain, WorkerProgram,
    worker_main,
};
pub use windrow_env::{self as env, CartPole, Env, EnvError, EnvSpec, Spec, VecEnv};
pub use windrow_policy::{
    self as policy, ExplorationType, Head, InferenceServer, NetworkPolicy, Policy, PolicyError,
    PolicyRecipe, RandomPolicy, Registry, ServerConfig, ServerStats, Weights, nn, policy_fn,
};
#[cfg(all(feature = "remote", unix))]
pub use windrow_remote as remote;
pub use windrow_replay::{
    self as replay, LazyMemmapStorage, LazyTensorStorage, ListStorage, MaxRewardWriter,
    PrioritizedSampler, PrioritizedSliceSampler, RandomSampler, RateLimiter, ReplayBuffer,
    ReplayBufferBuilder, ReplayError, SamplerWithoutReplacement, SliceSampler,
    SliceSamplerWithoutReplacement,
};
pub use windrow_slab::{self as slab, Key, SlabError};
pub use windrow_store::{self as store};
