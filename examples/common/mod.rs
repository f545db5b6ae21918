//! What the examples share: a network that learns, what it learns from, and what a run shows.
#![allow(dead_code, reason = "no example uses all of it")]

mod curve;
pub(crate) mod minibatch;
pub(crate) mod network;
pub(crate) mod report;
