use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tensordict::{Element, Tensor, TensorDict};
use windrow_env::EnvFactory;
use windrow_policy::{Policy, Weights};
use windrow_slab::{Lease, Ring, SlabError};

use crate::consumer::{Consumer, assemble};
use crate::cursor::Restart;
use crate::handle::Handle;
use crate::placement::Crew;
use crate::plan::{CatResults, Delivery, Plan};
use crate::stats::{Lag, Stats, Throughput};
use crate::worker::{Resume, Shared};
use crate::{CollectError, CollectorBuilder, WorkerError};

/// How long a shutdown waits for workers that are busy.
const PATIENCE: Duration = Duration::from_secs(5);

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
    crew: Crew,
    ring: Arc<Ring>,
    pub(crate) shared: Arc<Shared>,
    /// Tells whether weights fit; never acts.
    reference: Box<dyn Policy>,
    consumer: Consumer,
    plan: Plan,
    cat_results: CatResults,
    preempting: bool,
    num_envs: usize,
    seed: u64,
    frames: u64,
    batches: u64,
    dropped: u64,
    /// Slabs of the next batch that were taken already.
    gathered: Vec<Lease>,
    /// The slab that was started last, if it was ready before others.
    last: Option<Lease>,
    pub(crate) throughput: Throughput,
    lag: Lag,
    life: Life,
}

