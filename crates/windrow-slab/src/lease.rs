//! The right to read a complete slab.

use std::ptr::NonNull;
use std::sync::Arc;

use tensordict::{DType, Extent, Owner, Shape, Strides, Tensor, TensorDict, TensorError};

use crate::SlabError;
use crate::layout::{Delivered, Layout, PartOrder, Shares};
use crate::part::bytes::write_part;
use crate::ring::{Commit, Ring};
use crate::slab::Slab;

/// The right to read a whole slab.
///
/// Tensors made from it share it: the slab goes back to the ring when the last of them is dropped.
///
/// A batch cannot be written through it:
/// ```compile_fail,E0599
/// fn write(lease: windrow_slab::Lease) {
///     let _ = lease.first_obs();
/// }
/// ```
#[derive(Debug)]
pub struct Lease {
    leased: Arc<LeasedSlab>,
    seq: u64,
    parts: Parts,
}

/// What the ring knows of the parts of a slab.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) commits: Vec<Commit>,
    pub(crate) ages: Vec<u64>,
    pub(crate) order: Option<Vec<usize>>,
}

/// A dimension of a batch, by the distance between two of its indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dim {
    Part,
    Env,
    Time,
}

/// Gives the slab back when dropped.
#[derive(Debug)]
struct LeasedSlab {
    ring: Arc<Ring>,
    slab: Arc<Slab>,
    slot: usize,
}

impl Drop for LeasedSlab {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        poison(self.ring.layout(), &self.slab);
        self.ring.release(self.slot);
    }
}

impl Lease {
    pub(crate) fn new(
        ring: Arc<Ring>,
        slab: Arc<Slab>,
        slot: usize,
        seq: u64,
        parts: Parts,
    ) -> Self {
        Self {
            leased: Arc::new(LeasedSlab { ring, slab, slot }),
            seq,
            parts,
        }
    }

    /// Number of the slab since the start.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The commit of each part; one that was cut short has fewer steps than room.
    #[must_use]
    pub fn commits(&self) -> &[Commit] {
        &self.parts.commits
    }

    /// The age of each part that was claimed: how many [publications](Ring::publication) were
    /// finished from then until the slab was taken, where those between two deliveries count as
    /// one.
    #[must_use]
    pub fn ages(&self) -> &[u64] {
        &self.parts.ages
    }

    /// All parts in an order in which those of one worker follow each other in time, where a worker
    /// has filled several in the place of others: that in which they lie, if possible. `None` where
    /// each part has a worker of its own.
    #[must_use]
    pub fn order(&self) -> Option<&[usize]> {
        self.parts.order.as_deref()
    }

    /// How the frames of the slab are divided into parts.
    #[must_use]
    pub fn shares(&self) -> &Shares {
        self.layout().shares()
    }

