//! Collectors as the consumer sees them.

mod control;
mod ending;
mod state;

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tensordict::TensorDict;
use windrow_policy::ServerStats;
use windrow_slab::SlabError;
use windrow_sync::{Interrupt, error_chain};

use crate::config::hooks::Hooks;
use crate::deliver::background::Background;
use crate::deliver::core::Core;
use crate::deliver::driver::Driver;
use crate::deliver::stage::LastStage;
use crate::deliver::stream::BatchStream;
use crate::error::{ControlError, NextError};
use crate::shared::stats::{Stats, WorkerStats};

pub use control::Paused;

/// Runs a policy in environments and hands back batches of experience.
///
/// An iterator of [`TensorDict`]s of shape `[time]`, or `[env, time]` for several environments;
/// their tensors lie in the collector's own memory, which it reuses once the last of them is
/// dropped. Copy frames that you keep for long with [`TensorDict::detach`].
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
///
/// With a [replay buffer](crate::CollectorBuilder::replay_buffer), the collector writes each batch
/// there before it returns it; [`start`](Self::start) does the same in the background.
///
/// `S` is the [last stage](LastStage) of each batch: in Rust, the closures that the builder was
/// given.
pub struct Collector<S: LastStage = Hooks> {
    pub(crate) core: Arc<Core>,
    /// `None` while it runs in the background.
    driver: Option<Driver<S>>,
    /// From the start on, also after its end.
    background: Option<Background<S>>,
    /// Batches from first to last, if that is known.
    len: Option<usize>,
    /// A shutdown has waited for threads already.
    waited: bool,
}

impl<S: LastStage> Collector<S> {
    /// How long a shutdown waits for busy threads, and a pause for a write that waits.
    pub const PATIENCE: Duration = Duration::from_secs(5);

    pub(crate) fn new(driver: Driver<S>) -> Self {
        let core = Arc::clone(&driver.core);
        let schedule = core.shared.schedule();
        // Batches of whole trajectories depend on their lengths; writes depend on the frames
        // collected.
        let known = !driver.batches.are_trajectories() || core.writer.is_some();
        let total = schedule.total_frames.filter(|_| known);
        let len = total.map(|total| total.div_ceil(schedule.frames_per_batch()) as usize);
        drop(schedule);
        Self {
            core,
            driver: Some(driver),
            background: None,
            len,
            waited: false,
        }
    }

    /// The next item of the iterator if it is complete, and [`Poll::Pending`] if workers still
    /// collect it. Does not wait for workers in threads or processes: they begin with the first
    /// call, and go on between calls. A collector whose workers run in the calling thread has them
    /// collect the batch.
    ///
    /// ```
    /// use std::task::Poll;
    ///
    /// use windrow_collect::AsyncCollector;
    ///
    /// let mut collector = AsyncCollector::builder("CartPole-v1")
    ///     .frames_per_batch(100)
    ///     .total_frames(300)
    ///     .build()?;
    /// let mut frames = 0;
    /// while frames < 300 {
    ///     match collector.try_next() {
    ///         Poll::Ready(Some(batch)) => frames += batch?.numel(),
    ///         Poll::Ready(None) => break,
    ///         Poll::Pending => std::thread::yield_now(), // or draw the next picture of a game
    ///     }
    /// }
    /// assert_eq!(frames, 300);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`into_stream`](Self::into_stream) wakes a task, or a thread, once a batch is complete.
    ///
    /// # Errors
    /// Those of [`next`](Self::next), but [`NextError::WaitInterrupted`].
    pub fn try_next(&mut self) -> Poll<Option<Result<S::Out, NextError>>> {
        let item = self.next_item(&Interrupt::at_once());
        match (item, &self.driver) {
            (Some(Err(NextError::WaitInterrupted(_))), Some(driver)) if driver.has_asked() => {
                Poll::Pending
            }
            (item, _) => Poll::Ready(item),
        }
    }

    /// The batches as a stream.
    #[must_use]
    pub fn into_stream(self) -> BatchStream<S> {
        BatchStream::new(self)
    }

    /// Collects one whole batch and returns it without post-processing. The batch is not written to
    /// a replay buffer, and does not count towards `total_frames` or in [`stats`](Self::stats).
    ///
    /// A rollout continues running episodes, which go on after it. They get new ids then, since no
    /// other batch has the frames of the rollout: so neither trajectories nor slices of a replay
    /// buffer have holes. A collector that delivers whole trajectories leaves out the episodes that
    /// the rollout cuts, and counts their frames as [dropped](Stats::dropped_frames).
    ///
    /// # Errors
    /// Those of [the iterator](Self::next); [`NextError::RunsAhead`] where workers run ahead, since
    /// the batches that they have begun count.
    pub fn rollout(&mut self) -> Result<TensorDict, NextError> {
        self.check_running()?;
        self.core.shared.profile.check()?;
        if self.core.plan.ahead(self.core.workers()) > 0 {
            return Err(NextError::RunsAhead);
        }
        self.driver()?.rollout()
    }

