use tensordict::{AsKey, DType, NestedKey, TensorError};
use windrow_policy::{Misfit, PolicyError, WeightsError};

/// Errors of tensors, parameters and networks on their way between windrow and candle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CandleError {
    /// candle lacks the element type of a tensor of windrow.
    #[error("candle has no tensors of {got}: {}", way_out(*.got))]
    DType {
        /// The element type.
        got: DType,
    },
    /// windrow lacks the element type of a tensor of candle.
    #[error("windrow has no tensors of {}: convert it with to_dtype(DType::F32)", .got.as_str())]
    CandleDType {
        /// The element type.
        got: candle_core::DType,
    },
    /// Another error, at one entry of a batch or of weights.
    #[error("entry {key:?}: {error}")]
    At {
        /// Name of the entry.
        key: NestedKey,
        /// The error there.
        error: Box<CandleError>,
    },
    /// A network whose layers do not fit each other, or parameters that do not fit.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// An entry is missing, or does not start with the batch size.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// candle refused an operation, or has none for a layer or an activation.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

fn way_out(dtype: DType) -> &'static str {
    match dtype {
        DType::I8 => "cast the tensor to int16",
        _ => "exclude the entry",
    }
}

impl CandleError {
    /// The same error, which names the entry `key`.
    pub(crate) fn at(self, key: impl AsKey) -> Self {
        Self::At {
            key: key.to_key(),
            error: Box::new(self),
        }
    }

    /// `key` is not among `names`.
    pub(crate) fn missing(key: impl AsKey, names: impl Iterator<Item = String>) -> Self {
        Self::Tensor(TensorError::Missing {
            key: key.to_key(),
            near: None,
            available: names.collect(),
        })
    }

    /// The error for `misfits`, if there are any.
    pub(crate) fn of_misfits(misfits: Vec<Misfit>) -> Result<(), Self> {
        match misfits.is_empty() {
            true => Ok(()),
            false => Err(Self::Policy(PolicyError::Weights(WeightsError::Misfits {
                path: None,
                misfits,
            }))),
        }
    }
}