    /// Frames in the slab, over all parts and environments.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.steps() * self.layout().shares.envs
    }

    fn steps(&self) -> usize {
        self.parts.commits.iter().map(|commit| commit.steps).sum()
    }

    /// One part as a [`TensorDict`] over the slab's memory: `[time]`, or `[env, time]` when the
    /// environments have a dimension of their own. The last dimension is named `"time"`.
    ///
    /// # Errors
    /// [`TensorError::Index`] for a part that the slab does not have.
    pub fn part(&self, part: usize) -> Result<TensorDict, TensorError> {
        let parts = self.parts.commits.len();
        if part >= parts {
            return Err(TensorError::Index {
                index: part,
                dim: 0,
                size: parts,
            });
        }
        let steps = self.parts.commits[part].steps;
        self.view(part, self.shares().envs, &[(Dim::Time, steps)])
    }

    /// What the worker of part `part` has left in its [notes](crate::Part::notes); empty for a part
    /// that the slab does not have.
    #[must_use]
    pub fn notes(&self, part: usize) -> &[f64] {
        if part >= self.parts.commits.len() {
            return &[];
        }
        let (offset, count) = self.layout().notes(part);
        let first = self.address(offset).cast::<f64>();
        // SAFETY: the offset lies within the slab's memory and is aligned. Nobody writes a leased
        // slab, memory starts zeroed, and every bit pattern is a number.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), count) }
    }

    /// Appends the rows and notes of part `part` to `bytes`, as
    /// [`Part::write_to`](crate::Part::write_to) does; nothing for a part that the slab does not
    /// have.
    ///
    /// # Errors
    /// Those of [`Part::write_to`](crate::Part::write_to).
    pub fn write_part(&self, part: usize, bytes: &mut Vec<u8>) -> Result<(), SlabError> {
        let Some(commit) = self.parts.commits.get(part) else {
            return Ok(());
        };
        // SAFETY: nobody writes a leased slab, and the ring's layout is that of its slabs.
        unsafe { write_part(&self.leased.slab, self.layout(), part, commit.steps, bytes) }
    }

    /// All parts one after the other along time, `[frames]` or `[env, time]`: only where parts are
    /// [in sequence](PartOrder::Sequential) and every one but the last has all its steps. `None`
    /// otherwise.
    ///
    /// # Errors
    /// The errors of [`TensorDict::set`], which no valid layout causes.
    pub fn along_time(&self) -> Result<Option<TensorDict>, TensorError> {
        let shares = self.shares();
        let whole = self.parts.commits.iter().zip(&shares.steps);
        let parts = self.parts.commits.len();
        if shares.order != PartOrder::Sequential
            || whole
                .take(parts - 1)
                .any(|(commit, &steps)| commit.steps != steps)
        {
            return Ok(None);
        }
        let dims = [(Dim::Time, self.steps())];
        self.view(0, shares.envs, &dims).map(Some)
    }

    /// The environments of all parts one after the other, `[part · env, time]`: only where parts
    /// are [interleaved](PartOrder::Interleaved) and equally many steps of each were written.
    /// `None` otherwise.
    ///
    /// # Errors
    /// As [`along_time`](Self::along_time).
    pub fn along_envs(&self) -> Result<Option<TensorDict>, TensorError> {
        let shares = self.shares();
        let steps = self.parts.commits[0].steps;
        if shares.order != PartOrder::Interleaved
            || !shares.batched
            || self
                .parts
                .commits
                .iter()
                .any(|commit| commit.steps != steps)
        {
            return Ok(None);
        }
        let envs = self.layout().row_envs();
        self.view(0, envs, &[(Dim::Time, steps)]).map(Some)
    }

    /// All parts side by side, `[part, …, time]`: only where they have equally many steps, all of
    /// them written. `None` otherwise.
    ///
    /// # Errors
    /// As [`along_time`](Self::along_time).
    pub fn stacked(&self) -> Result<Option<TensorDict>, TensorError> {
        let steps = self.layout().shares.steps[0];
        let whole = self.parts.commits.iter().zip(&self.layout().shares.steps);
        if whole
            .clone()
            .any(|(commit, &room)| (commit.steps, room) != (steps, steps))
        {
            return Ok(None);
        }
        let dims = [(Dim::Part, self.parts.commits.len()), (Dim::Time, steps)];
        self.view(0, self.shares().envs, &dims).map(Some)
    }

    /// Rows from those of `part` on, with these dimensions before and after that of the `envs`
    /// environments.
    fn view(
        &self,
        part: usize,
        envs: usize,
        dims: &[(Dim, usize)],
    ) -> Result<TensorDict, TensorError> {
        #[cfg(loom)]
        self.leased
            .slab
            .shadow
            .iter()
            .for_each(windrow_sync::Shadow::read);
        let shares = &self.layout().shares;
        let mut batch = Shape::new();
        let mut names: Vec<Option<&str>> = Vec::with_capacity(3);
        let mut steps = Vec::with_capacity(3);
        for &(dim, size) in dims {
            if dim == Dim::Time && shares.batched {
                batch.push(envs);
                names.push(None);
                steps.push(Dim::Env);
            }
            batch.push(size);
            names.push((dim == Dim::Time).then_some("time"));
            steps.push(dim);
        }
        // Coerced once: each tensor then only counts one more reference.
        let owner: Owner = Arc::<LeasedSlab>::clone(&self.leased);
        let mut dict = TensorDict::new(&batch);
        dict.set_names(&names)?;
        let extents = match self.layout().has_bytes() {
            true => Some(self.extents()?),
            false => None,
        };
        for entry in &self.layout().delivered {
            let memory = (Arc::clone(&owner), extents.as_ref());
            let tensor = self.tensor(entry, part, (&batch, &steps), memory);
            dict.set(&entry.leaf.key, tensor)?;
        }
        dict.set_groups(self.layout().groups())?;
        Ok(dict)
    }

    fn tensor(
        &self,
        Delivered { leaf, column }: &Delivered,
        part: usize,
        (batch, dims): (&Shape, &[Dim]),
        (owner, extents): (Owner, Option<&Arc<[Extent]>>),
    ) -> Tensor {
        let mut shape = batch.clone();
        shape.extend_from_slice(&leaf.shape);
        let elements = |bytes: usize| (bytes / column.dtype.size()) as isize;
        let mut strides: Strides = dims
            .iter()
            .map(|dim| match dim {
                Dim::Part => elements(self.layout().part_offset(column, 1)),
                Dim::Env => column.elements as isize,
                Dim::Time => elements(column.stride),
            })
            .collect();
        let mut inner = column.elements;
        for &dim in &leaf.shape {
            inner /= dim.max(1);
            strides.push(inner as isize);
        }
        let start = self.address(column.offset + self.layout().part_offset(column, part));
        if let (DType::Bytes, Some(extents)) = (column.dtype, extents) {
            // SAFETY: as below. Rows write cells that name values of their part's arena, and a
            // claim clears those of the batch before; arenas are not emptied before the next claim.
            return unsafe {
                Tensor::from_cells(start.cast(), shape, strides, Arc::clone(extents), owner)
            };
        }
        // SAFETY: the strides address rows of `envs * elements` elements from those of `part` on,
        // of parts that were committed with that many steps, so they lie within the slab's memory;
        // all of it is initialised (zeroed, then written as the column's dtype), aligned, and kept
        // alive and unwritten by `LeasedSlab` until the last owner is gone.
        unsafe { Tensor::from_raw(start, column.dtype, shape, strides, owner) }
    }

    /// Where values of variable size lie.
    fn extents(&self) -> Result<Arc<[Extent]>, TensorError> {
        let op = "map values of bytes";
        let extents = self.leased.slab.extents();
        extents.map_err(|error| TensorError::Io {
            op,
            error: std::io::Error::other(error),
        })
    }

    fn address(&self, offset: usize) -> NonNull<u8> {
        // SAFETY: offsets of a layout lie within (or, for a column without elements, at the end of)
        // its memory.
        unsafe { self.leased.slab.memory.ptr().add(offset) }
    }

    fn layout(&self) -> &Layout {
        self.leased.ring.layout()
    }
}

