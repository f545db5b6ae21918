//! Environments around environments.

mod step_counter;
mod time_limit;

pub use step_counter::StepCounter;
pub use time_limit::TimeLimit;
