//! Asks the workers for batches, in the consumer's thread or in the collector's own.

use std::collections::VecDeque;
use std::sync::Arc;

use tensordict::{Tensor, TensorDict, TensorError};
use windrow_slab::{Layout, SlabError};
use windrow_sync::Interrupt;
use windrow_sync::atomic::Ordering;

use crate::CollectError;
use crate::config::plan::Delivery;
use crate::deliver::assemble::{Filled, assemble, push_parts, put_together, unpadded};
use crate::deliver::core::Core;
use crate::deliver::stage::LastStage;
use crate::placement::Workers;
use crate::postproc::split_trajectories;
use crate::trajectories::TrajectoryBatcher;

/// How frames make the batches that reach the last stage.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    /// Puts whole trajectories together, where these are delivered.
    pub(crate) batcher: Option<TrajectoryBatcher>,
    /// Trajectories of one write to a replay buffer; all that are complete, unless given.
    pub(crate) trajs_per_write: Option<usize>,
    pub(crate) split_trajs: bool,
    pub(crate) update_at_each_batch: bool,
}

/// Asks the workers for frames, and lets the batches made of them pass the last stage.
pub(crate) struct Driver<S: LastStage> {
    pub(crate) workers: Workers,
    pub(crate) core: Arc<Core>,
    pub(crate) stage: S,
    shape: Shape,
    /// Ends waits for workers.
    interrupt: Interrupt,
    /// Slabs of the next batch that were taken already.
    gathered: Vec<Filled>,
    /// The slab that was started last, where it was ready before others.
    last: Option<Filled>,
    /// A slab was asked for, and the wait for it interrupted.
    asked: bool,
    /// Batches of one request that have yet to pass the last stage: one, or all that are to be written.
    due: VecDeque<TensorDict>,
    /// Those of the same request that have passed it.
    passed: Vec<S::Out>,
}

impl<S: LastStage> Driver<S> {
    pub(crate) fn new(workers: Workers, core: Arc<Core>, shape: Shape, stage: S) -> Self {
        Self {
            workers,
            interrupt: core.interrupt.clone(),
            core,
            stage,
            shape,
            gathered: Vec::new(),
            last: None,
            asked: false,
            due: VecDeque::new(),
            passed: Vec::new(),
        }
    }

    /// Whether whole trajectories are delivered.
    pub(crate) fn has_batcher(&self) -> bool {
        self.shape.batcher.is_some()
    }

    /// The next batch, or the frames of it that were written; `None` when no frames are left.
    ///
    /// # Errors
    /// [`CollectError::WaitInterrupted`]. The next call goes on where this one stopped, also after an interruption of a stage that
    /// [tries again](LastStage::TRIES_AGAIN).
    pub(crate) fn next(&mut self) -> Result<Option<S::Out>, CollectError> {
        match self.advance()? {
            true => self.join().map(Some),
            false => Ok(None),
        }
    }

