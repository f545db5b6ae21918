//! What Python has read of dictionaries, functions and other objects, and whether that is still so.
//!
//! Before each batch, windrow looks whether anything that the policy reads has changed.
//! `windrow.policies.lower` says where to look; here is the loop, since there are many places, and
//! a batch of a few frames takes no longer than a loop of Python over them.

use std::collections::HashMap;
use std::ptr;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyType};
use pyo3::{PyTraverseError, PyVisit, intern};

/// Sizes and classes of objects, values of dictionaries, lists and cells, the order of keys, and
/// what functions are made of, as they were read.
#[pyclass(frozen, module = "windrow._windrow")]
pub(super) struct Readings {
    sizes: Vec<(Py<PyAny>, usize)>,
    classes: Vec<(Py<PyAny>, Py<PyType>)>,
    dicts: Vec<Dict>,
    orders: Vec<(Py<PyDict>, Vec<Py<PyAny>>)>,
    items: Vec<(Py<PyList>, usize, Py<PyAny>)>,
    functions: Vec<Function>,
    /// A cell, and what it held; None where it was empty.
    cells: Vec<(Py<PyAny>, Option<Py<PyAny>>)>,
    tensors: Vec<Tensor>,
    parts: Vec<Py<Readings>>,
}

/// Keys of a dictionary, and what they had; None where they were not there.
struct Dict {
    dict: Py<PyDict>,
    entries: Vec<(Py<PyAny>, Option<Py<PyAny>>)>,
}

/// A tensor, its `dtype` and its `shape`.
#[derive(FromPyObject)]
struct Tensor(Py<PyAny>, Py<PyAny>, Py<PyAny>);

/// A function of Python, and its `__code__`, `__defaults__` and `__kwdefaults__`.
#[derive(FromPyObject)]
struct Function(Py<PyAny>, Py<PyAny>, Py<PyAny>, Py<PyAny>);

#[pymethods]
impl Readings {
    /// `sizes` and `classes` are of the objects before them, and `missing` is in the place of
    /// values whose keys are not there, and of what empty cells hold. `more` may name `orders` of
    /// keys, `items` of lists, `functions`, `cells`, `tensors` with their types and shapes, and
    /// `parts`, which are readings themselves.
    #[new]
    #[pyo3(signature = (sizes, classes, entries, missing, **more))]
    fn new(
        sizes: Vec<(Py<PyAny>, usize)>,
        classes: Vec<(Py<PyAny>, Py<PyType>)>,
        entries: Vec<(Py<PyDict>, Py<PyAny>, Py<PyAny>)>,
        missing: &Bound<'_, PyAny>,
        more: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let present = |value: Py<PyAny>| Some(value).filter(|value| !value.is(missing));
        let mut dicts: Vec<Dict> = Vec::new();
        let mut places = HashMap::new();
        for (dict, key, value) in entries {
            let place = *places.entry(dict.as_ptr()).or_insert(dicts.len());
            if place == dicts.len() {
                let entries = Vec::new();
                dicts.push(Dict { dict, entries });
            }
            dicts[place].entries.push((key, present(value)));
        }
        let cells: Vec<(Py<PyAny>, Py<PyAny>)> = take(more, "cells")?;
        let read = Self {
            sizes,
            classes,
            dicts,
            orders: take(more, "orders")?,
            items: take(more, "items")?,
            functions: take(more, "functions")?,
            cells: cells
                .into_iter()
                .map(|(cell, value)| (cell, present(value)))
                .collect(),
            tensors: take(more, "tensors")?,
            parts: take(more, "parts")?,
        };
        match more.filter(|more| !more.is_empty()) {
            Some(unknown) => Err(PyTypeError::new_err(format!("unknown readings: {unknown}"))),
            None => Ok(read),
        }
    }

