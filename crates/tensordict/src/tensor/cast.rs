//! Changing the element type.

use super::Tensor;
use crate::for_dtype;
use crate::shape::checked_numel;
use crate::{DType, Element, Result, TensorError};

/// Conversion of one element, as [`Tensor::cast`] defines it.
pub(super) trait CastTo<D> {
    fn cast(self) -> D;
}

macro_rules! cast_numbers {
    ($from:ty => $($to:ty),*) => {
        $(impl CastTo<$to> for $from {
            fn cast(self) -> $to {
                self as $to
            }
        })*
        impl CastTo<bool> for $from {
            fn cast(self) -> bool {
                self != <$from>::default()
            }
        }
        impl CastTo<$from> for bool {
            fn cast(self) -> $from {
                u8::from(self) as $from
            }
        }
    };
}

cast_numbers!(u8 => u8, i8, i16, i32, i64, f32, f64);
cast_numbers!(i8 => u8, i8, i16, i32, i64, f32, f64);
cast_numbers!(i16 => u8, i8, i16, i32, i64, f32, f64);
cast_numbers!(i32 => u8, i8, i16, i32, i64, f32, f64);
cast_numbers!(i64 => u8, i8, i16, i32, i64, f32, f64);
cast_numbers!(f32 => u8, i8, i16, i32, i64, f32, f64);
cast_numbers!(f64 => u8, i8, i16, i32, i64, f32, f64);

impl CastTo<bool> for bool {
    fn cast(self) -> bool {
        self
    }
}

impl Tensor {
    /// These elements as `dtype`; a view of the same memory when that is their type already.
    ///
    /// Floats are cut towards zero and held within the integer's range, NaN becomes 0; integers
    /// wrap; anything but zero is `true`, and `true` is 1.
    ///
    /// # Errors
    /// [`TooLarge`](crate::TensorError::TooLarge) when wider elements do not fit the address space,
    /// [`NoMemory`](crate::TensorError::NoMemory); [`DType`](crate::TensorError::DType) between
    /// bytes and numbers.
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        if dtype == DType::Bytes || self.dtype == DType::Bytes {
            let (expected, got) = (dtype, self.dtype);
            return Err(TensorError::DType { expected, got });
        }
        checked_numel(&self.shape, dtype)?;
        if !self.is_contiguous() {
            // Copied in order first: one loop for each pair of types is enough code.
            return self.try_detach()?.cast(dtype);
        }
        for_dtype!(self.dtype, S => for_dtype!(dtype, D => self.cast_elements::<S, D>()))
    }

    fn cast_elements<S: Element + CastTo<D>, D: Element>(&self) -> Result<Tensor> {
        let values = self.as_slice::<S>()?.iter().map(|&value| value.cast());
        Self::from_iter_exact(self.len(), &self.shape, values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_truncate_and_saturate() {
        let x = Tensor::from_vec(vec![1.9f32, -1.9, 1e10, f32::NAN, -0.0], [5]).unwrap();
        assert_eq!(
            x.cast(DType::I32).unwrap().to_vec::<i32>().unwrap(),
            [1, -1, i32::MAX, 0, 0]
        );
        assert_eq!(
            x.cast(DType::U8).unwrap().to_vec::<u8>().unwrap(),
            [1, 0, 255, 0, 0]
        );
        assert_eq!(
            x.cast(DType::Bool).unwrap().to_vec::<bool>().unwrap(),
            [true, true, true, true, false]
        );
    }

    #[test]
    fn every_pair_of_dtypes_keeps_zero_and_one() {
        let x = Tensor::from_vec(vec![false, true], [2]).unwrap();
        for from in DType::NUMBERS {
            for to in DType::NUMBERS {
                let cast = x.cast(from).unwrap().cast(to).unwrap();
                assert_eq!(cast.dtype(), to);
                assert_eq!(cast.cast(DType::Bool).unwrap(), x, "{from} to {to}");
            }
        }
    }

    #[test]
    fn strided_and_same_dtype() {
        let x = Tensor::arange(0..6)
            .unwrap()
            .view([2, 3])
            .unwrap()
            .transpose(0, 1)
            .unwrap();
        let y = x.cast(DType::F64).unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(x.cast(DType::I64).unwrap().data_ptr(), x.data_ptr());
    }
}
