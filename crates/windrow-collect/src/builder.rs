use std::sync::{Arc, Mutex};

use tensordict::TensorDict;
use windrow_env::{EnvFactory, StepCounter, VecEnv};
use windrow_policy::{ExplorationType, Policy, RandomPolicy};
use windrow_slab::{Layout, Order, RecordSpec, Ring, RingSpec, Shares};

use crate::CollectError;
use crate::actor::Actor;
use crate::collector::{Collector, Postproc};
use crate::cursor::{Cursor, CursorOptions, TrajIds};
use crate::schedule::Schedule;
use crate::worker::Worker;

/// Slabs that a collector may grow to when batches are kept alive.
const MAX_SLABS: usize = 64;

/// Chooses what a [`Collector`] does. Everything is checked by [`build`](Self::build).
pub struct CollectorBuilder {
    env: Box<dyn EnvFactory>,
    num_envs: Option<usize>,
    policy: Option<Box<dyn Policy>>,
    frames_per_batch: Option<usize>,
    total_frames: Option<u64>,
    partial_last_batch: bool,
    max_frames_per_traj: Option<usize>,
    init_random_frames: u64,
    exploration_type: ExplorationType,
    seed: Option<u64>,
    track_traj_ids: bool,
    track_policy_version: bool,
    return_same_td: bool,
    max_slabs: usize,
    cursor: CursorOptions,
    postproc: Vec<Postproc>,
}

impl CollectorBuilder {
    pub(crate) fn new(env: Box<dyn EnvFactory>) -> Self {
        Self {
            env,
            num_envs: None,
            policy: None,
            frames_per_batch: None,
            total_frames: None,
            partial_last_batch: false,
            max_frames_per_traj: None,
            init_random_frames: 0,
            exploration_type: ExplorationType::default(),
            seed: None,
            track_traj_ids: true,
            track_policy_version: false,
            return_same_td: false,
            max_slabs: MAX_SLABS,
            cursor: CursorOptions::default(),
            postproc: Vec::new(),
        }
    }

    /// Environments that step together: batches then are `[num_envs, time]`. Without it, an environment that is one
    /// world gives batches of `[time]`, and one that is several keeps its own number.
    #[must_use]
    pub fn num_envs(mut self, num_envs: usize) -> Self {
        self.num_envs = Some(num_envs);
        self
    }

    /// Who acts; without a policy, actions are drawn uniformly from the action space.
    #[must_use]
    pub fn policy(mut self, policy: impl Policy + 'static) -> Self {
        self.policy = Some(Box::new(policy));
        self
    }

    /// Frames in one delivered batch, over all environments. Required.
    #[must_use]
    pub fn frames_per_batch(mut self, frames: usize) -> Self {
        self.frames_per_batch = Some(frames);
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

    /// Begins every batch with new episodes.
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
    /// frame. Without it, one is drawn and told by [`Stats::seed`](crate::Stats::seed).
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Whether frames carry `("collector", "traj_ids")`; they do by default.
    #[must_use]
    pub fn track_traj_ids(mut self, track: bool) -> Self {
        self.track_traj_ids = track;
        self
    }

    /// Whether frames carry `"policy_version"`, the version of the weights that acted; they do not by default.
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

    /// What is done to every batch before it is delivered. Several are applied in the order given.
    #[must_use]
    pub fn postproc<E>(
        mut self,
        mut postproc: impl FnMut(TensorDict) -> Result<TensorDict, E> + Send + 'static,
    ) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.postproc
            .push(Box::new(move |batch| postproc(batch).map_err(Into::into)));
        self
    }

