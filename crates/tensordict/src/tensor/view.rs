//! Views: other shapes and strides over the same memory.

use std::ops::RangeBounds;
use std::sync::Arc;

use smallvec::smallvec;

use super::Tensor;
use crate::shape::{check_dim, check_index, check_range, checked_numel, resolve_range};
use crate::{Result, Shape, Strides, TensorError};

impl Tensor {
    /// View with another shape and strides, whose first element lies `offset` elements further.
    ///
    /// Private on purpose: the caller has checked that the view reaches elements of `self` only.
    pub(super) fn reshaped(&self, offset: isize, shape: Shape, strides: Strides) -> Tensor {
        // An empty view must not move: one past the end of reversed memory would lie before its
        // start.
        let ptr = if offset == 0 || shape.contains(&0) {
            self.ptr
        } else {
            // SAFETY: the view has an element at its first place, which is one of this tensor's, so
            // both addresses lie in one allocation; its size fits isize by the contract of
            // `from_raw`.
            unsafe { self.ptr.offset(offset * self.dtype.size() as isize) }
        };
        Tensor {
            ptr,
            dtype: self.dtype,
            shape,
            strides,
            owner: Arc::clone(&self.owner),
        }
    }

    /// Copies of shape and strides, for the caller to change.
    fn dims(&self) -> (Shape, Strides) {
        (
            Shape::from_slice(&self.shape),
            Strides::from_slice(&self.strides),
        )
    }

    /// View of index `index` along `dim`; that dimension is gone from the shape.
    ///
    /// # Errors
    /// [`TensorError::Dim`] and [`TensorError::Index`].
    pub fn select(&self, dim: usize, index: usize) -> Result<Tensor> {
        check_index(&self.shape, dim, index)?;
        let (mut shape, mut strides) = self.dims();
        shape.remove(dim);
        let stride = strides.remove(dim);
        Ok(self.reshaped(index as isize * stride, shape, strides))
    }

    /// View of the `len` indices from `start` on along `dim`.
    ///
    /// # Errors
    /// [`TensorError::Dim`] and [`TensorError::Range`].
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Tensor> {
        check_range(&self.shape, dim, start, len)?;
        let (mut shape, strides) = self.dims();
        shape[dim] = len;
        let offset = if len == 0 {
            0
        } else {
            start as isize * self.strides[dim]
        };
        Ok(self.reshaped(offset, shape, strides))
    }

    /// View of the indices in `range` along `dim`, for example `x.slice(0, 2..)`.
    ///
    /// # Errors
    /// [`TensorError::Dim`] and [`TensorError::Range`].
    pub fn slice(&self, dim: usize, range: impl RangeBounds<usize>) -> Result<Tensor> {
        let (start, len) = resolve_range(&self.shape, dim, &range)?;
        self.narrow(dim, start, len)
    }

    /// View of every `step`-th index along `dim`, from the first on.
    ///
    /// # Errors
    /// [`TensorError::Dim`], and [`TensorError::Nothing`] when `step` is zero.
    pub fn step_by(&self, dim: usize, step: usize) -> Result<Tensor> {
        check_dim(dim, self.ndim())?;
        if step == 0 {
            return Err(TensorError::Nothing {
                op: "step_by",
                what: "index to step over",
            });
        }
        let (mut shape, mut strides) = self.dims();
        shape[dim] = shape[dim].div_ceil(step);
        // With at most one index left the stride is never used, and a huge step would overflow it.
        strides[dim] = if shape[dim] > 1 {
            strides[dim] * step as isize
        } else {
            1
        };
        Ok(self.reshaped(0, shape, strides))
    }

    /// View with the order along `dim` reversed, by a stride of the other sign.
    ///
    /// # Errors
    /// [`TensorError::Dim`].
    pub fn flip(&self, dim: usize) -> Result<Tensor> {
        check_dim(dim, self.ndim())?;
        let mut strides = self.strides.clone();
        let last = self.shape[dim].saturating_sub(1) as isize;
        let offset = if self.is_empty() {
            0
        } else {
            last * strides[dim]
        };
        strides[dim] = -strides[dim];
        Ok(self.reshaped(offset, self.shape.clone(), strides))
    }

    /// View with dimensions `a` and `b` exchanged.
    ///
    /// # Errors
    /// [`TensorError::Dim`].
    pub fn transpose(&self, a: usize, b: usize) -> Result<Tensor> {
        check_dim(a, self.ndim())?;
        check_dim(b, self.ndim())?;
        let (mut shape, mut strides) = self.dims();
        shape.swap(a, b);
        strides.swap(a, b);
        Ok(self.reshaped(0, shape, strides))
    }

