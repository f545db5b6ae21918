//! The choices that make a collector: plain options, and the objects that go with them.

pub(crate) mod builder;
pub(crate) mod hooks;
pub(crate) mod options;
pub(crate) mod plan;
mod seconds;
