use tensordict::{DType, NestedKey, Tensor, TensorDict};

use crate::ReplayError;

/// How several values of one row become the one that rows are compared by. With a NaN among them,
/// the result is NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Reduction {
    /// Their sum.
    #[default]
    Sum,
    /// Their mean.
    Mean,
    /// The greatest.
    Max,
    /// The least.
    Min,
    /// The median; of an even number of values, the lower one.
    Median,
}

impl Reduction {
    /// One value for each frame, reduced from its values of the entry `key`; 0 if it has none.
    ///
    /// # Errors
    /// When the entry is missing.
    pub(crate) fn of_each(
        self,
        frames: &TensorDict,
        key: &NestedKey,
    ) -> Result<Vec<f64>, ReplayError> {
        let values: Tensor = frames.get(key)?.cast(DType::F64)?.contiguous();
        let each = values.len() / frames.numel().max(1);
        if each == 0 {
            return Ok(vec![0.0; frames.numel()]);
        }
        let values = values.as_slice()?.chunks(each);
        Ok(values.map(|values| self.of(values)).collect())
    }

    fn of(self, values: &[f64]) -> f64 {
        if values.iter().any(|value| value.is_nan()) {
            return f64::NAN;
        }
        match self {
            Self::Sum => values.iter().sum(),
            Self::Mean => values.iter().sum::<f64>() / values.len() as f64,
            Self::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            Self::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Median => {
                let mut values = values.to_vec();
                let middle = (values.len() - 1) / 2;
                *values.select_nth_unstable_by(middle, f64::total_cmp).1
            }
        }
    }
}
