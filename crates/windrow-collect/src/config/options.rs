//! The plain options of a collector: each is declared once, for the configuration and for the
//! builder.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windrow_policy::ExplorationType;

use crate::config::builder::CollectorBuilder;
use crate::config::plan::{
    CatResults, Delivery, FramesPerBatch, Inference, OnLoss, Placement, Plan,
};
use crate::config::seconds;
use crate::trajectories::TrajFormat;

/// Declares options: a field of [`CollectorConfig`] with its default, and the setter of
/// [`CollectorBuilder`] of the same name. `name: Type = default` has a default; `name?: Type` is an
/// `Option` that is `None` unless it is set, `name?: Type as "module"` one that the module writes
/// down, and `name => Type` one that is set by anything that converts into a `Type`.
macro_rules! options {
    ($(
        $(#[$doc:meta])*
        $name:ident $(?: $optional:ident $(as $written:tt)?)? $(=> $into:ty)? $(: $type:ty = $default:expr)?,
    )*) => {
        /// What a collector does, as far as it can be written down: all options of a
        /// [`CollectorBuilder`] but environments, policies and functions.
        ///
        /// ```
        /// use windrow_collect::{Collector, CollectorConfig};
        ///
        /// let config: CollectorConfig = serde_json::from_str(r#"{"frames_per_batch": 100, "total_frames": 300}"#)?;
        /// let mut collector = Collector::builder("CartPole-v1").config(config).build()?;
        /// assert_eq!(collector.by_ref().count(), 3);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        #[non_exhaustive]
        pub struct CollectorConfig {
            $(
                $(#[$doc])*
                $($(#[serde(with = $written)])?)?
                pub $name: $(Option<$optional>)? $(Option<$into>)? $($type)?,
            )*
        }

        impl Default for CollectorConfig {
            fn default() -> Self {
                Self {
                    $($name: options!(@default $($default)?),)*
                }
            }
        }

        impl CollectorBuilder {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(mut self, $name: $($optional)? $(impl Into<$into>)? $($type)?) -> Self {
                    self.config.$name = options!(@value $name $(as $optional)? $(into $into)?);
                    self
                }
            )*
        }
    };
    (@default) => { None };
    (@default $default:expr) => { $default };
    (@value $name:ident) => { $name };
    (@value $name:ident as $optional:ty) => { Some($name) };
    (@value $name:ident into $into:ty) => { Some($name.into()) };
}

options! {
    /// Where workers run, in place of what the collector's name says. Workers that run inline never
    /// run ahead.
    placement?: Placement,

    /// How parts make batches, in place of what the collector's name says.
    delivery?: Delivery,

    /// Where the policy is evaluated; by default, where the collector's name says. A server needs
    /// workers in threads, and a policy without a state.
    inference?: Inference,

    /// Most rows that a server evaluates at once; by default all environments.
    max_batch_size?: usize,

    /// Rows that a server waits for, 1 by default.
    min_batch_size?: usize,

    /// The longest that a request waits for others at a server; 10 ms by default. Written down as a
    /// number of seconds.
    server_timeout?: Duration as "seconds",

    /// Workers; each has environments and a policy of its own. 1 by default.
    num_workers?: usize,

    /// Environments of each worker, which step together; batches then have a dimension for them.
    /// Without it, a single environment gives batches without that dimension, and a batched one
    /// keeps its own number.
    num_envs?: usize,

    /// Lets each environment gather running statistics for itself within a part, and merges them in
    /// the order of environments, as several workers do in any case. Collectors that may have
    /// several workers do so with one too, so that the data of synchronous batches do not depend on
    /// the number of workers; in others, all environments change the statistics at each step.
    merge_statistics: bool = false,

    /// Frames in one delivered batch: a number over all environments, shared out evenly, or a list
    /// with the frames of each worker. Where a batch is one worker's, all entries are equal.
    /// Required.
    frames_per_batch => FramesPerBatch,

    /// Frames to deliver in all; without it the collector is endless. A multiple of
    /// `frames_per_batch`, unless a [short last batch](Self::allow_partial_batch) is allowed.
    total_frames?: u64,

    /// Whether batches may have fewer frames than `frames_per_batch`. With `true`, the last one has
    /// what is left of `total_frames`. With `false`, workers that [go on](OnLoss::Continue) without
    /// a lost one fill its share too, in turn, beside their own; a
    /// [`preemptive_threshold`](Self::preemptive_threshold) below 1 is refused then. By default,
    /// batches after a loss lack that share, and `total_frames` has to be a multiple of
    /// `frames_per_batch`.
    allow_partial_batch?: bool,

    /// Rounds `frames_per_batch` up to a multiple of the environments that step together, instead
    /// of refusing it. The collector still delivers exactly `total_frames`, a multiple of the
    /// `frames_per_batch` that was given: the last batch is shorter by as much as the others are
    /// longer.
    round_up: bool = false,

    /// Truncates episodes after this many steps. Adds the column `"step_count"`.
    max_frames_per_traj?: usize,

    /// Frames at the start with random actions, rounded up to whole batches.
    init_random_frames: u64 = 0,

    /// Whether actions are sampled (the default) or the policy's best guess.
    exploration_type: ExplorationType = ExplorationType::Random,

    /// Seed of everything random: environment `i` is reset with `seed + i`, actions are keyed by
    /// seed, environment and frame. Without it, the collector draws one, see
    /// [`Stats::seed`](crate::Stats::seed), and does not seed environments that [keep their
    /// own](windrow_env::EnvSpec::keeps_seed).
    seed?: u64,

    /// Key of the noise of actions where no [`seed`](Self::seed) is given and environments keep
    /// their own. Drawn by default.
    noise_seed?: u64,

    /// Begins every batch with new episodes. [Whole trajectories](Self::trajs_per_batch) that this
    /// cuts end there: their last frame is marked as by [`set_truncated`](Self::set_truncated).
    reset_at_each_iter: bool = false,

    /// Marks the last step of every batch as truncated (`done`, not `terminated`). The episode
    /// itself goes on.
    set_truncated: bool = false,

    /// Whether frames carry `("collector", "traj_ids")`; they do by default.
    track_traj_ids: bool = true,

    /// Whether frames carry `"policy_version"`, the version of the weights that acted, at the root
    /// and, in the same memory, under `"next"`; they do not by default.
    track_policy_version: bool = false,

    /// Delivers every batch in the same memory. Drop each batch before asking for the next, which
    /// otherwise fails with [`SlabError::Exhausted`](windrow_slab::SlabError::Exhausted): a batch
    /// never changes while it is held.
    return_same_td: bool = false,

    /// Most slabs that the collector allocates when batches are kept, 64 by default. Keeping one
    /// more batch is an error.
    max_slabs: usize = 64,

    /// How the shares of several workers are put together.
    cat_results: CatResults = CatResults::Flat,

    /// Cuts the shares of slow workers short at their next step, once this fraction of the workers
    /// is ready: from 0, where each worker makes at least one step, to 1, which cuts no share.
    /// Needs a synchronous collector. Missing frames are not counted.
    preemptive_threshold?: f64,

    /// How old the weights of a batch may be: how many batches may have been delivered, with new
    /// weights published between them, since a worker began a part of it; any number by default.
    /// Nothing is discarded: workers begin no part that could not be delivered in time, a batch
    /// waits for the part that would be too old in the next one, and weights that another thread
    /// publishes while a batch is awaited wait for parts that would be too old after it. With 0,
    /// all parts begin after the batch was asked for. See
    /// [`Stats::policy_age`](crate::Stats::policy_age).
    ///
    /// Where [`trajs_per_batch`](Self::trajs_per_batch) puts trajectories together, parts are
    /// delivered in time, and a trajectory is as old as its first part.
    max_lag?: usize,

    /// What happens when an environment fails.
    on_loss: OnLoss = OnLoss::Raise,

    /// The time after which a worker in a process is taken for frozen and killed, if neither its
    /// environments nor its policy have returned from a call meanwhile: a loss as any other, whose
    /// error says what the worker was doing and what the system showed of it: running, asleep in
    /// which system call, stopped. A process under a debugger is left alone. Needs workers in
    /// [processes](Placement::Processes). Written down as a number of seconds.
    step_timeout?: Duration as "seconds",

    /// Delivers whole trajectories, this many in a batch, put together from as many batches of
    /// `frames_per_batch` frames as needed. `total_frames` then counts collected frames and need
    /// not be a multiple. Frames of trajectories that a reset, a seed, a loaded state or the loss
    /// of a worker has left without an end, or that were not delivered in the end, are dropped and
    /// counted in [`Stats::dropped_frames`](crate::Stats::dropped_frames).
    ///
    /// An episode that never ends is never delivered, and its frames stay in memory: see
    /// [`max_frames_per_traj`](Self::max_frames_per_traj).
    trajs_per_batch?: usize,

    /// How whole trajectories lie in a batch; by default padded, with a mask. A [replay
    /// buffer](CollectorBuilder::replay_buffer) gets no padding. Needs
    /// [`trajs_per_batch`](Self::trajs_per_batch).
    traj_format?: TrajFormat,

    /// Most trajectories in one write to a [replay buffer](CollectorBuilder::replay_buffer), whose
    /// readers see each write at once. Needs [`trajs_per_batch`](Self::trajs_per_batch).
    trajs_per_write?: usize,

    /// Delivers each batch with a row for every piece of a trajectory in it, padded; see
    /// [`split_trajectories`](crate::postproc::split_trajectories). Pieces of one trajectory in two
    /// batches stay apart.
    split_trajs: bool = false,

    /// Fetches weights from the [source](CollectorBuilder::weight_source) before each batch is
    /// asked for.
    update_at_each_batch: bool = false,
}

impl CollectorConfig {
    /// These options; what they leave to the name of a collector is as in `others`.
    pub(crate) fn or_named(self, others: &Self) -> Self {
        Self {
            placement: self.placement.or(others.placement),
            delivery: self.delivery.or(others.delivery),
            inference: self.inference.or(others.inference),
            merge_statistics: self.merge_statistics || others.merge_statistics,
            ..self
        }
    }

    /// Placement, delivery and inference, with the defaults of [`Collector`](crate::Collector) for
    /// those that are not set.
    pub(crate) fn plan(&self) -> Plan {
        Plan {
            placement: self.placement.unwrap_or(Placement::Inline),
            delivery: self.delivery.unwrap_or(Delivery::Synchronous),
            inference: self.inference.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_was_written_down_is_read_as_it_was() {
        let config = CollectorConfig {
            placement: Some(Placement::Threads),
            delivery: Some(Delivery::FirstCome {
                workers_per_batch: 2,
            }),
            frames_per_batch: Some(FramesPerBatch::Each(vec![3, 1])),
            preemptive_threshold: Some(0.5),
            step_timeout: Some(Duration::from_millis(1500)),
            on_loss: OnLoss::Restart { budget: 3 },
            ..CollectorConfig::default()
        };
        let text = serde_json::to_string(&config).unwrap();
        assert!(text.contains(r#""step_timeout":1.5"#), "{text}");
        assert_eq!(
            serde_json::from_str::<CollectorConfig>(&text).unwrap(),
            config
        );
    }

    #[test]
    fn what_is_not_written_down_has_its_default() {
        let config: CollectorConfig = serde_json::from_str(r#"{"on_loss": "continue"}"#).unwrap();
        let expected = CollectorConfig {
            on_loss: OnLoss::Continue,
            ..CollectorConfig::default()
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn an_unknown_option_and_an_unknown_choice_are_refused_with_the_known_ones() {
        let error = |text: &str| {
            serde_json::from_str::<CollectorConfig>(text)
                .unwrap_err()
                .to_string()
        };
        assert!(error(r#"{"frames": 3}"#).contains("`frames_per_batch`"));
        assert!(error(r#"{"traj_format": "flat"}"#).contains("`padded` or `cat`"));
        let timeout = error(r#"{"step_timeout": -1}"#);
        assert!(timeout.contains("expected 0 or more seconds"), "{timeout}");
        let on_loss = error(r#"{"on_loss": "stop"}"#);
        assert!(
            on_loss.contains(r#"expected "raise", "continue" or a number of restarts"#),
            "{on_loss}"
        );
    }
}
