//! What the Python package needs beside the public names, without a promise of stability.

pub use windrow_collect::postproc::unpadded;
pub use windrow_collect::{LastStage, ProfilerRecipe, SentError, SinkWriter};
#[cfg(target_os = "linux")]
pub use windrow_collect::{Nursery, ParallelHandle};
pub use windrow_env::{Gathered, largest};
pub use windrow_policy::{EnvRows, KnownRows, Served};
pub use windrow_replay::Waited;
