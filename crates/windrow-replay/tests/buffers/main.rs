//! Tests of replay buffers, one subject a file. All are one program, which takes less time to build
//! than a program for each file.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod authors;
mod changes;
mod checkpoint;
mod custom;
mod golden;
mod saved;
mod saving;
mod stale;
mod statistics;
mod storage;
mod threads;
mod waiting;
mod wrapped;