    /// Whether all sizes, classes and orders are the same by now, and each value the same object.
    fn is_same(&self, py: Python<'_>) -> PyResult<bool> {
        for (object, size) in &self.sizes {
            if object.bind(py).len()? != *size {
                return Ok(false);
            }
        }
        let has_its = |(object, class): &(Py<PyAny>, Py<PyType>)| {
            object.bind(py).get_type_ptr() == class.as_ptr().cast()
        };
        if !self.classes.iter().all(has_its) {
            return Ok(false);
        }
        for dict in &self.dicts {
            if !dict.is_walked_same(py) && !dict.is_same(py)? {
                return Ok(false);
            }
        }
        let is_there = |(list, index, value): &(Py<PyList>, usize, Py<PyAny>)| {
            let item = list.bind(py).get_item(*index);
            item.is_ok_and(|item| item.is(value))
        };
        Ok(self.items.iter().all(is_there)
            && self.have_same_orders(py)?
            && self.have_same_functions(py)?
            && self.have_same_cells(py)?
            && self.have_same_tensors(py)?
            && self.have_same_parts(py)?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for (object, _) in &self.sizes {
            visit.call(object)?;
        }
        for (object, class) in &self.classes {
            visit.call(object)?;
            visit.call(class)?;
        }
        for Dict { dict, entries } in &self.dicts {
            visit.call(dict)?;
            for (key, value) in entries {
                visit.call(key)?;
                visit.call(value)?;
            }
        }
        for (dict, keys) in &self.orders {
            visit.call(dict)?;
            for key in keys {
                visit.call(key)?;
            }
        }
        for (list, _, value) in &self.items {
            visit.call(list)?;
            visit.call(value)?;
        }
        for Function(function, code, defaults, keyword_defaults) in &self.functions {
            for object in [function, code, defaults, keyword_defaults] {
                visit.call(object)?;
            }
        }
        for (cell, value) in &self.cells {
            visit.call(cell)?;
            visit.call(value)?;
        }
        for Tensor(tensor, dtype, shape) in &self.tensors {
            for object in [tensor, dtype, shape] {
                visit.call(object)?;
            }
        }
        self.parts.iter().try_for_each(|part| visit.call(part))
    }
}

impl Dict {
    /// Whether a walk finds the same keys with the same values, in the order in which they were
    /// read: most dictionaries are walked in a fraction of the time that it takes to look the keys
    /// up. False says nothing.
    fn is_walked_same(&self, py: Python<'_>) -> bool {
        let dict = self.dict.bind(py);
        // Not one of those with many more, such as the globals of a module.
        if dict.len() > 4 * self.entries.len() {
            return false;
        }
        let mut left = self.entries.iter();
        let mut awaited = left.next();
        let (mut place, mut key, mut value) = (0, ptr::null_mut(), ptr::null_mut());
        // SAFETY: a dictionary, alive for the call. Nobody changes it meanwhile: the lock is held,
        // and no code of Python runs here. What the walk lends is compared and nothing else.
        while unsafe { ffi::PyDict_Next(dict.as_ptr(), &mut place, &mut key, &mut value) } != 0 {
            match awaited {
                None => return true,
                Some((its, _)) if its.as_ptr() != key => {}
                Some((_, held)) => {
                    if held.as_ref().map(Py::as_ptr) != Some(value) {
                        return false;
                    }
                    awaited = left.next();
                }
            }
        }
        awaited.is_none()
    }

    fn is_same(&self, py: Python<'_>) -> PyResult<bool> {
        for (key, held) in &self.entries {
            // SAFETY: a dictionary and a key, alive for the call; the lock is held. The value is
            // borrowed and compared before anything else runs.
            let value = unsafe { ffi::PyDict_GetItemWithError(self.dict.as_ptr(), key.as_ptr()) };
            if value.is_null()
                && let Some(error) = PyErr::take(py)
            {
                return Err(error);
            }
            if value != held.as_ref().map_or(ptr::null_mut(), Py::as_ptr) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Readings {
    fn have_same_orders(&self, py: Python<'_>) -> PyResult<bool> {
        for (dict, keys) in &self.orders {
            let dict = dict.bind(py);
            let is_same = if dict.is_exact_instance_of::<PyDict>() {
                dict.iter()
                    .map(|(key, _)| key.as_ptr())
                    .eq(keys.iter().map(Py::as_ptr))
            } else {
                // An `OrderedDict` has an order of its own.
                let now: Vec<Py<PyAny>> = dict
                    .as_any()
                    .try_iter()?
                    .map(unbound)
                    .collect::<PyResult<_>>()?;
                now.iter().map(Py::as_ptr).eq(keys.iter().map(Py::as_ptr))
            };
            if !is_same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn have_same_functions(&self, py: Python<'_>) -> PyResult<bool> {
        for Function(function, code, defaults, keyword_defaults) in &self.functions {
            let function = function.bind(py);
            let is_same = function.getattr(intern!(py, "__code__"))?.is(code)
                && function.getattr(intern!(py, "__defaults__"))?.is(defaults)
                && function
                    .getattr(intern!(py, "__kwdefaults__"))?
                    .is(keyword_defaults);
            if !is_same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn have_same_tensors(&self, py: Python<'_>) -> PyResult<bool> {
        for Tensor(tensor, dtype, shape) in &self.tensors {
            let tensor = tensor.bind(py);
            if !tensor.getattr(intern!(py, "dtype"))?.is(dtype)
                || !tensor.getattr(intern!(py, "shape"))?.eq(shape)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn have_same_parts(&self, py: Python<'_>) -> PyResult<bool> {
        for part in &self.parts {
            if !part.get().is_same(py)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn have_same_cells(&self, py: Python<'_>) -> PyResult<bool> {
        for (cell, held) in &self.cells {
            let value = match cell.bind(py).getattr(intern!(py, "cell_contents")) {
                Ok(value) => Some(value),
                // An empty cell.
                Err(error) if error.is_instance_of::<PyValueError>(py) => None,
                Err(error) => return Err(error),
            };
            if !is_same(value.as_ref(), held.as_ref()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn unbound(found: PyResult<Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
    found.map(Bound::unbind)
}

/// Takes the list that is called `name` out of `more`; none is empty.
fn take<T>(more: Option<&Bound<'_, PyDict>>, name: &str) -> PyResult<Vec<T>>
where
    T: for<'py> FromPyObjectOwned<'py>,
{
    let Some((more, given)) = more.and_then(|more| Some((more, more.get_item(name).ok()??))) else {
        return Ok(Vec::new());
    };
    more.del_item(name)?;
    given.extract()
}

/// Whether both are the same object, or none.
fn is_same(now: Option<&Bound<'_, PyAny>>, before: Option<&Py<PyAny>>) -> bool {
    now.map(Bound::as_ptr) == before.map(Py::as_ptr)
}
