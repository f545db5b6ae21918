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

/// The table of transforms: a variant for each, called as its type. `Name = example` has arguments
/// that are easily lost, which tests of recipes write and read.
macro_rules! transforms {
    ($($name:ident = $example:expr),* $(,)?) => {
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

        /// The examples of the table.
        #[cfg(test)]
        pub(crate) mod examples {
            use tensordict::DType;

            use super::*;
            use crate::{Keys, Lockstep, Statistics};

            pub(crate) fn all() -> Vec<AnyTransform> {
                vec![$($example.into()),*]
            }
        }
    };
}

transforms!(
    ActionDiscretizer = ActionDiscretizer::new([2, 3]),
    ActionMask = ActionMask::default(),
    BinarizeReward = BinarizeReward::default(),
    ClipTransform = ClipTransform::new(["reward"], f64::MIN, 1e-300),
    DTypeCastTransform = DTypeCastTransform::new(DType::Bool, DType::I64),
    CatFrames = CatFrames::new(4, -3, Keys::of(["pixels"])).padded_with(-0.5),
    CatTensors = CatTensors::new([("body", "speed")]).named(("body", "all")),
    CenterCrop = CenterCrop::new(3, 4, Keys::of(["pixels"])),
    DoubleToFloat = DoubleToFloat::of([("body", "speed")]),
    EndOfLifeTransform = EndOfLifeTransform::default(),
    ExcludeTransform = ExcludeTransform::new([("body", "speed")]),
    FiniteCheck = FiniteCheck {},
    FlattenObservation = FlattenObservation::new(-3, -1, Keys::of(["pixels"])),
    FrameSkipTransform = FrameSkipTransform::new(4),
    GrayScale = GrayScale::new(Keys::of(["pixels"])),
    InitTracker = InitTracker::new().named("begun"),
    LimitFlag = LimitFlag::new(("steps", "late"), 9),
    NextObservationDelta = NextObservationDelta::new("bfloat16"),
    NoopResetEnv = NoopResetEnv::always(3),
    ObservationNorm =
        ObservationNorm::new("observation", &[0.1, -0.0, 1e-300], &[1.0 / 3.0]).named("normed"),
    OneHotActions = OneHotActions::of_scores(),
    OneHotObservations = OneHotObservations {},
    PermuteTransform = PermuteTransform::new([-1, -2], Keys::of(["pixels"])),
    Primer = Primer::new("hidden", [1, 2], f32::NEG_INFINITY),
    RewardClipping = RewardClipping::new(-0.0, 1.0 / 3.0),
    RewardScaling = RewardScaling::standardize(0.1, 3.0),
    RewardSum = RewardSum::new().named(("stats", "sum", "all")),
    SignTransform = SignTransform::of([("body", "speed")]),
    StepCounter = StepCounter::new().with_max_steps(5),
    TargetReturn = TargetReturn::new(0.3),
    VecNorm = VecNorm::default()
        .with_decay(0.99)
        .sharing(&Statistics::new()),
    VecNormV2 = VecNormV2::new([("body", "speed")]).with_lockstep(Lockstep::Mean),
    RenameTransform = RenameTransform::new(Keys::pairs([("a", ("b", "c"))])).with_copy(),
    Resize = Resize::new(84, 80, Keys::of(["pixels"])),
    SelectTransform = SelectTransform::new(["pixels"]),
    SqueezeTransform = SqueezeTransform::new(-1, Keys::of(["pixels"])),
    TimeMaxPool = TimeMaxPool::new(2, Keys::of(["pixels"])),
    ToTensorImage = ToTensorImage::default(),
    UnsqueezeTransform = UnsqueezeTransform::new(-1, Keys::of(["pixels"])),
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
