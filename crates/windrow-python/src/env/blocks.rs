//! Memory that environments write and that arrays of NumPy view, used again once nobody holds these
//! arrays.
//!
//! A block has rows of observations, and rewards and flags, each with one array over it. The block
//! is free while the ring alone holds all of its arrays: whatever a caller keeps, an array, a slice
//! of one or a tensor over one, refers to the array, so the block is left to him, and the ring
//! makes another.

use std::cell::UnsafeCell;

use numpy::ndarray::{ArrayView, IxDyn};
use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::ffi;
use pyo3::prelude::*;
use tensordict::{DType, Element, for_dtype};
use windrow::envs::{EnvError, Outcomes};
use windrow::{Key, LeafSpec, RowBlock, Rows, RowsMut};

use super::write::strings;

/// Blocks that the ring looks through before it makes another. A caller who keeps the last
/// observation needs two.
const MOST: usize = 4;

/// The memory of a block. Its address is that of a Python object, which all of its arrays hold.
#[pyclass(frozen, module = "windrow._windrow")]
struct Memory {
    values: UnsafeCell<Values>,
}

struct Values {
    obs: RowBlock,
    /// Rewards as environments write them.
    reward: Box<[f32]>,
    /// The same as Gymnasium's vectors return them, which the array views.
    returned: Box<[f64]>,
    terminated: Box<[bool]>,
    truncated: Box<[bool]>,
}

// SAFETY: the values are written by `Block::values` alone, while its arrays are held by nobody
// else, and by one thread, which has the block.
unsafe impl Sync for Memory {}

/// Rows, rewards and flags for some environments, with the arrays that view them.
pub(super) struct Block {
    memory: Py<Memory>,
    /// Observations leaf by leaf; `None` for leaves of bytes, which have no array.
    obs: Vec<Option<View>>,
    outcomes: [View; 3],
}

/// An array, and what nobody may have changed in it when the memory is used again.
struct View {
    array: Py<PyUntypedArray>,
    flags: i32,
    descr: usize,
    shape: Vec<usize>,
}

impl View {
    /// An array over `values`, which belong to `owner`.
    fn new<T: Element + numpy::Element>(
        owner: &Bound<'_, Memory>,
        values: &[T],
        shape: Vec<usize>,
    ) -> Result<Self, EnvError> {
        let view = ArrayView::from_shape(IxDyn(&shape), values).map_err(EnvError::failed)?;
        // SAFETY: the values lie in a box of `owner`, which keeps its address for as long as the
        // owner lives, and the array holds the owner.
        let array = unsafe { PyArrayDyn::borrow_from_array(&view, owner.clone().into_any()) };
        let array = array.as_untyped().clone();
        let (flags, descr) = marks(&array);
        Ok(Self {
            array: array.unbind(),
            flags,
            descr,
            shape,
        })
    }

    /// Whether nobody else holds the array, and it is as it was made.
    fn is_free(&self, py: Python<'_>) -> bool {
        let array = self.array.bind(py);
        // SAFETY: an object, alive for the call; the lock is held.
        let holders = unsafe { ffi::Py_REFCNT(array.as_ptr()) };
        holders == 1 && marks(array) == (self.flags, self.descr) && array.shape() == self.shape
    }

    fn array<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.array.bind(py).clone().into_any()
    }
}

/// The flags of an array, and which element type it has.
fn marks(array: &Bound<'_, PyUntypedArray>) -> (i32, usize) {
    let object = array.as_array_ptr();
    // SAFETY: an array of NumPy, alive for the call.
    unsafe { ((*object).fields.flags, (*object).fields.descr as usize) }
}

impl Block {
    /// A block for `envs` environments that observe `leaves`.
    pub(super) fn new(py: Python<'_>, leaves: &[LeafSpec], envs: usize) -> Result<Self, EnvError> {
        let values = Values {
            obs: RowBlock::new(leaves, envs)?,
            reward: vec![0.0; envs].into(),
            returned: vec![0.0; envs].into(),
            terminated: vec![false; envs].into(),
            truncated: vec![false; envs].into(),
        };
        let memory = Memory {
            values: UnsafeCell::new(values),
        };
        let memory = Bound::new(py, memory).map_err(EnvError::failed)?;
        // SAFETY: nobody else knows the block yet.
        let values = unsafe { &*memory.get().values.get() };
        let view = |(index, leaf): (usize, &LeafSpec)| {
            if leaf.dtype == DType::Bytes {
                return Ok(None);
            }
            let shape: Vec<usize> = [&[envs], leaf.shape.as_slice()].concat();
            for_dtype!(leaf.dtype, T => {
                View::new(&memory, values.obs.rows().get(Key::<T>::new(index))?, shape).map(Some)
            })
        };
        let obs = leaves.iter().enumerate().map(view);
        let obs = obs.collect::<Result<_, EnvError>>()?;
        let outcomes = [
            View::new(&memory, &values.returned, vec![envs])?,
            View::new(&memory, &values.terminated, vec![envs])?,
            View::new(&memory, &values.truncated, vec![envs])?,
        ];
        Ok(Self {
            memory: memory.unbind(),
            obs,
            outcomes,
        })
    }

