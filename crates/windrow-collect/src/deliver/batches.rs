//! Batches made of slabs: of their frames, or of the trajectories that these complete.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use tensordict::{Tensor, TensorDict, TensorError};
use windrow_slab::Layout;
use windrow_sync::Interrupt;

use crate::config::plan::Delivery;
use crate::deliver::assemble::{
    Filled, SavedSlab, assemble, parts_in_order, push_parts, put_together, unpadded,
};
use crate::deliver::core::Core;
use crate::deliver::slabs::Slabs;
use crate::error::NextError;
use crate::postproc::split_trajectories;
use crate::shared::commands::Restart;
use crate::trajectories::{SavedTrajectories, TrajectoryBatcher};

/// How frames make batches.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    /// Puts whole trajectories together, where these are delivered.
    pub(crate) batcher: Option<TrajectoryBatcher>,
    /// Trajectories of one write to a replay buffer; all that are complete, unless given.
    pub(crate) trajs_per_write: Option<usize>,
    pub(crate) split_trajs: bool,
}

/// The frames that were collected and not delivered yet, as a state has them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedBatches {
    /// Frames of the slabs that are in the count of frames already.
    pub(crate) counted: u64,
    slabs: Vec<SavedSlab>,
    ready: Vec<ByteBuf>,
    trajectories: Option<SavedTrajectories>,
}

/// Saved frames that were read, and that the collector does not deliver yet.
pub(crate) struct LoadedBatches {
    slabs: VecDeque<Filled>,
    ready: VecDeque<TensorDict>,
    batcher: Option<TrajectoryBatcher>,
}

/// Makes batches of slabs.
pub(crate) struct Batches {
    pub(crate) slabs: Slabs,
    core: Arc<Core>,
    shape: Shape,
    /// Slabs of the next batch that were taken already.
    gathered: Vec<Filled>,
    /// Batches of one request that were not delivered yet: one, or all that are to be written.
    pub(crate) ready: VecDeque<TensorDict>,
}

impl Batches {
    pub(crate) fn new(slabs: Slabs, core: Arc<Core>, shape: Shape) -> Self {
        Self {
            slabs,
            core,
            shape,
            gathered: Vec::new(),
            ready: VecDeque::new(),
        }
    }

    /// Whether whole trajectories are delivered.
    pub(crate) fn are_trajectories(&self) -> bool {
        self.shape.batcher.is_some()
    }

    /// Whether a wait for slabs of the next batch was interrupted.
    pub(crate) fn are_begun(&self) -> bool {
        self.slabs.asked || !self.gathered.is_empty()
    }

    /// Makes trajectories ready that were complete before; whether they are enough for a batch.
    /// Those that are written were made ready as they were completed.
    pub(crate) fn complete(&mut self) -> Result<bool, TensorError> {
        if self.core.writer.is_none()
            && let Some(batcher) = &mut self.shape.batcher
            && let Some(batch) = batcher.pop()?
        {
            self.make_ready(batch)?;
        }
        Ok(!self.ready.is_empty())
    }

    /// Collects the slabs of one batch, and makes ready what comes of them: a batch of all, or the
    /// trajectories that they complete. Whether that answers the request: trajectories that are not
    /// written may be too few.
    ///
    /// # Errors
    /// Those of [`Slabs::next`]. The next call goes on where this one stopped.
    pub(crate) fn take(&mut self, interrupt: &Interrupt) -> Result<bool, NextError> {
        let wanted = self.core.plan.slabs_per_batch();
        while self.gathered.len() < wanted
            && let Some(slab) = self.slabs.next(wanted - self.gathered.len(), interrupt)?
        {
            self.gathered.push(slab);
        }
        let slabs = std::mem::take(&mut self.gathered);
        let writes = self.core.writer.is_some();
        let Some(batcher) = &mut self.shape.batcher else {
            let batch = self.assemble(&slabs)?;
            // Before the last stage, which may drop the mask. Splitting adds padding of its own.
            let batch = match writes && !self.shape.split_trajs {
                true => unpadded(batch)?,
                false => batch,
            };
            self.make_ready(batch)?;
            return Ok(true);
        };
        let side_by_side = self.core.plan.delivery == Delivery::Synchronous;
        for slab in slabs {
            push_parts(batcher, &slab, side_by_side)?;
        }
        self.core.counters().dropped += batcher.take_unwanted() as u64;
        let most = self.shape.trajs_per_write.unwrap_or(usize::MAX);
        while writes
            && let Some(batcher) = &mut self.shape.batcher
            && let Some(group) = batcher.pop_up_to(most)?
        {
            self.make_ready(group)?;
        }
        Ok(writes || self.complete()?)
    }

    /// A batch outside the count, which nothing interrupts.
    pub(crate) fn rollout(&mut self) -> Result<TensorDict, NextError> {
        let core = Arc::clone(&self.core);
        core.shared.schedule().counting = false;
        core.ring.end_at(u64::MAX);
        let slabs: Result<Vec<_>, _> = (0..core.plan.slabs_per_batch())
            .map(|_| self.slabs.take(&Interrupt::never()))
            .collect();
        core.shared.schedule().counting = true;
        core.count_on(core.ring.begun());
        self.leave_out(slabs.as_deref().ok())?;
        Ok(self.assemble(&slabs?)?)
    }

