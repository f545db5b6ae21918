//! What asks the workers for batches, in the consumer's thread or in one of its own.

use std::sync::Arc;

use tensordict::{Tensor, TensorDict, TensorError};
use windrow_slab::{Layout, SlabError};

use crate::CollectError;
use crate::config::plan::Delivery;
use crate::deliver::consumer::{Consumer, Filled, assemble, put_together, unpadded};
use crate::deliver::core::Core;
use crate::placement::Crew;
use crate::sync::Ordering;

pub(crate) struct Driver {
    pub(crate) crew: Crew,
    pub(crate) core: Arc<Core>,
    consumer: Consumer,
    /// Slabs of the next batch that were taken already.
    gathered: Vec<Filled>,
    /// The slab that was started last, if it was ready before others.
    last: Option<Filled>,
}

impl Driver {
    pub(crate) fn new(crew: Crew, core: Arc<Core>, consumer: Consumer) -> Self {
        Self {
            crew,
            core,
            consumer,
            gathered: Vec::new(),
            last: None,
        }
    }

    /// Whether whole trajectories are delivered.
    pub(crate) fn has_batcher(&self) -> bool {
        self.consumer.batcher.is_some()
    }

    /// The next batch; `None` when the frames that are left make none.
    pub(crate) fn next_batch(&mut self) -> Result<Option<TensorDict>, CollectError> {
        loop {
            if let Some(batcher) = &mut self.consumer.batcher
                && let Some(batch) = batcher.pop()?
            {
                return self.deliver(batch).map(Some);
            }
            let Some(slabs) = self.poll()? else {
                return Ok(None);
            };
            if self.has_batcher() {
                self.push(&slabs)?;
            } else {
                let batch = self.assemble(&slabs)?;
                drop(slabs);
                return self.deliver(batch).map(Some);
            }
        }
    }

    /// What the frames that are collected next give to be written, without padding: one batch, or the trajectories that
    /// they complete, if any, in groups. `None` when no frames are left.
    pub(crate) fn next_writes(&mut self) -> Result<Option<Vec<TensorDict>>, CollectError> {
        let Some(slabs) = self.poll()? else {
            return Ok(None);
        };
        let mut batches = Vec::new();
        if self.has_batcher() {
            self.push(&slabs)?;
            drop(slabs);
            while let Some(group) = self.consumer.pop_group()? {
                batches.push(group);
            }
        } else {
            batches.push(self.consumer.only_frames(self.assemble(&slabs)?)?);
        }
        let number = self.core.tally().batches;
        batches
            .into_iter()
            .map(|batch| Ok(unpadded(self.consumer.finish(batch, number)?)?))
            .collect::<Result<_, CollectError>>()
            .map(Some)
    }

    /// Collects and writes once: what was written, in one piece. `None` when no frames are left.
    pub(crate) fn next_written(&mut self) -> Result<Option<TensorDict>, CollectError> {
        let Some(mut batches) = self.next_writes()? else {
            return Ok(None);
        };
        self.write(&batches)?;
        Ok(Some(match batches.len() {
            0 => TensorDict::new([0]).with_names(&[Some("time")])?,
            1 => batches.swap_remove(0),
            _ => TensorDict::cat(&batches, 0)?,
        }))
    }

    /// Writes what [`next_writes`](Self::next_writes) gave.
    pub(crate) fn write(&mut self, batches: &[TensorDict]) -> Result<(), CollectError> {
        if let Some(outlet) = &self.core.outlet {
            batches.iter().try_for_each(|batch| outlet.extend(batch))?;
        }
        self.core.tally().batches += 1;
        Ok(())
    }

    /// A batch outside the count.
    pub(crate) fn rollout(&mut self) -> Result<TensorDict, CollectError> {
        let core = Arc::clone(&self.core);
        core.shared.schedule().counting = false;
        core.ring.end_at(u64::MAX);
        let slabs: Result<Vec<_>, _> = (0..core.plan.slabs_per_batch())
            .map(|_| self.collect())
            .collect();
        core.shared.schedule().counting = true;
        core.count_on(core.ring.begun());
        Ok(self.assemble(&slabs?)?)
    }

    /// Zeros in the shape of a batch.
    pub(crate) fn fake_batch(&mut self) -> Result<TensorDict, CollectError> {
        let core = &self.core;
        let shares = core.ring.layout().shares();
        let parts = (0..core.plan.slabs_per_batch())
            .flat_map(|_| &shares.steps)
            .map(|&steps| zeros(core.ring.layout(), steps))
            .collect::<Result<Vec<_>, _>>()?;
        let longest = shares.steps.iter().copied().max().unwrap_or(0);
        let batch = put_together(&parts, longest, core.cat_results, core.preempting)?;
        let number = core.tally().batches;
        self.consumer.process(batch, number)
    }

    /// Forgets trajectories that are begun, whose rest is left out when it comes.
    pub(crate) fn drop_trajectories(&mut self) {
        self.core.tally().dropped += self.consumer.sever();
    }

    /// Forgets all that was collected and not delivered.
    pub(crate) fn clear(&mut self) {
        self.gathered.clear();
        self.last = None;
        self.core.tally().dropped += self.consumer.drop_frames();
    }

    fn assemble(&self, slabs: &[Filled]) -> Result<TensorDict, TensorError> {
        assemble(slabs, self.core.cat_results, self.core.preempting)
    }

    fn push(&mut self, slabs: &[Filled]) -> Result<(), TensorError> {
        let synchronous = self.core.plan.delivery == Delivery::Synchronous;
        let dropped = self.consumer.push(slabs, synchronous)?;
        self.core.tally().dropped += dropped;
        Ok(())
    }

    fn deliver(&mut self, batch: TensorDict) -> Result<TensorDict, CollectError> {
        let number = self.core.tally().batches;
        let batch = self.consumer.finish(batch, number)?;
        self.core.tally().batches += 1;
        Ok(batch)
    }

    /// The whole slabs of the next batch, counted; `None` when no frames are left.
    fn poll(&mut self) -> Result<Option<Vec<Filled>>, CollectError> {
        if self.core.forget.swap(false, Ordering::Relaxed) {
            self.drop_trajectories();
        }
        if self.core.frames_left() == 0 && self.last.is_none() {
            self.core.tally().dropped += self.consumer.drop_frames();
            return Ok(None);
        }
        if self.consumer.update_at_each_batch {
            self.core.publisher.publish_from_source()?;
        }
        if let Some(hook) = &mut self.consumer.pre_collect_hook {
            hook();
        }
        self.core.tally().throughput.begin();
        let slabs = self.core.plan.slabs_per_batch();
        while self.gathered.len() < slabs && self.core.frames_left() > 0 {
            self.gather()?;
        }
        if self.gathered.len() < slabs {
            self.gathered.extend(self.last.take());
        }
        Ok(Some(std::mem::take(&mut self.gathered)))
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
        core.tally().frames += frames;
        if core.plan.ahead(core.workers()) == 0 {
            // Frames that were not collected, since a part was cut short or a worker is gone, are left to be.
            core.count_on(lease.seq() + 1);
        }
        // A worker that is gone may have left a part without frames.
        if frames > 0 {
            core.tally()
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
        let lease = self
            .crew
            .next(&self.core.ring)
            .map_err(|error| match error {
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

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("crew", &self.crew)
            .finish_non_exhaustive()
    }
}
