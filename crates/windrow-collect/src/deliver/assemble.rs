//! Makes batches of filled slabs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tensordict::{Tensor, TensorDict, TensorError};
use windrow_slab::{Commit, Lease, Part, Ring, SlabError};

use crate::config::plan::CatResults;
use crate::trajectories::{IDS, MASK, PADDING_ID, TrajectoryBatcher, rebuilt};

/// A slab that workers have filled.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) lease: Lease,
    /// Steps that its longest part was asked for.
    pub(crate) steps: usize,
}

/// A slab as it is saved.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedSlab {
    steps: usize,
    parts: Vec<SavedPart>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedPart {
    steps: usize,
    /// Version of the weights that acted.
    version: i64,
    #[serde(with = "serde_bytes")]
    rows: Vec<u8>,
}

impl Filled {
    pub(crate) fn frames(&self) -> u64 {
        self.lease.frames() as u64
    }

    /// # Errors
    /// [`SlabError::System`] where values that another process has written cannot be mapped.
    pub(crate) fn saved(&self) -> Result<SavedSlab, SlabError> {
        let part = |(index, commit): (usize, &Commit)| {
            let mut rows = Vec::new();
            self.lease.write_part(index, &mut rows)?;
            Ok(SavedPart {
                steps: commit.steps,
                version: commit.version,
                rows,
            })
        };
        let parts = self.lease.commits().iter().enumerate().map(part);
        Ok(SavedSlab {
            steps: self.steps,
            parts: parts.collect::<Result<_, SlabError>>()?,
        })
    }

    /// The slab that was `saved`, in the memory of `ring`, which is held.
    ///
    /// # Errors
    /// [`SlabError::RowBytes`] where a slab of another layout was saved, and errors of claims.
    pub(crate) fn loaded(saved: &SavedSlab, ring: &Arc<Ring>) -> Result<Self, SlabError> {
        let shares = ring.layout().shares();
        if saved.parts.len() != shares.steps.len() {
            return Err(SlabError::RowBytes {
                expected: shares.steps.len(),
                got: format!("{} parts", saved.parts.len()),
            });
        }
        ring.end_at(u64::MAX);
        ring.request()?;
        let mut read = Ok(());
        for (index, saved) in saved.parts.iter().enumerate() {
            let mut part = claim(ring, index)?;
            if read.is_ok() {
                part.shorten(saved.steps);
                read = part.read_from(&saved.rows);
            }
            if read.is_err() {
                // The slab is completed even so: nobody else is to fill it.
                part.shorten(0);
            }
            part.commit_version(saved.version);
        }
        let lease = ring.try_next();
        let lease = lease.expect("All parts of the slab are committed.");
        read.map(|()| Self {
            lease,
            steps: saved.steps,
        })
    }
}

/// The part `index` of the next slab of a ring that is held.
fn claim(ring: &Arc<Ring>, index: usize) -> Result<Part, SlabError> {
    for worker in index..index + ring.workers() {
        if let Some(part) = ring.claim_held(worker % ring.workers())? {
            return Ok(part);
        }
    }
    Err(SlabError::Stopped)
}

/// Gives the frames of a slab to `batcher`.
///
/// `side_by_side`: each part is to be another worker's. Then the order in which trajectories end
/// does not depend on how environments are spread over workers. Otherwise, and in the place of a
/// worker that was lost, one may have filled several, one after the other.
pub(crate) fn push_parts(
    batcher: &mut TrajectoryBatcher,
    slab: &Filled,
    side_by_side: bool,
) -> Result<(), TensorError> {
    let lease = &slab.lease;
    if side_by_side && lease.order().is_none() && lease.commits().len() > 1 {
        return batcher.push(&stack(slab, false)?);
    }
    let mut parts = parts_in_order(lease);
    parts.try_for_each(|part| batcher.push(&lease.part(part)?))
}

