//! Transforms around environments, read from their names and arguments.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensordict::NestedKey;
use windrow::env::{
    AnyTransform, DoubleToFloat, EnvError, FiniteCheck, InitTracker, LimitFlag, ObservationNorm,
    Primer, RewardSum, StepCounter, VecEnv,
};

use super::describe::Key;

/// One thing that is done to environments.
#[derive(Debug, Clone)]
pub(crate) enum Layer {
    StepCounter {
        key: String,
        max_steps: Option<usize>,
    },
    LimitFlag {
        key: String,
        max_steps: usize,
    },
    RewardSum(NestedKey),
    InitTracker(String),
    /// Of these observations, or of all.
    DoubleToFloat(Option<Vec<NestedKey>>),
    FiniteCheck,
    ObservationNorm {
        key: NestedKey,
        loc: Vec<f64>,
        scale: Vec<f64>,
        name: Option<String>,
    },
    Primer {
        key: NestedKey,
        shape: Vec<usize>,
        value: f32,
    },
}

impl Layer {
    /// The transform `name` of `windrow.envs`, with its arguments.
    ///
    /// # Errors
    /// `TypeError` or `KeyError` for another name or other arguments.
    pub(super) fn read(name: &str, arguments: &Bound<'_, PyDict>) -> PyResult<Self> {
        let get = |name: &str| arguments.as_any().get_item(name);
        let key = |value: Bound<'_, PyAny>| value.extract::<Key>().map(|key| key.0);
        Ok(match name {
            "StepCounter" => Self::StepCounter {
                key: get("step_count_key")?.extract()?,
                max_steps: get("max_steps")?.extract()?,
            },
            "LimitFlag" => Self::LimitFlag {
                key: get("key")?.extract()?,
                max_steps: get("max_steps")?.extract()?,
            },
            "RewardSum" => Self::RewardSum(key(get("out_key")?)?),
            "InitTracker" => Self::InitTracker(get("init_key")?.extract()?),
            "DoubleToFloat" => {
                let keys: Option<Vec<Key>> = get("in_keys")?.extract()?;
                Self::DoubleToFloat(keys.map(|keys| keys.into_iter().map(|key| key.0).collect()))
            }
            "FiniteCheck" => Self::FiniteCheck,
            "ObservationNorm" => Self::ObservationNorm {
                key: key(get("in_key")?)?,
                loc: get("loc")?.extract()?,
                scale: get("scale")?.extract()?,
                name: get("out_key")?.extract()?,
            },
            "Primer" => Self::Primer {
                key: key(get("key")?)?,
                shape: get("shape")?.extract()?,
                value: get("value")?.extract()?,
            },
            other => {
                return Err(PyTypeError::new_err(format!(
                    "there is no transform {other:?}"
                )));
            }
        })
    }

    /// `envs` with this done to them.
    ///
    /// # Errors
    /// Whatever keeps it from being done.
    pub(super) fn around(&self, envs: Box<dyn VecEnv>) -> Result<Box<dyn VecEnv>, EnvError> {
        let transform = match self.clone() {
            Self::StepCounter { key, max_steps } => StepCounter {
                step_count_key: key.into(),
                max_steps,
            }
            .into(),
            Self::LimitFlag { key, max_steps } => LimitFlag::new(key, max_steps).into(),
            Self::RewardSum(key) => RewardSum::new().named(key).into(),
            Self::InitTracker(key) => InitTracker::new().named(key).into(),
            Self::DoubleToFloat(in_keys) => DoubleToFloat { in_keys }.into(),
            Self::FiniteCheck => AnyTransform::from(FiniteCheck {}),
            Self::ObservationNorm {
                key,
                loc,
                scale,
                name,
            } => ObservationNorm {
                in_key: key,
                out_key: name,
                loc,
                scale,
            }
            .into(),
            Self::Primer { key, shape, value } => Primer::new(key, shape, value).into(),
        };
        transform.around(envs)
    }
}
