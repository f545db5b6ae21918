//! Numbers that wrappers change: observations, actions, and what numpy does with them.

use std::ops::{Add, Div, Mul, Sub};

use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyFloat, PyType};
use tensordict::DType;
use windrow::error_chain;

use crate::env::write::array;

/// An observation on its way out, where it is not an object of Python's.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) dtype: Option<DType>,
    pub(super) single: Vec<f32>,
    pub(super) double: Vec<f64>,
    pub(super) shape: Vec<usize>,
}

impl Numbers {
    /// Copies an array of `float32` or `float64`; false for anything else.
    #[inline]
    pub(super) fn load(&mut self, value: &Bound<'_, PyAny>) -> bool {
        if let Ok(array) = value.cast::<PyArrayDyn<f32>>() {
            self.dtype = Some(DType::F32);
            copy(array, &mut self.single, &mut self.shape)
        } else if let Ok(array) = value.cast::<PyArrayDyn<f64>>() {
            self.dtype = Some(DType::F64);
            copy(array, &mut self.double, &mut self.shape)
        } else {
            false
        }
    }

    /// A new array of them.
    pub(super) fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.dtype {
            Some(DType::F64) => new_array(py, &self.double, &self.shape),
            _ => new_array(py, &self.single, &self.shape),
        }
    }
}

pub(super) fn new_array<'py, T: Real>(
    py: Python<'py>,
    values: &[T],
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    array(py, values, None, shape).map_err(|error| PyValueError::new_err(error_chain(&error)))
}

/// `float32` or `float64`.
pub(super) trait Real:
    numpy::Element
    + Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    fn of(number: f64) -> Self;
    fn sqrt(self) -> Self;
}

macro_rules! real {
    ($($float:ty),*) => {$(
        impl Real for $float {
            #[inline(always)]
            fn of(number: f64) -> Self {
                number as $float
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                <$float>::sqrt(self)
            }
        }
    )*};
}

real!(f32, f64);

/// The elements of an array, where they lie side by side in the order of C.
///
/// # Safety
/// The interpreter's lock is held, and no Python code runs as long as the elements are borrowed.
pub(super) unsafe fn elements<'a, T: Real>(array: &'a Bound<'_, PyArrayDyn<T>>) -> Option<&'a [T]> {
    if !array.is_c_contiguous() || !array.data().is_aligned() {
        return None;
    }
    // SAFETY: as promised; they are aligned and in order.
    unsafe { array.as_slice() }.ok()
}

/// Copies an array; false where its elements are not in the order of C.
fn copy<T: Real>(
    array: &Bound<'_, PyArrayDyn<T>>,
    to: &mut Vec<T>,
    shape: &mut Vec<usize>,
) -> bool {
    // SAFETY: the interpreter's lock is held and no Python code runs before the elements are
    // copied.
    let Some(values) = (unsafe { elements(array) }) else {
        return false;
    };
    to.clear();
    to.extend_from_slice(values);
    shape.clear();
    shape.extend_from_slice(array.shape());
    true
}

/// Changes an array of `float32` that nothing else refers to; false for anything else.
#[inline]
pub(super) fn in_place(
    array: &Bound<'_, PyAny>,
    [first, second]: [&[f32]; 2],
    change: impl Fn(f32, f32, f32) -> f32,
) -> bool {
    let Ok(array) = array.cast::<PyArrayDyn<f32>>() else {
        return false;
    };
    // SAFETY: the array was made for this step and no Python code has seen it.
    let Ok(values) = (unsafe { array.as_slice_mut() }) else {
        return false;
    };
    if values.len() != first.len() || values.len() != second.len() {
        return false;
    }
    for ((x, &first), &second) in values.iter_mut().zip(first).zip(second) {
        *x = change(*x, first, second);
    }
    true
}

/// As numpy clips between two numbers; what is no number stays so.
#[inline(always)]
pub(super) fn clip<T: PartialOrd>(x: T, low: T, high: T) -> T {
    let raised = if x < low { low } else { x };
    if raised > high { high } else { raised }
}

/// As numpy clips between the elements of two arrays, where a bound that is equal wins: zeros have
/// signs.
pub(super) fn clip_between(x: f32, low: f32, high: f32) -> f32 {
    let raised = if x > low || x.is_nan() { x } else { low };
    if raised < high || raised.is_nan() {
        raised
    } else {
        high
    }
}

pub(super) fn clip_all<T: Real>(values: &mut [T], low: T, high: T) {
    values.iter_mut().for_each(|x| *x = clip(*x, low, high));
}

/// The value of a float of Python's own.
#[inline]
pub(super) fn exact(value: &Bound<'_, PyAny>) -> Option<f64> {
    value
        .cast_exact::<PyFloat>()
        .ok()
        .map(|value| value.value())
}

/// The only element of an array of `float64`, in one dimension.
#[inline]
pub(super) fn only(value: &Bound<'_, PyAny>) -> Option<f64> {
    let array = value.cast::<PyArrayDyn<f64>>().ok()?;
    // SAFETY: the interpreter's lock is held and no Python code runs before the element is read.
    let values = unsafe { elements(array) }?;
    (array.shape() == [1]).then(|| values[0])
}

/// A `float64` of numpy.
pub(super) fn float64(py: Python<'_>, number: f64) -> PyResult<Bound<'_, PyAny>> {
    static FLOAT64: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    FLOAT64.import(py, "numpy", "float64")?.call1((number,))
}
