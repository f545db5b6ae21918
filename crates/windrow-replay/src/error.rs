use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tensordict::{NestedKey, TensorError};
use windrow_store::StoreError;

/// What can go wrong between a buffer, its storage and its files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// Frames do not fit into the storage, or rows cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Rows of a list cannot be stacked into one batch.
    #[error("rows {rows:?} of the list do not make one batch: {error}")]
    Unlike {
        /// The rows asked for.
        rows: Vec<u32>,
        /// Why stacking was refused.
        error: Box<TensorError>,
    },
    /// The operating system refused an operation on a file.
    #[error("failed to {op} {}: {error}", .path.display())]
    Io {
        /// The operation.
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
    /// A file of a checkpoint is not what its manifest says.
    #[error("{} is damaged: expected {expected}, got {got}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the manifest says, or what every such file has.
        expected: String,
        /// What was found.
        got: String,
    },
    /// A checkpoint, or a storage on disk, was made for another buffer.
    #[error("{} holds {got}, expected {expected}", .path.display())]
    Misfit {
        /// The file.
        path: PathBuf,
        /// What this buffer needs.
        expected: String,
        /// What was found.
        got: String,
    },
    /// What a buffer was built with, or called with, makes no sense.
    #[error("{name}: expected {expected}, got {got}")]
    Argument {
        /// The argument.
        name: &'static str,
        /// What it may be.
        expected: String,
        /// What came.
        got: String,
    },
    /// The system does not give the memory for something of so many frames.
    #[error("no memory for {what} of {frames} frames: the system does not give {bytes} bytes")]
    NoMemory {
        /// What was to be kept.
        what: &'static str,
        /// How many frames it is of.
        frames: usize,
        /// Its size.
        bytes: usize,
    },
    /// Nobody said how many frames to sample.
    #[error("expected a batch size, got none: give one to sample() or batch_size() to the builder")]
    NoBatchSize,
    /// A batch cannot be cut into slices of equal length.
    #[error("batch size {got} is not a multiple of {name}={divisor}: use {}", either(*below, *above))]
    BatchSize {
        /// The argument of the sampler.
        name: &'static str,
        /// Its value.
        divisor: usize,
        /// The batch size asked for.
        got: usize,
        /// The nearest that is possible below, at least one slice.
        below: usize,
        /// The nearest that is possible above.
        above: usize,
    },
    /// There are not the frames that a sample needs.
    #[error("cannot draw {asked} frames: {why}; {held}; {waited}")]
    NotEnough {
        /// Frames asked for.
        asked: usize,
        /// What is missing.
        why: String,
        /// What there is.
        held: Held,
        /// Who was waited for.
        waited: Waited,
    },
    /// An insertion waited for samples that did not come.
    #[error("cannot write {frames} frames: {why}; waited {:.1} s", .waited.as_secs_f64())]
    NotTaken {
        /// Frames to be written.
        frames: usize,
        /// What is waited for.
        why: String,
        /// For how long.
        waited: Duration,
    },
    /// The limiter would make a call wait for ever.
    #[error(
        "{frames} frames can never be {what} together: error_buffer={error_buffer} must be at least {needed}"
    )]
    NeverThrough {
        /// `"sampled"` or `"written"`.
        what: &'static str,
        /// Frames of the call.
        frames: usize,
        /// What the limiter was built with.
        error_buffer: f64,
        /// What it would have to be built with.
        needed: f64,
    },
    /// A collector that wrote to the buffer failed.
    #[error("a writer of the buffer failed: {0}")]
    Writer(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// Frames do not say where trajectories end.
    #[error("trajectories cannot be told apart: frames have neither {end_key} nor {traj_key}")]
    NoRuns {
        /// The key of the flag that ends an episode.
        end_key: NestedKey,
        /// The key of a trajectory's id.
        traj_key: NestedKey,
    },
    /// Priorities were given to a sampler that has none.
    #[error("the sampler has no priorities: build the buffer with a prioritized sampler")]
    NoPriorities,
    /// Priorities that cannot be taken over.
    #[error("priorities: {0}")]
    Priorities(String),
    /// A row that cannot be read.
    #[error("row {row} holds no frame")]
    NoFrame {
        /// The row asked for.
        row: i64,
    },
    /// A state that does not belong to such a buffer.
    #[error("failed to load the state: {0}")]
    State(String),
}

/// Two numbers to choose from, which may be the same.
fn either(below: usize, above: usize) -> String {
    match below == above {
        true => below.to_string(),
        false => format!("{below} or {above}"),
    }
}

/// What a buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Frames.
    pub frames: usize,
    /// Trajectories that they are of, and how many of these reach the end of their episode; none where the writer does not
    /// keep frames in order.
    pub trajectories: Option<(usize, usize)>,
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the buffer holds {} frames", self.frames)?;
        match self.trajectories {
            Some((all, ended)) => write!(f, " of {all} trajectories, {ended} of them complete"),
            None => Ok(()),
        }
    }
}

/// Whom a sample waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waited {
    /// Nobody: no writer is attached.
    NoWriter,
    /// Attached writers, for so long.
    For {
        /// How many are attached.
        writers: usize,
        /// How long.
        time: Duration,
    },
}

impl std::fmt::Display for Waited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoWriter => f.write_str("no writer is attached that could be waited for"),
            Self::For { writers, time } => {
                let noun = if *writers == 1 { "writer" } else { "writers" };
                write!(f, "waited {:.1} s for {writers} {noun}", time.as_secs_f64())
            }
        }
    }
}