/// What a collector is made of.
pub(crate) struct Parts {
    pub(crate) crew: Crew,
    pub(crate) ring: Arc<Ring>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) reference: Box<dyn Policy>,
    pub(crate) consumer: Consumer,
    pub(crate) plan: Plan,
    pub(crate) cat_results: CatResults,
    pub(crate) preempting: bool,
    pub(crate) num_envs: usize,
    pub(crate) seed: u64,
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
    pub fn builder(env: impl EnvFactory + Send + Sync + 'static) -> CollectorBuilder {
        CollectorBuilder::new(Arc::new(env), Plan::COLLECTOR)
    }

    pub(crate) fn new(parts: Parts) -> Self {
        let Parts {
            crew,
            ring,
            shared,
            reference,
            consumer,
            plan,
            cat_results,
            preempting,
            num_envs,
            seed,
        } = parts;
        Self {
            crew,
            ring,
            shared,
            reference,
            consumer,
            plan,
            cat_results,
            preempting,
            num_envs,
            seed,
            frames: 0,
            batches: 0,
            dropped: 0,
            gathered: Vec::new(),
            last: None,
            throughput: Throughput::default(),
            lag: Lag::default(),
            life: Life::Running,
        }
    }

    /// Collects one whole batch and returns it as it is: without post-processing, not counted towards `total_frames`
    /// or in [`stats`](Self::stats). Episodes go on from where they were, and go on from there afterwards.
    ///
    /// # Errors
    /// As for the iterator; [`CollectError::ShutDown`] after a shutdown or an error; [`CollectError::Workers`] where workers
    /// run ahead, since the batches that they are at count.
    pub fn rollout(&mut self) -> Result<TensorDict, CollectError> {
        self.check_running()?;
        self.shared.profile.check()?;
        if self.plan.ahead(self.workers()) > 0 {
            return Err(CollectError::Workers(
                "a collector whose workers run ahead has no batch outside the count".to_owned(),
            ));
        }
        self.shared.schedule().counting = false;
        self.ring.end_at(u64::MAX);
        let leases: Result<Vec<_>, _> = (0..self.plan.slabs_per_batch())
            .map(|_| self.collect())
            .collect();
        self.shared.schedule().counting = true;
        self.count_on(self.ring.begun());
        Ok(assemble(&leases?, self.cat_results, self.preempting)?)
    }

    /// Batches from first to last; `None` when endless, or where it depends on the lengths of trajectories.
    #[must_use]
    pub fn len(&self) -> Option<usize> {
        if self.consumer.batcher.is_some() {
            return None;
        }
        let schedule = self.shared.schedule();
        Some(schedule.total_frames?.div_ceil(schedule.frames_per_batch()) as usize)
    }

    /// Whether there is no batch at all to be delivered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.schedule().total_frames == Some(0)
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let schedule = self.shared.schedule();
        let (frames_per_second, recent_frames_per_second) = self.throughput.rates();
        Stats {
            frames: self.frames,
            batches: self.batches,
            dropped_frames: self.dropped,
            total_frames: schedule.total_frames,
            completed: schedule
                .total_frames
                .is_some_and(|total| self.frames >= total),
            requested_frames_per_batch: schedule.frames_per_batch() as usize,
            workers: self.workers(),
            workers_alive: self.shared.alive.load(Ordering::Relaxed),
            restarts: self.shared.restarts.load(Ordering::Relaxed),
            num_envs: self.workers() * self.num_envs,
            frames_per_second,
            recent_frames_per_second,
            workers_waited: Duration::from_nanos(self.shared.waited.load(Ordering::Relaxed)),
            policy_version: self.shared.weights.version(),
            policy_lag: self.lag.of_all(),
            seed: self.seed,
            slab_bytes: self.ring.slabs() * self.ring.layout().bytes(),
        }
    }

    /// Publishes new weights and returns their version. Each worker takes them up with the next part that it begins: with the
    /// next batch where batches are collected after they were asked for. The tensors are copied.
    ///
    /// # Errors
    /// [`CollectError::Policy`] naming a tensor that is missing, unknown or misshapen; the old weights then stay.
    pub fn update_policy_weights(&mut self, weights: &Weights) -> Result<i64, CollectError> {
        self.check_running()?;
        self.reference.check(weights)?;
        Ok(self.consumer.updater.push(&self.shared.weights, weights)?)
    }

    /// As [`update_policy_weights`](Self::update_policy_weights), for worker `worker` alone.
    ///
    /// # Errors
    /// As there, and [`CollectError::Workers`] when there is no such worker.
    pub fn update_worker_weights(
        &mut self,
        worker: usize,
        weights: &Weights,
    ) -> Result<i64, CollectError> {
        self.check_running()?;
        self.reference.check(weights)?;
        let published = self.shared.weights.publish_to(worker, weights);
        published.ok_or_else(|| {
            CollectError::Workers(format!(
                "there is no worker {worker}: the collector has {}",
                self.workers()
            ))
        })
    }

    /// As [`update_policy_weights`](Self::update_policy_weights), with weights from the
    /// [source](CollectorBuilder::weight_source) that the collector was built with.
    ///
    /// # Errors
    /// As there, and [`CollectError::Workers`] without a source.
    pub fn update_policy_weights_from_source(&mut self) -> Result<i64, CollectError> {
        let Some(source) = &mut self.consumer.weight_source else {
            return Err(CollectError::Workers(
                "no weights were given, and the collector was built without a weight_source"
                    .to_owned(),
            ));
        };
        let weights = source();
        self.update_policy_weights(&weights)
    }

    /// A copy of the weights that were published last.
    #[must_use]
    pub fn policy_weights(&self) -> Weights {
        self.shared.weights.newest(0).map_or_else(
            || self.reference.weights(),
            |newest| newest.weights.detach(),
        )
    }

    /// Seeds environment `i` with `seed + i` (or all with `seed`, when `static_seed`) and the policy's noise with `seed`;
    /// each worker begins its episodes anew with its next part. Returns the seed of the last environment.
    pub fn set_seed(&mut self, seed: u64, static_seed: bool) -> u64 {
        self.seed = seed;
        self.restart(Restart::Seeded {
            seed,
            same: static_seed,
        });
        if static_seed {
            seed
        } else {
            seed.wrapping_add((self.workers() * self.num_envs) as u64 - 1)
        }
    }

    /// Begins new episodes in all environments, with each worker's next part.
    pub fn reset(&mut self) {
        self.restart(Restart::Unseeded);
    }

    fn restart(&mut self, how: Restart) {
        // Trajectories that are begun will not be ended.
        self.dropped += self.consumer.drop_frames();
        for worker in 0..self.workers() {
            let mut mail = self.shared.mail(worker);
            // New episodes are under way already, and their seed is not to be forgotten.
            if how != Restart::Unseeded || mail.restart.is_none() {
                mail.restart = Some(how);
            }
        }
    }

    /// What happened to workers that were lost and replaced, or are gone, since this was last asked; see
    /// [`CollectorBuilder::on_loss`].
    #[must_use]
    pub fn take_losses(&self) -> Vec<WorkerError> {
        self.shared.take_losses()
    }

    /// Lets workers finish the part that they are at and start no other, until what is returned is dropped. Nothing that was
    /// collected is lost.
    pub fn pause(&mut self) -> Paused<'_> {
        self.ring.pause();
        Paused { collector: self }
    }

    /// A way to stop collection from another thread.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.ring))
    }

    /// What it takes to go on later: `frames`, `iter`, `seed`, `policy_version`, `("traj_pool", "traj_id")` and
    /// `policy_state_dict`.
    ///
    /// Simulators are not saved: after [`load_state_dict`](Self::load_state_dict) every environment begins a new
    /// episode, with seeds and trajectory ids that were not used before. Batches that workers have collected ahead are not
    /// counted and will be collected again.
    ///
    /// # Errors
    /// None that a well-made policy can cause; passed on from [`TensorDict::set`].
    pub fn state_dict(&self) -> Result<TensorDict, CollectError> {
        let mut state = TensorDict::new([]);
        let next_traj_id = self.shared.next_traj_id.load(Ordering::Relaxed);
        state.set("policy_state_dict", self.policy_weights())?;
        state.set("env_state_dict", TensorDict::new([]))?;
        state.set("frames", Tensor::scalar(self.frames as i64))?;
        state.set("iter", Tensor::scalar(self.batches as i64))?;
        state.set("seed", Tensor::scalar(self.seed as i64))?;
        state.set(
            "policy_version",
            Tensor::scalar(self.shared.weights.version()),
        )?;
        state.set(("traj_pool", "traj_id"), Tensor::scalar(next_traj_id))?;
        Ok(state)
    }

    /// Goes on from a [saved state](Self::state_dict). Nothing is changed when that fails.
    ///
    /// # Errors
    /// [`CollectError::State`] or [`CollectError::Tensor`] when an entry is missing or makes no sense,
    /// [`CollectError::Policy`] when the weights are another policy's.
    pub fn load_state_dict(&mut self, state: &TensorDict) -> Result<(), CollectError> {
        self.check_running()?;
        let frames = count(state, "frames")?;
        let batches = count(state, "iter")?;
        let seed = scalar::<i64>(state, "seed")? as u64;
        let version = scalar::<i64>(state, "policy_version")?;
        let traj_id = state.get(("traj_pool", "traj_id"))?.item::<i64>()?;
        let weights = state.get_dict("policy_state_dict")?;
        self.reference.check(weights)?;
        self.ring.pause();
        // What was collected ahead belongs to the state before.
        while self.ring.try_next().is_some() {}
        self.gathered.clear();
        self.last = None;
        self.shared.weights.restore(version, weights);
        self.shared.next_traj_id.store(traj_id, Ordering::Relaxed);
        self.dropped += self.consumer.drop_frames();
        (self.frames, self.batches, self.seed) = (frames, batches, seed);
        let envs = (self.workers() * self.num_envs) as u64;
        for worker in 0..self.workers() {
            let mut mail = self.shared.mail(worker);
            mail.restart = None;
            mail.resume = Some(Resume {
                frame: frames.div_ceil(envs),
                traj_id,
                seed,
            });
        }
        self.count_on(self.ring.begun());
        self.ring.resume();
        Ok(())
    }

    /// Ends collection and waits for the workers, five seconds at most. Batches that are held stay valid; the next call says
    /// that the collector was shut down. Shutting down again does nothing.
    ///
    /// # Errors
    /// [`CollectError::Stuck`] when some workers did not come back from their environment or policy in time. A worker that
    /// had failed is reported as the error that it failed with, unless that was delivered before.
    pub fn shutdown(&mut self) -> Result<(), CollectError> {
        if self.life == Life::Running {
            self.life = Life::ShutDown;
        }
        self.ring.stop();
        let stuck = self.crew.join(PATIENCE);
        self.shared.profile.end();
        if stuck > 0 {
            return Err(CollectError::Stuck {
                stuck,
                workers: self.workers(),
                seconds: PATIENCE.as_secs_f64(),
            });
        }
        match self.shared.take_failure() {
            Some(error) => Err(error.into()),
            None => self.shared.profile.check(),
        }
    }

    fn workers(&self) -> usize {
        self.shared.mail.len()
    }

    pub(crate) fn check_running(&self) -> Result<(), CollectError> {
        match self.life {
            Life::Running => Ok(()),
            Life::ShutDown | Life::Over => Err(CollectError::ShutDown),
        }
    }

    /// Counts the frames that are left from slab `seq` on.
    fn count_on(&self, seq: u64) {
        let mut schedule = self.shared.schedule();
        schedule.count_from(self.frames, seq);
        self.ring.end_at(schedule.end());
    }

    fn collect(&mut self) -> Result<Lease, CollectError> {
        self.crew.next(&self.ring).map_err(|error| match error {
            SlabError::Stopped => self
                .shared
                .take_failure()
                .map_or(CollectError::ShutDown, CollectError::from),
            other => other.into(),
        })
    }

    /// Frames still to be collected; `u64::MAX` when endless.
    fn frames_left(&self) -> u64 {
        let total = self.shared.schedule().total_frames;
        total.map_or(u64::MAX, |total| total.saturating_sub(self.frames))
    }

    /// The next batch; `None` when the frames that are left make none.
    fn next_batch(&mut self) -> Result<Option<TensorDict>, CollectError> {
        loop {
            if let Some(batcher) = &mut self.consumer.batcher
                && let Some(batch) = batcher.pop()?
            {
                return self.deliver(batch).map(Some);
            }
            if self.frames_left() == 0 && self.last.is_none() {
                self.dropped += self.consumer.drop_frames();
                return Ok(None);
            }
            let leases = self.poll()?;
            if self.consumer.batcher.is_some() {
                let synchronous = self.plan.delivery == Delivery::Synchronous;
                self.consumer.push(&leases, synchronous)?;
            } else {
                let batch = assemble(&leases, self.cat_results, self.preempting)?;
                drop(leases);
                return self.deliver(batch).map(Some);
            }
        }
    }

    /// The whole slabs of the next batch, counted.
    fn poll(&mut self) -> Result<Vec<Lease>, CollectError> {
        if self.consumer.update_at_each_batch {
            self.update_policy_weights_from_source()?;
        }
        if let Some(hook) = &mut self.consumer.pre_collect_hook {
            hook();
        }
        self.throughput.begin();
        let slabs = self.plan.slabs_per_batch();
        while self.gathered.len() < slabs && self.frames_left() > 0 {
            self.gather()?;
        }
        if self.gathered.len() < slabs {
            self.gathered.extend(self.last.take());
        }
        Ok(std::mem::take(&mut self.gathered))
    }

    /// One more whole slab towards the next batch, counted; none where it holds no frame.
    fn gather(&mut self) -> Result<(), CollectError> {
        if self.ring.is_at_end() {
            if let Some(last) = self.last.take() {
                self.gathered.push(last);
                return Ok(());
            }
            // Parts that were cut short have left frames over.
            self.count_on(self.ring.begun());
        }
        let lease = self.collect()?;
        let frames = lease.frames() as u64;
        self.frames += frames;
        if self.plan.ahead(self.workers()) == 0 {
            // Frames that were not collected, since a part was cut short or a worker is gone, are left to be.
            self.count_on(lease.seq() + 1);
        }
        // A worker that is gone may have left a part without frames.
        if frames > 0 {
            self.lag.add(self.shared.weights.version(), lease.commits());
            self.throughput.add(frames);
            if self.frames_left() > 0 && lease.seq() + 1 == self.shared.schedule().end() {
                // It may be short, and is ready before a slower one's that was started earlier.
                self.last = Some(lease);
            } else {
                self.gathered.push(lease);
            }
        }
        Ok(())
    }

    fn deliver(&mut self, batch: TensorDict) -> Result<TensorDict, CollectError> {
        let batch = self.consumer.finish(batch, self.batches)?;
        self.batches += 1;
        Ok(batch)
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
        if let Err(error) = self.shared.profile.check() {
            return Some(Err(error));
        }
        let batch = self.next_batch().transpose()?;
        // Batches that are kept alive can be dropped; a failed worker or post-processing cannot be taken back.
        if !matches!(
            &batch,
            Ok(_) | Err(CollectError::Slab(SlabError::Exhausted { .. }))
        ) {
            self.ring.stop();
            self.life = Life::Over;
        }
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let schedule = self.shared.schedule();
        let left = schedule.total_frames.map(|total| {
            total
                .saturating_sub(self.frames)
                .div_ceil(schedule.frames_per_batch())
        });
        let exact = !self.preempting && self.consumer.batcher.is_none();
        (0, left.filter(|_| exact).map(|left| left as usize))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // There is nobody left to tell.
        let _ = self.shutdown();
    }
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector")
            .field("plan", &self.plan)
            .field("crew", &self.crew)
            .field("frames", &self.frames)
            .field("total_frames", &self.shared.schedule().total_frames)
            .field("life", &self.life)
            .finish_non_exhaustive()
    }
}

/// Workers of the collector start no part while this is held.
#[derive(Debug)]
pub struct Paused<'a> {
    collector: &'a mut Collector,
}

impl Paused<'_> {
    /// The collector, to be looked at. Asking it for a batch would wait for workers that are paused.
    #[must_use]
    pub fn collector(&self) -> &Collector {
        self.collector
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.collector.ring.resume();
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
