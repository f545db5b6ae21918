//! Errors of tensors, of dicts and of their files.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use crate::{DType, NestedKey};

/// Result of this crate's fallible operations.
pub type Result<T, E = TensorError> = std::result::Result<T, E>;

/// The reason why an operation on a tensor, a dict or a file failed.
///
/// Errors that arise inside a dict or a file come wrapped in [`TensorError::At`] or
/// [`TensorError::File`], which say where; [`TensorError::root`] takes the wrapping off.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum TensorError {
    /// The elements are of another type than asked for.
    #[error("expected dtype {expected}, got {got}")]
    DType {
        /// The type asked for.
        expected: DType,
        /// The type found.
        got: DType,
    },

    /// The number of values (or bytes, where bytes are given) is not the one that the shape needs.
    #[error("shape {shape:?} needs {expected} values, got {got}")]
    Count {
        /// The shape asked for.
        shape: Vec<usize>,
        /// Values, or bytes, that the shape needs.
        expected: usize,
        /// Values, or bytes, found.
        got: usize,
    },

    /// The shape has more bytes than a pointer can address.
    #[error("shape {shape:?} of {dtype} is larger than the address space")]
    TooLarge {
        /// The shape asked for.
        shape: Vec<usize>,
        /// The element type asked for.
        dtype: DType,
    },

    /// The system does not give the memory for a tensor.
    #[error("no memory for shape {shape:?} of {dtype}: the system does not give {bytes} bytes")]
    NoMemory {
        /// The shape asked for.
        shape: Vec<usize>,
        /// The element type asked for.
        dtype: DType,
        /// Size of the tensor.
        bytes: usize,
    },

    /// A value of bytes is longer than a cell can say.
    #[error("expected a value of fewer than 4 GiB, got one of {len} bytes")]
    LongValue {
        /// Its length.
        len: usize,
    },

    /// The elements do not lie one after another in row-major order.
    #[error(
        "tensor of shape {shape:?} and strides {strides:?} is not contiguous, call contiguous() first"
    )]
    NotContiguous {
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<isize>,
    },

    /// Another tensor may see the memory, so it cannot be written.
    #[error(
        "memory of tensor {shape:?} is shared or borrowed and cannot be written, call detach() first"
    )]
    Shared {
        /// Shape of the tensor.
        shape: Vec<usize>,
    },

    /// The tensor has no such dimension.
    #[error("dimension {dim} is out of range for {ndim} dimensions")]
    Dim {
        /// The dimension asked for.
        dim: usize,
        /// Number of dimensions of the tensor.
        ndim: usize,
    },

    /// An index lies beyond its dimension.
    #[error("index {index} is out of range for dimension {dim} of size {size}")]
    Index {
        /// The index asked for.
        index: usize,
        /// The dimension it indexes.
        dim: usize,
        /// Size of that dimension.
        size: usize,
    },

    /// A number of indices that is not the number of dimensions.
    #[error("expected {expected} indices, got {got}")]
    IndexCount {
        /// Number of dimensions.
        expected: usize,
        /// Number of indices given.
        got: usize,
    },

    /// A range lies beyond its dimension, or ends before it starts.
    #[error("range {start}..{end} is out of range for dimension {dim} of size {size}")]
    Range {
        /// First index of the range.
        start: usize,
        /// One past the last index of the range.
        end: usize,
        /// The dimension it slices.
        dim: usize,
        /// Size of that dimension.
        size: usize,
    },

    /// The axes are not a reordering of all dimensions.
    #[error("axes {axes:?} are not a permutation of {ndim} dimensions")]
    Permutation {
        /// The axes given.
        axes: Vec<usize>,
        /// Number of dimensions.
        ndim: usize,
    },

    /// No strides show these elements in that shape.
    #[error(
        "tensor of shape {shape:?} and strides {strides:?} has no view of shape {target:?}, call reshape()"
    )]
    NotViewable {
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<isize>,
        /// The shape asked for.
        target: Vec<usize>,
    },

    /// Two shapes that must fit each other do not.
    #[error("{op}: expected shape {expected:?}, got {got:?}")]
    Shape {
        /// The operation that compared them.
        op: &'static str,
        /// The shape that was needed.
        expected: Vec<usize>,
        /// The shape found.
        got: Vec<usize>,
    },

    /// An operation on a list got an empty one, or a size of zero.
    #[error("{op}: expected at least one {what}, got none")]
    Nothing {
        /// The operation.
        op: &'static str,
        /// The kind of item that it needs.
        what: &'static str,
    },

    /// An entry does not start with the batch size of its dict.
    #[error("entry {key:?}: shape {shape:?} does not start with batch size {batch_size:?}")]
    Batch {
        /// Name of the entry.
        key: NestedKey,
        /// Its shape, or its batch size when it is a dict.
        shape: Vec<usize>,
        /// Batch size of the dict.
        batch_size: Vec<usize>,
    },

    /// The dict has no such entry.
    #[error("no entry {key:?}{}", hint(.near, .available))]
    Missing {
        /// The key asked for.
        key: NestedKey,
        /// An existing key that may have been meant.
        near: Option<NestedKey>,
        /// Names in the dict where the search ended.
        available: Vec<String>,
    },

    /// A dict was found where a tensor was asked for.
    #[error("entry {key:?} is a dict, expected a tensor")]
    NotATensor {
        /// Name of the entry.
        key: NestedKey,
    },

    /// A tensor was found where a dict was asked for or needed.
    #[error("entry {key:?} is a tensor, expected a dict")]
    NotADict {
        /// Name of the entry.
        key: NestedKey,
    },

    /// The name is taken.
    #[error("entry {key:?} exists already")]
    Exists {
        /// The name.
        key: NestedKey,
    },

    /// Dicts that are combined do not have the same names in them.
    #[error(
        "{op}: entries of dict {index} differ from those of the first, missing {missing:?}, extra {extra:?}"
    )]
    Keys {
        /// The operation.
        op: &'static str,
        /// Place of the dict in the list, counted from 0.
        index: usize,
        /// Names that only the first dict has.
        missing: Vec<String>,
        /// Names that only this dict has.
        extra: Vec<String>,
    },

    /// A key without any name was given.
    #[error("expected a key of at least one name, got none")]
    EmptyKey,

    /// The number of dimension names is not the number of batch dimensions.
    #[error("expected one name for each of {expected} batch dimensions, got {got}")]
    Names {
        /// Number of batch dimensions.
        expected: usize,
        /// Number of names given.
        got: usize,
    },

    /// A byte other than 0 or 1 where a bool was stored.
    #[error("expected bool bytes of 0 or 1, got {byte} at element {index}")]
    BoolByte {
        /// The offending byte.
        byte: u8,
        /// Its place, counted in elements.
        index: usize,
    },

    /// A file holds elements of a type without a [`DType`].
    #[error("expected one of the supported dtypes, got {dtype}")]
    UnsupportedDType {
        /// The type as the file spells it.
        dtype: String,
    },

    /// Bytes that are not a complete, valid safetensors file.
    #[error("not a valid safetensors file: {reason}")]
    Corrupt {
        /// The defect found.
        reason: String,
    },

    /// The operating system refused.
    #[error("{op} failed: {error}")]
    Io {
        /// The operation.
        op: &'static str,
        /// The error of the operating system.
        error: std::io::Error,
    },

    /// Another error, at one entry of a dict.
    #[error("entry {key:?}: {error}")]
    At {
        /// Name of the entry.
        key: NestedKey,
        /// The error there.
        error: Box<TensorError>,
    },

    /// Another error, in one file.
    #[error("{}: {error}", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error there.
        error: Box<TensorError>,
    },
}

