//! What buffers promise, one promise a file. They are one program, because each program is linked by itself.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod authors;
mod changes;
mod checkpoint;
mod custom;
mod saved;
mod saving;
mod statistics;
mod storage;
mod threads;
mod waiting;
