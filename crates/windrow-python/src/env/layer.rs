//! What is done to environments.

use tensordict::NestedKey;
use windrow::env::{
    DoubleToFloat, EnvError, FiniteCheck, InitTracker, LimitFlag, ObservationNorm, Primer,
    RewardSum, StepCounter, VecEnv,
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
        Ok(match self {
            Self::StepCounter { key, max_steps } => {
                let counted = StepCounter::named(envs, key)?;
                match max_steps {
                    None => Box::new(counted),
                    Some(steps) => Box::new(counted.with_max_steps(*steps)?),
                }
            }
            Self::LimitFlag { key, max_steps } => Box::new(LimitFlag::new(envs, key, *max_steps)?),
            Self::RewardSum(key) => Box::new(RewardSum::named(envs, key)?),
            Self::InitTracker(key) => Box::new(InitTracker::named(envs, key)?),
            Self::DoubleToFloat(None) => Box::new(DoubleToFloat::new(envs)?),
            Self::DoubleToFloat(Some(keys)) => Box::new(DoubleToFloat::of(envs, keys)?),
            Self::FiniteCheck => Box::new(FiniteCheck::new(envs)?),
            Self::ObservationNorm {
                key,
                loc,
                scale,
                name,
            } => {
                let normed = ObservationNorm::new(envs, key.clone(), loc, scale)?;
                match name {
                    None => Box::new(normed),
                    Some(name) => Box::new(normed.named(name)?),
                }
            }
            Self::Primer { key, shape, value } => {
                Box::new(Primer::new(envs, key.clone(), shape.as_slice(), *value)?)
            }
        })
    }
}
