//! Replay buffers keep the frames of collectors, and give learners samples of them.
//!
//! A [`ReplayBuffer`] consists of a [`Storage`], a [`Writer`], a [`Sampler`] and, if samples and insertions are to wait for each
//! other, a [`RateLimiter`]. The first three are traits that other crates can implement. A buffer is a
//! [`Sink`](windrow_slab::Sink): collectors write to it while learners sample. [`Runs`] say which frames follow each other; every
//! write brings them up to date, so that no sampler searches.
//!
//! ```
//! use tensordict::{Tensor, TensorDict};
//! use windrow_replay::{LazyTensorStorage, PrioritizedSampler, ReplayBuffer};
//!
//! let buffer = ReplayBuffer::builder()
//!     .storage(LazyTensorStorage::new(10_000))
//!     .sampler(PrioritizedSampler::new(0.6, 0.4))
//!     .batch_size(32)
//!     .seed(0)
//!     .build()?;
//! let mut frames = TensorDict::new([100]);
//! frames.set("observation", Tensor::arange(0..100)?)?;
//! buffer.extend(&frames)?;
//!
//! let batch = buffer.sample(None)?;
//! assert_eq!(batch.as_slice::<f32>("priority_weight")?, [1.0; 32]);
//! // The learner's errors become priorities.
//! let errors = [0.5; 32];
//! buffer.update_priority(batch.as_slice("index")?, &errors)?;
//! # Ok::<(), windrow_replay::ReplayError>(())
//! ```
//!
//! A [`Storage`] keeps frames in rows: [`LazyTensorStorage`] in memory, [`LazyMemmapStorage`] on disk, where it outlives
//! its process, [`ListStorage`] one by one, for small things of unequal shape. Many threads may read while one writes:
//! no reader sees a row that is being written.
//!
//! ```
//! use tensordict::{Tensor, TensorDict};
//! use windrow_replay::{LazyTensorStorage, Storage, StorageRead};
//!
//! let mut frames = TensorDict::new([3]);
//! frames.set("observation", Tensor::arange(0..6)?.view([3, 2])?)?;
//! frames.set(("next", "reward"), Tensor::full([3, 1], 1.0f32)?)?;
//!
//! let storage = LazyTensorStorage::new(100);
//! storage.write(0, &frames)?;
//! let sampled = storage.read().gather(&[2, 0, 2])?;
//! assert_eq!(sampled.as_slice::<i64>("observation")?, [4, 5, 0, 1, 4, 5]);
//! # Ok::<(), windrow_replay::ReplayError>(())
//! ```
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
