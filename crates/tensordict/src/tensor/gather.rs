//! Picking elements by index or by mask.

use super::Tensor;
use crate::buffer::HeapBuffer;
use crate::shape::{check_dim, check_index, checked_numel, no_memory, row_major};
use crate::{DType, Result, TensorError};

impl Tensor {
    /// Copy of the given indices along `dim`, in their order; indices may repeat.
    ///
    /// # Errors
    /// [`TensorError::Dim`], [`TensorError::Index`], [`TensorError::TooLarge`],
    /// [`TensorError::NoMemory`].
    pub fn index_select(&self, dim: usize, indices: &[usize]) -> Result<Tensor> {
        check_dim(dim, self.ndim())?;
        for &index in indices {
            check_index(&self.shape, dim, index)?;
        }
        let mut shape = self.shape.clone();
        shape[dim] = indices.len();
        let count = checked_numel(&shape, self.dtype)?;
        let buffer = HeapBuffer::of(&shape, self.dtype)?;
        let mut strides = row_major(&shape);
        let step = strides.remove(dim) * self.dtype.size() as isize;
        let mut heap = Vec::new();
        if count > 0 {
            for (place, &index) in indices.iter().enumerate() {
                let picked = self.select(dim, index)?;
                // SAFETY: `place` is within the new dimension, so this is the start of its part of
                // the fresh block, and the strides are those of the whole.
                unsafe {
                    picked.copy_to(
                        buffer.ptr().as_ptr().offset(place as isize * step),
                        &strides,
                        &mut heap,
                    )
                };
            }
        }
        // SAFETY: every place along `dim` was written whole.
        Ok(unsafe { Self::from_copies(buffer, self.dtype, shape, heap) })
    }

    /// Copy of the parts where `mask` is true, in row-major order of the mask.
    ///
    /// `mask`: bool, its shape equal to the leading dimensions of this tensor's shape; result:
    /// `[picked, *rest]`. A mask of the full shape gives one dimension.
    ///
    /// # Errors
    /// [`TensorError::DType`] when the mask is not bool, [`TensorError::Shape`] when it does not
    /// fit, [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        mask.expect_dtype::<bool>()?;
        let lead = mask.ndim();
        if !self.shape.starts_with(&mask.shape) {
            let expected = self.shape[..lead.min(self.ndim())].to_vec();
            return Err(TensorError::Shape {
                op: "masked_select",
                expected,
                got: mask.shape.to_vec(),
            });
        }
        let picked = mask.true_places()?;
        let mut rows = vec![mask.len()];
        rows.extend_from_slice(&self.shape[lead..]);
        self.reshape(rows)?.index_select(0, &picked)
    }

    /// Places of a mask's true elements, counted in row-major order.
    pub(crate) fn true_places(&self) -> Result<Vec<usize>> {
        let keeps = || self.iter::<bool>().map(|mask| mask.enumerate());
        let count = keeps()?.filter(|&(_, keep)| keep).count();
        let mut places = Vec::new();
        places
            .try_reserve_exact(count)
            .map_err(|_| no_memory(&[count], DType::I64))?;
        places.extend(keeps()?.filter_map(|(place, keep)| keep.then_some(place)));
        Ok(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_select_orders_and_repeats() {
        let x = Tensor::arange(0..6).unwrap().view([2, 3]).unwrap();
        let picked = x.index_select(1, &[2, 0, 2]).unwrap();
        assert_eq!(picked.shape(), [2, 3]);
        assert_eq!(picked.to_vec::<i64>().unwrap(), [2, 0, 2, 5, 3, 5]);
        assert_eq!(x.index_select(0, &[]).unwrap().shape(), [0, 3]);
        assert!(matches!(
            x.index_select(0, &[0, 2]),
            Err(TensorError::Index { index: 2, .. })
        ));
        let empty = Tensor::zeros(DType::F32, [3, 0]).unwrap();
        assert_eq!(empty.index_select(0, &[1, 1]).unwrap().shape(), [2, 0]);
    }

    #[test]
    fn masks_cover_leading_dimensions() {
        let x = Tensor::arange(0..12).unwrap().view([2, 3, 2]).unwrap();
        let mask = Tensor::from_vec(vec![true, false, false, false, true, true], [2, 3]).unwrap();
        let picked = x.masked_select(&mask).unwrap();
        assert_eq!(picked.shape(), [3, 2]);
        assert_eq!(picked.to_vec::<i64>().unwrap(), [0, 1, 8, 9, 10, 11]);
        let odd = x.transpose(0, 1).unwrap();
        let turned = odd.masked_select(&mask.transpose(0, 1).unwrap()).unwrap();
        assert_eq!(turned.to_vec::<i64>().unwrap(), [0, 1, 8, 9, 10, 11]);
        assert_eq!(
            x.masked_select(&Tensor::scalar(true)).unwrap().shape(),
            [1, 2, 3, 2]
        );
        assert!(matches!(
            x.masked_select(&x),
            Err(TensorError::DType { .. })
        ));
        let wrong = Tensor::full([3], true).unwrap();
        assert_eq!(
            x.masked_select(&wrong).unwrap_err().to_string(),
            "masked_select: expected shape [2], got [3]"
        );
    }
}
