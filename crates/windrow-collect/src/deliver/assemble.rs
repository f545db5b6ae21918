//! What happens to a whole slab until it is delivered, in the thread of whoever asked for it.

use tensordict::{Tensor, TensorDict, TensorError};
use windrow_slab::Lease;

use crate::CollectError;
use crate::config::plan::CatResults;
use crate::postproc::split_trajectories;
use crate::trajectories::{IDS, MASK, TrajectoryBatcher, rebuilt};

/// Something done to every batch before it is delivered.
pub(crate) type Postproc = Box<
    dyn FnMut(TensorDict) -> Result<TensorDict, Box<dyn std::error::Error + Send + Sync>> + Send,
>;

/// Something that looks at every batch as it is delivered.
pub(crate) type BatchHook = Box<dyn FnMut(&TensorDict) + Send>;

/// A slab that workers have filled.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) lease: Lease,
    /// Steps that its longest part was to have.
    pub(crate) steps: usize,
}

/// What the user has asked for at the receiving end.
#[derive(Default)]
pub(crate) struct Consumer {
    /// Puts whole trajectories together, where these are delivered.
    pub(crate) batcher: Option<TrajectoryBatcher>,
    /// Trajectories of one write, where they are written; all that are complete, if nobody said.
    pub(crate) trajs_per_write: Option<usize>,
    pub(crate) split_trajs: bool,
    pub(crate) postproc: Vec<Postproc>,
    pub(crate) pre_collect_hook: Option<Box<dyn FnMut() + Send>>,
    pub(crate) post_collect_hook: Option<BatchHook>,
    pub(crate) update_at_each_batch: bool,
}

impl Consumer {
    /// Takes the frames of a slab in, where whole trajectories are delivered; how many of them nobody wants any more.
    ///
    /// `side_by_side`: each part is another worker's, so that the order in which trajectories end is the same however
    /// environments are spread over workers. Otherwise parts can be one worker's, one after the other.
    pub(crate) fn push(
        &mut self,
        slabs: &[Filled],
        side_by_side: bool,
    ) -> Result<u64, TensorError> {
        let Some(batcher) = &mut self.batcher else {
            return Ok(0);
        };
        for slab in slabs {
            push_parts(batcher, slab, side_by_side)?;
        }
        Ok(batcher.take_unwanted() as u64)
    }

    /// The next trajectories to be written, one after the other; `None` when none are complete.
    pub(crate) fn pop_group(&mut self) -> Result<Option<TensorDict>, TensorError> {
        let most = self.trajs_per_write.unwrap_or(usize::MAX);
        self.batcher
            .as_mut()
            .map_or(Ok(None), |batcher| batcher.pop_up_to(most))
    }

    /// Forgets trajectories that are begun or complete, and leaves out what is still to come of them; how many frames.
    pub(crate) fn sever(&mut self) -> u64 {
        self.batcher
            .as_mut()
            .map_or(0, |batcher| batcher.sever() as u64)
    }

    /// Forgets frames that were not delivered yet; how many.
    pub(crate) fn drop_frames(&mut self) -> u64 {
        self.batcher
            .as_mut()
            .map_or(0, |batcher| batcher.clear() as u64)
    }

    /// What is to be written of a batch: its frames without padding. Before the post-processing, which may drop the mask;
    /// episodes side by side are padded only by it.
    pub(crate) fn only_frames(&self, batch: TensorDict) -> Result<TensorDict, TensorError> {
        match self.split_trajs {
            true => Ok(batch),
            false => unpadded(batch),
        }
    }

    /// Applies the post-processing to batch number `number`, and shows it to the hook.
    pub(crate) fn finish(
        &mut self,
        batch: TensorDict,
        number: u64,
    ) -> Result<TensorDict, CollectError> {
        let batch = self.process(batch, number)?;
        if let Some(hook) = &mut self.post_collect_hook {
            hook(&batch);
        }
        Ok(batch)
    }

    /// Applies the post-processing to batch number `number`.
    pub(crate) fn process(
        &mut self,
        mut batch: TensorDict,
        number: u64,
    ) -> Result<TensorDict, CollectError> {
        if self.split_trajs {
            batch = split_trajectories(&batch)?;
        }
        for postproc in &mut self.postproc {
            batch = postproc(batch).map_err(|source| CollectError::Postproc {
                batch: number,
                source,
            })?;
        }
        Ok(batch)
    }
}

fn push_parts(
    batcher: &mut TrajectoryBatcher,
    slab: &Filled,
    side_by_side: bool,
) -> Result<(), TensorError> {
    let lease = &slab.lease;
    let parts = lease.commits().len();
    if side_by_side && parts > 1 {
        return batcher.push(&stack(slab, false)?);
    }
    (0..parts).try_for_each(|part| batcher.push(&lease.part(part)?))
}

/// The frames of `batch` that are no padding: itself where there is no mask, otherwise `[frames]`.
pub(crate) fn unpadded(batch: TensorDict) -> Result<TensorDict, TensorError> {
    if !batch.contains_key(MASK) {
        return Ok(batch);
    }
    let mut frames = batch.exclude(&[MASK]).masked_select(batch.get(MASK)?)?;
    frames.set_names(&[Some("time")])?;
    Ok(frames)
}

