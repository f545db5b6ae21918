//! A strided, read-only view of memory that an owner keeps alive.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::shape::{is_row_major, numel};
use crate::{DType, Shape, Strides};

mod array;
mod build;
mod byte_strings;
mod cast;
mod combine;
mod compare;
mod copy;
mod display;
mod gather;
mod read;
mod reshape;
mod rows;
mod view;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod ownership_tests;

pub use read::Iter;
pub(crate) use rows::RowPlaces;
pub(crate) use view::{chunk_len, split_ranges};

/// Keeps a tensor's memory alive; dropping the last clone gives the memory back.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// A strided, read-only view of elements of one [`DType`].
///
/// Cloning and viewing copy no elements: all share one [`Owner`]. The memory is a heap block
/// aligned to 64 bytes when this crate made it, or the memory given to [`Tensor::from_raw`].
///
/// ```
/// use tensordict::Tensor;
///
/// # fn main() -> tensordict::Result<()> {
/// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
/// let column = x.select(1, 2)?;
/// assert_eq!(column.shape(), [2]);
/// assert_eq!(column.to_vec::<f32>()?, [3.0, 6.0]);
/// # Ok(())
/// # }
/// ```
pub struct Tensor {
    /// Element at index zero along every dimension; aligned for `dtype` also when there are no
    /// elements.
    ptr: NonNull<u8>,
    dtype: DType,
    shape: Shape,
    strides: Strides,
    owner: Owner,
}

impl Clone for Tensor {
    fn clone(&self) -> Self {
        Tensor {
            ptr: self.ptr,
            dtype: self.dtype,
            // Copies the inline words at once; the derived clone goes item by item.
            shape: Shape::from_slice(&self.shape),
            strides: Strides::from_slice(&self.strides),
            owner: Arc::clone(&self.owner),
        }
    }
}

// SAFETY: the elements are plain values; no one writes them while a tensor sees them (contract of
// `from_raw`, or proof of being the only holder in `as_mut_slice`), and the owner is itself `Send +
// Sync`.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Wraps memory that `owner` keeps alive.
    ///
    /// `ptr` points at the element whose index is zero along every dimension; `strides` are in
    /// elements and may be zero or negative. Copies nothing and takes O(1).
    ///
    /// # Safety
    /// Until the last clone of `owner` held by this tensor, its clones and its views is dropped:
    /// - every element that `shape` and `strides` reach from `ptr` lies in one live allocation and
    ///   is initialised;
    /// - no one writes those elements, in this process or another;
    /// - `ptr` is aligned to `dtype.align()`, also when the shape is empty;
    /// - `bool` elements are bytes of 0 or 1, and [cells](crate::Cell) are zero; others need
    ///   [`from_cells`](Self::from_cells);
    /// - `shape` and `strides` have equal lengths, and the product of the non-zero sizes and
    ///   `dtype.size()` is at most `isize::MAX - 63`.
    pub unsafe fn from_raw(
        ptr: NonNull<u8>,
        dtype: DType,
        shape: Shape,
        strides: Strides,
        owner: Owner,
    ) -> Tensor {
        debug_assert_eq!(shape.len(), strides.len(), "one stride for each dimension");
        debug_assert_eq!(ptr.addr().get() % dtype.align(), 0, "aligned for {dtype}");
        Tensor {
            ptr,
            dtype,
            shape,
            strides,
            owner,
        }
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Distance between neighbours along each dimension, in elements; may be zero or negative.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Number of dimensions; 0 for a scalar.
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        numel(&self.shape)
    }

    /// Number of elements; the name other tensor libraries use for [`len`](Tensor::len).
    pub fn numel(&self) -> usize {
        self.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        is_row_major(&self.shape, &self.strides)
    }

    /// Address of the element whose index is zero along every dimension.
    ///
    /// The caller answers for reading through it; the memory lives as long as
    /// [`owner`](Tensor::owner).
    pub fn data_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// The owner that keeps the memory alive.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Bytes that the elements take without gaps: `len() * dtype().size()`. What cells name comes
    /// on top.
    pub fn byte_len(&self) -> usize {
        self.len() * self.dtype.size()
    }
}
