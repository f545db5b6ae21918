//! What the examples share: a network that learns, and what it learns from.
#![allow(dead_code, reason = "no example uses all of it")]

pub(crate) mod minibatch;
pub(crate) mod network;
