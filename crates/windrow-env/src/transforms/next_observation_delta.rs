use std::convert::Infallible;

use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey};

use super::relayout::Relayout;
use crate::{Attach, EnvError, Transform, serde_form};

/// Names observations that Python's batches have as differences under `"next"`: the next one minus
/// the one before, in a smaller element type. See [`EnvSpec::deltas`](crate::EnvSpec::deltas);
/// nothing changes in the engine.
///
/// ```
/// use windrow_env::{NextObservationDelta, Pendulum, Serial, VecEnv};
///
/// let envs = Serial::from_fn(2, Pendulum::v1)?.transformed(NextObservationDelta::new("float16"))?;
/// assert_eq!(envs.spec().deltas, [("observation".into(), "float16".to_owned())]);
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextObservationDelta {
    /// The observations. None stands for all of `float32` and `float64` that environments make.
    #[serde(default, with = "serde_form::key::list")]
    pub keys: Option<Vec<NestedKey>>,
    /// The element types that are left out where no observations are named.
    #[serde(default)]
    pub excluded: Vec<DType>,
    /// The element type of the differences, by its name in PyTorch.
    pub dtype: String,
}

impl NextObservationDelta {
    /// Differences of all observations of floats, in the element type `dtype`.
    #[must_use]
    pub fn new(dtype: impl Into<String>) -> Self {
        Self {
            keys: None,
            excluded: Vec::new(),
            dtype: dtype.into(),
        }
    }
}

impl Transform for NextObservationDelta {
    type Bound = Relayout<Infallible>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let spec = &envs.spec;
        let keys = self.keys.clone().unwrap_or_else(|| {
            let leaves = spec.observation_leaves().into_iter();
            let leaves = leaves.filter(|leaf| {
                let is_observed =
                    !spec.rewards.contains(&leaf.key) && !spec.states.contains(&leaf.key);
                leaf.dtype.is_float() && is_observed && !self.excluded.contains(&leaf.dtype)
            });
            leaves.map(|leaf| leaf.key).collect()
        });
        let deltas = keys.into_iter().map(|key| (key, self.dtype.clone()));
        envs.spec.deltas.extend(deltas);
        Ok(Relayout::nothing())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pendulum, Primer, Serial, StepCounter, VecEnv};

    fn deltas(of: NextObservationDelta) -> Vec<(NestedKey, String)> {
        let envs = Serial::from_fn(2, Pendulum::v1).unwrap();
        let envs = envs.transformed(StepCounter::new()).unwrap();
        let envs = envs.transformed(Primer::new("hidden", [1], 0.5)).unwrap();
        envs.transformed(of).unwrap().spec().deltas.clone()
    }

    #[test]
    fn floats_that_environments_make_are_named_unless_others_are() {
        let all = NextObservationDelta::new("bfloat16");
        assert_eq!(
            deltas(all.clone()),
            [("observation".into(), "bfloat16".to_owned())]
        );
        let excluded = vec![DType::F32];
        assert!(
            deltas(NextObservationDelta {
                excluded,
                ..all.clone()
            })
            .is_empty()
        );
        let keys = Some(vec!["step_count".into()]);
        assert_eq!(
            deltas(NextObservationDelta { keys, ..all }),
            [("step_count".into(), "bfloat16".to_owned())]
        );
    }
}
