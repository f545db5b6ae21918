//! Copying chosen rows into memory that is there already.

use std::sync::Arc;

use super::Tensor;
use super::copy::{merge_dims, walk};
use crate::buffer::HeapBuffer;
use crate::shape::{checked_numel, numel, row_major};
use crate::{DType, Result, Shape};

/// Rows of alike leading dimensions, in which row-major order counts them.
#[derive(Debug)]
pub(crate) struct RowPlaces<'a> {
    rows: &'a [usize],
    /// Sizes of the leading dimensions.
    lead: &'a [usize],
    /// One index for each leading dimension and row, where these are not the rows themselves.
    indices: Vec<usize>,
}

impl<'a> RowPlaces<'a> {
    /// `rows` of the dimensions `lead`, all of which must be less than their product.
    pub(crate) fn new(rows: &'a [usize], lead: &'a [usize]) -> Self {
        let mut indices = Vec::new();
        if lead.len() != 1 {
            indices = vec![0; rows.len() * lead.len()];
            for (&row, index) in rows.iter().zip(indices.chunks_mut(lead.len().max(1))) {
                let mut rest = row;
                for (place, size) in index.iter_mut().zip(lead).rev() {
                    (*place, rest) = (rest % size, rest / size);
                }
            }
        }
        Self {
            rows,
            lead,
            indices,
        }
    }

    /// Number of leading dimensions.
    pub(crate) fn lead(&self) -> usize {
        self.lead.len()
    }

    /// Calls `copy` with the number of each row and its distance from the first, by `strides` of
    /// the leading dimensions.
    #[inline(always)]
    fn each(&self, strides: &[isize], mut copy: impl FnMut(usize, isize)) {
        match *strides {
            [stride] => {
                for (at, &row) in self.rows.iter().enumerate() {
                    copy(at, row as isize * stride);
                }
            }
            [outer, inner] => {
                for (at, index) in self.indices.as_chunks::<2>().0.iter().enumerate() {
                    copy(at, index[0] as isize * outer + index[1] as isize * inner);
                }
            }
            _ => {
                for at in 0..self.rows.len() {
                    let index = &self.indices[at * strides.len()..][..strides.len()];
                    let steps = index.iter().zip(strides);
                    copy(at, steps.map(|(&i, stride)| i as isize * stride).sum());
                }
            }
        }
    }
}

impl Tensor {
    /// Copy of the rows at `places`, `[rows, *rest]`, in the memory of `spare` where that has room
    /// and no other tensor shares it.
    ///
    /// The shape must start with the leading dimensions of `places`.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`](crate::TensorError::TooLarge),
    /// [`TensorError::NoMemory`](crate::TensorError::NoMemory).
    pub(crate) fn rows_into(
        &self,
        places: &RowPlaces<'_>,
        spare: Option<Tensor>,
    ) -> Result<Tensor> {
        debug_assert!(self.shape.starts_with(places.lead));
        let rest = &self.shape[places.lead.len()..];
        if self.dtype == DType::Bytes {
            let mut flat = Shape::from_slice(rest);
            flat.insert(0, numel(places.lead));
            return self.reshape(flat)?.index_select(0, places.rows);
        }
        let mut shape = Shape::from_slice(rest);
        shape.insert(0, places.rows.len());
        let bytes = checked_numel(&shape, self.dtype)? * self.dtype.size();
        let owner = match spare.and_then(|spare| spare.into_block(bytes)) {
            Some(block) => block,
            None => Arc::new(HeapBuffer::of(&shape, self.dtype)?),
        };
        let start = owner.ptr();
        if bytes > 0 {
            // SAFETY: the block is new, or no tensor sees it; it has room for all rows, and each
            // row is within this tensor.
            unsafe { self.copy_rows(places, start.as_ptr()) };
        }
        let strides = row_major(&shape);
        // SAFETY: each element of the block, which the tensor owns, was just written.
        Ok(unsafe { Tensor::from_raw(start, self.dtype, shape, strides, owner) })
    }

    /// The heap block of this tensor, where it has room for `bytes` bytes and no other tensor
    /// shares it.
    fn into_block(self, bytes: usize) -> Option<Arc<HeapBuffer>> {
        let mut owner = self.owner.downcast::<HeapBuffer>().ok()?;
        let block = Arc::get_mut(&mut owner)?;
        block.holds(block.ptr(), bytes).then_some(owner)
    }

