use serde::{Deserialize, Serialize};

use crate::{DType, NestedKey, Shape};

/// Name, element type and shape of one entry, batch dimensions left out: for one environment and
/// one step.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LeafSpec {
    /// Name of the entry.
    pub key: NestedKey,
    /// Element type.
    pub dtype: DType,
    /// Shape of one value; empty for a scalar.
    pub shape: Shape,
}

impl LeafSpec {
    /// A leaf named `key` of `dtype` elements with `shape`.
    pub fn new(key: impl Into<NestedKey>, dtype: DType, shape: impl AsRef<[usize]>) -> Self {
        Self {
            key: key.into(),
            dtype,
            shape: Shape::from_slice(shape.as_ref()),
        }
    }

    /// Elements of one value.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of one value; `None` when their number overflows.
    #[must_use]
    pub fn checked_bytes(&self) -> Option<usize> {
        self.shape
            .iter()
            .try_fold(self.dtype.size(), |bytes, &size| bytes.checked_mul(size))
    }
}

/// Name, element type and shape: `"observation" float32 [4]`.
impl std::fmt::Display for LeafSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} {} {:?}",
            self.key,
            self.dtype,
            self.shape.as_slice()
        )
    }
}