/// Puts the slabs of a batch, and their parts, together; a view of their memory wherever one can express it.
///
/// A batch of one part, and one of parts side by side, has the shape that it was to have also where they were cut short:
/// what was not collected is padding.
///
/// `preempting`: whether parts may be cut short at any step, so that the mask is there also when none was.
pub(crate) fn assemble(
    slabs: &[Filled],
    how: CatResults,
    preempting: bool,
) -> Result<TensorDict, TensorError> {
    if let [slab] = slabs {
        return assemble_slab(slab, how, preempting);
    }
    // Slabs of several workers lie apart.
    let parts = slabs
        .iter()
        .map(|slab| slab.lease.part(0))
        .collect::<Result<Vec<_>, _>>()?;
    let steps = slabs.iter().map(|slab| slab.steps).max().unwrap_or(0);
    put_together(&parts, steps, how, preempting)
}

/// As [`assemble`], of parts that lie anywhere, the longest of which was to have `steps` steps; not none.
pub(crate) fn put_together(
    parts: &[TensorDict],
    steps: usize,
    how: CatResults,
    preempting: bool,
) -> Result<TensorDict, TensorError> {
    let short = || parts.iter().any(|part| steps_of(part) < steps);
    match how {
        CatResults::Stack if preempting || short() => TensorDict::stack(&pad(parts, steps)?, 0),
        CatResults::Stack => TensorDict::stack(parts, 0),
        CatResults::Flat | CatResults::Time => cat(parts, how),
    }
}

fn assemble_slab(
    slab: &Filled,
    how: CatResults,
    preempting: bool,
) -> Result<TensorDict, TensorError> {
    let lease = &slab.lease;
    let parts = lease.commits().len();
    if how == CatResults::Stack {
        return stack(slab, preempting);
    }
    if parts == 1 {
        let part = lease.part(0)?;
        return match steps_of(&part) < slab.steps && !preempting {
            true => pad_time(&part, slab.steps),
            false => Ok(part),
        };
    }
    if let Some(flat) = lease.flat()? {
        return Ok(flat);
    }
    let parts: Vec<TensorDict> = (0..parts)
        .filter(|&part| lease.commits()[part].steps > 0)
        .map(|part| lease.part(part))
        .collect::<Result<_, _>>()?;
    match parts.is_empty() {
        true => lease.part(0),
        false => cat(&parts, how),
    }
}

/// One after the other, along time or along their environments; `parts` are not none.
fn cat(parts: &[TensorDict], how: CatResults) -> Result<TensorDict, TensorError> {
    let time = parts[0].ndim() - 1;
    // Rows of different length have no common rectangle along their environments: those of cut parts are padded, as in a
    // stack.
    if how == CatResults::Time || time == 0 {
        TensorDict::cat(parts, time)
    } else if is_uneven(parts) {
        let longest = parts.iter().map(steps_of).max().unwrap_or(0);
        TensorDict::cat(&pad(parts, longest)?, 0)
    } else {
        TensorDict::cat(parts, 0)
    }
}

fn is_uneven(parts: &[TensorDict]) -> bool {
    parts
        .iter()
        .any(|part| part.batch_size() != parts[0].batch_size())
}

fn steps_of(part: &TensorDict) -> usize {
    part.batch_size().last().copied().unwrap_or(0)
}

fn stack(slab: &Filled, preempting: bool) -> Result<TensorDict, TensorError> {
    let lease = &slab.lease;
    if let Some(mut stacked) = lease.stacked()? {
        if preempting {
            let mask = Tensor::full(stacked.batch_size(), true)?;
            stacked.set(MASK, mask)?;
        }
        return Ok(stacked);
    }
    let parts = (0..lease.commits().len())
        .map(|part| lease.part(part))
        .collect::<Result<Vec<_>, _>>()?;
    TensorDict::stack(&pad(&parts, slab.steps)?, 0)
}

/// Makes the parts `steps` steps long; see [`pad_time`].
fn pad(parts: &[TensorDict], steps: usize) -> Result<Vec<TensorDict>, TensorError> {
    parts.iter().map(|part| pad_time(part, steps)).collect()
}

/// The part with zeros behind its frames, up to `steps` steps; their trajectory id is -1, which no trajectory has, and
/// `("collector", "mask")` is false at them.
fn pad_time(part: &TensorDict, steps: usize) -> Result<TensorDict, TensorError> {
    let time = part.ndim() - 1;
    let missing = steps.saturating_sub(steps_of(part));
    let mut masked = part.clone();
    masked.set(MASK, Tensor::full(part.batch_size(), true)?)?;
    let mut shape = part.batch_size().to_vec();
    shape[time] += missing;
    let mut padded = rebuilt(&masked, part.ndim(), &shape, &mut |tensor| {
        let mut shape = tensor.shape().to_vec();
        shape[time] = missing;
        let zeros = Tensor::zeros(tensor.dtype(), shape)?;
        Tensor::cat(&[tensor, &zeros], time)
    })?;
    if let Ok(ids) = part.get(IDS) {
        shape[time] = missing;
        padded.set(
            IDS,
            Tensor::cat(&[ids, &Tensor::full(&shape, -1i64)?], time)?,
        )?;
    }
    let names: Vec<Option<&str>> = part.names().iter().map(Option::as_deref).collect();
    padded.set_names(&names)?;
    Ok(padded)
}
