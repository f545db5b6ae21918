use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensordict::{Element, Tensor, TensorDict};
use windrow_env::EnvFactory;
use windrow_policy::Weights;
use windrow_slab::{Lease, Ring, SlabError};

use crate::cursor::Restart;
use crate::schedule::Schedule;
use crate::stats::{Stats, Throughput};
use crate::worker::Worker;
use crate::{CollectError, CollectorBuilder};

/// Something done to every batch before it is delivered.
pub(crate) type Postproc = Box<
    dyn FnMut(TensorDict) -> Result<TensorDict, Box<dyn std::error::Error + Send + Sync>> + Send,
>;

/// Runs a policy in environments and hands back batches of experience.
///
/// An iterator of [`TensorDict`]s of shape `[time]`, or `[env, time]` for several environments; their tensors lie in
/// the collector's own memory, which is used again once the last of them is dropped. Frames that are to be kept for
/// long are copied out with [`TensorDict::detach`].
///
/// ```
/// use windrow_collect::Collector;
///
/// let mut collector = Collector::builder("CartPole-v1")
///     .frames_per_batch(100)
///     .total_frames(300)
///     .build()?;
/// for batch in &mut collector {
///     let batch = batch?;
///     assert_eq!(batch.batch_size(), &[100]);
///     let rewards = batch.as_slice::<f32>(("next", "reward"))?;
///     assert!(rewards.iter().all(|&reward| reward == 1.0));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Collector {
    worker: Worker,
    ring: Arc<Ring>,
    schedule: Arc<Mutex<Schedule>>,
    postproc: Vec<Postproc>,
    seed: u64,
    frames: u64,
    batches: u64,
    throughput: Throughput,
    life: Life,
}

/// Whether there is more to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    /// Shut down; the next call says so, once.
    ShutDown,
    /// Failed or shut down, and the consumer was told.
    Over,
}

impl Collector {
    /// A collector over the environments that `env` makes: a function such as `CartPole::v1`, or an id such as
    /// `"CartPole-v1"`.
    #[must_use]
    pub fn builder(env: impl EnvFactory + 'static) -> CollectorBuilder {
        CollectorBuilder::new(Box::new(env))
    }

    pub(crate) fn new(
        worker: Worker,
        ring: Arc<Ring>,
        schedule: Arc<Mutex<Schedule>>,
        seed: u64,
        postproc: Vec<Postproc>,
    ) -> Self {
        Self {
            worker,
            ring,
            schedule,
            postproc,
            seed,
            frames: 0,
            batches: 0,
            throughput: Throughput::default(),
            life: Life::Running,
        }
    }

    /// Collects one whole batch and returns it as it is: without post-processing, not counted towards `total_frames`
    /// or in [`stats`](Self::stats). Episodes go on from where they were, and go on from there afterwards.
    ///
    /// # Errors
    /// As for the iterator; [`CollectError::ShutDown`] after a shutdown or an error.
    pub fn rollout(&mut self) -> Result<TensorDict, CollectError> {
        if self.life != Life::Running {
            return Err(CollectError::ShutDown);
        }
        self.schedule().counting = false;
        let lease = self.collect();
        let frames = self.frames;
        let mut schedule = self.schedule();
        schedule.counting = true;
        schedule.start = frames;
        if let Ok(lease) = &lease {
            schedule.first_seq = lease.seq() + 1;
        }
        drop(schedule);
        Ok(lease?.part(0)?)
    }

    /// Batches still to be delivered; `None` when endless.
    #[must_use]
    pub fn batches_left(&self) -> Option<usize> {
        let schedule = self.schedule();
        let left = schedule.total_frames?.saturating_sub(self.frames);
        Some(left.div_ceil(schedule.frames_per_batch) as usize)
    }

    /// Batches from first to last; `None` when endless.
    #[must_use]
    pub fn len(&self) -> Option<usize> {
        let schedule = self.schedule();
        Some(schedule.total_frames?.div_ceil(schedule.frames_per_batch) as usize)
    }

