//! A whole slab, while it is being read.

use std::ptr::NonNull;
use std::sync::Arc;

use tensordict::{Owner, Shape, Strides, Tensor, TensorDict, TensorError};

use crate::layout::{Layout, Place, Slab};
use crate::ring::Ring;

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
    held: Arc<Held>,
    seq: u64,
    steps_done: Vec<usize>,
}

/// Gives the slab back when dropped.
#[derive(Debug)]
struct Held {
    ring: Arc<Ring>,
    slab: Arc<Slab>,
    slot: usize,
}

impl Drop for Held {
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
        steps_done: Vec<usize>,
    ) -> Self {
        Self {
            held: Arc::new(Held { ring, slab, slot }),
            seq,
            steps_done,
        }
    }

    /// Number of the slab since the start.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Steps that each part holds; fewer than it has room for when it was cut short.
    #[must_use]
    pub fn steps_done(&self) -> &[usize] {
        &self.steps_done
    }

    /// Frames in the slab, over all parts and environments.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.steps_done.iter().sum::<usize>() * self.layout().shares.envs
    }

    /// One part as a [`TensorDict`] over the slab's memory: `[time]`, or `[env, time]` when the environments have a
    /// dimension of their own. The last dimension is named `"time"`.
    ///
    /// # Errors
    /// None that a well-made layout can cause; passed on from [`TensorDict::set`].
    pub fn part(&self, part: usize) -> Result<TensorDict, TensorError> {
        #[cfg(loom)]
        self.held.slab.shadow[part].read();
        let (layout, steps) = (self.layout(), self.steps_done[part]);
        let shares = &layout.shares;
        let first_row: usize = shares.steps[..part].iter().sum();
        let (batch, names): (Shape, &[Option<&str>]) = if shares.batched {
            (
                Shape::from_slice(&[shares.envs, steps]),
                &[None, Some("time")],
            )
        } else {
            (Shape::from_slice(&[steps]), &[Some("time")])
        };
        // Coerced once: each tensor then only counts one more reference.
        let owner: Owner = Arc::<Held>::clone(&self.held);
        let mut dict = TensorDict::new(&batch);
        dict.set_names(names)?;
        for place in &layout.places {
            let tensor = self.tensor(place, first_row, &batch, Arc::clone(&owner));
            dict.set(&place.leaf.key, tensor)?;
        }
        Ok(dict)
    }

    fn tensor(&self, place: &Place, first_row: usize, batch: &Shape, owner: Owner) -> Tensor {
        let column = &place.column;
        let mut shape = batch.clone();
        shape.extend_from_slice(&place.leaf.shape);
        let row = (column.stride / column.dtype.size()) as isize;
        let mut strides = Strides::new();
        if self.layout().shares.batched {
            strides.push(column.elements as isize);
        }
        strides.push(row);
        let mut inner = column.elements;
        for &dim in &place.leaf.shape {
            inner /= dim.max(1);
            strides.push(inner as isize);
        }
        let start = self.address(column.offset + first_row * column.stride);
        // SAFETY: the strides address `steps` rows of `envs * elements` elements from `start` on, which lie within the
        // slab's memory; all of it is initialised (zeroed, then written as the column's dtype), aligned, and kept alive
        // and unwritten by `Held` until the last owner is gone.
        unsafe { Tensor::from_raw(start, column.dtype, shape, strides, owner) }
    }

    fn address(&self, offset: usize) -> NonNull<u8> {
        // SAFETY: offsets of a layout lie within (or, for a column without elements, at the end of) its memory.
        unsafe { self.held.slab.memory.start().add(offset) }
    }

    fn layout(&self) -> &Layout {
        self.held.ring.layout()
    }
}

/// Fills a slab that nobody holds with values that catch the eye, so that reading one row too many shows.
#[cfg(debug_assertions)]
fn poison(layout: &Layout, slab: &Slab) {
    use tensordict::DType;

    let rows: usize = layout.shares.steps.iter().sum();
    for Place { column, .. } in &layout.places {
        let elements = rows * column.stride / column.dtype.size();
        // SAFETY: the last reader is gone and no writer has claimed the slab yet; the elements are the column's own.
        unsafe {
            let start = slab.memory.start().as_ptr().add(column.offset);
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
