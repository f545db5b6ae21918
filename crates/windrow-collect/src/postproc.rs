//! What can be done to a batch before it is delivered.

mod gae;

pub use gae::Gae;