    /// Collects and writes one batch; whether frames were left.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub(crate) fn write_next(&mut self) -> Result<bool, CollectError> {
        let more = self.advance()?;
        self.passed.clear();
        Ok(more)
    }

    fn join(&mut self) -> Result<S::Out, CollectError> {
        if self.core.writer.is_none()
            && let Some(batch) = self.passed.pop()
        {
            return Ok(batch);
        }
        self.stage.join(std::mem::take(&mut self.passed))
    }

    /// Lets all batches of one request pass the last stage; whether frames were left.
    fn advance(&mut self) -> Result<bool, CollectError> {
        if self.due.is_empty() && !self.fetch()? {
            return Ok(false);
        }
        while let Some(batch) = self.due.pop_front() {
            let kept = S::TRIES_AGAIN.then(|| batch.clone());
            match self.pass(batch) {
                Ok(passed) => self.passed.push(passed),
                Err(error) => {
                    if let Some(batch) = kept {
                        self.due.push_front(batch);
                    }
                    return Err(error);
                }
            }
        }
        self.core.counters().batches += 1;
        Ok(true)
    }

    fn pass(&mut self, batch: TensorDict) -> Result<S::Out, CollectError> {
        let number = self.core.counters().batches;
        let batch = self.split(batch)?;
        let finished = self.stage.finish(batch, number)?;
        match &self.core.writer {
            Some(writer) => writer.timed(|| self.stage.write(finished, writer)),
            None => Ok(finished),
        }
    }

    /// `batch`, with a row for each piece of a trajectory where `split_trajs` says so.
    fn split(&self, batch: TensorDict) -> Result<TensorDict, TensorError> {
        match self.shape.split_trajs {
            true => split_trajectories(&batch),
            false => Ok(batch),
        }
    }

    /// Collects the next batch, and makes it due: itself, or the trajectories that its frames complete, in groups. Whether
    /// frames were left.
    fn fetch(&mut self) -> Result<bool, CollectError> {
        let writes = self.core.writer.is_some();
        loop {
            if !writes
                && let Some(batcher) = &mut self.shape.batcher
                && let Some(batch) = batcher.pop()?
            {
                self.due.push_back(batch);
                return Ok(true);
            }
            let Some(slabs) = self.poll()? else {
                return Ok(false);
            };
            if !self.has_batcher() {
                let batch = self.assemble(&slabs)?;
                drop(slabs);
                // Before the last stage, which may drop the mask. Splitting adds padding of its own.
                self.due.push_back(match writes && !self.shape.split_trajs {
                    true => unpadded(batch)?,
                    false => batch,
                });
                return Ok(true);
            }
            self.push(&slabs)?;
            drop(slabs);
            if writes {
                let most = self.shape.trajs_per_write.unwrap_or(usize::MAX);
                while let Some(batcher) = &mut self.shape.batcher
                    && let Some(group) = batcher.pop_up_to(most)?
                {
                    self.due.push_back(group);
                }
                return Ok(true);
            }
            // A trajectory may go on for ever, and each wait for a slab be a short one.
            self.interrupt.check()?;
        }
    }

    /// A batch outside the count.
    pub(crate) fn rollout(&mut self) -> Result<TensorDict, CollectError> {
        self.settle()?;
        let core = Arc::clone(&self.core);
        core.shared.schedule().counting = false;
        core.ring.end_at(u64::MAX);
        let slabs: Result<Vec<_>, _> = (0..core.plan.slabs_per_batch())
            .map(|_| self.uninterrupted(Self::collect))
            .collect();
        core.shared.schedule().counting = true;
        core.count_on(core.ring.begun());
        Ok(self.assemble(&slabs?)?)
    }

    /// Collects the batch for which a wait was interrupted: workers have begun it.
    pub(crate) fn settle(&mut self) -> Result<(), CollectError> {
        if self.asked && self.due.is_empty() {
            self.uninterrupted(Self::fetch)?;
        }
        Ok(())
    }

    /// Runs `f`, whose waits nothing interrupts.
    pub(crate) fn uninterrupted<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        self.interrupted_by(Interrupt::never(), f)
    }

    /// Runs `f`, whose waits for workers `interrupt` ends.
    pub(crate) fn interrupted_by<R>(
        &mut self,
        interrupt: Interrupt,
        f: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let own = std::mem::replace(&mut self.interrupt, interrupt);
        let out = f(self);
        self.interrupt = own;
        out
    }

    /// Whether workers fill a slab that was asked for, and the wait for it was interrupted.
    pub(crate) fn has_asked(&self) -> bool {
        self.asked
    }

    /// Zeros in the shape of a batch.
    pub(crate) fn fake_batch(&mut self) -> Result<S::Out, CollectError> {
        let core = &self.core;
        let shares = core.ring.layout().shares();
        let parts = (0..core.plan.slabs_per_batch())
            .flat_map(|_| &shares.steps)
            .map(|&steps| zeros(core.ring.layout(), steps))
            .collect::<Result<Vec<_>, _>>()?;
        let longest = shares.steps.iter().copied().max().unwrap_or(0);
        let batch = put_together(&parts, longest, core.cat_results, core.preempting)?;
        let number = core.counters().batches;
        let batch = self.split(batch)?;
        self.stage.preview(batch, number)
    }

    /// Drops unfinished trajectories; the rest of each is left out when it comes.
    pub(crate) fn drop_trajectories(&mut self) {
        let batcher = self.shape.batcher.as_mut();
        let dropped = batcher.map_or(0, |batcher| batcher.sever() as u64);
        self.core.counters().dropped += dropped;
    }

    /// Drops all frames that were collected and not delivered.
    pub(crate) fn clear(&mut self) {
        self.gathered.clear();
        self.last = None;
        self.due.clear();
        self.passed.clear();
        self.drop_frames();
    }

    /// Drops frames of trajectories that will not be delivered any more.
    pub(crate) fn drop_frames(&mut self) {
        let batcher = self.shape.batcher.as_mut();
        let dropped = batcher.map_or(0, |batcher| batcher.clear() as u64);
        self.core.counters().dropped += dropped;
    }

    fn assemble(&self, slabs: &[Filled]) -> Result<TensorDict, TensorError> {
        assemble(slabs, self.core.cat_results, self.core.preempting)
    }

    fn push(&mut self, slabs: &[Filled]) -> Result<(), TensorError> {
        let Some(batcher) = &mut self.shape.batcher else {
            return Ok(());
        };
        let synchronous = self.core.plan.delivery == Delivery::Synchronous;
        for slab in slabs {
            push_parts(batcher, slab, synchronous)?;
        }
        self.core.counters().dropped += batcher.take_unwanted() as u64;
        Ok(())
    }

    /// The whole slabs of the next batch, counted; `None` when no frames are left.
    fn poll(&mut self) -> Result<Option<Vec<Filled>>, CollectError> {
        if self.core.forget.swap(false, Ordering::Relaxed) {
            self.drop_trajectories();
        }
        if self.core.frames_left() == 0 && self.last.is_none() {
            self.drop_frames();
            return Ok(None);
        }
        let again = self.asked || !self.gathered.is_empty();
        if self.shape.update_at_each_batch && !again {
            self.core.publisher.publish_from_source()?;
        }
        self.stage.prepare(again)?;
        self.core.counters().throughput.begin();
        let gathered = self.gather_all();
        self.stage.collected();
        gathered?;
        Ok(Some(std::mem::take(&mut self.gathered)))
    }

    fn gather_all(&mut self) -> Result<(), CollectError> {
        let slabs = self.core.plan.slabs_per_batch();
        while self.gathered.len() < slabs && self.core.frames_left() > 0 {
            let gathered = self.gathered.len();
            self.gather()?;
            if self.gathered.len() == gathered {
                // It has no frames, and neither may those that follow.
                self.interrupt.check()?;
            }
        }
        if self.gathered.len() < slabs {
            self.gathered.extend(self.last.take());
        }
        Ok(())
    }

    /// One more whole slab towards the next batch, counted; none where it holds no frame.
    fn gather(&mut self) -> Result<(), CollectError> {
        if self.core.ring.is_at_end() {
            if let Some(last) = self.last.take() {
                self.gathered.push(last);
                return Ok(());
            }
            // Parts that were cut short have left frames over.
            self.core.count_on(self.core.ring.begun());
        }
        let slab = self.collect()?;
        let lease = &slab.lease;
        let core = &self.core;
        let frames = lease.frames() as u64;
        core.counters().frames += frames;
        if core.plan.ahead(core.workers()) == 0 {
            // Frames that were not collected, since a part was cut short or a worker is gone, are left to be.
            core.count_on(lease.seq() + 1);
        }
        // A worker that is gone may have left a part without frames.
        if frames > 0 {
            core.counters()
                .collected(frames, core.shared.weights.version(), lease.commits());
            if core.frames_left() > 0 && lease.seq() + 1 == core.shared.schedule().end() {
                // It may be short, and is ready before a slower one's that was started earlier.
                self.last = Some(slab);
            } else {
                self.gathered.push(slab);
            }
        }
        Ok(())
    }

    fn collect(&mut self) -> Result<Filled, CollectError> {
        let taken = self.workers.next(&self.core.ring, &self.interrupt);
        // Also after an error: then nothing that could be waited for is under way.
        self.asked = matches!(taken, Err(CollectError::WaitInterrupted(_)));
        let lease = taken.map_err(|error| match error {
            CollectError::Slab(SlabError::Stopped) => self
                .core
                .shared
                .reports
                .take_failure()
                .map_or(CollectError::ShutDown, CollectError::from),
            other => other,
        })?;
        let schedule = self.core.shared.schedule();
        let shares = (0..lease.commits().len()).map(|part| schedule.share(lease.seq(), part));
        let steps = shares.map(|share| share.steps).max().unwrap_or(0);
        drop(schedule);
        Ok(Filled { lease, steps })
    }
}

/// A part of `steps` steps that holds zeros, shaped as [`Lease::part`] is.
fn zeros(layout: &Layout, steps: usize) -> Result<TensorDict, TensorError> {
    let shares = layout.shares();
    let (size, names): (&[usize], &[Option<&str>]) = match shares.batched {
        true => (&[shares.envs, steps], &[None, Some("time")]),
        false => (&[steps], &[Some("time")]),
    };
    let mut part = TensorDict::new(size);
    part.set_names(names)?;
    for leaf in layout.columns() {
        let shape = [size, &leaf.shape[..]].concat();
        part.set(&leaf.key, Tensor::zeros(leaf.dtype, shape)?)?;
    }
    part.set_groups(layout.groups())?;
    Ok(part)
}

impl<S: LastStage> std::fmt::Debug for Driver<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}
