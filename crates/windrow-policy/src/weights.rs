//! Reading parameters out of named tensors: completely or not at all.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use tensordict::{DType, NestedKey, Shape, Tensor, TensorDict, TensorError};

use crate::Weights;

/// Why parameters were not loaded; nothing was changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// Some tensors are missing, unexpected or of another kind.
    #[error("{}parameters do not fit: {}", place(.path), list(.misfits))]
    Misfits {
        /// File that they came from, if they did.
        path: Option<PathBuf>,
        /// Every tensor that does not fit, by name.
        misfits: Vec<Misfit>,
    },
    /// The file or a tensor in it could not be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// One tensor that does not fit.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Misfit {
    /// The network has this parameter, the weights do not.
    Missing {
        /// Name of the parameter.
        name: String,
        /// Its shape.
        expected: Shape,
    },
    /// The weights have this tensor, the network does not.
    Unexpected {
        /// Name of the tensor.
        name: String,
        /// Its shape.
        got: Shape,
    },
    /// A tensor of another shape.
    Shape {
        /// Name of the parameter.
        name: String,
        /// Shape of the parameter.
        expected: Shape,
        /// Shape of the tensor.
        got: Shape,
    },
    /// A `float64` tensor with a number that the `float32` parameter cannot hold.
    Range {
        /// Name of the parameter.
        name: String,
        /// The number.
        got: f64,
    },
    /// A tensor of another element type.
    DType {
        /// Name of the parameter.
        name: String,
        /// Element type of the parameter.
        expected: DType,
        /// Element type of the tensor.
        got: DType,
    },
}

impl Misfit {
    /// The tensor for parameter `name` of element type `dtype` and shape `shape`. A `float64`
    /// tensor can be [cast](Tensor::cast) to a `float32` parameter: numbers are rounded to the
    /// nearest.
    ///
    /// # Errors
    /// The difference.
    pub fn check<'a>(
        name: impl FnOnce() -> String,
        dtype: DType,
        shape: &[usize],
        tensor: Option<&'a Tensor>,
    ) -> Result<&'a Tensor, Self> {
        let expected = || Shape::from_slice(shape);
        match tensor {
            None => Err(Self::Missing {
                name: name(),
                expected: expected(),
            }),
            Some(tensor) if tensor.dtype() != dtype && !narrows(tensor, dtype) => {
                Err(Self::DType {
                    name: name(),
                    expected: dtype,
                    got: tensor.dtype(),
                })
            }
            Some(tensor) if *tensor.shape() != *shape => Err(Self::Shape {
                name: name(),
                expected: expected(),
                got: Shape::from_slice(tensor.shape()),
            }),
            Some(tensor) if narrows(tensor, dtype) => match too_large(tensor) {
                Some(got) => Err(Self::Range { name: name(), got }),
                None => Ok(tensor),
            },
            Some(tensor) => Ok(tensor),
        }
    }
}

/// Whether `tensor` is of `float64`, and becomes a parameter of `float32`.
fn narrows(tensor: &Tensor, dtype: DType) -> bool {
    tensor.dtype() == DType::F64 && dtype == DType::F32
}

/// A number of a `float64` tensor that is finite there, and would not be in `float32`.
fn too_large(tensor: &Tensor) -> Option<f64> {
    let mut values = tensor.iter::<f64>().ok()?;
    values.find(|value| value.is_finite() && !(*value as f32).is_finite())
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, expected } => {
                write!(f, "{name:?} is missing, expected shape {expected:?}")
            }
            Self::Unexpected { name, got } => {
                write!(f, "{name:?} is unexpected, got shape {got:?}")
            }
            Self::Shape {
                name,
                expected,
                got,
            } => write!(f, "{name:?}: expected shape {expected:?}, got {got:?}"),
            Self::DType {
                name,
                expected,
                got,
            } => write!(f, "{name:?}: expected dtype {expected}, got {got}"),
            Self::Range { name, got } => write!(
                f,
                "{name:?}: expected numbers within the range of float32, got {got:?}"
            ),
        }
    }
}

