//! From an observation of a Python environment to a row.
//!
//! The usual value is an array of the right type and shape, which is copied as it lies. Everything
//! else takes a cold way round through numpy, which converts lists, other element types and arrays
//! that are not in the order of C. A value that would be lost is an error.
//!
//! The interpreter's lock is held throughout, and no Python code runs between the look at an array
//! and the copy: so no Python code can free or change the array meanwhile.

use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use tensordict::{DType, Element, for_dtype};
use windrow::envs::{ChoiceCode, EnvError};

use super::cast::{Cast, Losses, cast};
use super::rows::Target;
use crate::gil;

/// Writes the observations of one space into rows.
#[derive(Debug)]
pub(super) enum Reader {
    /// Numbers as an array.
    Array(Leaf),
    /// Choices, written as indices from 0 on or one-hot.
    Choices {
        leaf: Leaf,
        choices: Choices,
        one_hot: bool,
    },
    /// Any object, written as bytes.
    Object(Leaf),
    /// A dictionary.
    Dict(Vec<(Py<PyString>, Reader)>),
    /// A tuple.
    Items(Vec<Reader>),
}

/// One leaf of an observation.
#[derive(Debug)]
pub(super) struct Leaf {
    /// For messages: `observation "x" of CartPole-v1`.
    pub(super) name: String,
    /// Number among the leaves of the spec.
    pub(super) index: usize,
    pub(super) dtype: DType,
    /// As Python knows it, for one environment.
    pub(super) shape: Vec<usize>,
    pub(super) losses: Losses,
}

/// How many choices there are, and what Python calls the first of each.
#[derive(Debug, Clone)]
pub(super) struct Choices {
    pub(super) nvec: Vec<usize>,
    pub(super) start: Vec<i64>,
}

impl Reader {
    /// Writes `value`.
    ///
    /// # Errors
    /// [`EnvError::Foreign`] when it breaks the space: which leaf, what was expected and what came.
    pub(super) fn read(
        &self,
        value: &Bound<'_, PyAny>,
        target: &mut Target<'_>,
    ) -> Result<(), EnvError> {
        match self {
            Self::Array(leaf) => leaf.read(value, target),
            Self::Choices {
                leaf,
                choices,
                one_hot,
            } => read_choices(leaf, choices, *one_hot, value, target),
            Self::Object(leaf) => leaf.read_object(value, target),
            Self::Dict(entries) => {
                let Ok(dict) = value.cast::<PyDict>() else {
                    return Err(self.misfit("a dictionary", value));
                };
                for (key, reader) in entries {
                    let key = key.bind(value.py());
                    let entry = dict.get_item(key).map_err(EnvError::failed)?;
                    let Some(entry) = entry else {
                        return Err(reader.misfit("a value", "nothing under this key"));
                    };
                    reader.read(&entry, target)?;
                }
                Ok(())
            }
            Self::Items(readers) => {
                let expected = || format!("a tuple of {}", readers.len());
                let Ok(items) = value.cast::<PyTuple>() else {
                    return Err(self.misfit(&expected(), value));
                };
                if items.len() != readers.len() {
                    let got = format!("one of {}", items.len());
                    return Err(self.misfit(&expected(), got));
                }
                for (item, reader) in items.iter_borrowed().zip(readers) {
                    reader.read(&item, target)?;
                }
                Ok(())
            }
        }
    }

    /// The name of the first leaf.
    fn name(&self) -> &str {
        match self {
            Self::Array(leaf) | Self::Choices { leaf, .. } | Self::Object(leaf) => &leaf.name,
            Self::Dict(entries) => entries.first().map_or("observation", |(_, r)| r.name()),
            Self::Items(readers) => readers.first().map_or("observation", Reader::name),
        }
    }

    /// The error of a value that breaks the space. Cold, so that the usual way stays short.
    #[cold]
    fn misfit(&self, expected: &str, got: impl std::fmt::Display) -> EnvError {
        EnvError::Foreign(format!("{}: expected {expected}, got {got}", self.name()))
    }
}

impl Leaf {
    /// Writes an array, or of a leaf of bytes a list of all values.
    ///
    /// # Errors
    /// [`EnvError::Foreign`] when it has another shape, or elements that this leaf cannot hold.
    pub(super) fn read(
        &self,
        value: &Bound<'_, PyAny>,
        target: &mut Target<'_>,
    ) -> Result<(), EnvError> {
        if self.dtype == DType::Bytes {
            let values: Vec<Bound<'_, PyBytes>> = value.extract().map_err(EnvError::failed)?;
            let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
            return target.write_strings(self.index, &values);
        }
        for_dtype!(self.dtype, T => {
            let lead = target.lead();
            self.read_slice(value, lead, target.leaf::<T>(self.index)?)
        })
    }

