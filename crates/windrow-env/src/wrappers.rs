//! Environments around single environments.

mod frame_skip;
mod time_limit;

pub use frame_skip::FrameSkip;
pub use time_limit::TimeLimit;
