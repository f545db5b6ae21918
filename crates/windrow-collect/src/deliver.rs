//! The consumer's side: batches made of filled slabs, and the ways that they go.

pub(crate) mod assemble;
pub(crate) mod background;
#[cfg(target_os = "linux")]
mod calling;
pub(crate) mod collector;
pub(crate) mod core;
pub(crate) mod driver;
pub(crate) mod handle;
mod profiling;
pub(crate) mod sink_writer;
pub(crate) mod stage;
pub(crate) mod stream;
