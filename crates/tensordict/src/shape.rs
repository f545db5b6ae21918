//! Shape and stride arithmetic, free of memory.

use smallvec::{SmallVec, smallvec};

use crate::buffer::HeapBuffer;
use crate::{DType, Result, TensorError};

/// Sizes of the dimensions, outermost first; up to four live inline.
pub type Shape = SmallVec<[usize; 4]>;

/// Distance between neighbours along each dimension, in elements (not bytes); may be zero or
/// negative.
pub type Strides = SmallVec<[isize; 4]>;

/// Number of elements in `shape`, after checking that they could be addressed.
///
/// Dimensions of size zero count as one in the check, so that strides and views of an empty shape
/// cannot overflow either.
///
/// # Errors
/// [`TensorError::TooLarge`] when the shape spans more than the address space.
pub(crate) fn checked_numel(shape: &[usize], dtype: DType) -> Result<usize> {
    let too_large = || TensorError::TooLarge {
        shape: shape.to_vec(),
        dtype,
    };
    let spanned = shape
        .iter()
        .try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size.max(1)))
        .filter(|&bytes| bytes <= HeapBuffer::MAX_BYTES);
    spanned.ok_or_else(too_large)?;
    Ok(numel(shape))
}

/// The error for a tensor of `shape`, which passed [`checked_numel`], where the system does not
/// give its memory.
#[cold]
pub(crate) fn no_memory(shape: &[usize], dtype: DType) -> TensorError {
    TensorError::NoMemory {
        shape: shape.to_vec(),
        dtype,
        bytes: numel(shape) * dtype.size(),
    }
}

/// Number of elements in a shape that is known to be addressable.
pub(crate) fn numel(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Strides of `shape` when its elements lie in row-major order without gaps.
pub fn row_major(shape: &[usize]) -> Strides {
    let mut strides: Strides = smallvec![0; shape.len()];
    let mut step = 1;
    for (stride, &size) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step *= size.max(1) as isize;
    }
    strides
}

/// Whether the elements lie in row-major order without gaps.
///
/// Strides of dimensions of size one do not matter, and nothing matters in an empty shape.
pub(crate) fn is_row_major(shape: &[usize], strides: &[isize]) -> bool {
    let mut step = 1;
    for (&stride, &size) in strides.iter().zip(shape).rev() {
        if size == 0 {
            return true;
        }
        if size != 1 && stride != step {
            // A zero further out would make the whole shape empty.
            return shape.contains(&0);
        }
        step *= size as isize;
    }
    true
}

/// Strides that show the same elements in shape `target`, or none when only a copy can.
///
/// `target` must have as many elements as `shape`.
pub(crate) fn view_strides(
    shape: &[usize],
    strides: &[isize],
    target: &[usize],
) -> Option<Strides> {
    if numel(shape) <= 1 {
        return Some(row_major(target));
    }
    let mut out: Strides = smallvec![0; target.len()];
    let mut open = target.len();
    // Walk the old dimensions from the inside, gathering runs that step evenly; each run must be
    // filled exactly by some of the new dimensions.
    let mut run = 1usize;
    let mut base = 1isize;
    let mut fresh = true;
    for dim in (0..shape.len()).rev() {
        if fresh {
            base = strides[dim];
            fresh = false;
        }
        run *= shape[dim];
        let even = dim > 0 && (shape[dim - 1] == 1 || strides[dim - 1] == run as isize * base);
        if even {
            continue;
        }
        let mut filled = 1usize;
        while open > 0 && (filled < run || target[open - 1] == 1) {
            open -= 1;
            out[open] = filled as isize * base;
            filled *= target[open];
        }
        if filled != run {
            return None;
        }
        run = 1;
        fresh = true;
    }
    (open == 0).then_some(out)
}

/// Checks that `dim` is one of `ndim` dimensions.
pub(crate) fn check_dim(dim: usize, ndim: usize) -> Result<()> {
    if dim < ndim {
        Ok(())
    } else {
        Err(TensorError::Dim { dim, ndim })
    }
}

/// Checks that `index` is within dimension `dim` of `shape`.
pub(crate) fn check_index(shape: &[usize], dim: usize, index: usize) -> Result<()> {
    check_dim(dim, shape.len())?;
    let size = shape[dim];
    if index < size {
        Ok(())
    } else {
        Err(TensorError::Index { index, dim, size })
    }
}

/// Checks that `start..start + len` is within dimension `dim` of `shape`.
pub(crate) fn check_range(shape: &[usize], dim: usize, start: usize, len: usize) -> Result<()> {
    resolve_range(shape, dim, &(start..start.saturating_add(len))).map(|_| ())
}

/// Start and length of `range` along dimension `dim` of `shape`.
///
/// # Errors
/// [`TensorError::Dim`] and [`TensorError::Range`] when it lies outside.
pub(crate) fn resolve_range(
    shape: &[usize],
    dim: usize,
    range: &impl std::ops::RangeBounds<usize>,
) -> Result<(usize, usize)> {
    use std::ops::Bound;
    check_dim(dim, shape.len())?;
    let size = shape[dim];
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => size,
    };
    if start <= end && end <= size {
        Ok((start, end - start))
    } else {
        Err(TensorError::Range {
            start,
            end,
            dim,
            size,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflowing_shapes_are_refused() {
        assert!(checked_numel(&[usize::MAX, 2], DType::U8).is_err());
        assert!(checked_numel(&[usize::MAX, 2, 0], DType::U8).is_err());
        assert!(checked_numel(&[isize::MAX as usize], DType::F64).is_err());
        assert_eq!(checked_numel(&[], DType::F64).unwrap(), 1);
        assert_eq!(checked_numel(&[3, 0], DType::F64).unwrap(), 0);
    }

    #[test]
    fn row_major_ignores_sizes_of_one_and_empty_shapes() {
        assert_eq!(row_major(&[2, 3, 4]).as_slice(), [12, 4, 1]);
        assert!(is_row_major(&[2, 1, 4], &[4, 99, 1]));
        assert!(is_row_major(&[0, 3], &[7, 7]));
        assert!(is_row_major(&[3, 0], &[7, 7]));
        assert!(!is_row_major(&[3, 2], &[1, 3]));
        assert!(is_row_major(&[], &[]));
    }

    #[test]
    fn view_strides_merge_and_split_even_runs() {
        let found = view_strides(&[2, 3, 4], &[12, 4, 1], &[6, 2, 2]).unwrap();
        assert_eq!(found.as_slice(), [4, 2, 1]);
        // Rows with a gap can be split but not merged.
        assert_eq!(
            view_strides(&[2, 4], &[8, 1], &[2, 2, 2])
                .unwrap()
                .as_slice(),
            [8, 2, 1]
        );
        assert!(view_strides(&[2, 4], &[8, 1], &[8]).is_none());
        assert_eq!(
            view_strides(&[2, 3], &[0, 0], &[6]).unwrap().as_slice(),
            [0]
        );
        assert_eq!(
            view_strides(&[4], &[-1], &[2, 2]).unwrap().as_slice(),
            [-2, -1]
        );
        assert!(view_strides(&[1], &[5], &[1, 1, 1]).is_some());
        // Dimensions of size one are stepped over, whatever their strides.
        let found = view_strides(&[2, 1, 3], &[3, 99, 1], &[6]).unwrap();
        assert_eq!(found.as_slice(), [1]);
        let found = view_strides(&[2, 1, 3, 1], &[8, 99, 2, 5], &[2, 3]).unwrap();
        assert_eq!(found.as_slice(), [8, 2]);
        assert!(view_strides(&[3, 2], &[1, 3], &[6]).is_none());
    }
}