    /// Whether there is no batch at all to be delivered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let schedule = self.schedule();
        let (frames_per_second, recent_frames_per_second) = self.throughput.rates();
        Stats {
            frames: self.frames,
            batches: self.batches,
            total_frames: schedule.total_frames,
            completed: schedule
                .total_frames
                .is_some_and(|total| self.frames >= total),
            requested_frames_per_batch: schedule.frames_per_batch as usize,
            num_envs: self.worker.env.num_envs(),
            frames_per_second,
            recent_frames_per_second,
            policy_version: self.worker.actor.version(),
            seed: self.seed,
            slab_bytes: self.ring.slabs() * self.ring.layout().bytes(),
        }
    }

    /// Gives the policy new weights, from the next batch on, and returns their version. The tensors are copied.
    ///
    /// # Errors
    /// [`CollectError::Policy`] naming a tensor that is missing, unknown or misshapen; the old weights then stay.
    pub fn update_policy_weights(&mut self, weights: &Weights) -> Result<i64, CollectError> {
        if self.life != Life::Running {
            return Err(CollectError::ShutDown);
        }
        Ok(self.worker.actor.load(weights)?)
    }

    /// A copy of the weights that the policy acts with.
    #[must_use]
    pub fn policy_weights(&self) -> Weights {
        self.worker.actor.weights()
    }

    /// Seeds environment `i` with `seed + i` (or all with `seed`, when `static_seed`) and the policy's noise with `seed`;
    /// all episodes begin anew with the next batch. Returns the seed of the last environment.
    pub fn set_seed(&mut self, seed: u64, static_seed: bool) -> u64 {
        self.seed = seed;
        self.worker.cursor.restart(Restart::Seeded {
            seed,
            same: static_seed,
        });
        if static_seed {
            seed
        } else {
            seed.wrapping_add(self.worker.env.num_envs() as u64 - 1)
        }
    }

    /// Begins new episodes in all environments with the next batch.
    pub fn reset(&mut self) {
        self.worker.cursor.restart(Restart::Unseeded);
    }

    /// What it takes to go on later: `frames`, `iter`, `seed`, `policy_version`, `("traj_pool", "traj_id")` and
    /// `policy_state_dict`.
    ///
    /// Simulators are not saved: after [`load_state_dict`](Self::load_state_dict) every environment begins a new
    /// episode, with seeds and trajectory ids that were not used before.
    ///
    /// # Errors
    /// None that a well-made policy can cause; passed on from [`TensorDict::set`].
    pub fn state_dict(&self) -> Result<TensorDict, CollectError> {
        let mut state = TensorDict::new([]);
        state.set("policy_state_dict", self.policy_weights())?;
        state.set("env_state_dict", TensorDict::new([]))?;
        state.set("frames", Tensor::scalar(self.frames as i64))?;
        state.set("iter", Tensor::scalar(self.batches as i64))?;
        state.set("seed", Tensor::scalar(self.seed as i64))?;
        state.set(
            "policy_version",
            Tensor::scalar(self.worker.actor.version()),
        )?;
        state.set(
            ("traj_pool", "traj_id"),
            Tensor::scalar(self.worker.cursor.next_traj_id()),
        )?;
        Ok(state)
    }

    /// Goes on from a [saved state](Self::state_dict). Nothing is changed when that fails.
    ///
    /// # Errors
    /// [`CollectError::State`] or [`CollectError::Tensor`] when an entry is missing or makes no sense,
    /// [`CollectError::Policy`] when the weights are another policy's.
    pub fn load_state_dict(&mut self, state: &TensorDict) -> Result<(), CollectError> {
        let frames = count(state, "frames")?;
        let batches = count(state, "iter")?;
        let seed = scalar::<i64>(state, "seed")? as u64;
        let version = scalar::<i64>(state, "policy_version")?;
        let traj_id = state.get(("traj_pool", "traj_id"))?.item::<i64>()?;
        let weights = state.get_dict("policy_state_dict")?;
        if !weights.is_empty() || !self.policy_weights().is_empty() {
            self.worker.actor.load(weights)?;
        }
        self.worker.actor.set_version(version);
        (self.frames, self.batches, self.seed) = (frames, batches, seed);
        let per_env = frames / self.worker.env.num_envs() as u64;
        self.worker.cursor.resume(per_env, traj_id, seed);
        let mut schedule = self.schedule();
        schedule.start = frames;
        schedule.first_seq = self.ring.claimed(0);
        Ok(())
    }

    /// Ends collection. Batches that are held stay valid; the next call says that the collector was shut down.
    pub fn shutdown(&mut self) {
        self.ring.stop();
        if self.life == Life::Running {
            self.life = Life::ShutDown;
        }
    }

    fn collect(&mut self) -> Result<Lease, CollectError> {
        self.ring.request()?;
        self.worker.run_once()?;
        // The one worker has the one part, so its slab is whole now.
        self.ring
            .try_next()
            .ok_or(CollectError::Slab(SlabError::Stopped))
    }

    fn next_batch(&mut self) -> Result<TensorDict, CollectError> {
        self.throughput.begin();
        let lease = self.collect()?;
        let frames = lease.frames() as u64;
        let mut batch = lease.part(0)?;
        drop(lease);
        for postproc in &mut self.postproc {
            batch = postproc(batch).map_err(|source| CollectError::Postproc {
                batch: self.batches,
                source,
            })?;
        }
        self.frames += frames;
        self.batches += 1;
        self.throughput.add(frames);
        Ok(batch)
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Iterator for Collector {
    type Item = Result<TensorDict, CollectError>;

    /// The next batch; `None` after the last one, and after an error was delivered.
    fn next(&mut self) -> Option<Self::Item> {
        match self.life {
            Life::Over => return None,
            Life::ShutDown => {
                self.life = Life::Over;
                return Some(Err(CollectError::ShutDown));
            }
            Life::Running => {}
        }
        if self.batches_left() == Some(0) {
            return None;
        }
        let batch = self.next_batch();
        // Batches that are kept alive can be dropped; a failed worker or post-processing cannot be taken back.
        if !matches!(
            &batch,
            Ok(_) | Err(CollectError::Slab(SlabError::Exhausted { .. }))
        ) {
            self.shutdown();
            self.life = Life::Over;
        }
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self.batches_left() {
            Some(left) => (0, Some(left)),
            None => (0, None),
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector")
            .field("worker", &self.worker)
            .field("frames", &self.frames)
            .field("total_frames", &self.schedule().total_frames)
            .field("life", &self.life)
            .finish_non_exhaustive()
    }
}

fn scalar<T: Element>(state: &TensorDict, key: &str) -> Result<T, CollectError> {
    Ok(state.get(key)?.item::<T>()?)
}

fn count(state: &TensorDict, key: &str) -> Result<u64, CollectError> {
    let got = scalar::<i64>(state, key)?;
    u64::try_from(got)
        .map_err(|_| CollectError::State(format!("{key} must not be negative, got {got}")))
}
