//! The consumer's side: batches made of filled slabs, and the ways that they go.

pub(crate) mod assemble;
pub(crate) mod background;
pub(crate) mod collector;
pub(crate) mod core;
pub(crate) mod driver;
pub(crate) mod handle;
mod profiling;
pub(crate) mod sink_writer;
pub(crate) mod stage;

use std::time::Duration;

/// How often a wait that can be given up asks whether it is.
pub(crate) const SLICE: Duration = Duration::from_millis(100);
