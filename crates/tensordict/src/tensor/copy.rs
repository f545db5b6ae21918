//! Copying elements between layouts.

use super::Tensor;
use crate::buffer::HeapBuffer;
use crate::{DType, Result, Shape, Strides};

impl Tensor {
    /// These elements in row-major order without gaps: this tensor when they are, otherwise a copy,
    /// taken as [`detach`](Tensor::detach) does.
    pub fn contiguous(&self) -> Tensor {
        if self.is_contiguous() {
            self.clone()
        } else {
            self.detach()
        }
    }

    /// A row-major copy in heap memory of its own, so that the owner of this tensor's memory can
    /// take it back.
    ///
    /// Ends the process when the system does not give the memory, as a `Vec` does that cannot grow.
    /// For a view that [`expand`](Tensor::expand) made larger than memory, use
    /// [`try_detach`](Tensor::try_detach).
    pub fn detach(&self) -> Tensor {
        self.copied_to(HeapBuffer::uninit(self.byte_len()))
    }

    /// As [`detach`](Tensor::detach), for a tensor that may be larger than memory.
    ///
    /// # Errors
    /// [`TensorError::NoMemory`](crate::TensorError::NoMemory).
    pub fn try_detach(&self) -> Result<Tensor> {
        HeapBuffer::of(&self.shape, self.dtype).map(|buffer| self.copied_to(buffer))
    }

    /// A row-major copy in `buffer`, which has just room for it.
    fn copied_to(&self, buffer: HeapBuffer) -> Tensor {
        debug_assert!(buffer.holds(buffer.ptr(), self.byte_len()));
        let strides = crate::shape::row_major(&self.shape);
        let mut heap = Vec::new();
        // SAFETY: the block holds `byte_len` fresh bytes, which row-major strides of this shape
        // stay within.
        unsafe { self.copy_to(buffer.ptr().as_ptr(), &strides, &mut heap) };
        // SAFETY: the copy wrote every element.
        unsafe { Self::from_copies(buffer, self.dtype, self.shape.clone(), heap) }
    }

    /// As [`detach`](Tensor::detach), in the memory of `spare` where that has this dtype and shape
    /// and no other tensor shares it: memory that was written before takes a copy faster than fresh
    /// memory does.
    #[must_use]
    pub fn detach_into(&self, mut spare: Tensor) -> Tensor {
        let is_alike = spare.dtype == self.dtype && spare.shape == self.shape;
        if !is_alike || self.dtype == DType::Bytes || !spare.is_alone() {
            return self.detach();
        }
        let strides = crate::shape::row_major(&self.shape);
        // SAFETY: `spare` is alone in its heap block, has no gaps and room for as many elements of
        // the same size.
        unsafe { self.copy_to(spare.ptr.as_ptr(), &strides, &mut Vec::new()) };
        spare
    }

    /// Writes every element to `dst`, laid out by `dst_strides` (in elements). What cells name is
    /// appended to `heap`, where the written ones find it.
    ///
    /// # Safety
    /// `dst` may be written at every place that this tensor's shape and `dst_strides` reach, and
    /// none of those bytes belongs to this tensor.
    pub(crate) unsafe fn copy_to(&self, dst: *mut u8, dst_strides: &[isize], heap: &mut Vec<u8>) {
        if self.is_empty() {
            return;
        }
        if self.dtype == DType::Bytes {
            // SAFETY: passed on to the caller.
            return unsafe { self.copy_strings_to(dst.cast(), dst_strides, heap) };
        }
        let (shape, src_strides, dst_strides) = merge_dims(&self.shape, &self.strides, dst_strides);
        let src = self.ptr.as_ptr().cast_const();
        let walk = match self.dtype.size() {
            1 => walk::<1>,
            2 => walk::<2>,
            4 => walk::<4>,
            _ => walk::<8>,
        };
        // SAFETY: merging keeps the pairs of addresses; `src` reaches this tensor's elements only,
        // and the caller vouches for `dst`.
        unsafe { walk(&shape, src, &src_strides, dst, &dst_strides) }
    }
}