    /// Copies an array for all environments that has the leaf's element type and shape; false for
    /// anything else, of which nothing is written.
    ///
    /// # Errors
    /// [`EnvError`] where the target has no such leaf.
    pub(super) fn copy_all(
        &self,
        values: &Bound<'_, PyAny>,
        target: &mut Target<'_>,
    ) -> Result<bool, EnvError> {
        if self.dtype == DType::Bytes {
            return Ok(false);
        }
        let lead = target.lead();
        for_dtype!(self.dtype, T => Ok(self.copy(values, lead, target.leaf::<T>(self.index)?)))
    }

    /// Writes an object, or one for each environment, as bytes.
    ///
    /// # Errors
    /// [`EnvError::Failed`] when it cannot be pickled; [`EnvError::Foreign`] for another number of
    /// them.
    fn read_object(
        &self,
        value: &Bound<'_, PyAny>,
        target: &mut Target<'_>,
    ) -> Result<(), EnvError> {
        let py = value.py();
        let encode = |value: &Bound<'_, PyAny>| -> PyResult<Vec<u8>> {
            let arguments = (value, &self.name);
            gil::call_method(&gil::ports(py)?, "observed", arguments)?.extract()
        };
        let encoded: PyResult<Vec<Vec<u8>>> = match target.lead() {
            None => encode(value).map(|value| vec![value]),
            Some(_) => value
                .try_iter()
                .and_then(|values| values.map(|value| encode(&value?)).collect()),
        };
        let encoded = encoded.map_err(EnvError::failed)?;
        let values: Vec<&[u8]> = encoded.iter().map(Vec::as_slice).collect();
        target.write_strings(self.index, &values)
    }

    /// Writes an array to `to`; `lead` is the number of environments in its leading dimension, if
    /// it has one.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn read_slice<T: Element + numpy::Element>(
        &self,
        value: &Bound<'_, PyAny>,
        lead: Option<usize>,
        to: &mut [T],
    ) -> Result<(), EnvError> {
        if self.copy(value, lead, to) {
            return Ok(());
        }
        let array = self.convert::<T>(value, lead)?;
        match self.copy(&array, lead, to) {
            true => Ok(()),
            false => Err(self.misfit(lead, value)),
        }
    }

    /// Copies an array of the right type and shape; false for anything else.
    #[inline]
    fn copy<T: Element + numpy::Element>(
        &self,
        value: &Bound<'_, PyAny>,
        lead: Option<usize>,
        to: &mut [T],
    ) -> bool {
        let Ok(array) = value.cast::<PyArrayDyn<T>>() else {
            return false;
        };
        if !self.has_shape(array.shape(), lead) {
            return false;
        }
        if !array.is_c_contiguous() || array.len() != to.len() {
            return false;
        }
        // SAFETY: an array in the order of C has its elements side by side, as many as `to`; no
        // Python code runs before they are copied, so no other code writes to them meanwhile, and
        // `to` is memory of ours.
        unsafe { copy_elements(array.data(), to) };
        true
    }

    /// Whether `shape` is the leaf's, with a dimension for the environments in front where there is
    /// one.
    fn has_shape(&self, shape: &[usize], lead: Option<usize>) -> bool {
        match lead {
            None => shape == self.shape,
            Some(rows) => shape.split_first() == Some((&rows, self.shape.as_slice())),
        }
    }

    /// Whether it has one element.
    fn is_single(&self) -> bool {
        self.shape.iter().product::<usize>() == 1
    }

    /// `value` as an array of the leaf's type in the order of C, if its elements are of the same
    /// kind.
    #[cold]
    fn convert<'py, T: numpy::Element>(
        &self,
        value: &Bound<'py, PyAny>,
        lead: Option<usize>,
    ) -> Result<Bound<'py, PyAny>, EnvError> {
        let py = value.py();
        let convert = || -> PyResult<Option<Cast<'py>>> {
            let numpy = py.import(intern!(py, "numpy"))?;
            let mut array = numpy.call_method1(intern!(py, "asarray"), (value,))?;
            // Environments return a number where the space says one element.
            if lead.is_none() && array.getattr(intern!(py, "ndim"))?.eq(0)? && self.is_single() {
                array = array.call_method1(intern!(py, "reshape"), (self.shape.clone(),))?;
            }
            let dtype = numpy::dtype::<T>(py);
            let fits = numpy
                .call_method1("can_cast", (array.getattr("dtype")?, &dtype, "same_kind"))?
                .is_truthy()?;
            fits.then(|| cast(&array, dtype.as_any())).transpose()
        };
        match convert() {
            Ok(Some(Cast::Kept(array))) => Ok(array),
            Ok(Some(Cast::Rounded(array, [given, kept]))) => {
                let reported = self.losses.report(py, &self.name, given, kept, self.dtype);
                reported.map(|()| array).map_err(EnvError::failed)
            }
            Ok(Some(Cast::Lost(lost))) => Err(EnvError::Foreign(format!(
                "{}: expected values that {} can hold, got {lost}",
                self.name, self.dtype
            ))),
            Ok(None) => Err(self.misfit(lead, value)),
            Err(error) => Err(EnvError::failed(error)),
        }
    }

    /// The error of an array of another shape or kind.
    #[cold]
    fn misfit(&self, lead: Option<usize>, value: &Bound<'_, PyAny>) -> EnvError {
        let shape: Vec<_> = lead.iter().chain(&self.shape).copied().collect();
        let got = match (value.getattr("dtype"), value.getattr("shape")) {
            (Ok(dtype), Ok(shape)) => format!("{dtype} {shape}"),
            _ => format!("{value} ({})", value.get_type()),
        };
        EnvError::Foreign(format!(
            "{}: expected {} {}, got {got}",
            self.name,
            self.dtype,
            tuple(&shape)
        ))
    }
}

