//! Environments around environments.

mod appended;
mod double_to_float;
mod finite_check;
mod frame_skip;
mod init_tracker;
mod limit_flag;
mod observation_norm;
mod one_hot_actions;
mod primer;
mod reward_sum;
#[cfg(test)]
mod stacking_tests;
mod step_counter;
mod time_limit;
#[cfg(test)]
mod vec_driver;

pub use appended::Appended;
pub use double_to_float::DoubleToFloat;
pub use finite_check::{FiniteCheck, NotFinite};
pub use frame_skip::FrameSkip;
pub use init_tracker::InitTracker;
pub use limit_flag::LimitFlag;
pub use observation_norm::ObservationNorm;
pub use one_hot_actions::OneHotActions;
pub use primer::Primer;
pub use reward_sum::RewardSum;
pub use step_counter::StepCounter;
pub use time_limit::TimeLimit;
