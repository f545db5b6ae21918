//! From the row of an action to the value that a Python environment takes.
//!
//! Every value is a new object: an environment may keep its actions, and rows are used again at the
//! next step. Only the numbers that stand for a single choice are made once, since numbers cannot
//! be changed. A writer's own objects, these numbers, the keys of dictionaries and dtypes of numpy,
//! refer to nothing else, so the garbage collector need not see them.

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use tensordict::{DType, for_dtype};
use windrow::envs::EnvError;
use windrow::envs::largest;
use windrow::error_chain;

use super::cast::{Cast, cast};
use super::read::Choices;
use super::rows::Origin;

/// Choices up to which the objects that stand for them are made beforehand.
const PREMADE: usize = 1024;

/// Makes the actions of one space out of rows.
#[derive(Debug)]
pub(super) enum Writer {
    /// Numbers as an array.
    Array {
        /// Number among the leaves of the action.
        leaf: usize,
        /// The element type of the rows.
        dtype: DType,
        /// For one environment.
        shape: Vec<usize>,
        /// What the array is to be cast to, where the rows hold a wider type.
        cast: Option<Py<PyAny>>,
    },
    /// Choices, read as indices from 0 on or one-hot.
    Choices {
        leaf: usize,
        choices: Choices,
        one_hot: bool,
        /// For one environment: empty for a single choice.
        shape: Vec<usize>,
        /// The objects of a single choice.
        objects: Vec<Py<PyAny>>,
    },
    /// A dictionary.
    Dict(Vec<(Py<PyString>, Writer)>),
    /// A tuple.
    Items(Vec<Writer>),
}

impl Writer {
    /// Of choices; `shape` is empty for a single one.
    pub(super) fn choices(
        py: Python<'_>,
        leaf: usize,
        choices: Choices,
        one_hot: bool,
        shape: Vec<usize>,
    ) -> PyResult<Self> {
        let mut objects = Vec::new();
        if let ([n], [start], []) = (&choices.nvec[..], &choices.start[..], &shape[..]) {
            for index in 0..(*n).min(PREMADE) {
                objects.push(
                    (start + index as i64)
                        .into_pyobject(py)?
                        .into_any()
                        .unbind(),
                );
            }
        }
        Ok(Self::Choices {
            leaf,
            choices,
            one_hot,
            shape,
            objects,
        })
    }

    /// The action in `origin`.
    ///
    /// # Errors
    /// [`EnvError::Action`] for an index out of range.
    pub(super) fn write<'py>(
        &self,
        py: Python<'py>,
        origin: Origin<'_>,
    ) -> Result<Bound<'py, PyAny>, EnvError> {
        match self {
            Self::Array {
                leaf,
                dtype,
                shape,
                cast: to,
            } => {
                if *dtype == DType::Bytes {
                    let values = origin.strings(*leaf)?;
                    return Ok(strings(py, values).map_err(EnvError::failed)?.into_any());
                }
                let array = for_dtype!(*dtype, T => {
                    array(py, origin.leaf::<T>(*leaf)?, origin.lead(), shape)
                })?;
                match to {
                    None => Ok(array),
                    Some(dtype) => narrow(&array, dtype.bind(py)),
                }
            }
            Self::Choices {
                leaf,
                choices,
                one_hot,
                shape,
                objects,
            } => {
                let values = origin.leaf::<i64>(*leaf)?;
                if let (None, [n], []) = (origin.lead(), &choices.nvec[..], &shape[..]) {
                    let index = match one_hot {
                        true => largest(values),
                        false => checked(values[0], *n)?,
                    };
                    return match objects.get(index) {
                        Some(object) => Ok(object.bind(py).clone()),
                        None => (choices.start[0] + index as i64)
                            .into_pyobject(py)
                            .map(Bound::into_any)
                            .map_err(|error| EnvError::failed(error_chain(&error))),
                    };
                }
                let indices = choices.gather(values, *one_hot)?;
                array(py, &indices, origin.lead(), shape)
            }
            Self::Dict(entries) => {
                let dict = PyDict::new(py);
                for (key, writer) in entries {
                    let value = writer.write(py, origin)?;
                    dict.set_item(key, value).map_err(EnvError::failed)?;
                }
                Ok(dict.into_any())
            }
            Self::Items(writers) => {
                let items: Vec<_> = writers
                    .iter()
                    .map(|writer| writer.write(py, origin))
                    .collect::<Result<_, _>>()?;
                let tuple = PyTuple::new(py, items).map_err(EnvError::failed)?;
                Ok(tuple.into_any())
            }
        }
    }
}

/// A list of values of bytes.
pub(crate) fn strings<'a, 'py>(
    py: Python<'py>,
    values: impl IntoIterator<Item = &'a [u8], IntoIter: ExactSizeIterator>,
) -> PyResult<Bound<'py, PyList>> {
    let values = values.into_iter();
    PyList::new(py, values.map(|value| PyBytes::new(py, value)))
}

/// An array in the type that the environment takes, which is narrower than that of the rows.
fn narrow<'py>(
    array: &Bound<'py, PyAny>,
    dtype: &Bound<'py, PyAny>,
) -> Result<Bound<'py, PyAny>, EnvError> {
    match cast(array, dtype).map_err(EnvError::failed)? {
        // Rounding does not matter for numbers that a policy has computed.
        Cast::Kept(array) | Cast::Rounded(array, _) => Ok(array),
        Cast::Lost(lost) => Err(EnvError::Action {
            expected: format!("numbers that {dtype} can hold"),
            got: lost.to_string(),
        }),
    }
}

/// A new array: an environment may keep it, and rows are used again.
pub(super) fn array<'py, T: numpy::Element + Copy>(
    py: Python<'py>,
    values: &[T],
    lead: Option<usize>,
    shape: &[usize],
) -> Result<Bound<'py, PyAny>, EnvError> {
    let flat = PyArray1::from_slice(py, values);
    if lead.is_none() && shape.len() == 1 {
        return Ok(flat.into_any());
    }
    let dims: Vec<usize> = lead.iter().chain(shape).copied().collect();
    let shaped = flat.reshape(dims).map_err(EnvError::failed)?;
    Ok(shaped.into_any())
}

impl Choices {
    /// What Python calls the choices in `values`, one after the other.
    fn gather(&self, values: &[i64], one_hot: bool) -> Result<Vec<i64>, EnvError> {
        let width = match one_hot {
            true => self.nvec.iter().sum(),
            false => self.nvec.len(),
        };
        let mut indices = Vec::new();
        for (env, mut row) in values.chunks_exact(width.max(1)).enumerate() {
            for (&n, &start) in self.nvec.iter().zip(&self.start) {
                let (own, others) = row.split_at(if one_hot { n } else { 1 });
                let index = match one_hot {
                    true => largest(own),
                    false => checked(own[0], n).map_err(|error| in_row(error, env))?,
                };
                indices.push(start + index as i64);
                row = others;
            }
        }
        Ok(indices)
    }
}

/// An index that is one of `n`.
fn checked(index: i64, n: usize) -> Result<usize, EnvError> {
    match usize::try_from(index) {
        Ok(index) if index < n => Ok(index),
        _ => Err(EnvError::Action {
            expected: format!("an integer from 0 to {}", n as i64 - 1),
            got: index.to_string(),
        }),
    }
}

/// Says which row of several an error is about.
fn in_row(error: EnvError, env: usize) -> EnvError {
    match error {
        EnvError::Action { expected, got } => EnvError::Action {
            expected,
            got: format!("{got} in row {env}"),
        },
        other => other,
    }
}
