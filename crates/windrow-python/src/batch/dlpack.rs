//! Tensors as DLPack capsules: <https://dmlc.github.io/dlpack>, the structures before version 1.
//!
//! Who owns what: a capsule owns its structure until a consumer takes it out and renames the
//! capsule; from then on the consumer calls the deleter, once, in any thread. So a capsule of ours
//! that torch has taken is an empty shell, and one that was never taken frees its structure itself.
//!
//! The structures below have the layout of the header `dlpack.h`, field by field.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tensordict::{DType, Shape, Strides, Tensor, TensorError};
use windrow::error_chain;

use crate::process::Own;

/// The name of a capsule that owns its structure.
const NAME: &CStr = c"dltensor";
/// The name of a capsule whose structure was taken out.
const USED: &CStr = c"used_dltensor";
/// `kDLCPU`.
const CPU: i32 = 1;

/// `DLDevice`: where the memory is.
#[repr(C)]
struct DlDevice {
    kind: i32,
    id: i32,
}

/// `DLDataType`: a kind of number and its width in bits.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`: a view of memory. Strides count elements, not bytes.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    /// Null for a tensor in the order of C.
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`: a view and the function that frees it.
#[repr(C)]
struct DlManaged {
    tensor: DlTensor,
    /// The producer's own.
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManaged)>,
}

/// The memory that a capsule of ours owns: first the structure that consumers see, then the vectors
/// that it points into. It is boxed, so that these pointers stay valid.
#[repr(C)]
struct Export {
    managed: DlManaged,
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// The view, which holds the lease of a slab. A child of fork leaks its copy: only the parent
    /// gives the slab back.
    _tensor: Own<Tensor>,
}

/// A capsule over the memory of `tensor`, which lives as long as the capsule or the tensor that is
/// made of it.
///
/// # Errors
/// `TypeError` for values of bytes, which torch has no type for.
pub(super) fn export(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyCapsule>> {
    let kind = data_type(tensor.dtype()).ok_or_else(no_type)?;
    export_as(py, tensor, kind)
}

/// As [`export`], of elements that are of the type `kind`, which has the width of the tensor's.
pub(super) fn export_as(
    py: Python<'_>,
    tensor: Tensor,
    kind: DlDataType,
) -> PyResult<Bound<'_, PyCapsule>> {
    let shape: Vec<i64> = tensor.shape().iter().map(|&size| size as i64).collect();
    let strides: Vec<i64> = tensor.strides().iter().map(|&step| step as i64).collect();
    // Tensors without elements get no address: `torch.save` refuses tensors of several types that
    // share one, as all empty ones would.
    let data = match tensor.is_empty() {
        true => std::ptr::null_mut(),
        false => tensor.data_ptr().as_ptr().cast(),
    };
    let mut export = Box::new(Export {
        managed: DlManaged {
            tensor: DlTensor {
                data,
                device: DlDevice { kind: CPU, id: 0 },
                ndim: shape.len() as i32,
                dtype: kind,
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
            context: std::ptr::null_mut(),
            deleter: Some(delete),
        },
        shape,
        strides,
        _tensor: Own::new(tensor),
    });
    export.managed.tensor.shape = export.shape.as_mut_ptr();
    export.managed.tensor.strides = export.strides.as_mut_ptr();
    let raw = Box::into_raw(export);
    // SAFETY: a fresh pointer and a static name; `drop_unused` frees a structure that was never
    // taken.
    let capsule = unsafe { ffi::PyCapsule_New(raw.cast(), NAME.as_ptr(), Some(drop_unused)) };
    // SAFETY: a new reference to a capsule, or null with an exception set.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
    match capsule {
        Ok(capsule) => Ok(capsule.cast_into()?),
        Err(error) => {
            // SAFETY: no capsule was made, so the box is still ours alone.
            drop(unsafe { Box::from_raw(raw) });
            Err(error)
        }
    }
}

/// Frees an export when the last tensor over it is dropped. Torch calls it in any thread, with or
/// without the interpreter's lock, so it touches no Python object.
unsafe extern "C" fn delete(managed: *mut DlManaged) {
    // SAFETY: `managed` is the first field of the `Export` that `export` has boxed, and is deleted
    // once.
    drop(unsafe { Box::from_raw(managed.cast::<Export>()) });
}

/// Frees the export of a capsule that was never taken.
unsafe extern "C" fn drop_unused(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with a capsule of `export`; one that was taken has another
    // name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) != 0 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}

/// The structure of a foreign capsule. Dropping it, with the last tensor over it, calls the
/// producer's deleter.
struct Taken(NonNull<DlManaged>);

// SAFETY: the structure is only read, and DLPack lets any thread call the deleter; torch's takes no
// lock of the interpreter for a tensor that Python does not know, and takes it otherwise.
unsafe impl Send for Taken {}
// SAFETY: as above.
unsafe impl Sync for Taken {}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: the structure is ours since the capsule was renamed, and is deleted once.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}

/// Takes the tensor out of a capsule, with its memory.
///
/// # Errors
/// `TypeError` for an element type that the engine does not have, `ValueError` for memory on a
/// device and for a tensor whose storage was freed, `RuntimeError` for memory that is not aligned
/// for its elements.
pub(super) fn import(capsule: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let (taken, found) = take(capsule)?;
    match element_type(&found)? {
        DType::Bool => booleans(&view(taken, DType::U8)?),
        dtype => view(taken, dtype),
    }
}

/// Takes the tensor out of a capsule, whatever the type of its elements: as whole numbers of their
/// width, and their type.
///
/// # Errors
/// As [`import`]; `TypeError` for elements of another width than 8, 16, 32 or 64 bits.
pub(super) fn import_any(capsule: &Bound<'_, PyAny>) -> PyResult<(Tensor, DlDataType)> {
    let (taken, found) = take(capsule)?;
    let dtype = match (found.bits, found.lanes) {
        (8, 1) => DType::U8,
        (16, 1) => DType::I16,
        (32, 1) => DType::I32,
        (64, 1) => DType::I64,
        (bits, lanes) => {
            return Err(PyTypeError::new_err(format!(
                "expected elements of 8, 16, 32 or 64 bits, got {}",
                u32::from(bits) * u32::from(lanes)
            )));
        }
    };
    Ok((view(taken, dtype)?, found))
}

/// Takes the structure out of a capsule, and the type of its elements.
fn take(capsule: &Bound<'_, PyAny>) -> PyResult<(Taken, DlDataType)> {
    let capsule: &Bound<'_, PyCapsule> = capsule.cast()?;
    // SAFETY: the pointer is that of a capsule called `dltensor`, which the protocol says is a
    // `DLManagedTensor`; the capsule is renamed so that it is taken once.
    let taken = unsafe {
        let raw = ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr());
        let Some(raw) = NonNull::new(raw.cast::<DlManaged>()) else {
            return Err(PyErr::fetch(capsule.py()));
        };
        if ffi::PyCapsule_SetName(capsule.as_ptr(), USED.as_ptr()) != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        Taken(raw)
    };
    // SAFETY: valid until `taken` is dropped.
    let found = unsafe { taken.0.as_ref().tensor.dtype };
    Ok((taken, found))
}

/// Whether [`import`] would make a view of the memory of `known` of a capsule, with its shape,
/// strides and element type.
pub(super) fn is_same(capsule: &Bound<'_, PyAny>, known: &Tensor) -> PyResult<bool> {
    let (taken, found) = take(capsule)?;
    // SAFETY: valid until `taken` is dropped.
    let tensor = unsafe { &taken.0.as_ref().tensor };
    let start = tensor.data.addr().wrapping_add(tensor.byte_offset as usize);
    if tensor.device.kind != CPU
        || start != known.data_ptr().addr().get()
        || data_type(known.dtype()) != Some(found)
    {
        return Ok(false);
    }
    let shape = shape(tensor);
    let strides = strides(tensor, &shape);
    // The stride of a dimension of size 1 has no meaning, and may be any number.
    let mut steps = shape.iter().zip(strides.iter().zip(known.strides()));
    Ok(known.shape() == &shape[..] && steps.all(|(&size, (its, own))| size <= 1 || its == own))
}

/// The memory of a structure as a tensor of `dtype`, whose elements have the width of the
/// structure's and may be any bytes.
fn view(taken: Taken, dtype: DType) -> PyResult<Tensor> {
    // SAFETY: valid until `taken` is dropped.
    let tensor = unsafe { &taken.0.as_ref().tensor };
    if tensor.device.kind != CPU {
        return Err(PyValueError::new_err(
            "expected a tensor on the CPU, got one on a device",
        ));
    }
    let shape = shape(tensor);
    if tensor.data.is_null() && !shape.contains(&0) {
        return Err(PyValueError::new_err(format!(
            "expected a tensor with memory, got one of shape {shape:?} whose storage was freed"
        )));
    }
    let strides = strides(tensor, &shape);
    // SAFETY: `byte_offset` stays within the memory that `data` points to.
    let start = unsafe { tensor.data.cast::<u8>().add(tensor.byte_offset as usize) };
    // A tensor without elements may have no memory; any aligned address does.
    let start = NonNull::new(start).unwrap_or(NonNull::<u64>::dangling().cast());
    if !start.addr().get().is_multiple_of(dtype.size()) {
        return Err(PyRuntimeError::new_err(format!(
            "expected a tensor whose memory is aligned for {dtype}"
        )));
    }
    // SAFETY: the producer promises the memory behind shape and strides until `taken` is dropped.
    // Torch may write to it meanwhile, but any bytes are a number: callers read it at once, under
    // the interpreter's lock, or copy it so.
    Ok(unsafe { Tensor::from_raw(start, dtype, shape, strides, Arc::new(taken)) })
}

/// A copy of bytes as booleans, all but 0 true. Torch does not promise that each is 0 or 1, and
/// another thread may write them at any time: what was seen of a byte holds for the copy alone.
fn booleans(bytes: &Tensor) -> PyResult<Tensor> {
    let misfit = |error: TensorError| PyRuntimeError::new_err(error_chain(&error));
    bytes.cast(DType::Bool).map_err(misfit)
}

fn shape(tensor: &DlTensor) -> Shape {
    match tensor.ndim as usize {
        0 => Shape::new(),
        // SAFETY: the protocol promises `ndim` sizes.
        ndim => unsafe { std::slice::from_raw_parts(tensor.shape, ndim) }
            .iter()
            .map(|&size| size as usize)
            .collect(),
    }
}

/// The strides of `tensor` in elements; those of the order of C where it has none.
fn strides(tensor: &DlTensor, shape: &Shape) -> Strides {
    if tensor.strides.is_null() || shape.is_empty() {
        let mut step = 1;
        let mut strides: Strides = shape
            .iter()
            .rev()
            .map(|&size| {
                let here = step;
                step *= size.max(1) as isize;
                here
            })
            .collect();
        strides.reverse();
        return strides;
    }
    // SAFETY: strides that are given are as many as sizes.
    unsafe { std::slice::from_raw_parts(tensor.strides, shape.len()) }
        .iter()
        .map(|&step| step as isize)
        .collect()
}

/// An element type in DLPack's codes: 0 signed, 1 unsigned, 2 float, 6 boolean. `None` for bytes.
fn data_type(dtype: DType) -> Option<DlDataType> {
    let (code, bits) = match dtype {
        DType::I8 => (0, 8),
        DType::I16 => (0, 16),
        DType::I32 => (0, 32),
        DType::I64 => (0, 64),
        DType::U8 => (1, 8),
        DType::F32 => (2, 32),
        DType::F64 => (2, 64),
        DType::Bool => (6, 8),
        DType::Bytes => return None,
    };
    Some(DlDataType {
        code,
        bits,
        lanes: 1,
    })
}

fn no_type() -> PyErr {
    PyTypeError::new_err(
        "expected an entry of numbers, got one of bytes, such as text, which torch has no type for: leave it out, by an ExcludeTransform \
         around the environments, or by `select` of what a buffer is given",
    )
}

/// The engine's element type that [`data_type`] maps to `found`.
fn element_type(found: &DlDataType) -> PyResult<DType> {
    let known = DType::NUMBERS
        .into_iter()
        .find(|&dtype| data_type(dtype) == Some(*found));
    known.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "expected a tensor of bool, an integer of at most 64 bits, float32 or float64, got DLPack type {} of {} bits",
            found.code, found.bits
        ))
    })
}
