//! A server and its clients: actions, weights, who is let in, and what happens when one of them
//! goes.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod actions;
mod ends;
mod limits;
mod protocol;
mod secrets;
mod tools;
mod weights;
