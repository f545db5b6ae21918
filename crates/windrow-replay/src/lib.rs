#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod buffer;
mod checkpoint;
mod contents;
mod error;
mod file;
mod index;
mod limiter;
mod marks;
mod reduction;
mod rng;
mod room;
mod rows;
mod sampler;
mod saved;
mod state;
mod storage;
mod writer;

pub use buffer::{ReplayBuffer, ReplayBufferBuilder, ReplayStats};
pub use checkpoint::{Checkpoint, CheckpointWriter};
pub use error::{
    Access, Held, LimiterWait, PriorityError, ReplayError, Shortage, StateError, Waited,
};
pub use index::{Run, Runs};
pub use limiter::RateLimiter;
pub use marks::RunKeys;
pub use reduction::Reduction;
pub use rng::SampleRng;
pub use room::check_room;
pub use rows::{RowOrder, RowSet, RowSpan};
pub use sampler::*;
#[cfg(not(loom))]
pub use storage::LazyMemmapStorage;
pub use storage::{LazyTensorStorage, ListStorage, Recovered, Storage, StorageRead, frames_within};
pub use writer::*;
