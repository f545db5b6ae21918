//! Environments around environments.

mod appended;
mod finite_check;
mod init_tracker;
mod reward_sum;
#[cfg(test)]
mod stacking_tests;
mod step_counter;
mod time_limit;
#[cfg(test)]
mod vec_driver;

pub use finite_check::{FiniteCheck, NotFinite};
pub use init_tracker::InitTracker;
pub use reward_sum::RewardSum;
pub use step_counter::StepCounter;
pub use time_limit::TimeLimit;
