//! Running statistics that environments share, as `windrow.envs._vec_norm` reads and writes them.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};
use windrow::binding::Gathered;
use windrow::envs::{EnvError, Statistics};
use windrow::error_chain;

use super::handle::to_py;
use crate::plain;

/// A place for running statistics; open for as long as this lives.
#[pyclass(name = "Statistics", module = "windrow._windrow", frozen)]
pub(super) struct SharedStatistics(Statistics);

/// The names of a column, its element type, and the shape of its statistics.
type Column = (Vec<String>, String, Vec<usize>);

#[pymethods]
impl SharedStatistics {
    /// A place of its own, or one that was `written`.
    #[new]
    #[pyo3(signature = (written=None))]
    fn new(py: Python<'_>, written: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let made = match written {
            Some(written) => plain::read::<Statistics>(written)?.opened(),
            None => Statistics::new(),
        };
        Ok(Self(made.map_err(|error| raised(py, &error))?))
    }

    /// Number `section` of several statistics in this place.
    fn section(&self, section: u32) -> Self {
        Self(self.0.section(section))
    }

    /// Where other processes and the engine find them.
    fn written<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (path, token, section) = self.0.place();
        let written = PyDict::new(py);
        // As a string: a path of Python's is no plain value.
        written.set_item("path", path.display().to_string())?;
        written.set_item("token", token)?;
        written.set_item("section", section)?;
        Ok(written)
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyType>, (Bound<'py, PyDict>,))> {
        Ok((slf.get_type(), (slf.get().written(slf.py())?,)))
    }

    /// Whether environments leave the numbers as they are.
    #[getter]
    fn frozen(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.is_frozen().map_err(|error| raised(py, &error))
    }

    #[setter]
    fn set_frozen(&self, py: Python<'_>, frozen: bool) -> PyResult<()> {
        let set = self.0.set_frozen(frozen);
        set.map_err(|error| raised(py, &error))
    }

    /// What the numbers are of, and the numbers (`float64`): for each column two for each element, then a count. None as long as no
    /// environment has begun.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Option<(Vec<Column>, Bound<'py, PyBytes>)>> {
        let read = self.0.read().map_err(|error| raised(py, &error))?;
        Ok(read.map(|gathered| {
            let bytes: Vec<u8> = (gathered.numbers.iter())
                .flat_map(|number| number.to_ne_bytes())
                .collect();
            (gathered.columns, PyBytes::new(py, &bytes))
        }))
    }

    /// Puts other numbers in their place, in the form of `read`, for transforms of the name `rule`.
    fn write(
        &self,
        py: Python<'_>,
        rule: String,
        columns: Vec<Column>,
        numbers: &[u8],
    ) -> PyResult<()> {
        let words = numbers.as_chunks::<8>().0.iter();
        let gathered = Gathered {
            rule,
            columns,
            numbers: words.map(|word| f64::from_ne_bytes(*word)).collect(),
        };
        let written = self.0.write(&gathered);
        written.map_err(|error| raised(py, &error))
    }
}

fn raised(py: Python<'_>, error: &EnvError) -> PyErr {
    match error {
        EnvError::Failed(_) => PyRuntimeError::new_err(error_chain(error)),
        _ => to_py(py, error),
    }
}