    fn is_free(&self, py: Python<'_>) -> bool {
        let mut views = self.obs.iter().flatten().chain(&self.outcomes);
        views.all(|view| view.is_free(py))
    }

    /// The rows to write.
    ///
    /// # Safety
    /// The block is [free](Self::is_free), and stays with the caller until the rows are written.
    unsafe fn values(&mut self) -> &mut Values {
        // SAFETY: the caller's promise: no array over these values is held by anybody else.
        unsafe { &mut *self.memory.get().values.get() }
    }

    /// The observations of the block.
    pub(super) fn observations(&self) -> Rows<'_> {
        // SAFETY: `values` needs the block mutably. A caller may write to his array meanwhile, as
        // with all arrays; only with the interpreter's lock, under which these rows are read.
        unsafe { &*self.memory.get().values.get() }.obs.rows()
    }

    /// Observations, an array for each leaf, or for a leaf of bytes a list.
    pub(super) fn arrays<'py>(&self, py: Python<'py>) -> Result<Vec<Bound<'py, PyAny>>, EnvError> {
        let array = |(index, view): (usize, &Option<View>)| match view {
            Some(view) => Ok(view.array(py)),
            None => {
                let values = self.observations().strings(Key::new(index))?;
                let list = strings(py, values).map_err(EnvError::failed)?;
                Ok(list.into_any())
            }
        };
        self.obs.iter().enumerate().map(array).collect()
    }

    /// Rewards, whether episodes were terminated, and whether they were truncated.
    pub(super) fn outcomes<'py>(&self, py: Python<'py>) -> [Bound<'py, PyAny>; 3] {
        self.outcomes.each_ref().map(|view| view.array(py))
    }
}

/// Blocks of one size, in turn.
pub(super) struct Ring {
    leaves: Vec<LeafSpec>,
    envs: usize,
    blocks: Vec<Block>,
    /// The block that was written last.
    last: usize,
}

impl Ring {
    pub(super) fn new(leaves: Vec<LeafSpec>, envs: usize) -> Self {
        Self {
            leaves,
            envs,
            blocks: Vec::with_capacity(MOST),
            last: 0,
        }
    }

    /// Makes the next blocks for `envs` environments.
    pub(super) fn resize(&mut self, envs: usize) {
        if self.envs != envs {
            (self.envs, self.last) = (envs, 0);
            self.blocks.clear();
        }
    }

    /// The block that was written last, if any was.
    pub(super) fn last(&self) -> Option<&Block> {
        self.blocks.get(self.last)
    }

    /// A copy of rows of the ring's size.
    ///
    /// # Errors
    /// [`EnvError`] where there is no memory.
    pub(super) fn copied(&self, rows: Rows<'_>) -> Result<RowBlock, EnvError> {
        let mut copy = RowBlock::new(&self.leaves, self.envs)?;
        copy.rows_mut().copy_from(rows)?;
        Ok(copy)
    }

    /// Calls `write` with the rows of a free block, which becomes the last one.
    ///
    /// # Errors
    /// [`EnvError`] where there is no memory.
    pub(super) fn write<R>(
        &mut self,
        py: Python<'_>,
        write: impl FnOnce(RowsMut<'_>, Outcomes<'_>) -> R,
    ) -> Result<R, EnvError> {
        self.turn(py)?;
        // SAFETY: it is free: the lock is held, and nobody can take an array of it before this
        // returns, since the ring alone has them.
        let values = unsafe { self.blocks[self.last].values() };
        let outcomes = Outcomes {
            reward: &mut values.reward,
            terminated: &mut values.terminated,
            truncated: &mut values.truncated,
        };
        let written = write(values.obs.rows_mut(), outcomes);
        for (returned, &reward) in values.returned.iter_mut().zip(&values.reward) {
            *returned = reward.into();
        }
        Ok(written)
    }

    /// Makes a free block the last one.
    fn turn(&mut self, py: Python<'_>) -> Result<(), EnvError> {
        let count = self.blocks.len();
        let free = self.blocks.iter().position(|block| block.is_free(py));
        self.last = match free {
            Some(place) => place,
            None if count < MOST => {
                self.blocks.push(Block::new(py, &self.leaves, self.envs)?);
                count
            }
            None => {
                // The oldest is left to whoever holds it.
                let place = (self.last + 1) % MOST;
                self.blocks[place] = Block::new(py, &self.leaves, self.envs)?;
                place
            }
        };
        Ok(())
    }
}
