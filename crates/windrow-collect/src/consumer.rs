//! What happens to a whole slab until it is delivered, in the thread of whoever asked for it.

use tensordict::{Tensor, TensorDict, TensorError};
use windrow_slab::Lease;

use crate::CollectError;
use crate::plan::CatResults;
use crate::postproc::split_trajectories;
use crate::trajectories::{MASK, TrajectoryBatcher, rebuilt};

/// Something done to every batch before it is delivered.
pub(crate) type Postproc = Box<
    dyn FnMut(TensorDict) -> Result<TensorDict, Box<dyn std::error::Error + Send + Sync>> + Send,
>;

/// Something that looks at every batch as it is delivered.
pub(crate) type BatchHook = Box<dyn FnMut(&TensorDict) + Send>;

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
        leases: &[Lease],
        side_by_side: bool,
    ) -> Result<u64, TensorError> {
        let Some(batcher) = &mut self.batcher else {
            return Ok(0);
        };
        for lease in leases {
            push_parts(batcher, lease, side_by_side)?;
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
    lease: &Lease,
    side_by_side: bool,
) -> Result<(), TensorError> {
    let parts = lease.commits().len();
    if side_by_side && parts > 1 {
        return batcher.push(&stack(lease, false)?);
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
/// `preempting`: whether parts may be cut short at any step, so that the mask is there also when none was.
pub(crate) fn assemble(
    leases: &[Lease],
    how: CatResults,
    preempting: bool,
) -> Result<TensorDict, TensorError> {
    if let [lease] = leases {
        return assemble_slab(lease, how, preempting);
    }
    // Slabs of several workers lie apart.
    let parts = leases
        .iter()
        .map(|lease| lease.part(0))
        .collect::<Result<Vec<_>, _>>()?;
    put_together(&parts, how, preempting)
}

/// As [`assemble`], of parts that lie anywhere; not none.
pub(crate) fn put_together(
    parts: &[TensorDict],
    how: CatResults,
    preempting: bool,
) -> Result<TensorDict, TensorError> {
    match how {
        CatResults::Stack if preempting || is_uneven(parts) => TensorDict::stack(&pad(parts)?, 0),
        CatResults::Stack => TensorDict::stack(parts, 0),
        CatResults::Flat | CatResults::Time => cat(parts, how),
    }
}

fn assemble_slab(
    lease: &Lease,
    how: CatResults,
    preempting: bool,
) -> Result<TensorDict, TensorError> {
    let parts = lease.commits().len();
    if parts == 1 && how != CatResults::Stack {
        return lease.part(0);
    }
    match how {
        CatResults::Stack => stack(lease, preempting),
        CatResults::Flat | CatResults::Time => {
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
        TensorDict::cat(&pad(parts)?, 0)
    } else {
        TensorDict::cat(parts, 0)
    }
}

fn is_uneven(parts: &[TensorDict]) -> bool {
    parts
        .iter()
        .any(|part| part.batch_size() != parts[0].batch_size())
}

fn stack(lease: &Lease, preempting: bool) -> Result<TensorDict, TensorError> {
    if let Some(mut stacked) = lease.stacked()? {
        if preempting {
            let mask = Tensor::full(stacked.batch_size(), true)?;
            stacked.set(("collector", "mask"), mask)?;
        }
        return Ok(stacked);
    }
    let parts = (0..lease.commits().len())
        .map(|part| lease.part(part))
        .collect::<Result<Vec<_>, _>>()?;
    TensorDict::stack(&pad(&parts)?, 0)
}

/// Makes the parts equally long: zeros behind their frames, and `("collector", "mask")` true at them.
fn pad(parts: &[TensorDict]) -> Result<Vec<TensorDict>, TensorError> {
    let steps = |part: &TensorDict| part.batch_size().last().copied().unwrap_or(0);
    let longest = parts.iter().map(steps).max().unwrap_or(0);
    parts
        .iter()
        .map(|part| pad_time(part, longest - steps(part)))
        .collect()
}

fn pad_time(part: &TensorDict, missing: usize) -> Result<TensorDict, TensorError> {
    let time = part.ndim() - 1;
    let mut masked = part.clone();
    masked.set(
        ("collector", "mask"),
        Tensor::full(part.batch_size(), true)?,
    )?;
    let mut shape = part.batch_size().to_vec();
    shape[time] += missing;
    let mut padded = rebuilt(&masked, part.ndim(), &shape, &mut |tensor| {
        let mut shape = tensor.shape().to_vec();
        shape[time] = missing;
        let zeros = Tensor::zeros(tensor.dtype(), shape)?;
        Tensor::cat(&[tensor, &zeros], time)
    })?;
    let names: Vec<Option<&str>> = part.names().iter().map(Option::as_deref).collect();
    padded.set_names(&names)?;
    Ok(padded)
}
