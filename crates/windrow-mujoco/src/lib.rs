#![doc = include_str!("../README.md")]

mod api;
mod batch;
mod error;
mod library;
mod model;

pub use batch::{Batch, Component, Output};
pub use error::{LoadError, SimulationError};
pub use library::{Library, packages};
pub use model::{Kind, Model};
