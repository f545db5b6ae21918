//! The choices that make a collector: plain options, and the objects that go with them.

pub(crate) mod builder;
pub(crate) mod hooks;
#[cfg(all(target_os = "linux", feature = "remote"))]
pub(crate) mod launcher;
pub(crate) mod options;
pub(crate) mod plan;
mod seconds;
