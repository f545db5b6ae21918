//! Reading elements, and writing those that no other tensor can see.

use std::marker::PhantomData;
use std::sync::Arc;

use super::Tensor;
use crate::buffer::HeapBuffer;
use crate::shape::{check_index, no_memory};
use crate::{DType, Element, Result, Shape, TensorError};

impl Tensor {
    /// The elements in row-major order, without copying.
    ///
    /// # Errors
    /// [`TensorError::DType`] when the elements are not `T`, [`TensorError::NotContiguous`] when
    /// they do not lie one after another.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.expect_dtype::<T>()?;
        self.expect_contiguous()?;
        // SAFETY: the elements are valid `T`, lie without gaps from an aligned `ptr`, and the owner
        // that `self` holds keeps them alive and unwritten for the borrow.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().cast::<T>(), self.len()) })
    }

    /// The memory of the elements in row-major order, without copying; native byte order.
    ///
    /// # Errors
    /// [`TensorError::NotContiguous`] when the elements do not lie one after another, as those of
    /// [`Bytes`](DType::Bytes) never do: [`encoded`](Self::encoded) copies them.
    pub fn as_bytes(&self) -> Result<&[u8]> {
        self.expect_contiguous()?;
        if self.dtype == DType::Bytes {
            return Err(self.not_contiguous());
        }
        // SAFETY: as in `as_slice`; elements have no padding, so all their bytes are initialised.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.byte_len()) })
    }

    /// The elements in row-major order, for writing.
    ///
    /// Only for heap memory that this tensor alone holds: no clone, view or other owner sees it.
    ///
    /// # Errors
    /// [`TensorError::DType`], [`TensorError::NotContiguous`], and [`TensorError::Shared`] when the
    /// another tensor may see the memory; [`detach`](Tensor::detach) gives a copy of its own.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.expect_dtype::<T>()?;
        self.expect_contiguous()?;
        let (ptr, len) = (self.ptr, self.len());
        if !self.is_alone() {
            return Err(TensorError::Shared {
                shape: self.shape.to_vec(),
            });
        }
        // SAFETY: as in `as_slice`; the block is heap memory of this crate whose only owner is
        // `self`, which the result borrows mutably, so no other view can read or write it
        // meanwhile.
        Ok(unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr().cast::<T>(), len) })
    }

    /// Whether this is row-major heap memory without gaps that no clone, view or other owner sees.
    pub(super) fn is_alone(&mut self) -> bool {
        let (ptr, byte_len) = (self.ptr, self.byte_len());
        self.is_contiguous()
            && Arc::get_mut(&mut self.owner)
                .and_then(|owner| owner.downcast_mut::<HeapBuffer>())
                .is_some_and(|buffer| buffer.holds(ptr, byte_len))
    }

    /// The elements in row-major order, copied; any strides.
    ///
    /// # Errors
    /// [`TensorError::DType`], [`TensorError::NoMemory`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.expect_dtype::<T>()?;
        let mut values = Vec::new();
        values
            .try_reserve_exact(self.len())
            .map_err(|_| no_memory(&self.shape, self.dtype))?;
        match self.as_slice::<T>() {
            Ok(slice) => values.extend_from_slice(slice),
            Err(_) => values.extend(self.iter::<T>()?),
        }
        Ok(values)
    }

    /// The one element of a tensor that has exactly one, whatever its dimensions.
    ///
    /// # Errors
    /// [`TensorError::DType`], and [`TensorError::Count`] when there is not exactly one.
    pub fn item<T: Element>(&self) -> Result<T> {
        self.expect_dtype::<T>()?;
        match self.len() {
            // SAFETY: the only element is the one at `ptr`, a valid aligned `T`.
            1 => Ok(unsafe { self.ptr.cast::<T>().read() }),
            got => Err(TensorError::Count {
                shape: Vec::new(),
                expected: 1,
                got,
            }),
        }
    }

    /// The element at `index`, one index for each dimension.
    ///
    /// # Errors
    /// [`TensorError::DType`], [`TensorError::IndexCount`] and [`TensorError::Index`].
    pub fn get_at<T: Element>(&self, index: &[usize]) -> Result<T> {
        self.expect_dtype::<T>()?;
        if index.len() != self.ndim() {
            return Err(TensorError::IndexCount {
                expected: self.ndim(),
                got: index.len(),
            });
        }
        let mut offset = 0isize;
        for (dim, &i) in index.iter().enumerate() {
            check_index(&self.shape, dim, i)?;
            offset += i as isize * self.strides[dim];
        }
        // SAFETY: every index is within its dimension, so this is one of the tensor's elements.
        Ok(unsafe { self.ptr.cast::<T>().offset(offset).read() })
    }

    /// The elements by value in row-major order; any strides.
    ///
    /// # Errors
    /// [`TensorError::DType`].
    pub fn iter<T: Element>(&self) -> Result<Iter<'_, T>> {
        self.expect_dtype::<T>()?;
        Ok(self.elements())
    }

    /// The elements in row-major order, which the caller knows to be `T`.
    pub(super) fn elements<T>(&self) -> Iter<'_, T> {
        Iter {
            tensor: self,
            index: smallvec::smallvec![0; self.ndim()],
            offset: 0,
            left: self.len(),
            element: PhantomData,
        }
    }

    pub(crate) fn expect_dtype<T: Element>(&self) -> Result<()> {
        if self.dtype == T::DTYPE {
            Ok(())
        } else {
            Err(TensorError::DType {
                expected: T::DTYPE,
                got: self.dtype,
            })
        }
    }

    fn expect_contiguous(&self) -> Result<()> {
        match self.is_contiguous() {
            true => Ok(()),
            false => Err(self.not_contiguous()),
        }
    }

    #[cold]
    fn not_contiguous(&self) -> TensorError {
        TensorError::NotContiguous {
            shape: self.shape.to_vec(),
            strides: self.strides.to_vec(),
        }
    }
}

/// Elements of a [`Tensor`] by value in row-major order.
#[derive(Debug)]
pub struct Iter<'a, T> {
    tensor: &'a Tensor,
    /// Where `offset` points; within the shape while `left > 0`.
    index: Shape,
    /// Distance from the first element, in elements.
    offset: isize,
    /// Elements not yet returned.
    left: usize,
    element: PhantomData<T>,
}

impl<T> Iter<'_, T> {
    /// Moves to the next element in row-major order.
    fn advance(&mut self) {
        for dim in (0..self.index.len()).rev() {
            let stride = self.tensor.strides[dim];
            self.index[dim] += 1;
            self.offset += stride;
            if self.index[dim] < self.tensor.shape[dim] {
                return;
            }
            self.offset -= self.index[dim] as isize * stride;
            self.index[dim] = 0;
        }
    }
}

impl<T: Copy> Iterator for Iter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.left == 0 {
            return None;
        }
        // SAFETY: whoever made this knows the dtype, and while elements are left `offset` is that
        // of one of them.
        let value = unsafe { self.tensor.ptr.cast::<T>().offset(self.offset).read() };
        self.left -= 1;
        if self.left > 0 {
            self.advance();
        }
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T: Copy> ExactSizeIterator for Iter<'_, T> {}
