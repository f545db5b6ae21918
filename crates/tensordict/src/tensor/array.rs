//! Exchange with the `ndarray` crate.

use ndarray::{ArrayBase, ArrayViewD, Axis, Data, Dimension, IxDyn, ShapeBuilder};

use super::Tensor;
use crate::shape::checked_numel;
use crate::{Element, Result, Shape};

impl Tensor {
    /// The elements as an `ndarray` view of the same shape and strides, without copying.
    ///
    /// # Errors
    /// [`TensorError::DType`](crate::TensorError::DType) when the elements are not `T`.
    pub fn array<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        self.expect_dtype::<T>()?;
        let base = self.ptr.as_ptr().cast::<T>().cast_const();
        if self.is_empty() {
            // SAFETY: without strides `ndarray` gives an empty array strides of zero, so the
            // aligned pointer is never moved or read.
            return Ok(unsafe { ArrayViewD::from_shape_ptr(IxDyn(&self.shape), base) });
        }
        // `ndarray` takes strides of one sign only: start at the lowest address and turn axes round
        // afterwards.
        let mut lowest = 0isize;
        let mut steps = Shape::new();
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            lowest += stride.min(0) * (size as isize - 1);
            steps.push(if size == 1 { 0 } else { stride.unsigned_abs() });
        }
        let shape = IxDyn(&self.shape).strides(IxDyn(&steps));
        // SAFETY: `lowest` is the offset of one of the elements; from there the strides reach
        // exactly the elements of this tensor, which lie in one allocation, stay alive with the
        // borrow of `self`, and are not written.
        let mut view = unsafe { ArrayViewD::from_shape_ptr(shape, base.offset(lowest)) };
        for (dim, (&size, &stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            if stride < 0 && size > 1 {
                view.invert_axis(Axis(dim));
            }
        }
        Ok(view)
    }

    /// Row-major copy of an `ndarray` array or view of any strides.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`](crate::TensorError::TooLarge) when a broadcast view is larger than
    /// the address space, [`TensorError::NoMemory`](crate::TensorError::NoMemory) when it is larger
    /// than memory.
    pub fn from_array<T, S, D>(array: &ArrayBase<S, D>) -> Result<Tensor>
    where
        T: Element,
        S: Data<Elem = T>,
        D: Dimension,
    {
        let count = checked_numel(array.shape(), T::DTYPE)?;
        Self::from_iter_exact(count, array.shape(), array.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;
    use crate::{DType, TensorError};

    #[test]
    fn arrays_show_any_strides() {
        let x = Tensor::arange(0..6).unwrap().view([2, 3]).unwrap();
        assert_eq!(
            x.array::<i64>().unwrap(),
            array![[0, 1, 2], [3, 4, 5]].into_dyn()
        );
        let odd = x.flip(1).unwrap().transpose(0, 1).unwrap();
        assert_eq!(
            odd.array::<i64>().unwrap(),
            array![[2, 5], [1, 4], [0, 3]].into_dyn()
        );
        let wide = x
            .select(0, 0)
            .unwrap()
            .expand([2, 3])
            .unwrap()
            .flip(0)
            .unwrap();
        assert_eq!(
            wide.array::<i64>().unwrap(),
            array![[0, 1, 2], [0, 1, 2]].into_dyn()
        );
        assert_eq!(Tensor::scalar(3u8).array::<u8>().unwrap().sum(), 3);
        assert!(matches!(x.array::<f32>(), Err(TensorError::DType { .. })));
    }

    #[test]
    fn empty_arrays_keep_their_shape() {
        let empty = Tensor::zeros(DType::F32, [2, 0, 3]).unwrap();
        assert_eq!(empty.array::<f32>().unwrap().shape(), [2, 0, 3]);
        assert_eq!(empty.flip(0).unwrap().array::<f32>().unwrap().len(), 0);
    }

    #[test]
    fn arrays_of_any_layout_come_in() {
        let a: Array2<f32> = array![[1.0, 2.0], [3.0, 4.0]];
        let x = Tensor::from_array(&a.t()).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
        assert_eq!(
            Tensor::from_array(&a).unwrap().array::<f32>().unwrap(),
            a.into_dyn()
        );
    }
}
