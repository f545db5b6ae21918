//! What a learner does with a batch: rows in another order, advantages.
//!
//! The interpreter's lock is held all along, since both read memory that other threads of Python
//! may write to, and take microseconds.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use numpy::{
    Element, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use tensordict::{Tensor, TensorDict, TensorError};
use windrow::error_chain;
use windrow::postproc::Gae;

use crate::batch::{self, ElementKind};

/// Adds the class and the function.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(advantages, module)?)?;
    module.add_class::<RowGather>()
}

/// Last batches of rows whose memory may be used again: a loop holds one while it asks for the
/// next.
const KEPT: usize = 2;

/// Copies chosen rows of a batch, counted over all its batch dimensions, into memory that nobody
/// holds any more.
#[pyclass(module = "windrow._windrow", frozen)]
struct RowGather {
    /// Views of the batch's memory, as whole numbers of any type, and the types that they stand
    /// for.
    batch: TensorDict,
    kinds: Vec<ElementKind>,
    /// What copies are on.
    device: Py<PyAny>,
    /// The last copies, oldest first.
    spare: Mutex<VecDeque<TensorDict>>,
}

#[pymethods]
impl RowGather {
    /// Of the tensors of `batch`, all of which are on the CPU; copies name `device`.
    #[new]
    fn new(batch: &Bound<'_, PyAny>, device: Py<PyAny>) -> PyResult<Self> {
        let (batch, kinds) = batch::bits_of(batch)?;
        Ok(Self {
            batch,
            kinds,
            device,
            spare: Mutex::default(),
        })
    }

    /// The rows `order[begin:end]`, in this order; `order` is a contiguous array of `int64`.
    fn rows<'py>(
        &self,
        py: Python<'py>,
        order: &Bound<'py, PyArrayDyn<i64>>,
        begin: usize,
        end: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let order = order.readonly();
        let chosen = order.as_slice()?.get(begin..end);
        let rows =
            chosen.and_then(|rows| rows.iter().map(|&row| usize::try_from(row).ok()).collect());
        let rows: Vec<usize> = rows.ok_or_else(|| PyIndexError::new_err("no such rows"))?;
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = match spare.len() < KEPT {
            true => None,
            false => spare.pop_front(),
        };
        let oldest = oldest.unwrap_or_else(|| TensorDict::new([0]));
        let made = self
            .batch
            .rows_into(&rows, oldest)
            .map_err(|error| of(&error))?;
        spare.push_back(made.clone());
        drop(spare);
        batch::of_kinds(py, &made, &self.kinds, &self.device)
    }
}

/// Advantages and value targets, of `reward`'s shape `[…, time, rewards]` and element type. `ids`
/// are `[…, time]`.
#[pyfunction]
fn advantages<'py>(
    py: Python<'py>,
    weights: (f64, f64),
    reward: &Bound<'py, PyUntypedArray>,
    values: (Bound<'py, PyUntypedArray>, Bound<'py, PyUntypedArray>),
    flags: (PyReadonlyArrayDyn<'py, bool>, PyReadonlyArrayDyn<'py, bool>),
    ids: Option<&Bound<'py, PyArrayDyn<i64>>>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let gae = Gae::new(weights.0, weights.1);
    let gae = gae.map_err(|error| PyValueError::new_err(error_chain(&error)))?;
    let shape = reward.shape().to_vec();
    let mut batch = TensorDict::new(&shape[..shape.len() - 1]);
    let (value, following) = values;
    let (done, terminated) = flags;
    let mut set = |key: &[&str], tensor: PyResult<Tensor>| {
        batch
            .set(key, tensor?)
            .map(drop)
            .map_err(|error| of(&error))
    };
    set(&["next", "done"], copied(&done))?;
    set(&["next", "terminated"], copied(&terminated))?;
    if let Some(ids) = ids {
        set(&["collector", "traj_ids"], copied(&ids.readonly()))?;
    }
    for (key, array) in [
        (&["next", "reward"][..], reward),
        (&["state_value"], &value),
        (&["next", "state_value"], &following),
    ] {
        set(key, numbers(array))?;
    }
    gae.estimate(&mut batch).map_err(|error| of(&error))?;
    let array = |name: &str| -> PyResult<Bound<'py, PyAny>> {
        let tensor = batch.get(name).map_err(|error| of(&error))?;
        match tensor.as_slice::<f64>() {
            Ok(values) => shaped(py, values, &shape),
            Err(_) => shaped(
                py,
                tensor.as_slice::<f32>().map_err(|error| of(&error))?,
                &shape,
            ),
        }
    };
    Ok((array("advantage")?, array("value_target")?))
}

/// A copy of an array of `float32` or `float64`.
fn numbers(array: &Bound<'_, PyUntypedArray>) -> PyResult<Tensor> {
    match array.cast::<PyArrayDyn<f64>>() {
        Ok(array) => copied(&array.readonly()),
        Err(_) => copied(&array.cast::<PyArrayDyn<f32>>()?.readonly()),
    }
}

/// A copy of an array, row-major.
fn copied<T: Element + tensordict::Element>(array: &PyReadonlyArrayDyn<'_, T>) -> PyResult<Tensor> {
    // Not `array.as_slice`, which gives the memory of arrays in the order of Fortran too, as it
    // lies.
    let view = array.as_array();
    let made = match view.as_slice() {
        Some(values) => Tensor::from_slice(values, array.shape()),
        None => Tensor::from_vec(view.iter().copied().collect(), array.shape()),
    };
    made.map_err(|error| of(&error))
}

/// An array of this shape.
fn shaped<'py, T: Element + Copy>(
    py: Python<'py>,
    values: &[T],
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let flat = numpy::PyArray1::from_slice(py, values);
    Ok(flat.reshape(shape)?.into_any())
}

fn of(error: &TensorError) -> PyErr {
    PyValueError::new_err(error_chain(error))
}
