//! Running statistics that environments share, as `windrow.envs._vec_norm` reads and writes them.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};
use windrow::envs::Gathered;
use windrow::envs::Statistics;

use super::handle::to_py;

/// A place for running statistics.
#[pyclass(name = "Statistics", module = "windrow._windrow", frozen)]
pub(super) struct SharedStatistics(Statistics);

/// The names of a column, its element type, and the shape of its statistics.
type Column = (Vec<String>, String, Vec<usize>);

#[pymethods]
impl SharedStatistics {
    /// A place of its own, or one that was `written`: the same place in the process that has it, a
    /// copy in another one.
    #[new]
    #[pyo3(signature = (written=None))]
    fn new(py: Python<'_>, written: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let Some(written) = written else {
            return Ok(Self(Statistics::new()));
        };
        let json: String = json(py)?.call_method1("dumps", (written,))?.extract()?;
        let read = serde_json::from_slice(json.as_bytes());
        read.map(Self)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Number `section` of several statistics in this place.
    fn section(&self, section: u32) -> Self {
        Self(self.0.section(section))
    }

    /// What the engine and other processes make theirs of.
    fn written<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let written = serde_json::to_string(&self.0);
        let written = written.map_err(|error| PyValueError::new_err(error.to_string()))?;
        json(py)?.call_method1("loads", (written,))
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyType>, (Bound<'py, PyAny>,))> {
        Ok((slf.get_type(), (slf.get().written(slf.py())?,)))
    }

    /// Whether environments leave the numbers as they are.
    #[getter]
    fn frozen(&self) -> bool {
        self.0.is_frozen()
    }

    #[setter]
    fn set_frozen(&self, frozen: bool) {
        self.0.set_frozen(frozen);
    }

    /// What the numbers are of, and the numbers (`float64`): for each column two for each element,
    /// then a count. None as long as no environment has begun.
    fn read<'py>(&self, py: Python<'py>) -> Option<(Vec<Column>, Bound<'py, PyBytes>)> {
        self.0.read().map(|gathered| {
            let bytes: Vec<u8> = (gathered.numbers.iter())
                .flat_map(|number| number.to_ne_bytes())
                .collect();
            (gathered.columns, PyBytes::new(py, &bytes))
        })
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
        written.map_err(|error| to_py(py, &error))
    }
}

fn json(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("json")
}