fn place(path: &Option<PathBuf>) -> String {
    path.as_ref()
        .map(|path| format!("{}: ", path.display()))
        .unwrap_or_default()
}

fn list(misfits: &[Misfit]) -> String {
    let lines: Vec<_> = misfits.iter().map(Misfit::to_string).collect();
    lines.join("; ")
}

impl WeightsError {
    /// The same error, which names the file at `path`.
    #[must_use]
    pub(crate) fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Misfits { misfits, .. } => Self::Misfits {
                path: Some(path.to_path_buf()),
                misfits,
            },
            Self::Tensor(error @ TensorError::File { .. }) => Self::Tensor(error),
            Self::Tensor(error) => Self::Tensor(error.in_file(path)),
        }
    }
}

/// Refuses all tensors: for policies without parameters.
///
/// # Errors
/// [`WeightsError::Misfits`] naming the tensors.
pub(crate) fn expect_none(weights: &Weights) -> Result<(), WeightsError> {
    Reader::new(weights, "").finish()
}

/// Takes tensors out by name and records each that does not fit, so that an error names all of
/// them.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    prefix: &'a str,
    left: BTreeMap<String, &'a Tensor>,
    misfits: Vec<Misfit>,
    unreadable: Option<TensorError>,
    /// Only names, element types and shapes count; no element is copied.
    checks_only: bool,
}

impl<'a> Reader<'a> {
    /// As [`new`](Self::new), to check whether the tensors fit without reading them.
    pub(crate) fn checking(weights: &'a Weights, prefix: &'a str) -> Self {
        Self {
            checks_only: true,
            ..Self::new(weights, prefix)
        }
    }

    /// Reads the tensors whose names start with `prefix`, and ignores others.
    pub(crate) fn new(weights: &'a Weights, prefix: &'a str) -> Self {
        let left = weights
            .leaves()
            .map(|(key, tensor)| (dotted(&key), tensor))
            .filter(|(name, _)| name.starts_with(prefix))
            .collect();
        Self {
            prefix,
            left,
            misfits: Vec::new(),
            unreadable: None,
            checks_only: false,
        }
    }

    /// The elements of parameter `name`, row-major; empty, and a misfit recorded, if the tensor
    /// does not fit.
    pub(crate) fn take(&mut self, name: &str, shape: &[usize]) -> Vec<f32> {
        let name = format!("{}{name}", self.prefix);
        let found = self.left.remove(&name);
        let tensor = match Misfit::check(|| name.clone(), DType::F32, shape, found) {
            Ok(tensor) => tensor,
            Err(misfit) => {
                self.misfits.push(misfit);
                return Vec::new();
            }
        };
        if self.checks_only {
            return Vec::new();
        }
        let values = tensor.cast(DType::F32).and_then(|tensor| tensor.to_vec());
        values.unwrap_or_else(|error| {
            self.unreadable = Some(error.at(name.as_str()));
            Vec::new()
        })
    }

    /// Checks that all tensors fitted and none is left over.
    pub(crate) fn finish(mut self) -> Result<(), WeightsError> {
        if let Some(error) = self.unreadable {
            return Err(error.into());
        }
        self.misfits.extend(
            self.left
                .into_iter()
                .map(|(name, tensor)| Misfit::Unexpected {
                    name,
                    got: Shape::from_slice(tensor.shape()),
                }),
        );
        match self.misfits.is_empty() {
            true => Ok(()),
            false => Err(WeightsError::Misfits {
                path: None,
                misfits: self.misfits,
            }),
        }
    }
}

/// A nested name as PyTorch would write it: parts joined by dots.
pub(crate) fn dotted(key: &NestedKey) -> String {
    key.components().join(".")
}

/// Reads a safetensors file.
///
/// # Errors
/// [`WeightsError::Tensor`], with the path, when the file cannot be read or is not whole.
pub(crate) fn read_file(path: &Path) -> Result<Weights, WeightsError> {
    TensorDict::load(path).map_err(|error| WeightsError::from(error).in_file(path))
}
