#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod alloc;
mod buffer;
mod checkpoint;
mod contents;
mod episode_ends;
mod error;
mod file;
mod generations;
mod limiter;
mod minibatches;
mod reduction;
mod rng;
mod rows;
mod runs;
mod sampler;
mod saved;
mod state;
mod storage;
mod writer;

pub use alloc::check_room;
#[doc(hidden)]
pub use buffer::ValuesOf;
pub use buffer::{ReplayBuffer, ReplayBufferBuilder, ReplayStats};
pub use checkpoint::{Checkpoint, CheckpointWriter};
pub use episode_ends::RunKeys;
pub use error::{
    Access, Held, LimiterWait, PriorityError, ReplayError, Shortage, StateError, Waited,
};
pub use limiter::RateLimiter;
pub use minibatches::{Minibatches, Passes};
pub use reduction::Reduction;
pub use rng::SampleRng;
pub use rows::{RowOrder, RowSet, RowSpan};
pub use runs::{Boundary, KeptRuns, Run, Runs};
pub use sampler::*;
#[cfg(not(loom))]
pub use storage::LazyMemmapStorage;
pub use storage::{
    LazyTensorStorage, ListStorage, Recovered, RunMarks, Storage, StorageRead, frames_within,
};
pub use writer::*;
