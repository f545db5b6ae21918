//! What the examples share: a network that learns, and what a run shows.

mod curve;
pub(crate) mod network;
pub(crate) mod report;
