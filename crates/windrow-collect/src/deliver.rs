//! The consumer's side: batches made of filled slabs, and the ways that they go.

pub(crate) mod background;
pub(crate) mod collector;
pub(crate) mod consumer;
pub(crate) mod core;
pub(crate) mod driver;
pub(crate) mod handle;
pub(crate) mod outlet;
mod profiling;