    /// Makes the environments, binds the policy and lays out the memory.
    ///
    /// # Errors
    /// [`CollectError`], naming the argument, what was expected and what came.
    pub fn build(self) -> Result<Collector, CollectError> {
        let env = self.make_env()?;
        let num_envs = env.num_envs();
        let schedule = self.schedule(num_envs)?;
        let seed = self.seed.unwrap_or_else(entropy);
        let policy = self.policy.unwrap_or_else(|| Box::new(RandomPolicy::new()));
        let actor = Actor::new(policy, env.spec(), self.exploration_type)?;
        let record = RecordSpec {
            observation: env.spec().observation_leaves(),
            policy: actor.columns().to_vec(),
            traj_ids: self.track_traj_ids,
            policy_version: self.track_policy_version,
        };
        let shares = Shares {
            steps: vec![schedule.steps],
            envs: num_envs,
            batched: num_envs > 1 || self.num_envs.is_some(),
        };
        let ring = Ring::new(
            Layout::new(&record, shares)?,
            RingSpec {
                order: Order::ByWorker,
                workers: 1,
                ahead: 0,
                max_slabs: if self.return_same_td {
                    1
                } else {
                    self.max_slabs
                },
            },
        )?;
        let ids = TrajIds {
            base: 0,
            total_envs: num_envs,
        };
        let cursor = Cursor::new(env.spec(), num_envs, 0, ids, seed, self.cursor)?;
        let schedule = Arc::new(Mutex::new(schedule));
        let worker = Worker {
            id: 0,
            env,
            actor,
            cursor,
            ring: Arc::clone(&ring),
            schedule: Arc::clone(&schedule),
        };
        Ok(Collector::new(worker, ring, schedule, seed, self.postproc))
    }

    fn make_env(&self) -> Result<Box<dyn VecEnv>, CollectError> {
        if self.num_envs == Some(0) {
            return Err(not_positive("num_envs", 0));
        }
        let env = self.env.build(self.num_envs.unwrap_or(1))?;
        Ok(match self.max_frames_per_traj {
            None => env,
            Some(0) => return Err(not_positive("max_frames_per_traj", 0)),
            Some(frames) => Box::new(StepCounter::new(env)?.with_max_steps(frames)?),
        })
    }

    /// Checks the frame counts against each other.
    fn schedule(&self, num_envs: usize) -> Result<Schedule, CollectError> {
        let per_batch = match self.frames_per_batch {
            None => {
                return Err(CollectError::NotPositive {
                    name: "frames_per_batch",
                    got: "nothing".to_owned(),
                });
            }
            Some(0) => return Err(not_positive("frames_per_batch", 0)),
            Some(frames) => frames,
        };
        let lockstep = |name, frames: u64| {
            let envs = num_envs as u64;
            if frames.is_multiple_of(envs) {
                return Ok(());
            }
            Err(CollectError::IndivisibleBatch {
                name,
                frames,
                num_envs,
                below: (frames / envs).max(1) * envs,
                above: frames.div_ceil(envs) * envs,
            })
        };
        lockstep("frames_per_batch", per_batch as u64)?;
        if let Some(total) = self.total_frames {
            let batch = per_batch as u64;
            if !total.is_multiple_of(batch) && !self.partial_last_batch {
                return Err(CollectError::IndivisibleTotal {
                    total,
                    per_batch,
                    below: (total / batch).max(1) * batch,
                    above: total.div_ceil(batch) * batch,
                });
            }
            lockstep("total_frames", total)?;
        }
        Ok(Schedule {
            envs: num_envs,
            steps: per_batch / num_envs,
            frames_per_batch: per_batch as u64,
            total_frames: self.total_frames,
            init_random_frames: self.init_random_frames,
            start: 0,
            first_seq: 0,
            counting: true,
        })
    }
}

fn not_positive(name: &'static str, got: u64) -> CollectError {
    CollectError::NotPositive {
        name,
        got: got.to_string(),
    }
}

/// A seed that differs from run to run: the standard library keys its hash maps with the operating system's entropy.
fn entropy() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // Seeds are shown as `i64` in saved states.
    RandomState::new().hash_one(0u8) >> 1
}

impl std::fmt::Debug for CollectorBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CollectorBuilder")
            .field("num_envs", &self.num_envs)
            .field("frames_per_batch", &self.frames_per_batch)
            .field("total_frames", &self.total_frames)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}
