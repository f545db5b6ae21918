//! Batches and weights as one array of bytes, for another machine or process: in the form of
//! safetensors, whose tensors can be read without a copy.
//!
//! The array is NumPy's, which whoever carries it need not pickle.

use std::ptr::NonNull;
use std::sync::Arc;

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadwriteArray1, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tensordict::{DType, Tensor, TensorDict, TensorError};
use windrow::error_chain;

use super::{Copied, fill_with, from_python, named_after, views_of};

/// Adds the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pack, module)?)?;
    module.add_function(wrap_pyfunction!(unpack, module)?)?;
    module.add_function(wrap_pyfunction!(tensors_to_bytes, module)?)
}

/// Tensors by name as bytes, in the form of safetensors.
#[pyfunction]
fn tensors_to_bytes<'py>(tensors: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = from_python(tensors)?.to_bytes();
    let bytes = bytes.map_err(|error| PyValueError::new_err(error_chain(&error)))?;
    Ok(PyBytes::new(tensors.py(), &bytes))
}

/// A `TensorDict`, or a dictionary of tensors, as one array of bytes: `into`, which nobody else
/// uses any more, if it has as many, or a new one. Memory that was written before is quicker.
///
/// # Errors
/// `TypeError` naming an entry that is no tensor, or of an element type that the engine does not
/// have.
#[pyfunction]
#[pyo3(signature = (source, into=None))]
fn pack<'py>(
    source: &Bound<'py, PyAny>,
    into: Option<PyReadwriteArray1<'py, u8>>,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let py = source.py();
    if source.is_instance_of::<PyDict>() {
        let mut dict = TensorDict::new([]);
        fill_with(py, source, &[], &mut dict, Copied::No)?;
        return write_into(py, &dict, into);
    }
    let mut dict = views_of(source)?;
    let names: Vec<Option<String>> = source.getattr(intern!(py, "names"))?.extract()?;
    if names.iter().any(Option::is_some) {
        let names: Vec<_> = names.iter().map(Option::as_deref).collect();
        dict.set_names(&names).map_err(|error| failed(&error))?;
    }
    write_into(py, &dict, into)
}

/// `dict` as one array of bytes: `into` where that has as many.
fn write_into<'py>(
    py: Python<'py>,
    dict: &TensorDict,
    into: Option<PyReadwriteArray1<'py, u8>>,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let encoding = dict.encoding().map_err(|error| failed(&error))?;
    let len = encoding.byte_len();
    let known = into.filter(|array| array.len() == len && array.is_c_contiguous());
    let mut array = match known {
        Some(known) => known,
        None => PyArray1::<u8>::zeros(py, [len], false).readwrite(),
    };
    let mut bytes = array
        .as_slice_mut()
        .map_err(|error| PyValueError::new_err(error_chain(&error)))?;
    let written = py.detach(|| encoding.write(&mut bytes));
    written.map_err(|error| failed(&error))?;
    Ok((**array).clone())
}

/// The `TensorDict` that the arrays were packed from: of several, put one after the other along
/// dimension `dim`, or along a new one where they are `stacked`. The tensors of one are views of
/// the array where that is not to be `copied`.
///
/// # Errors
/// `ValueError` for an array that was not packed, and for batches that do not fit each other.
#[pyfunction]
#[pyo3(signature = (arrays, copied, dim=0, stacked=false, device=None))]
fn unpack<'py>(
    arrays: &Bound<'py, PyAny>,
    copied: bool,
    dim: isize,
    stacked: bool,
    device: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = arrays.py();
    let arrays: Vec<PyReadonlyArray1<'py, u8>> = arrays.extract()?;
    let dict = match arrays.as_slice() {
        [array] if !stacked => read(array, copied)?,
        arrays => {
            let parts = arrays.iter().map(|array| read(array, false));
            let parts = parts.collect::<PyResult<Vec<_>>>()?;
            let count = parts.first().map_or(0, TensorDict::ndim) + usize::from(stacked);
            let dim = dim.checked_add(if dim < 0 { count as isize } else { 0 });
            let dim = dim
                .and_then(|dim| usize::try_from(dim).ok())
                .unwrap_or(usize::MAX);
            let joined = py.detach(|| match stacked {
                true => TensorDict::stack(&parts, dim),
                false => TensorDict::cat(&parts, dim),
            });
            joined.map_err(|error| failed(&error))?
        }
    };
    let device = device.map(|device| device.clone().unbind());
    named_after(py, &dict, device.as_ref())
}

/// The dict in `array`, as views of it or of a copy.
///
/// # Errors
/// `ValueError` for an array that was not packed.
pub(crate) fn read(array: &PyReadonlyArray1<'_, u8>, copied: bool) -> PyResult<TensorDict> {
    let bytes = array
        .as_slice()
        .map_err(|error| PyValueError::new_err(error_chain(&error)))?;
    let dict = if copied {
        array.py().detach(|| {
            TensorDict::views_of_bytes(&Tensor::from_bytes(DType::U8, [bytes.len()], bytes)?)
        })
    } else {
        let owner: Py<PyArray1<u8>> = (**array).clone().unbind();
        let (start, len) = (NonNull::from(bytes).cast::<u8>(), array.len());
        // SAFETY: the array keeps the bytes alive. Code that writes to them meanwhile changes
        // numbers, as with tensors of torch; Ray's arrays cannot be written to.
        let bytes = unsafe {
            let (shape, strides) = ([len].as_slice().into(), [1].as_slice().into());
            Tensor::from_raw(start, DType::U8, shape, strides, Arc::new(owner))
        };
        TensorDict::views_of_bytes(&bytes)
    };
    dict.map_err(|error| failed(&error))
}

fn failed(error: &TensorError) -> PyErr {
    PyValueError::new_err(error_chain(&error))
}
