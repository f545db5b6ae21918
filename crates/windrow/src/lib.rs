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
//! The names used most stand here. The others, in the order of the data flow:
//!
//! * [`envs`]: environments, their specs, transforms, and native classic control that follows Gymnasium.
//! * [`policy`]: what a policy implements, random actions, served policies and weights; [`nn`]: small networks, evaluated without
//!   a framework.
//! * [`postproc`]: changes to a batch before it is delivered, such as [`Gae`](postproc::Gae).
//! * [`replay`]: buffers that keep batches and sample from them.
//! * `remote`, with the feature of that name: policies and weights that a server in another process or on another machine has.
//! * [`tensordict`]: named, nested tensors; saving and loading as safetensors.
//!
//! An environment and a policy read and write [`Row`]s and [`Rows`], whose entries a [`Key`] names.
#![forbid(unsafe_code)]

/// The programs of the README, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc(hidden)]
pub mod binding;

#[doc(inline)]
pub use ::tensordict::{DType, LeafSpec, Tensor, TensorDict, TensorError};
#[doc(inline)]
pub use windrow_collect::{
    AsyncBatchedCollector, AsyncCollector, BusyPolicy, CatResults, CollectError, Collector,
    CollectorBuilder, CollectorConfig, Delivery, ErrorKind, Evaluation, Evaluator,
    EvaluatorBuilder, FaultKind, FramesPerBatch, Handle, Hooks, Inference, Interrupt, Interrupted,
    MultiAsyncCollector, MultiCollector, MultiSyncCollector, OnLoss, Paused, Phase, PhaseProfile,
    Placement, PolicyLag, ProfileConfig, ProfileSummary, Profiler, Stats, TrajFormat,
    TrajectoryBatcher, WorkerError, WorkerFault, WorkerProfile, WorkerStats,
};
#[cfg(target_os = "linux")]
#[doc(inline)]
pub use windrow_collect::{
    MemberError, Parallel, ParallelEnvs, WorkerMain, WorkerProgram, worker_main,
};
#[doc(inline)]
pub use windrow_env::{CartPole, Env, EnvError, EnvSpec, Spec, VecEnv};
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

/// Environments, their specs, and transforms.
pub mod envs {
    #[doc(inline)]
    pub use windrow_env::{
        Acrobot, Arguments, CartPole, ChoiceCode, Env, EnvError, EnvFactory, EnvRecipe,
        EnvRegistry, EnvRng, EnvSpec, IntoEnv, IntoVecEnv, Joined, MountainCar,
        MountainCarContinuous, NumpyRng, Outcome, Outcomes, Pendulum, Reset, Serial, Spec,
        SpecError, TimeLimit, VecEnv, VecEnvError, make, make_vec, testing,
    };
    // A pool steps those of its environments whose actions are there.
    #[doc(inline)]
    pub use windrow_env::{Answer, AsyncEnvPool, Command, PoolError, PoolOutput, RecvOptions};
    // Transforms, and what one of your own implements.
    #[doc(inline)]
    pub use windrow_env::{
        ActionDiscretizer, ActionMask, AnyTransform, Attach, BinarizeReward, BoundTransform,
        CatFrames, CatTensors, CenterCrop, ClipTransform, DTypeCastTransform, DoneKey,
        DoubleToFloat, EndOfLifeTransform, ExcludeTransform, FiniteCheck, FlattenObservation,
        FrameSkipTransform, GrayScale, InitTracker, Interpolation, Keys, LimitFlag, Lockstep,
        NextObservationDelta, NoopResetEnv, NotFinite, ObservationNorm, Observations,
        OneHotActions, Padding, PermuteTransform, Primer, RenameTransform, Resize, RewardClipping,
        RewardScaling, RewardSum, Sampling, SelectTransform, SignTransform, SqueezeTransform,
        Statistics, StepCounter, TargetMode, TargetReturn, TimeMaxPool, ToTensorImage, Transform,
        Transformed, UnsqueezeTransform, VecNorm, VecNormV2,
    };
}

/// What a policy implements, and policies that are there.
pub mod policy {
    #[doc(inline)]
    pub use windrow_policy::{
        Backend, Binding, ExplorationType, FnPolicy, GraphPolicy, Head, InferenceServer,
        IntoPolicy, Misfit, NetworkPolicy, Noise, Policy, PolicyError, PolicyIn, PolicyRecipe,
        PolicyRegistry, PolicySpec, RandomPolicy, Registry, Scale, ScaleMapping, ServerConfig,
        ServerStats, States, Weights, WeightsError, policy_fn,
    };
    // How new weights reach the workers.
    #[doc(inline)]
    pub use windrow_policy::{Published, Pushed, VanillaWeightUpdater, WeightStore, WeightUpdater};
}

/// Postprocessing of batches before delivery.
pub mod postproc {
    #[doc(inline)]
    pub use windrow_collect::postproc::{Gae, MultiStep, split_trajectories};
}

/// Buffers that keep batches and sample from them.
pub mod replay {
    #[doc(inline)]
    pub use windrow_replay::{
        Access, Checkpoint, CheckpointWriter, Held, LazyMemmapStorage, LazyTensorStorage,
        LimiterWait, ListStorage, PriorityError, RateLimiter, Recovered, ReplayBuffer,
        ReplayBufferBuilder, ReplayError, ReplayStats, Shortage, StateError, Storage, StorageRead,
        check_room, frames_within,
    };
    // Samplers, and what one of your own implements.
    #[doc(inline)]
    pub use windrow_replay::{
        ConsumingSampler, Draw, Frames, NoDraw, PrioritizedSampler, PrioritizedSliceSampler,
        RandomSampler, Reduction, RowOrder, RowSet, RowSpan, Run, RunKeys, Runs, SampleRng,
        Sampler, SamplerWithoutReplacement, SliceSampler, SliceSamplerWithoutReplacement, Slices,
    };
    #[doc(inline)]
    pub use windrow_replay::{MaxRewardWriter, ReuseWriter, RoundRobinWriter, Writer};
    // What a collector writes to, which need not be a buffer of windrow.
    #[doc(inline)]
    pub use windrow_slab::{Sink, SinkError, WriterId};
    #[doc(inline)]
    pub use windrow_store::StoreError;
}

/// Named, nested tensors.
pub mod tensordict {
    #[doc(inline)]
    pub use ::tensordict::{
        AsKey, DType, Element, Entry, Group, HeapBuffer, LeafSpec, NestedKey, Owner, Packing,
        Shape, Strides, Tensor, TensorDict, TensorError, row_major,
    };
}

/// Policies and weights that a server in another process, or on another machine, has.
#[cfg(all(feature = "remote", unix))]
pub mod remote {
    #[doc(inline)]
    pub use windrow_remote::{
        Address, Limits, Remote, RemoteError, RemotePolicy, RemoteServer, RemoteServerBuilder,
        RemoteStats, RemoteWeights, Tls, Token, register,
    };
}
