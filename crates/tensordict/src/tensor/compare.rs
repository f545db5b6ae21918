//! Comparing tensors by their elements.

use super::Tensor;
use super::cast::CastTo;
use crate::for_dtype;
use crate::{DType, Element, Result, TensorError};

/// Equal when dtype, shape and all elements are; strides and owners do not matter, and a NaN equals
/// nothing.
impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype
            && self.shape == other.shape
            && match self.dtype {
                DType::Bytes => self.strings().eq(other.strings()),
                number => for_dtype!(number, T => self.pairs::<T>(other, |a, b| a == b)),
            }
    }
}

impl Tensor {
    /// Whether this is a tensor of the same dtype and shape with the same bits: a NaN is the same
    /// as itself, and -0 is not 0.
    ///
    /// Where both are contiguous this takes a fraction of the time of `==`.
    #[must_use]
    pub fn same_bits(&self, other: &Tensor) -> bool {
        if self.dtype != other.dtype || self.shape != other.shape {
            return false;
        }
        match (self.as_bytes(), other.as_bytes(), self.dtype) {
            (Ok(own), Ok(other), _) => own == other,
            (_, _, DType::F32) => self.pairs::<f32>(other, |a, b| a.to_bits() == b.to_bits()),
            (_, _, DType::F64) => self.pairs::<f64>(other, |a, b| a.to_bits() == b.to_bits()),
            _ => self == other,
        }
    }

    /// Whether every element `a` is within `atol + rtol * |b|` of the element `b` of `other` at its
    /// place.
    ///
    /// Equal infinities are close, a NaN is close to nothing. Compared as float64. Bytes are close
    /// where they are equal.
    ///
    /// # Errors
    /// [`TensorError::DType`] and [`TensorError::Shape`] when those differ.
    pub fn allclose(&self, other: &Tensor, rtol: f64, atol: f64) -> Result<bool> {
        if self.dtype != other.dtype {
            return Err(TensorError::DType {
                expected: self.dtype,
                got: other.dtype,
            });
        }
        if self.shape != other.shape {
            return Err(TensorError::Shape {
                op: "allclose",
                expected: self.shape.to_vec(),
                got: other.shape.to_vec(),
            });
        }
        if self.dtype == DType::Bytes {
            return Ok(self == other);
        }
        let close =
            |a: f64, b: f64| a == b || (a - b).abs() <= atol + rtol * b.abs() && b.is_finite();
        Ok(for_dtype!(self.dtype, T => {
            self.pairs::<T>(other, |a, b| a == b || close(CastTo::<f64>::cast(a), CastTo::<f64>::cast(b)))
        }))
    }

    /// Whether `test` holds for every pair of elements; dtypes and shapes are known to agree.
    fn pairs<T: Element>(&self, other: &Tensor, test: impl Fn(T, T) -> bool) -> bool {
        if let (Ok(a), Ok(b)) = (self.as_slice::<T>(), other.as_slice::<T>()) {
            return a.iter().zip(b).all(|(&a, &b)| test(a, b));
        }
        match (self.iter::<T>(), other.iter::<T>()) {
            (Ok(a), Ok(b)) => a.zip(b).all(|(a, b)| test(a, b)),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equality_looks_at_elements_only() {
        let x = Tensor::arange(0..6).unwrap().view([2, 3]).unwrap();
        let copy = x
            .transpose(0, 1)
            .unwrap()
            .contiguous()
            .transpose(0, 1)
            .unwrap();
        assert!(!copy.is_contiguous());
        assert_eq!(x, copy);
        assert_ne!(x, x.view([3, 2]).unwrap());
        assert_ne!(x, x.cast(crate::DType::I32).unwrap());
        let nan = Tensor::scalar(f32::NAN);
        assert_ne!(nan, nan.clone());
    }

    #[test]
    fn the_same_bits_are_those_of_the_same_elements() {
        let x = Tensor::from_vec(vec![1.0f32, f32::NAN, -0.0, 2.0], [2, 2]).unwrap();
        assert!(x.same_bits(&x.detach()));
        let turned = x.transpose(0, 1).unwrap();
        assert!(turned.same_bits(&turned.detach()) && !turned.same_bits(&x));
        let zero = Tensor::from_vec(vec![1.0f32, f32::NAN, 0.0, 2.0], [2, 2]).unwrap();
        assert!(!x.same_bits(&zero));
        assert!(!turned.same_bits(&zero.transpose(0, 1).unwrap()));
        assert!(!x.same_bits(&x.view([4]).unwrap()));
        assert!(!Tensor::scalar(0i32).same_bits(&Tensor::scalar(0.0f32)));
    }

    #[test]
    fn allclose_follows_the_usual_bound() {
        let a = Tensor::from_vec(vec![1.0f32, f32::INFINITY], [2]).unwrap();
        let b = Tensor::from_vec(vec![1.001f32, f32::INFINITY], [2]).unwrap();
        assert!(a.allclose(&b, 1e-2, 0.0).unwrap());
        assert!(a.allclose(&b, 0.0, 1e-2).unwrap());
        assert!(!a.allclose(&b, 1e-5, 1e-5).unwrap());
        let finite = Tensor::from_vec(vec![1.0f32, 5.0], [2]).unwrap();
        assert!(!finite.allclose(&a, 1e-2, 0.0).unwrap());
        let nan = Tensor::from_vec(vec![1.0f32, f32::NAN], [2]).unwrap();
        assert!(!nan.allclose(&nan, 1.0, 1.0).unwrap());
        assert!(matches!(
            a.allclose(&a.narrow(0, 0, 1).unwrap(), 0.0, 0.0),
            Err(TensorError::Shape { .. })
        ));
        assert!(matches!(
            a.allclose(&Tensor::arange(0..2).unwrap(), 0.0, 0.0),
            Err(TensorError::DType { .. })
        ));
    }
}