/// All parts, those of one worker in the order of time.
pub(crate) fn parts_in_order(lease: &Lease) -> impl Iterator<Item = usize> {
    let order = lease.order();
    (0..lease.commits().len()).map(move |place| order.map_or(place, |order| order[place]))
}

/// Whether the parts of each worker lie in the order of time.
fn lie_in_order(lease: &Lease) -> bool {
    lease.order().is_none_or(<[usize]>::is_sorted)
}

/// The frames of `batch` that are no padding: itself where it has no `("collector", "mask")`,
/// otherwise `[frames]`.
///
/// # Errors
/// [`TensorError`] when the mask does not fit the batch.
pub fn unpadded(batch: TensorDict) -> Result<TensorDict, TensorError> {
    if !batch.contains_key(MASK) {
        return Ok(batch);
    }
    let mut frames = batch.exclude(&[MASK]).masked_select(batch.get(MASK)?)?;
    frames.set_names(&[Some("time")])?;
    Ok(frames)
}

/// Puts the slabs of a batch, and their parts, together: as a view of their memory wherever a view
/// can express the shape.
///
/// A batch of one part, or of parts side by side, keeps its shape where parts were cut short:
/// padding takes the place of frames that were not collected.
///
/// `preempting`: parts may be cut short at any step, so every batch has a mask.
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

/// As [`assemble`], of one or more parts that lie anywhere; the longest was asked for `steps`
/// steps.
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
    if how == CatResults::Stack {
        return stack(slab, preempting);
    }
    if lease.commits().len() == 1 {
        let part = lease.part(0)?;
        return match steps_of(&part) < slab.steps && !preempting {
            true => pad_time(&part, slab.steps),
            false => Ok(part),
        };
    }
    let view = match how {
        _ if !lie_in_order(lease) => None,
        CatResults::Flat if lease.shares().batched => lease.along_envs()?,
        CatResults::Flat | CatResults::Time | CatResults::Stack => lease.along_time()?,
    };
    if let Some(view) = view.filter(|view| view.numel() > 0) {
        return Ok(view);
    }
    let parts: Vec<TensorDict> = parts_in_order(lease)
        .filter(|&part| lease.commits()[part].steps > 0)
        .map(|part| lease.part(part))
        .collect::<Result<_, _>>()?;
    match parts.is_empty() {
        true => lease.part(0),
        false => cat(&parts, how),
    }
}

/// Concatenates one or more parts along time or along their environments.
fn cat(parts: &[TensorDict], how: CatResults) -> Result<TensorDict, TensorError> {
    let time = parts[0].ndim() - 1;
    // Rows of different lengths make no rectangle: rows of cut parts are padded, as in a stack.
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
    let in_order = lie_in_order(lease);
    if in_order && let Some(mut stacked) = lease.stacked()? {
        if preempting {
            let mask = Tensor::full(stacked.batch_size(), true)?;
            stacked.set(MASK, mask)?;
        }
        return Ok(stacked);
    }
    let parts = parts_in_order(lease).map(|part| lease.part(part));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    match in_order {
        true => TensorDict::stack(&pad(&parts, slab.steps)?, 0),
        // Nothing is missing: it is to have the entries of other batches.
        false => put_together(&parts, slab.steps, CatResults::Stack, preempting),
    }
}

/// Makes the parts `steps` steps long; see [`pad_time`].
fn pad(parts: &[TensorDict], steps: usize) -> Result<Vec<TensorDict>, TensorError> {
    parts.iter().map(|part| pad_time(part, steps)).collect()
}

/// The part with zeros behind its frames, up to `steps` steps; their id is [`PADDING_ID`], and
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
            Tensor::cat(&[ids, &Tensor::full(&shape, PADDING_ID)?], time)?,
        )?;
    }
    let names: Vec<Option<&str>> = part.names().iter().map(Option::as_deref).collect();
    padded.set_names(&names)?;
    Ok(padded)
}