    /// View whose dimension `i` is dimension `axes[i]` of this tensor.
    ///
    /// # Errors
    /// [`TensorError::Permutation`] when `axes` does not name every dimension once.
    pub fn permute(&self, axes: impl AsRef<[usize]>) -> Result<Tensor> {
        let axes = axes.as_ref();
        let ndim = self.ndim();
        let mut seen: Shape = smallvec![0; ndim];
        for &axis in axes {
            if let Some(count) = seen.get_mut(axis) {
                *count += 1;
            }
        }
        if axes.len() != ndim || seen.iter().any(|&count| count != 1) {
            return Err(TensorError::Permutation {
                axes: axes.to_vec(),
                ndim,
            });
        }
        let shape = axes.iter().map(|&axis| self.shape[axis]).collect();
        let strides = axes.iter().map(|&axis| self.strides[axis]).collect();
        Ok(self.reshaped(0, shape, strides))
    }

    /// View with a dimension of size one put before dimension `dim`; `dim == ndim()` puts it last.
    ///
    /// # Errors
    /// [`TensorError::Dim`].
    pub fn unsqueeze(&self, dim: usize) -> Result<Tensor> {
        check_dim(dim, self.ndim() + 1)?;
        let (mut shape, mut strides) = self.dims();
        shape.insert(dim, 1);
        strides.insert(dim, 1);
        Ok(self.reshaped(0, shape, strides))
    }

    /// View without dimension `dim` when its size is one; the same view otherwise.
    ///
    /// # Errors
    /// [`TensorError::Dim`].
    pub fn squeeze(&self, dim: usize) -> Result<Tensor> {
        check_dim(dim, self.ndim())?;
        if self.shape[dim] == 1 {
            self.select(dim, 0)
        } else {
            Ok(self.clone())
        }
    }