    /// Writes the rows at `places` to `dst`, one after another.
    ///
    /// # Safety
    /// `dst` may be written for as many rows as there are, none of which belongs to this tensor.
    /// Places are within its shape.
    unsafe fn copy_rows(&self, places: &RowPlaces<'_>, dst: *mut u8) {
        let lead = places.lead.len();
        let rest = &self.shape[lead..];
        let (size, width) = (self.dtype.size(), numel(rest) * self.dtype.size());
        let (shape, from, to) = merge_dims(rest, &self.strides[lead..], &row_major(rest));
        let is_gapless = matches!((&*from, &*to), ([], []) | ([1], [1]));
        let src = self.ptr.as_ptr().cast_const();
        places.each(&self.strides[..lead], |at, row| {
            // SAFETY: a row begins that many elements behind the first, and its elements are those
            // of the remaining dimensions; without gaps, they are `width` bytes.
            unsafe {
                let (src, dst) = (src.offset(row * size as isize), dst.add(at * width));
                match (is_gapless, width) {
                    // A call costs more than to copy a few bytes.
                    (true, 1) => fixed::<1>(src, dst),
                    (true, 4) => fixed::<4>(src, dst),
                    (true, 8) => fixed::<8>(src, dst),
                    (true, 16) => fixed::<16>(src, dst),
                    (true, _) => std::ptr::copy_nonoverlapping(src, dst, width),
                    (false, _) => match size {
                        1 => walk::<1>(&shape, src, &from, dst, &to),
                        2 => walk::<2>(&shape, src, &from, dst, &to),
                        4 => walk::<4>(&shape, src, &from, dst, &to),
                        _ => walk::<8>(&shape, src, &from, dst, &to),
                    },
                }
            }
        });
    }
}

/// Copies `N` bytes.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn fixed<const N: usize>(src: *const u8, dst: *mut u8) {
    // SAFETY: passed on to the caller.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, N) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of(tensor: &Tensor, lead: usize, rows: &[usize], spare: Option<Tensor>) -> Tensor {
        let places = RowPlaces::new(rows, &tensor.shape()[..lead]);
        tensor.rows_into(&places, spare).unwrap()
    }

    #[test]
    fn rows_are_those_of_the_flat_tensor_whatever_its_type_and_layout() {
        let rows = [5, 0, 3, 3];
        for dtype in DType::NUMBERS {
            for rest in [&[][..], &[1], &[2], &[4], &[2, 3]] {
                let shape = [&[2, 3], rest].concat();
                let len = numel(&shape) as i64;
                let x = Tensor::arange(0..len).unwrap().view(&shape).unwrap();
                let x = x.cast(dtype).unwrap();
                let turned = x.transpose(0, 1).unwrap();
                for x in [&x, &turned, &turned.flip(turned.ndim() - 1).unwrap()] {
                    let flat = [&[6], rest].concat();
                    let expected = x.reshape(&flat).unwrap().index_select(0, &rows).unwrap();
                    assert_eq!(rows_of(x, 2, &rows, None), expected, "{dtype} {shape:?}");
                    let expected = x.index_select(0, &[1, 0]).unwrap();
                    assert_eq!(rows_of(x, 1, &[1, 0], None), expected);
                }
            }
        }
        let deep = Tensor::arange(0..24).unwrap().view([2, 3, 4]).unwrap();
        let picked = rows_of(&deep, 3, &[23, 4], None);
        assert_eq!(picked.to_vec::<i64>().unwrap(), [23, 4]);
        let scalar = rows_of(&Tensor::scalar(7i64), 0, &[0, 0], None);
        assert_eq!(scalar.to_vec::<i64>().unwrap(), [7, 7]);
        assert_eq!(rows_of(&deep, 1, &[], None).shape(), [0, 3, 4]);
    }

    #[test]
    fn memory_is_used_again_only_when_nobody_else_sees_it_and_it_has_room() {
        let x = Tensor::arange(0..8).unwrap();
        let first = rows_of(&x, 1, &[7, 6, 5], None);
        let (place, seen) = (first.data_ptr(), first.clone());
        let second = rows_of(&x, 1, &[1, 2, 3], Some(first));
        assert_ne!(second.data_ptr(), place);
        assert_eq!(seen.to_vec::<i64>().unwrap(), [7, 6, 5]);
        let short = rows_of(&x, 1, &[4], Some(seen));
        assert_eq!((short.data_ptr(), short.item::<i64>().unwrap()), (place, 4));
        let whole = rows_of(&x, 1, &[0, 1, 2], Some(short));
        assert_eq!(whole.data_ptr(), place);
        let more = rows_of(&x, 1, &[0; 8], Some(whole));
        assert_eq!(more.to_vec::<i64>().unwrap(), [0; 8]);
    }

    #[test]
    fn rows_of_values_of_bytes_are_kept() {
        let words = Tensor::from_strings(&["a", "bcd", "", "e"], [2, 2]).unwrap();
        let picked = rows_of(&words, 2, &[1, 3, 1], None);
        let picked: Vec<_> = picked.strings().collect();
        assert_eq!(picked, [&b"bcd"[..], b"e", b"bcd"]);
    }
}
