//! The transforms that come with windrow, and a value that is any of them.

mod action_discretizer;
mod action_mask;
mod appended;
mod cat_frames;
mod cat_tensors;
mod clip_transform;
mod dimensions;
mod double_to_float;
mod dtype_cast;
mod elementwise;
mod end_of_life;
mod finite_check;
mod frame_skip;
mod gathering;
mod images;
mod init_tracker;
mod keys;
mod lending;
mod limit_flag;
mod names;
mod next_observation_delta;
mod noop_reset;
mod observation_norm;
mod one_hot_actions;
mod one_hot_observations;
mod past;
mod primer;
mod relayout;
mod resize;
mod reward_scaling;
mod reward_sum;
#[cfg(test)]
mod shape_tests;
mod sign_transform;
#[cfg(test)]
mod stacking_tests;
mod statistics;
mod step_counter;
mod target_return;
mod time_max_pool;
#[cfg(test)]
pub(crate) mod vec_driver;
mod vec_norm;
#[cfg(test)]
mod vec_norm_tests;

use serde::{Deserialize, Serialize};

pub use action_discretizer::{ActionDiscretizer, Sampling};
pub use action_mask::ActionMask;
pub use cat_frames::{CatFrames, Padding};
pub use cat_tensors::CatTensors;
pub use clip_transform::{ClipTransform, RewardClipping};
pub use dimensions::{FlattenObservation, PermuteTransform, SqueezeTransform, UnsqueezeTransform};
pub use double_to_float::DoubleToFloat;
pub use dtype_cast::{BinarizeReward, DTypeCastTransform};
pub use end_of_life::{DoneKey, EndOfLifeTransform};
pub use finite_check::{FiniteCheck, NotFinite};
pub use frame_skip::FrameSkipTransform;
pub use gathering::{Gathering, Gathers, gatherings};
pub use images::{CenterCrop, GrayScale, ToTensorImage};
pub use init_tracker::InitTracker;
pub use keys::Keys;
pub use limit_flag::LimitFlag;
pub use names::{ExcludeTransform, RenameTransform, SelectTransform};
pub use next_observation_delta::NextObservationDelta;
pub use noop_reset::NoopResetEnv;
pub use observation_norm::ObservationNorm;
pub use one_hot_actions::OneHotActions;
pub use one_hot_observations::OneHotObservations;
pub use primer::Primer;
pub use resize::{Interpolation, Resize};
pub use reward_scaling::RewardScaling;
pub use reward_sum::RewardSum;
pub use sign_transform::SignTransform;
pub use statistics::{Gathered, Statistics};
pub use step_counter::StepCounter;
pub use target_return::{TargetMode, TargetReturn};
pub use time_max_pool::TimeMaxPool;
pub use vec_norm::{Lockstep, VecNorm, VecNormV2};

use crate::{EnvError, Transformed, VecEnv};

/// The table of transforms: a variant for each, called as its type.
macro_rules! transforms {
    ($($name:ident),* $(,)?) => {
        /// Any of windrow's transforms, with its arguments: what an
        /// [`EnvRecipe`](crate::EnvRecipe) holds.
        ///
        /// It is written down as its name and arguments, `{"StepCounter": {"max_steps": 200}}`;
        /// arguments that have a default may be left out.
        ///
        /// ```
        /// use windrow_env::{AnyTransform, CartPole, Serial, StepCounter, VecEnv};
        ///
        /// let transform: AnyTransform = serde_json::from_str(r#"{"StepCounter": {"max_steps": 200}}"#)?;
        /// assert_eq!(transform, StepCounter::new().with_max_steps(200).into());
        /// let envs = transform.around(Box::new(Serial::from_fn(8, CartPole::v1)?))?;
        /// assert_eq!(envs.spec().max_episode_steps, Some(200));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum AnyTransform {
            $(
                #[doc = concat!("See [`", stringify!($name), "`].")]
                $name($name),
            )*
        }

        impl AnyTransform {
            /// The name of the transform, that of its type.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)*
                }
            }

            /// `envs` with the transform around them.
            ///
            /// # Errors
            /// The error of [`Transform::attach`](crate::Transform::attach).
            pub fn around(&self, envs: Box<dyn VecEnv>) -> Result<Box<dyn VecEnv>, EnvError> {
                Ok(match self {
                    $(Self::$name(transform) => Box::new(Transformed::new(envs, transform)?),)*
                })
            }
        }

        $(impl From<$name> for AnyTransform {
            fn from(transform: $name) -> Self {
                Self::$name(transform)
            }
        })*

        /// The transforms of the table, as the crate `windrow` exports them.
        #[doc(hidden)]
        pub mod all_transforms {
            pub use super::{$($name),*};
        }

        /// The names of the transforms of the table.
        #[cfg(test)]
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

transforms!(
    ActionDiscretizer,
    ActionMask,
    BinarizeReward,
    ClipTransform,
    DTypeCastTransform,
    CatFrames,
    CatTensors,
    CenterCrop,
    DoubleToFloat,
    EndOfLifeTransform,
    ExcludeTransform,
    FiniteCheck,
    FlattenObservation,
    FrameSkipTransform,
    GrayScale,
    InitTracker,
    LimitFlag,
    NextObservationDelta,
    NoopResetEnv,
    ObservationNorm,
    OneHotActions,
    OneHotObservations,
    PermuteTransform,
    Primer,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SignTransform,
    StepCounter,
    TargetReturn,
    VecNorm,
    VecNormV2,
    RenameTransform,
    Resize,
    SelectTransform,
    SqueezeTransform,
    TimeMaxPool,
    ToTensorImage,
    UnsqueezeTransform,
);

impl AnyTransform {
    /// Whether the transform steps environments by itself, so that it goes around one only.
    #[must_use]
    pub fn steps_alone(&self) -> bool {
        matches!(self, Self::FrameSkipTransform(_) | Self::NoopResetEnv(_))
    }

    /// `transforms` in two: those that go around each environment by itself, and those outside,
    /// around all.
    #[must_use]
    pub fn split(transforms: &[Self]) -> (&[Self], &[Self]) {
        let last = transforms.iter().rposition(Self::steps_alone);
        transforms.split_at(last.map_or(0, |last| last + 1))
    }
}
