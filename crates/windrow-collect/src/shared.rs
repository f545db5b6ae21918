//! The state that workers and the consumer share.

pub(crate) mod core;
pub(crate) mod schedule;
pub(crate) mod stats;
pub(crate) mod within;
