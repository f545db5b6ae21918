//! Specs as plain Python values, and back: `("bounded", "float32", (3,), low, high)` and the like.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use tensordict::{DType, NestedKey, Shape};
use windrow::env::Spec;

/// `spec` as a tuple that begins with its kind.
///
/// # Errors
/// `TypeError` for a kind that Python does not know.
pub(super) fn to_python<'py>(py: Python<'py>, spec: &Spec) -> PyResult<Bound<'py, PyTuple>> {
    let shape = |shape: &Shape| PyTuple::new(py, shape.iter().copied());
    match spec {
        Spec::Unbounded { dtype, shape: dims } => {
            ("unbounded", dtype.name(), shape(dims)?).into_pyobject(py)
        }
        Spec::Bounded {
            dtype,
            shape: dims,
            low,
            high,
        } => {
            let (low, high) = (PyList::new(py, low)?, PyList::new(py, high)?);
            ("bounded", dtype.name(), shape(dims)?, low, high).into_pyobject(py)
        }
        Spec::Discrete { n } => ("discrete", *n).into_pyobject(py),
        Spec::Binary { shape: dims } => ("binary", shape(dims)?).into_pyobject(py),
        Spec::MultiDiscrete { nvec } => ("multi_discrete", nvec.clone()).into_pyobject(py),
        Spec::OneHot { nvec } => ("one_hot", nvec.clone()).into_pyobject(py),
        Spec::Composite(entries) => {
            let entries = entries
                .iter()
                .map(|(name, spec)| Ok((name, to_python(py, spec)?)))
                .collect::<PyResult<Vec<_>>>()?;
            ("composite", entries).into_pyobject(py)
        }
        other => Err(PyTypeError::new_err(format!(
            "specs of this kind have no form in Python: {other:?}"
        ))),
    }
}

/// The spec that [`to_python`] describes so.
///
/// # Errors
/// `TypeError` for anything else.
pub(super) fn from_python(value: &Bound<'_, PyAny>) -> PyResult<Spec> {
    let tuple = value.cast::<PyTuple>()?;
    let kind: String = tuple.get_item(0)?.extract()?;
    let shape = |index| -> PyResult<Shape> {
        let dims: Vec<usize> = tuple.get_item(index)?.extract()?;
        Ok(Shape::from_slice(&dims))
    };
    let dtype = || -> PyResult<DType> {
        let name: String = tuple.get_item(1)?.extract()?;
        let mut all = DType::ALL.into_iter();
        all.find(|dtype| dtype.name() == name).ok_or_else(|| {
            PyTypeError::new_err(format!("elements of type {name} are not supported"))
        })
    };
    Ok(match kind.as_str() {
        "unbounded" => Spec::Unbounded {
            dtype: dtype()?,
            shape: shape(2)?,
        },
        "bounded" => Spec::Bounded {
            dtype: dtype()?,
            shape: shape(2)?,
            low: tuple.get_item(3)?.extract()?,
            high: tuple.get_item(4)?.extract()?,
        },
        "discrete" => Spec::discrete(tuple.get_item(1)?.extract()?),
        "binary" => Spec::Binary { shape: shape(1)? },
        "multi_discrete" => Spec::MultiDiscrete {
            nvec: tuple.get_item(1)?.extract()?,
        },
        "one_hot" => Spec::OneHot {
            nvec: tuple.get_item(1)?.extract()?,
        },
        "composite" => {
            let mut entries = Vec::new();
            for entry in tuple.get_item(1)?.try_iter()? {
                let (name, spec): (String, Bound<'_, PyAny>) = entry?.extract()?;
                entries.push((name, from_python(&spec)?));
            }
            Spec::Composite(entries)
        }
        other => {
            return Err(PyTypeError::new_err(format!(
                "expected the description of a spec, got one of kind {other:?}"
            )));
        }
    })
}

/// A key from its names, outermost first.
///
/// # Errors
/// `TypeError` for anything but a sequence of strings.
pub(super) fn nested_key(names: &Bound<'_, PyAny>) -> PyResult<NestedKey> {
    let names: Vec<String> = names.extract()?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Ok(NestedKey::from(names.as_slice()))
}