impl TensorError {
    /// The error itself, without the [`At`](TensorError::At) and [`File`](TensorError::File) around
    /// it.
    pub fn root(&self) -> &TensorError {
        match self {
            TensorError::At { error, .. } | TensorError::File { error, .. } => error.root(),
            other => other,
        }
    }

    /// This error, with the entry `key` as its place.
    ///
    /// Wrapping twice joins the keys, so nested dicts add one name per level.
    #[must_use]
    pub fn at(self, key: impl Into<NestedKey>) -> TensorError {
        let outer = key.into();
        match self {
            TensorError::At { key, error } => TensorError::At {
                key: outer.join(&key),
                error,
            },
            other => TensorError::At {
                key: outer,
                error: Box::new(other),
            },
        }
    }

    /// This error, seen from the dict that holds the one where it happened under `name`.
    ///
    /// Keys in the error become keys of the outer dict; errors without a key get one.
    pub(crate) fn in_dict(mut self, name: &Arc<str>) -> TensorError {
        let outer = NestedKey::from_name(Arc::clone(name));
        match &mut self {
            TensorError::Missing { key, near, .. } => {
                *key = outer.join(key);
                *near = near.take().map(|near| outer.join(&near));
                self
            }
            TensorError::Batch { key, .. }
            | TensorError::NotATensor { key }
            | TensorError::NotADict { key }
            | TensorError::Exists { key }
            | TensorError::At { key, .. } => {
                *key = outer.join(key);
                self
            }
            _ => self.at(outer),
        }
    }

    /// This error, with the file at `path` as its place.
    #[must_use]
    pub fn in_file(self, path: impl Into<PathBuf>) -> TensorError {
        TensorError::File {
            path: path.into(),
            error: Box::new(self),
        }
    }
}

fn hint(near: &Option<NestedKey>, available: &[String]) -> String {
    match (near, available) {
        (_, []) => ", the dict is empty".to_owned(),
        (Some(near), _) => format!(", did you mean {near:?}? available: {available:?}"),
        (None, _) => format!(", available: {available:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_fragments_that_say_where() {
        let wrong = TensorError::DType {
            expected: DType::F32,
            got: DType::I64,
        };
        let wrapped = wrong.at("reward").at("next").in_file("/tmp/x");
        assert_eq!(
            wrapped.to_string(),
            r#"/tmp/x: entry ("next", "reward"): expected dtype float32, got int64"#
        );
        assert!(matches!(wrapped.root(), TensorError::DType { .. }));
    }

    #[test]
    fn errors_stay_small() {
        // Every call returns them by value, and clippy starts to complain at 128 bytes.
        assert!(size_of::<TensorError>() <= 112);
    }
}