/// Drops dimensions of size one and joins neighbours that both layouts step through evenly.
pub(super) fn merge_dims(
    shape: &[usize],
    src: &[isize],
    dst: &[isize],
) -> (Shape, Strides, Strides) {
    let (mut sizes, mut from, mut to) = (Shape::new(), Strides::new(), Strides::new());
    for dim in 0..shape.len() {
        let (size, s, d) = (shape[dim], src[dim], dst[dim]);
        if size == 1 {
            continue;
        }
        let joins = match (from.last(), to.last()) {
            (Some(&outer_s), Some(&outer_d)) => {
                outer_s == s * size as isize && outer_d == d * size as isize
            }
            _ => false,
        };
        if joins
            && let (Some(outer), Some(last_s), Some(last_d)) =
                (sizes.last_mut(), from.last_mut(), to.last_mut())
        {
            *outer *= size;
            (*last_s, *last_d) = (s, d);
        } else {
            sizes.push(size);
            from.push(s);
            to.push(d);
        }
    }
    (sizes, from, to)
}

/// Copies elements of `N` bytes, outermost dimension first.
///
/// # Safety
/// Every place that `shape` and the strides (in elements) reach may be read from `src` and written
/// to `dst`, the two do not overlap, and no size is zero.
pub(super) unsafe fn walk<const N: usize>(
    shape: &[usize],
    src: *const u8,
    src_strides: &[isize],
    dst: *mut u8,
    dst_strides: &[isize],
) {
    let [size, inner_shape @ ..] = shape else {
        // SAFETY: no dimension is left, so both point at one element.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, N) };
        return;
    };
    let (src_step, dst_step) = (src_strides[0] * N as isize, dst_strides[0] * N as isize);
    if inner_shape.is_empty() && src_strides[0] == 1 && dst_strides[0] == 1 {
        // SAFETY: both runs are without gaps and inside the places the caller vouches for.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, size * N) };
        return;
    }
    for i in 0..*size as isize {
        // SAFETY: index `i` is within the dimension, so both addresses are among those the caller
        // vouches for.
        unsafe {
            let (from, to) = (src.offset(i * src_step), dst.offset(i * dst_step));
            if inner_shape.is_empty() {
                std::ptr::copy_nonoverlapping(from, to, N);
            } else {
                walk::<N>(inner_shape, from, &src_strides[1..], to, &dst_strides[1..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_copies_only_when_needed_and_detach_always() {
        let x = Tensor::arange(0..6).unwrap().view([2, 3]).unwrap();
        assert_eq!(x.contiguous().data_ptr(), x.data_ptr());
        let copy = x.detach();
        assert_ne!(copy.data_ptr(), x.data_ptr());
        assert_eq!(copy, x);
        let turned = x.transpose(0, 1).unwrap().contiguous();
        assert!(turned.is_contiguous());
        assert_eq!(turned.as_slice::<i64>().unwrap(), [0, 3, 1, 4, 2, 5]);
    }

    #[test]
    fn dims_merge_only_where_both_layouts_agree() {
        let (shape, src, dst) = merge_dims(&[2, 1, 3, 4], &[12, 7, 4, 1], &[12, 9, 4, 1]);
        assert_eq!(
            (shape.as_slice(), src.as_slice(), dst.as_slice()),
            (&[24][..], &[1][..], &[1][..])
        );
        let (shape, ..) = merge_dims(&[2, 3, 4], &[24, 4, 1], &[12, 4, 1]);
        assert_eq!(shape.as_slice(), [2, 12]);
        assert!(merge_dims(&[1, 1], &[5, 6], &[7, 8]).0.is_empty());
    }

    #[test]
    fn every_element_width_copies() {
        for dtype in crate::DType::NUMBERS {
            let x = Tensor::arange(0..24)
                .unwrap()
                .view([2, 3, 4])
                .unwrap()
                .cast(dtype)
                .unwrap();
            let odd = x
                .flip(1)
                .unwrap()
                .permute([2, 0, 1])
                .unwrap()
                .slice(0, 1..3)
                .unwrap();
            assert_eq!(odd.detach(), odd, "{dtype}");
        }
    }
}
