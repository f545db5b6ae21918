//! Tests of collectors in every placement, one subject a file. Worker processes find environments
//! and policies by the names that are registered here.
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

/// Registers what the tests of all files name: a program can install one registry only.
fn names(registry: &mut Registry) -> Result<(), Box<dyn Error + Send + Sync>> {
    background::names(registry)?;
    features::names(registry)?;
    recurrent::names(registry)
}
