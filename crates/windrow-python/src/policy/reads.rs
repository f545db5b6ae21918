//! What Python has read of dictionaries, functions and other objects, and whether that is still so.
//!
//! Before each batch, windrow looks whether anything that the policy reads has changed.
//! `windrow.policies.lower` says where to look; here is the loop, since there are many places, and
//! a batch of a few frames takes no longer than a loop of Python over them.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyType};
use pyo3::{PyTraverseError, PyVisit, intern};

/// Sizes and classes of objects, values of dictionaries, lists and cells, the order of keys, and
/// what functions are made of, as they were read.
#[pyclass(frozen, module = "windrow._windrow")]
pub(super) struct Readings {
    sizes: Vec<(Py<PyAny>, usize)>,
    classes: Vec<(Py<PyAny>, Py<PyType>)>,
    entries: Vec<Entry>,
    orders: Vec<(Py<PyDict>, Vec<Py<PyAny>>)>,
    items: Vec<(Py<PyList>, usize, Py<PyAny>)>,
    functions: Vec<Function>,
    /// A cell, and what it held; None where it was empty.
    cells: Vec<(Py<PyAny>, Option<Py<PyAny>>)>,
}

/// The place of a value in a dictionary.
struct Entry {
    dict: Py<PyDict>,
    key: Py<PyAny>,
    /// None where the key was not there.
    value: Option<Py<PyAny>>,
}

/// A function of Python, and its `__code__`, `__defaults__` and `__kwdefaults__`.
#[derive(FromPyObject)]
struct Function(Py<PyAny>, Py<PyAny>, Py<PyAny>, Py<PyAny>);

#[pymethods]
impl Readings {
    /// `sizes` and `classes` are of the objects before them, and `missing` is in the place of
    /// values whose keys are not there, and of what empty cells hold. `more` may name `orders` of
    /// keys, `items` of lists, `functions` and `cells`.
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
        let entries = entries.into_iter().map(|(dict, key, value)| Entry {
            dict,
            key,
            value: present(value),
        });
        let cells: Vec<(Py<PyAny>, Py<PyAny>)> = named(more, "cells")?;
        Ok(Self {
            sizes,
            classes,
            entries: entries.collect(),
            orders: named(more, "orders")?,
            items: named(more, "items")?,
            functions: named(more, "functions")?,
            cells: cells
                .into_iter()
                .map(|(cell, value)| (cell, present(value)))
                .collect(),
        })
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
        for entry in &self.entries {
            let value = entry.dict.bind(py).get_item(&entry.key)?;
            if !is_same(value.as_ref(), entry.value.as_ref()) {
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
            && self.have_same_cells(py)?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for (object, _) in &self.sizes {
            visit.call(object)?;
        }
        for (object, class) in &self.classes {
            visit.call(object)?;
            visit.call(class)?;
        }
        for entry in &self.entries {
            visit.call(&entry.dict)?;
            visit.call(&entry.key)?;
            visit.call(&entry.value)?;
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
        Ok(())
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

/// The list that is called `name` in `more`, or none.
fn named<T>(more: Option<&Bound<'_, PyDict>>, name: &str) -> PyResult<Vec<T>>
where
    T: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr>,
{
    let given = more.map(|more| more.get_item(name)).transpose()?.flatten();
    given.map_or(Ok(Vec::new()), |given| given.extract())
}

/// Whether both are the same object, or none.
fn is_same(now: Option<&Bound<'_, PyAny>>, before: Option<&Py<PyAny>>) -> bool {
    now.map(Bound::as_ptr) == before.map(Py::as_ptr)
}
