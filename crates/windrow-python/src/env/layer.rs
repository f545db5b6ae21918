//! What is done to environments.

use tensordict::NestedKey;
use windrow::env::{
    AnyTransform, DoubleToFloat, EnvError, FiniteCheck, InitTracker, LimitFlag, ObservationNorm,
    Primer, RewardSum, StepCounter, VecEnv,
};

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