/// Fills a free slab with conspicuous values, so that reads beyond the batch are easy to see.
#[cfg(debug_assertions)]
fn poison(layout: &Layout, slab: &Slab) {
    use crate::layout::Columns;

    // The first part's columns begin where those of the slab do.
    let columns = layout.parts.first().map(|part| &part.columns);
    for column in columns.into_iter().flat_map(Columns::iter) {
        let elements = layout.frames() * column.elements;
        // SAFETY: the last reader is gone and no writer has claimed the slab yet; the elements are
        // the column's own.
        unsafe {
            let start = slab.memory.ptr().as_ptr().add(column.offset);
            match column.dtype {
                DType::F32 => fill(start.cast::<f32>(), elements, f32::NAN),
                DType::F64 => fill(start.cast::<f64>(), elements, f64::NAN),
                DType::I64 => fill(start.cast::<i64>(), elements, -4_242_424_242),
                DType::I32 => fill(start.cast::<i32>(), elements, -424_242),
                DType::Bool => fill(start.cast::<bool>(), elements, true),
                _ => fill(start, elements * column.dtype.size(), 0xA5),
            }
        }
    }
}

/// # Safety
/// `elements` elements from `start` on are writable.
#[cfg(debug_assertions)]
unsafe fn fill<T: Copy>(start: *mut T, elements: usize, value: T) {
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts_mut(start, elements) }.fill(value);
}
