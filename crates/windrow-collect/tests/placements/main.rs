//! What holds wherever workers run, one subject a file: the environments and policies have names, which processes know, too.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "../conformance/program.rs"]
mod program;

mod background;
mod features;
mod recurrent;
mod statistics;
mod stream;

use std::error::Error;

use windrow_policy::Registry;

/// Whatever the tests of this program name: it registers once.
fn names(registry: &mut Registry) -> Result<(), Box<dyn Error + Send + Sync>> {
    background::names(registry)?;
    features::names(registry)?;
    recurrent::names(registry)
}
