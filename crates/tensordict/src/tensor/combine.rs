//! One tensor out of several.

use std::borrow::Borrow;

use super::Tensor;
use crate::buffer::HeapBuffer;
use crate::shape::{check_dim, checked_numel, row_major};
use crate::{Result, Shape, TensorError};

impl Tensor {
    /// Copy of all `tensors` side by side along a new dimension `dim`, whose size is their number.
    ///
    /// # Errors
    /// [`TensorError::Nothing`] for an empty list, [`TensorError::DType`] and
    /// [`TensorError::Shape`] when they are not alike, [`TensorError::Dim`],
    /// [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    pub fn stack<T: Borrow<Tensor>>(tensors: &[T], dim: usize) -> Result<Tensor> {
        let Some(first) = tensors.first().map(T::borrow) else {
            return Err(TensorError::Nothing {
                op: "stack",
                what: "tensor",
            });
        };
        check_dim(dim, first.ndim() + 1)?;
        for tensor in tensors.iter().map(T::borrow) {
            if tensor.shape != first.shape {
                return Err(misfit("stack", first, tensor));
            }
        }
        let parts: Vec<Tensor> = tensors
            .iter()
            .map(|tensor| tensor.borrow().unsqueeze(dim))
            .collect::<Result<_>>()?;
        Self::join("stack", &parts, dim)
    }

    /// Copy of all `tensors` one after another along dimension `dim`; other dimensions must be
    /// equal.
    ///
    /// # Errors
    /// [`TensorError::Nothing`] for an empty list, [`TensorError::DType`] and
    /// [`TensorError::Shape`] when they are not alike, [`TensorError::Dim`],
    /// [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    pub fn cat<T: Borrow<Tensor>>(tensors: &[T], dim: usize) -> Result<Tensor> {
        Self::join("cat", tensors, dim)
    }

    fn join<T: Borrow<Tensor>>(op: &'static str, tensors: &[T], dim: usize) -> Result<Tensor> {
        let Some(first) = tensors.first().map(T::borrow) else {
            return Err(TensorError::Nothing { op, what: "tensor" });
        };
        check_dim(dim, first.ndim())?;
        let dtype = first.dtype;
        let mut total = 0usize;
        for tensor in tensors.iter().map(T::borrow) {
            if tensor.dtype != dtype {
                return Err(TensorError::DType {
                    expected: dtype,
                    got: tensor.dtype,
                });
            }
            let alike = tensor.ndim() == first.ndim()
                && (0..first.ndim()).all(|i| i == dim || tensor.shape[i] == first.shape[i]);
            if !alike {
                return Err(misfit(op, first, tensor));
            }
            total = total.saturating_add(tensor.shape[dim]);
        }
        let mut shape: Shape = first.shape.clone();
        shape[dim] = total;
        checked_numel(&shape, dtype)?;
        let buffer = HeapBuffer::of(&shape, dtype)?;
        let strides = row_major(&shape);
        let (mut start, mut heap) = (0isize, Vec::new());
        for tensor in tensors
            .iter()
            .map(T::borrow)
            .filter(|tensor| !tensor.is_empty())
        {
            let offset = start * strides[dim] * dtype.size() as isize;
            // SAFETY: this tensor's part of the fresh block starts at index `start` of the joined
            // dimension and ends before the next one's.
            unsafe {
                tensor.copy_to(buffer.ptr().as_ptr().offset(offset), &strides, &mut heap);
            };
            start += tensor.shape[dim] as isize;
        }
        // SAFETY: the parts add up to the whole of dimension `dim`, and each was written whole.
        Ok(unsafe { Self::from_copies(buffer, dtype, shape, heap) })
    }
}

fn misfit(op: &'static str, expected: &Tensor, got: &Tensor) -> TensorError {
    TensorError::Shape {
        op,
        expected: expected.shape.to_vec(),
        got: got.shape.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn grid(range: std::ops::Range<i64>) -> Tensor {
        Tensor::arange(range).unwrap().view([2, 2]).unwrap()
    }

    #[test]
    fn stack_adds_a_dimension_anywhere() {
        let (a, b) = (grid(0..4), grid(4..8).transpose(0, 1).unwrap());
        let outer = Tensor::stack(&[&a, &b], 0).unwrap();
        assert_eq!(outer.shape(), [2, 2, 2]);
        assert_eq!(outer.select(0, 1).unwrap(), b);
        let inner = Tensor::stack(&[a.clone(), b.clone()], 2).unwrap();
        assert_eq!(inner.select(2, 0).unwrap(), a);
        assert_eq!(inner.select(2, 1).unwrap(), b);
        let scalars = [Tensor::scalar(1u8), Tensor::scalar(2u8)];
        assert_eq!(
            Tensor::stack(&scalars, 0).unwrap().to_vec::<u8>().unwrap(),
            [1, 2]
        );
    }

    #[test]
    fn cat_joins_parts_of_any_length() {
        let a = grid(0..4);
        let b = a.narrow(1, 0, 1).unwrap();
        let none = a.narrow(1, 0, 0).unwrap();
        let joined = Tensor::cat(&[&none, &a, &b, &none], 1).unwrap();
        assert_eq!(joined.shape(), [2, 3]);
        assert_eq!(joined.to_vec::<i64>().unwrap(), [0, 1, 0, 2, 3, 2]);
        assert_eq!(Tensor::cat(&[&none, &none], 1).unwrap().shape(), [2, 0]);
    }

    #[test]
    fn unlike_tensors_are_refused() {
        let a = grid(0..4);
        assert!(matches!(
            Tensor::cat::<Tensor>(&[], 0),
            Err(TensorError::Nothing { .. })
        ));
        assert!(matches!(
            Tensor::stack::<&Tensor>(&[], 0),
            Err(TensorError::Nothing { .. })
        ));
        let floats = a.cast(DType::F32).unwrap();
        assert!(matches!(
            Tensor::cat(&[&a, &floats], 0),
            Err(TensorError::DType { .. })
        ));
        let flat = a.flatten();
        assert!(matches!(
            Tensor::cat(&[&a, &flat], 0),
            Err(TensorError::Shape { .. })
        ));
        assert!(matches!(
            Tensor::stack(&[&a, &a.narrow(0, 0, 1).unwrap()], 0),
            Err(TensorError::Shape { .. })
        ));
        assert!(matches!(
            Tensor::cat(&[&a], 2),
            Err(TensorError::Dim { .. })
        ));
        assert!(matches!(
            Tensor::stack(&[&a], 3),
            Err(TensorError::Dim { .. })
        ));
    }

    #[test]
    fn joined_size_overflow_is_an_error() {
        let huge = Tensor::scalar(0u8)
            .expand([isize::MAX as usize - 63])
            .unwrap();
        assert!(matches!(
            Tensor::cat(&[&huge, &huge, &huge], 0),
            Err(TensorError::TooLarge { .. })
        ));
    }
}