    /// View of `shape` that repeats dimensions of size one, and adds dimensions in front, without
    /// copying.
    ///
    /// # Errors
    /// [`TensorError::Shape`] when a dimension other than one would have to change,
    /// [`TensorError::TooLarge`].
    pub fn expand(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let target = shape.as_ref();
        let misfit = || TensorError::Shape {
            op: "expand",
            expected: target.to_vec(),
            got: self.shape.to_vec(),
        };
        let added = target.len().checked_sub(self.ndim()).ok_or_else(misfit)?;
        checked_numel(target, self.dtype)?;
        let mut strides: Strides = smallvec![0; target.len()];
        for (dim, (&size, &stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            match target[added + dim] {
                wanted if wanted == size => strides[added + dim] = stride,
                _ if size == 1 => {}
                _ => return Err(misfit()),
            }
        }
        Ok(self.reshaped(0, Shape::from_slice(target), strides))
    }

    /// Views of `size` indices each along `dim`, in order; the last may be shorter.
    ///
    /// # Errors
    /// [`TensorError::Dim`], and [`TensorError::Nothing`] when `size` is zero.
    pub fn split(&self, dim: usize, size: usize) -> Result<Vec<Tensor>> {
        split_ranges(&self.shape, dim, size)?
            .map(|(start, len)| self.narrow(dim, start, len))
            .collect()
    }

    /// At most `chunks` views of equal length along `dim`, in order; the last may be shorter.
    ///
    /// # Errors
    /// [`TensorError::Dim`], and [`TensorError::Nothing`] when `chunks` is zero.
    pub fn chunk(&self, dim: usize, chunks: usize) -> Result<Vec<Tensor>> {
        self.split(dim, chunk_len(&self.shape, dim, chunks)?)
    }
}

/// Start and length of the pieces of `size` along `dim`; one empty piece when the dimension is
/// empty.
pub(crate) fn split_ranges(
    shape: &[usize],
    dim: usize,
    size: usize,
) -> Result<impl Iterator<Item = (usize, usize)> + use<>> {
    check_dim(dim, shape.len())?;
    if size == 0 {
        return Err(TensorError::Nothing {
            op: "split",
            what: "index in each part",
        });
    }
    let total = shape[dim];
    let pieces = total.div_ceil(size).max(1);
    Ok((0..pieces).map(move |piece| (piece * size, size.min(total - piece * size))))
}

/// Length of each of at most `chunks` equal pieces along `dim`; at least 1.
pub(crate) fn chunk_len(shape: &[usize], dim: usize, chunks: usize) -> Result<usize> {
    check_dim(dim, shape.len())?;
    if chunks == 0 {
        return Err(TensorError::Nothing {
            op: "chunk",
            what: "chunk",
        });
    }
    Ok(shape[dim].div_ceil(chunks).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Tensor {
        Tensor::arange(0..12).unwrap().view([3, 4]).unwrap()
    }

    fn ints(tensor: &Tensor) -> Vec<i64> {
        tensor.to_vec().unwrap()
    }

    #[test]
    fn select_and_slices() {
        let x = grid();
        assert_eq!(ints(&x.select(0, 1).unwrap()), [4, 5, 6, 7]);
        assert_eq!(ints(&x.select(1, 3).unwrap()), [3, 7, 11]);
        assert_eq!(ints(&x.slice(1, 1..=2).unwrap()), [1, 2, 5, 6, 9, 10]);
        assert_eq!(ints(&x.slice(0, 2..).unwrap()), [8, 9, 10, 11]);
        assert_eq!(x.slice(0, 3..).unwrap().shape(), [0, 4]);
        assert_eq!(ints(&x.step_by(1, 3).unwrap()), [0, 3, 4, 7, 8, 11]);
        assert_eq!(ints(&x.step_by(1, usize::MAX).unwrap()), [0, 4, 8]);
        assert_eq!(
            ints(&x.flip(0).unwrap().flip(1).unwrap()),
            (0..12).rev().collect::<Vec<_>>()
        );
    }

    #[test]
    fn out_of_range_is_named() {
        let x = grid();
        assert_eq!(
            x.select(2, 0).unwrap_err().to_string(),
            "dimension 2 is out of range for 2 dimensions"
        );
        assert_eq!(
            x.select(1, 4).unwrap_err().to_string(),
            "index 4 is out of range for dimension 1 of size 4"
        );
        assert_eq!(
            x.slice(0, 2..5).unwrap_err().to_string(),
            "range 2..5 is out of range for dimension 0 of size 3"
        );
        let backwards = std::ops::Range { start: 2, end: 1 };
        assert!(matches!(
            x.slice(0, backwards),
            Err(TensorError::Range { .. })
        ));
        assert!(x.narrow(0, usize::MAX, 2).is_err());
        assert!(x.slice(0, ..=usize::MAX).is_err());
        assert!(x.step_by(0, 0).is_err());
        assert!(
            x.permute([0]).is_err() && x.permute([0, 0]).is_err() && x.permute([0, 2]).is_err()
        );
    }

    #[test]
    fn empty_views_of_reversed_memory_stay_inside() {
        let x = Tensor::arange(0..3).unwrap().flip(0).unwrap();
        let empty = x.narrow(0, 3, 0).unwrap();
        assert_eq!(empty.data_ptr(), x.data_ptr());
        assert!(empty.as_slice::<i64>().unwrap().is_empty());
        assert!(empty.flip(0).unwrap().is_empty());
    }

    #[test]
    fn expand_repeats_without_copying() {
        let row = Tensor::arange(0..3).unwrap();
        let wide = row.expand([2, 3]).unwrap();
        assert_eq!(ints(&wide), [0, 1, 2, 0, 1, 2]);
        assert_eq!(wide.strides(), [0, 1]);
        assert_eq!(wide.data_ptr(), row.data_ptr());
        assert!(row.expand([2, 4]).is_err());
        assert!(row.expand([]).is_err());
        assert!(matches!(
            row.expand([usize::MAX, 3]),
            Err(TensorError::TooLarge { .. })
        ));
        assert!(row.unsqueeze(0).unwrap().expand([0, 3]).unwrap().is_empty());
    }

    #[test]
    fn squeeze_and_unsqueeze() {
        let x = grid();
        assert_eq!(x.unsqueeze(2).unwrap().shape(), [3, 4, 1]);
        assert_eq!(x.unsqueeze(0).unwrap().squeeze(0).unwrap(), x);
        assert_eq!(x.squeeze(0).unwrap(), x);
        assert!(x.unsqueeze(3).is_err());
    }

    #[test]
    fn split_and_chunk_cover_everything() {
        let x = grid();
        let parts = x.split(1, 3).unwrap();
        assert_eq!(
            parts.iter().map(|part| part.shape()[1]).collect::<Vec<_>>(),
            [3, 1]
        );
        assert_eq!(x.chunk(0, 2).unwrap().len(), 2);
        assert_eq!(x.chunk(0, 9).unwrap().len(), 3);
        assert_eq!(x.narrow(0, 0, 0).unwrap().chunk(0, 2).unwrap().len(), 1);
        assert!(x.split(0, 0).is_err() && x.chunk(0, 0).is_err());
    }
}
