//! What Python has read of dictionaries and other objects, and whether it is still there.
//!
//! Before each batch, windrow looks whether anything that the policy reads has changed.
//! `windrow.policies.reads` says where to look; here is the loop, since there are many places, and
//! a batch of a few frames takes no longer than a loop of Python over them.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use pyo3::{PyTraverseError, PyVisit};

/// Sizes and classes of objects, and values of dictionaries, as they were read.
#[pyclass(frozen, module = "windrow._windrow")]
pub(super) struct Readings {
    sizes: Vec<(Py<PyAny>, usize)>,
    classes: Vec<(Py<PyAny>, Py<PyType>)>,
    entries: Vec<Entry>,
}

/// The place of a value in a dictionary.
struct Entry {
    dict: Py<PyDict>,
    key: Py<PyAny>,
    /// None where the key was not there.
    value: Option<Py<PyAny>>,
}

#[pymethods]
impl Readings {
    /// `sizes` and `classes` are of the objects before them, and `missing` is in the place of
    /// values whose keys are not there.
    #[new]
    fn new(
        sizes: Vec<(Py<PyAny>, usize)>,
        classes: Vec<(Py<PyAny>, Py<PyType>)>,
        entries: Vec<(Py<PyDict>, Py<PyAny>, Py<PyAny>)>,
        missing: &Bound<'_, PyAny>,
    ) -> Self {
        let entries = entries.into_iter().map(|(dict, key, value)| Entry {
            dict,
            key,
            value: Some(value).filter(|value| !value.is(missing)),
        });
        Self {
            sizes,
            classes,
            entries: entries.collect(),
        }
    }

    /// Whether all sizes and classes are the same by now, and each value the same object.
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
            if value.as_ref().map(Bound::as_ptr) != entry.value.as_ref().map(Py::as_ptr) {
                return Ok(false);
            }
        }
        Ok(true)
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
        Ok(())
    }
}
