//! Printing tensors.

use std::fmt;

use super::Tensor;
use crate::{DType, for_dtype};

/// Elements printed at each end of a dimension that is too long to print whole.
const EDGE: usize = 3;

/// Bytes printed of a value of bytes.
const LONGEST: usize = 40;

impl Tensor {
    /// Writes shape and dtype, without the elements: `Tensor(shape=[200, 1], dtype=float32)`.
    pub(crate) fn write_header(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tensor(shape={:?}, dtype={})",
            self.shape.as_slice(),
            self.dtype
        )
    }

    /// Writes the elements from dimension `dim` on, where `index` fixes the dimensions before it.
    fn write_elements(
        &self,
        f: &mut fmt::Formatter<'_>,
        dim: usize,
        index: &mut [usize],
    ) -> fmt::Result {
        if dim == self.ndim() && self.dtype == DType::Bytes {
            let value = self.string_at(index).map_err(|_| fmt::Error)?;
            let (shown, dots) = match value.len() > LONGEST {
                true => (&value[..LONGEST], "..."),
                false => (value, ""),
            };
            return write!(f, "b\"{}\"{dots}", shown.escape_ascii());
        }
        if dim == self.ndim() {
            return for_dtype!(self.dtype, T => match self.get_at::<T>(index) {
                Ok(value) => write!(f, "{value:?}"),
                Err(_) => Err(fmt::Error),
            });
        }
        f.write_str("[")?;
        let size = self.shape[dim];
        for i in 0..size {
            if size > 2 * EDGE && (EDGE..size - EDGE).contains(&i) {
                continue;
            }
            f.write_str(if i == 0 { "" } else { ", " })?;
            if size > 2 * EDGE && i == size - EDGE {
                f.write_str("..., ")?;
            }
            index[dim] = i;
            self.write_elements(f, dim + 1, index)?;
        }
        f.write_str("]")
    }
}

/// Shape, dtype and elements, of long dimensions the first and last three:
/// `Tensor(shape=[2], dtype=float32, data=[0.5, 1.0])`.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tensor(shape={:?}, dtype={}, data=",
            self.shape.as_slice(),
            self.dtype
        )?;
        self.write_elements(f, 0, &mut vec![0; self.ndim()])?;
        f.write_str(")")
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, Tensor};

    #[test]
    fn prints_shape_dtype_and_elements() {
        let x = Tensor::from_vec(vec![1i64, 2, 3, 4], [2, 2]).unwrap();
        assert_eq!(
            x.to_string(),
            "Tensor(shape=[2, 2], dtype=int64, data=[[1, 2], [3, 4]])"
        );
        assert_eq!(
            Tensor::scalar(0.5f32).to_string(),
            "Tensor(shape=[], dtype=float32, data=0.5)"
        );
        assert_eq!(
            format!("{:?}", Tensor::zeros(DType::Bool, [2, 0]).unwrap()),
            "Tensor(shape=[2, 0], dtype=bool, data=[[], []])"
        );
    }

    #[test]
    fn long_dimensions_show_their_ends() {
        assert_eq!(
            Tensor::arange(0..100).unwrap().to_string(),
            "Tensor(shape=[100], dtype=int64, data=[0, 1, 2, ..., 97, 98, 99])"
        );
        assert_eq!(
            Tensor::arange(0..6).unwrap().to_string(),
            "Tensor(shape=[6], dtype=int64, data=[0, 1, 2, 3, 4, 5])"
        );
    }
}