    /// Zeros with the names, shapes and dtypes of a whole batch after post-processing; no
    /// environment is stepped. A post-processing whose result depends on what is in a batch, such
    /// as `split_trajs`, sees zeros.
    ///
    /// # Errors
    /// [`NextError::NoShape`] where whole trajectories are delivered, whose lengths are not known
    /// before; [`NextError::Postproc`] when the post-processing fails; [`NextError::Started`] while
    /// the collector runs in the background; [`NextError::ShutDown`] after a shutdown or an error.
    pub fn fake_batch(&mut self) -> Result<S::Out, NextError> {
        self.check_running()?;
        let driver = self.driver()?;
        if driver.batches.are_trajectories() {
            return Err(NextError::NoShape);
        }
        driver.fake_batch()
    }

    /// Batches from first to last; `None` when endless, or where it depends on the lengths of
    /// trajectories.
    #[must_use]
    pub fn len(&self) -> Option<usize> {
        self.len
    }

    /// Whether the collector delivers no batch at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.core.shared.schedule().total_frames == Some(0)
    }

    /// Figures since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Figures of each worker since the start, in the order of their numbers.
    #[must_use]
    pub fn worker_stats(&self) -> Vec<WorkerStats> {
        self.core.worker_stats()
    }

    /// Figures of the [inference server](crate::Inference::Served): how full its batches are, how
    /// long requests and forwards take. `None` where workers evaluate the policy. A server that has
    /// taken the place of one that ended begins at zero.
    #[must_use]
    pub fn server_stats(&self) -> Option<ServerStats> {
        self.core.server_stats()
    }

    /// Collects in a thread of its own, and writes the batches that the iterator would have
    /// returned to the [replay buffer](crate::CollectorBuilder::replay_buffer), until
    /// `total_frames` are collected or a [shutdown](Self::shutdown).
    ///
    /// Meanwhile you can update weights, seed and reset environments, read statistics and
    /// [pause](Self::pause) collection, but not ask for batches. The next call that returns an
    /// error returns one of the background; readers and writers of the buffer get it too. A loop
    /// that reads only [`stats`](Self::stats) sees [`failed`](Stats::failed) there, or calls
    /// [`check`](Self::check).
    ///
    /// Collection does not wait for samples, unless the buffer makes writes wait, as one that
    /// limits inserts per sample does. Otherwise it may overwrite frames, or reach its end, before
    /// a learner has seen many of them.
    ///
    /// ```
    /// # use std::sync::{Arc, Condvar, Mutex};
    /// # use tensordict::TensorDict;
    /// # use windrow_slab::{Sink, SinkError, WriterId};
    /// # #[derive(Debug, Default)]
    /// # struct Buffer(Mutex<usize>, Condvar);
    /// # impl Buffer {
    /// #     fn wait_for(&self, frames: usize) {
    /// #         let mut there = self.0.lock().unwrap();
    /// #         while *there < frames { there = self.1.wait(there).unwrap(); }
    /// #     }
    /// # }
    /// # impl Sink for Buffer {
    /// #     fn attach(&self) -> WriterId { WriterId(0) }
    /// #     fn extend(&self, _: WriterId, batch: &TensorDict) -> Result<(), SinkError> {
    /// #         *self.0.lock().unwrap() += batch.numel();
    /// #         self.1.notify_all();
    /// #         Ok(())
    /// #     }
    /// #     fn detach(&self, _: WriterId, _: Option<SinkError>) {}
    /// # }
    /// use windrow_collect::MultiAsyncCollector;
    ///
    /// let buffer = Arc::new(Buffer::default());
    /// let mut collector = MultiAsyncCollector::builder("CartPole-v1")
    ///     .num_workers(2)
    ///     .frames_per_batch(100)
    ///     .replay_buffer(Arc::clone(&buffer))
    ///     .build()?;
    /// collector.start()?;
    /// buffer.wait_for(1000); // or learn
    /// collector.shutdown()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ControlError::NoReplayBuffer`] without one; [`ControlError::Start`] when the operating
    /// system refuses a thread; [`ControlError::Next`] with [`NextError::Started`] when the
    /// collector was started before, and with the error that has ended it or
    /// [`NextError::ShutDown`] when it is over.
    pub fn start(&mut self) -> Result<(), ControlError> {
        self.check_running()?;
        if self.background.is_some() {
            return Err(NextError::Started.into());
        }
        let Some(writer) = &self.core.writer else {
            return Err(ControlError::NoReplayBuffer);
        };
        // Before the thread runs: readers wait for its frames from now on.
        writer.attach()?;
        let driver = self.driver.take().ok_or(NextError::ShutDown)?;
        self.background = Some(Background::start(driver)?);
        Ok(())
    }

    /// Returns an error of the background, once. Costs next to nothing and does not wait; for loops
    /// that only read [`stats`](Self::stats), which returns no error.
    ///
    /// # Errors
    /// The error of the background, unless a call has delivered it; [`NextError::ShutDown`] after
    /// that, and after a shutdown.
    pub fn check(&self) -> Result<(), NextError> {
        self.check_running()
    }

    /// Whether the collector was [started](Self::start) and has not ended yet.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.background.as_ref().is_some_and(Background::is_running)
    }

    /// The driver, which returns here when the background has ended.
    ///
    /// # Errors
    /// [`NextError::Started`] while the background has it.
    fn driver(&mut self) -> Result<&mut Driver<S>, NextError> {
        if let Some(background) = &mut self.background {
            if background.is_running() {
                return Err(NextError::Started);
            }
            if let Some(driver) = background.take_driver() {
                self.driver = Some(driver);
            }
        }
        self.driver.as_mut().ok_or(NextError::ShutDown)
    }

    pub(crate) fn check_running(&self) -> Result<(), NextError> {
        self.core.lifecycle.check()
    }

    /// # Errors
    /// As [`check`](Self::check), where the background has failed.
    fn check_background(&self) -> Result<(), NextError> {
        match &self.background {
            Some(_) => self.core.lifecycle.check_failure(),
            None => Ok(()),
        }
    }

    fn next_batch(&mut self, interrupt: &Interrupt) -> Result<Option<S::Out>, NextError> {
        let core = Arc::clone(&self.core);
        let driver = self.driver()?;
        let mut next = || driver.next(interrupt);
        let Some(writer) = &core.writer else {
            return next();
        };
        let _attached = writer.attached()?;
        let written = next();
        if let Err(error) = &written
            && !self.can_go_on(error)
        {
            writer.detach(Some(error_chain(error)));
        }
        written
    }

    /// The next item of the iterator. `interrupt` ends waits for workers.
    fn next_item(&mut self, interrupt: &Interrupt) -> Option<Result<S::Out, NextError>> {
        if let Some(last) = self.core.lifecycle.last_item() {
            return last.map(Err);
        }
        if let Err(error) = self.core.shared.profile.check() {
            return Some(Err(error.into()));
        }
        let batch = self.next_batch(interrupt).transpose()?;
        if let Err(error) = &batch
            && !self.can_go_on(error)
        {
            self.core.ring.stop();
            if let Some(driver) = &mut self.driver {
                driver.workers().dismiss();
            }
            self.core.lifecycle.end_with(error);
        }
        Some(batch)
    }

    /// Whether the collector goes on after `error`: a user can drop batches, and a last stage can
    /// try again after an interruption, but a failed worker or post-processing is final.
    fn can_go_on(&self, error: &NextError) -> bool {
        match error {
            NextError::Slab(SlabError::Exhausted { .. } | SlabError::NoMemory { .. })
            | NextError::Interrupted(_)
            | NextError::WaitInterrupted(_)
            | NextError::Started => true,
            NextError::Stage(source) => self.core.shared.is_interruption(&**source),
            _ => false,
        }
    }
}

