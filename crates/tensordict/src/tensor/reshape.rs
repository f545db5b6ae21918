//! The same elements in another shape.

use smallvec::smallvec;

use super::Tensor;
use crate::shape::{checked_numel, view_strides};
use crate::{Result, Shape, TensorError};

impl Tensor {
    /// View of the same elements, in row-major order, in `shape`.
    ///
    /// # Errors
    /// [`TensorError::Shape`] when the number of elements differs, [`TensorError::NotViewable`]
    /// when only a copy can have that shape, [`TensorError::TooLarge`].
    pub fn view(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let target = shape.as_ref();
        self.try_view("view", target)?
            .ok_or_else(|| TensorError::NotViewable {
                shape: self.shape.to_vec(),
                strides: self.strides.to_vec(),
                target: target.to_vec(),
            })
    }

    /// The same elements, in row-major order, in `shape`: a view where possible, otherwise a copy.
    ///
    /// # Errors
    /// [`TensorError::Shape`] when the number of elements differs, [`TensorError::TooLarge`],
    /// [`TensorError::NoMemory`].
    pub fn reshape(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let target = shape.as_ref();
        match self.try_view("reshape", target)? {
            Some(view) => Ok(view),
            None => self.try_detach()?.view(target),
        }
    }

    /// All elements in one dimension, in row-major order: a view where possible, otherwise a copy,
    /// taken as [`detach`](Tensor::detach) does.
    pub fn flatten(&self) -> Tensor {
        let flat: Shape = smallvec![self.len()];
        match view_strides(&self.shape, &self.strides, &flat) {
            Some(strides) => self.reshaped(0, flat, strides),
            None => self.detach().reshaped(0, flat, smallvec![1]),
        }
    }

    fn try_view(&self, op: &'static str, target: &[usize]) -> Result<Option<Tensor>> {
        let count = checked_numel(target, self.dtype)?;
        if count != self.len() {
            return Err(TensorError::Shape {
                op,
                expected: target.to_vec(),
                got: self.shape.to_vec(),
            });
        }
        let strides = view_strides(&self.shape, &self.strides, target);
        Ok(strides.map(|strides| self.reshaped(0, Shape::from_slice(target), strides)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn views_share_and_reshapes_copy_only_when_they_must() {
        let x = Tensor::arange(0..6).unwrap();
        let grid = x.view([2, 3]).unwrap();
        assert_eq!(grid.data_ptr(), x.data_ptr());
        let turned = grid.transpose(0, 1).unwrap();
        let error = turned.view([6]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tensor of shape [3, 2] and strides [1, 3] has no view of shape [6], call reshape()"
        );
        let flat = turned.reshape([6]).unwrap();
        assert_ne!(flat.data_ptr(), x.data_ptr());
        assert_eq!(flat.to_vec::<i64>().unwrap(), [0, 3, 1, 4, 2, 5]);
        assert_eq!(turned.flatten(), flat);
        assert_eq!(grid.flatten().data_ptr(), x.data_ptr());
        assert!(matches!(x.view([4]), Err(TensorError::Shape { .. })));
    }

    #[test]
    fn empty_and_scalar_shapes() {
        let empty = Tensor::zeros(DType::F32, [2, 0, 3]).unwrap();
        assert_eq!(empty.view([0]).unwrap().shape(), [0]);
        assert_eq!(empty.flatten().shape(), [0]);
        assert_eq!(
            empty.transpose(0, 2).unwrap().view([7, 0]).unwrap().shape(),
            [7, 0]
        );
        let scalar = Tensor::scalar(1u8);
        assert_eq!(scalar.view([1, 1]).unwrap().shape(), [1, 1]);
        assert_eq!(scalar.flatten().shape(), [1]);
        assert_eq!(scalar.view([1]).unwrap().view([]).unwrap().ndim(), 0);
    }
}
