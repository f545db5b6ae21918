//! The choices that make a collector.

pub(crate) mod builder;
pub(crate) mod collectors;
pub(crate) mod plan;