    /// Keeps the frames before `slabs` apart from those after them, since the frames of `slabs` are
    /// not in the stream: episodes go on under new ids, and trajectories that lack frames are
    /// dropped. If it is unknown which frames are missing (`None`), episodes begin anew.
    fn leave_out(&mut self, slabs: Option<&[Filled]>) -> Result<(), TensorError> {
        let Some(slabs) = slabs else {
            self.core.restart(Restart::Unseeded);
            return Ok(());
        };
        self.core.restart(Restart::Renamed);
        if let Some(batcher) = &mut self.shape.batcher {
            for Filled { lease, .. } in slabs {
                parts_in_order(lease).try_for_each(|part| batcher.leave_out(&lease.part(part)?))?;
            }
        }
        Ok(())
    }

    /// The frames that were collected and not delivered yet.
    ///
    /// # Errors
    /// [`NextError::Slab`] and [`NextError::Postproc`] where frames cannot be copied.
    pub(crate) fn saved(&mut self) -> Result<SavedBatches, NextError> {
        let slabs = &self.slabs;
        let all = self.gathered.iter().chain(&slabs.waiting);
        let all = all.chain(&slabs.last).map(Filled::saved);
        let ready = self.ready.iter().map(|batch| Ok(batch.to_bytes()?.into()));
        Ok(SavedBatches {
            counted: self.gathered.iter().map(Filled::frames).sum(),
            slabs: all.collect::<Result<_, _>>()?,
            ready: ready.collect::<Result<_, TensorError>>()?,
            trajectories: match &mut self.shape.batcher {
                Some(batcher) => Some(batcher.saved()?),
                None => None,
            },
        })
    }

    /// Copies the frames that [`saved`](Self::saved) has returned into memory of the ring, which is
    /// held.
    ///
    /// # Errors
    /// [`NextError::Slab`] and [`NextError::Postproc`] where other frames were saved, or there is
    /// no memory.
    pub(crate) fn read(&self, saved: &SavedBatches) -> Result<LoadedBatches, NextError> {
        let ring = &self.core.ring;
        let slabs = saved.slabs.iter().map(|slab| Filled::loaded(slab, ring));
        let slabs = slabs.collect::<Result<_, _>>()?;
        let ready = saved.ready.iter();
        let ready = ready.map(|batch| TensorDict::from_bytes(batch));
        let like = zeros(ring.layout(), 1)?;
        let batcher = match (&self.shape.batcher, &saved.trajectories) {
            (Some(batcher), Some(saved)) => Some(batcher.loaded(saved, &like)?),
            _ => None,
        };
        Ok(LoadedBatches {
            slabs,
            ready: ready.collect::<Result<_, _>>()?,
            batcher,
        })
    }

    /// Goes on with what was [read](Self::read), in the place of all that was collected.
    pub(crate) fn go_on_with(&mut self, loaded: LoadedBatches) {
        self.clear();
        self.slabs.begin_with(loaded.slabs);
        self.ready = loaded.ready;
        if loaded.batcher.is_some() {
            self.shape.batcher = loaded.batcher;
        }
    }

    /// Zeros in the shape of a batch.
    pub(crate) fn zeros(&self) -> Result<TensorDict, TensorError> {
        let core = &self.core;
        let shares = core.ring.layout().shares();
        let parts = (0..core.plan.slabs_per_batch())
            .flat_map(|_| &shares.steps)
            .map(|&steps| zeros(core.ring.layout(), steps))
            .collect::<Result<Vec<_>, _>>()?;
        let longest = shares.steps.iter().copied().max().unwrap_or(0);
        self.split(put_together(
            &parts,
            longest,
            core.cat_results,
            core.preempting,
        )?)
    }

    /// Drops unfinished trajectories; the rest of each is left out when it comes.
    pub(crate) fn drop_trajectories(&mut self) {
        let batcher = self.shape.batcher.as_mut();
        let dropped = batcher.map_or(0, |batcher| batcher.sever() as u64);
        self.core.counters().dropped += dropped;
    }

    /// Drops frames of trajectories that will not be delivered any more.
    pub(crate) fn drop_frames(&mut self) {
        let batcher = self.shape.batcher.as_mut();
        let dropped = batcher.map_or(0, |batcher| batcher.clear() as u64);
        self.core.counters().dropped += dropped;
    }

    /// Drops all frames that were collected and not delivered.
    pub(crate) fn clear(&mut self) {
        self.slabs.clear();
        self.gathered.clear();
        self.ready.clear();
        self.drop_frames();
    }

    fn make_ready(&mut self, batch: TensorDict) -> Result<(), TensorError> {
        let batch = self.split(batch)?;
        self.ready.push_back(batch);
        Ok(())
    }

    /// `batch`, with a row for each piece of a trajectory where `split_trajs` says so.
    fn split(&self, batch: TensorDict) -> Result<TensorDict, TensorError> {
        match self.shape.split_trajs {
            true => split_trajectories(&batch),
            false => Ok(batch),
        }
    }

    fn assemble(&self, slabs: &[Filled]) -> Result<TensorDict, TensorError> {
        assemble(slabs, self.core.cat_results, self.core.preempting)
    }
}

/// A part of `steps` steps that holds zeros, shaped as [`Lease::part`](windrow_slab::Lease::part)
/// is.
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