/// Copies elements from memory of Python's, which need not be aligned.
///
/// # Safety
/// `from` points to as many elements as `to` has, which lie elsewhere. Booleans may be any bytes:
/// all but 0 are true.
unsafe fn copy_elements<T: Element>(from: *const T, to: &mut [T]) {
    let (from, start) = (from.cast::<u8>(), to.as_mut_ptr().cast::<u8>());
    if T::DTYPE == DType::Bool {
        for at in 0..to.len() {
            // SAFETY: as promised; a boolean has the size of a byte, and is 0 or 1.
            unsafe { start.add(at).write(u8::from(from.add(at).read() != 0)) };
        }
    } else {
        // SAFETY: as promised; bytes are copied, so that nothing has to be aligned.
        unsafe { from.copy_to_nonoverlapping(start, size_of_val(to)) };
    }
}

/// A shape as Python writes it.
fn tuple(shape: &[usize]) -> String {
    match shape {
        [only] => format!("({only},)"),
        dims => {
            let dims: Vec<_> = dims.iter().map(usize::to_string).collect();
            format!("({})", dims.join(", "))
        }
    }
}

/// Reads choices as indices, takes them to 0 and on, and writes them as the spec has them.
fn read_choices(
    leaf: &Leaf,
    choices: &Choices,
    one_hot: bool,
    value: &Bound<'_, PyAny>,
    target: &mut Target<'_>,
) -> Result<(), EnvError> {
    let lead = target.lead();
    let mut one = [0];
    let mut many = Vec::new();
    // A single choice of one environment is a plain number in most cases; anything else goes by an
    // array.
    let indices: &mut [i64] = match (lead, &choices.nvec[..], value.extract::<i64>()) {
        (None, [_], Ok(index)) => {
            one[0] = index;
            &mut one
        }
        _ => {
            many.resize(lead.unwrap_or(1) * choices.nvec.len(), 0);
            leaf.read_slice(value, lead, &mut many)?;
            &mut many
        }
    };
    choices.check(&leaf.name, indices)?;
    let to = target.leaf::<i64>(leaf.index)?;
    if one_hot {
        choices.scatter(indices, to);
    } else {
        to.copy_from_slice(indices);
    }
    Ok(())
}

impl Choices {
    /// Takes the indices to 0 and on, and checks that each is one of the choices.
    fn check(&self, name: &str, indices: &mut [i64]) -> Result<(), EnvError> {
        for row in indices.chunks_exact_mut(self.nvec.len().max(1)) {
            for ((index, &n), &start) in row.iter_mut().zip(&self.nvec).zip(&self.start) {
                let shifted = index.wrapping_sub(start);
                if !(0..n as i64).contains(&shifted) {
                    return Err(EnvError::Foreign(format!(
                        "{name}: expected an integer from {start} to {}, got {index}",
                        start.saturating_add(n as i64 - 1)
                    )));
                }
                *index = shifted;
            }
        }
        Ok(())
    }

    /// Writes a one for each choice among as many elements as it has.
    fn scatter(&self, indices: &[i64], to: &mut [i64]) {
        to.fill(0);
        let mut first = 0;
        for (index, n) in indices.iter().zip(self.nvec.iter().cycle()) {
            ChoiceCode::OneHot.write(to, 0, first, *index as usize);
            first += n;
        }
    }
}
