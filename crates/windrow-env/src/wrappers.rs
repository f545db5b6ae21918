//! Environments around single environments.

mod time_limit;

pub use time_limit::TimeLimit;