impl<S: LastStage> Iterator for Collector<S> {
    type Item = Result<S::Out, NextError>;

    /// The next batch; `None` after the last one, and after an error that has ended the collector.
    ///
    /// With a replay buffer, the batch was written there without padding. Where whole trajectories
    /// are written, the batch holds those that the frames of this call have completed, one after
    /// the other: `[0]` for none.
    ///
    /// # Errors
    /// These end the collector: [`NextError::Worker`] when environment, policy or process of a
    /// worker failed that [`on_loss`](crate::CollectorBuilder::on_loss) does not replace;
    /// [`NextError::Weights`], [`NextError::Postproc`] and [`NextError::Sink`] when the weight
    /// source, the post-processing or the replay buffer failed.
    ///
    /// After these, the next call goes on: [`NextError::Interrupted`] and
    /// [`NextError::WaitInterrupted`], where the user has interrupted a worker or the wait;
    /// [`NextError::Slab`] when the batches that are kept take all memory that there may be;
    /// [`NextError::Profile`] when a trace could not be written; [`NextError::Started`] while the
    /// collector runs in the background.
    ///
    /// [`NextError::ShutDown`], once, after a shutdown.
    fn next(&mut self) -> Option<Self::Item> {
        let interrupt = self.core.interrupt.clone();
        self.next_item(&interrupt)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let frames = self.core.counters().frames;
        let schedule = self.core.shared.schedule();
        let left = schedule.total_frames.map(|total| {
            total
                .saturating_sub(frames)
                .div_ceil(schedule.frames_per_batch())
        });
        let exact = !self.core.preempting && self.len.is_some();
        (0, left.filter(|_| exact).map(|left| left as usize))
    }
}

impl<S: LastStage> std::fmt::Debug for Collector<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector")
            .field("plan", &self.core.plan)
            .field("workers", &self.core.workers())
            .field("frames", &self.core.counters().frames)
            .field("total_frames", &self.core.shared.schedule().total_frames)
            .field("running", &self.is_running())
            .field("lifecycle", &self.core.lifecycle)
            .finish_non_exhaustive()
    }
}
