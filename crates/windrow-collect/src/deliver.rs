//! The consumer's side: [`Slabs`](slabs::Slabs) that workers have filled,
//! [`Batches`](batches::Batches) made of them, and the [`Driver`](driver::Driver), which lets them
//! pass the last stage.

pub(crate) mod assemble;
pub(crate) mod background;
pub(crate) mod batches;
#[cfg(target_os = "linux")]
mod calling;
pub(crate) mod collector;
pub(crate) mod core;
pub(crate) mod driver;
pub(crate) mod handle;
mod profiling;
mod simulators;
pub(crate) mod sink_writer;
pub(crate) mod slabs;
pub(crate) mod stage;
pub(crate) mod stream;
