use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tensordict::{NestedKey, TensorError};
use windrow_slab::either;
use windrow_store::StoreError;

/// The errors of a buffer, its storage and its files.
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
        /// The error of the operating system.
        error: io::Error,
    },
    /// A file of a checkpoint is not what its manifest says.
    #[error("{} is damaged: expected {expected}, got {got}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The contents according to the manifest, or those of every such file.
        expected: String,
        /// The contents found.
        got: String,
    },
    /// A checkpoint, or a storage on disk, was made for another buffer.
    #[error("{} holds {got}, expected {expected}", .path.display())]
    Misfit {
        /// The file.
        path: PathBuf,
        /// The contents that this buffer needs.
        expected: String,
        /// The contents found.
        got: String,
    },
    /// An argument of a buffer or of one of its parts is invalid.
    #[error("{name}: expected {expected}, got {got}")]
    Argument {
        /// The argument.
        name: &'static str,
        /// The values that it may have.
        expected: String,
        /// The value given.
        got: String,
    },
    /// The system does not have the memory.
    #[error("no memory for {what} of {frames} frames: the system does not give {bytes} bytes")]
    NoMemory {
        /// The values that need memory.
        what: &'static str,
        /// Number of frames that they belong to.
        frames: usize,
        /// Bytes needed.
        bytes: usize,
    },
    /// Neither the builder nor the call gave a batch size.
    #[error(
        "expected a batch size, got none: give one to sample(), or make the buffer with a batch_size"
    )]
    NoBatchSize,
    /// A batch cannot be cut into slices of equal length.
    #[error(
        "batch size {got} is not a multiple of {name}={divisor}: use {}",
        either(below, above)
    )]
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
    /// A sample needs frames that the buffer does not hold.
    #[error("cannot draw {asked} frames: {why}; {held}; {waited}")]
    NotEnough {
        /// Frames asked for.
        asked: usize,
        /// The frames that are missing.
        why: Shortage,
        /// The contents of the buffer.
        held: Held,
        /// The writers that the sample waited for.
        waited: Waited,
    },
    /// An insertion waited for samples that did not come.
    #[error("cannot write {frames} frames: {why}; waited {:.1} s", .waited.as_secs_f64())]
    NotTaken {
        /// Frames to be written.
        frames: usize,
        /// The reason of the limiter.
        why: LimiterWait,
        /// How long the insertion waited.
        waited: Duration,
    },
    /// The limiter would block a call forever.
    #[error(
        "{frames} frames can never be {what} together: error_buffer={error_buffer} must be at least {needed}"
    )]
    NeverThrough {
        /// The kind of call.
        what: Access,
        /// Frames of the call.
        frames: usize,
        /// The argument of the limiter.
        error_buffer: f64,
        /// The least value of that argument with which the call gets through.
        needed: f64,
    },
    /// The collector that writes was detached.
    #[error("the writer was detached from the buffer")]
    Detached,
    /// A collector that wrote to the buffer failed.
    #[error("a writer of the buffer failed")]
    Writer(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// Frames do not say where trajectories end.
    #[error("trajectories cannot be told apart: frames have neither {end_key:?} nor {traj_key:?}")]
    NoRuns {
        /// The key of the flag that ends an episode.
        end_key: NestedKey,
        /// The key of a trajectory's id.
        traj_key: NestedKey,
    },
    /// Frames that replace others would end trajectories elsewhere, which a sampler relies on.
    #[error(
        "frames: expected entry {key:?} as it is, which tells the sampler where trajectories end, got another"
    )]
    EndsElsewhere {
        /// The entry that differs.
        key: NestedKey,
    },
    /// A sampler drew rows, weights or slices of which no batch can be made.
    #[error("the sampler drew {got}, expected {expected}: see the documentation of Draw")]
    Draw {
        /// The draw that was expected.
        expected: String,
        /// The part of the draw that is wrong.
        got: String,
    },
    /// Priorities were given to a sampler that has none.
    #[error("the sampler has no priorities: build the buffer with a prioritized sampler")]
    NoPriorities,
    /// Priorities that cannot be taken over.
    #[error("priorities")]
    Priorities(#[from] PriorityError),
    /// A row that cannot be read.
    #[error("row {row} holds no frame")]
    NoFrame {
        /// The row asked for.
        row: i64,
    },
    /// A state that does not belong to such a buffer.
    #[error("failed to load the state")]
    State(#[from] StateError),
}

/// The frames that are missing for a sample.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Shortage {
    /// Frames of any kind.
    #[error("the buffer is empty")]
    Empty,
    /// Frames that were not drawn in this pass: a batch that may not be short is larger than what
    /// the buffer holds.
    #[error("without replacement and with drop_last that takes {needed} frames")]
    Frames {
        /// Frames of the batch.
        needed: usize,
    },
    /// A trajectory as long as a slice.
    #[error("no trajectory has the {needed} frames of a slice, the longest has {longest}")]
    SliceLen {
        /// Frames that it must have.
        needed: usize,
        /// Frames of the longest trajectory.
        longest: usize,
    },
    /// Trajectories of which none was drawn from in this pass.
    #[error(
        "without replacement and with drop_last that takes {needed} trajectories of at least {len} frames, there are {held}"
    )]
    Trajectories {
        /// How many a batch is drawn from.
        needed: usize,
        /// Frames that each must have.
        len: usize,
        /// How many the buffer holds.
        held: usize,
    },
    /// The limiter holds the sample back.
    #[error(transparent)]
    Limiter(LimiterWait),
    /// The reason of a sampler of another crate; the text follows "cannot draw 256 frames: ".
    #[error("{0}")]
    Other(String),
}

/// The reason why a [`RateLimiter`](crate::RateLimiter) makes a call wait.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LimiterWait {
    /// As many frames as samples may begin with.
    #[error("the limiter waits for {needed} frames, the buffer holds {held}")]
    Size {
        /// Frames that the buffer must hold.
        needed: usize,
        /// Frames that it holds.
        held: usize,
    },
    /// Insertions: the sample would take the cursor too far down.
    #[error(
        "the limiter waits for more to be written: {inserted} frames inserted * {samples_per_insert} - {sampled} sampled - \
         {frames} asked for = {cursor} < {min_diff}"
    )]
    Insertions {
        /// Frames inserted so far.
        inserted: u64,
        /// The ratio.
        samples_per_insert: f64,
        /// Frames sampled so far.
        sampled: u64,
        /// Frames of the sample.
        frames: usize,
        /// Where the sample would take the cursor.
        cursor: f64,
        /// The lowest that it may be.
        min_diff: f64,
    },
    /// Samples: the insertion would take the cursor too far up.
    #[error(
        "the limiter waits for more to be sampled: ({inserted} frames inserted + {frames}) * {samples_per_insert} - \
         {sampled} sampled = {cursor} > {max_diff}"
    )]
    Samples {
        /// Frames inserted so far.
        inserted: u64,
        /// Frames of the insertion.
        frames: usize,
        /// The ratio.
        samples_per_insert: f64,
        /// Frames sampled so far.
        sampled: u64,
        /// Where the insertion would take the cursor.
        cursor: f64,
        /// The highest that it may be.
        max_diff: f64,
    },
}

/// The kinds of calls that a limiter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Draws them.
    Sample,
    /// Writes them.
    Insert,
}

impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sample => "sampled",
            Self::Insert => "written",
        })
    }
}

/// Why priorities were refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PriorityError {
    /// They are not as many as rows.
    #[error("expected one for each of {rows} rows, got {got}")]
    Count {
        /// Rows that were named.
        rows: usize,
        /// Priorities that were given.
        got: usize,
    },
    /// One is negative or not finite.
    #[error("expected finite numbers of at least 0, got {priority} for row {row} (place {at})")]
    Value {
        /// The priority.
        priority: f32,
        /// The row that it was given for.
        row: i64,
        /// Its place among the priorities.
        at: usize,
    },
    /// A new frame brings one that is negative or not finite.
    #[error(
        "expected finite numbers of at least 0 as entry {key:?}, got {priority} for frame {frame}"
    )]
    Entry {
        /// The entry.
        key: NestedKey,
        /// Its value.
        priority: f64,
        /// Place of the frame in its batch.
        frame: usize,
    },
}

/// Why a state was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// It is of a buffer of another capacity.
    #[error("expected a capacity of {expected}, got {got}")]
    Capacity {
        /// That of this buffer.
        expected: usize,
        /// That of the state.
        got: i64,
    },
    /// It is of a buffer whose writer fills rows in another order.
    #[error(
        "expected the state of a buffer whose writer fills rows in the same order, got one with another writer"
    )]
    Writer,
    /// A list has another length than it must have.
    #[error("expected {expected} {what}, got {got}")]
    Sizes {
        /// The items of the list.
        what: &'static str,
        /// How many there must be.
        expected: usize,
        /// How many there are.
        got: usize,
    },
    /// A number is not within its bounds.
    #[error("{what}: expected a number from {least} to {most}, got {got}")]
    Number {
        /// The quantity.
        what: &'static str,
        /// The least that it may be.
        least: i64,
        /// The most that it may be.
        most: i64,
        /// Its value.
        got: i64,
    },
    /// A row is beyond the capacity, or named twice.
    #[error("expected each row once and below the capacity, got a row twice or beyond it")]
    Rows,
    /// The trajectories do not lie end to end in the rows of a ring.
    #[error("expected trajectories that lie end to end in a ring of rows, got gaps or other rows")]
    Ring,
    /// A priority, or the mass that a sampler makes of it, is negative or not finite.
    #[error("expected priorities that are finite and not negative, got {got}")]
    Priority {
        /// Its value.
        got: f32,
    },
    /// A row that is still to be drawn has no frame.
    #[error("row {row}, still to be drawn, has no frame")]
    NoFrame {
        /// The row.
        row: i64,
    },
    /// A trajectory that is still to be drawn from is not there, or named twice.
    #[error("trajectory {number}, still to be drawn from, is not there")]
    NoTrajectory {
        /// Its number, counted from the oldest.
        number: i64,
    },
    /// The reason of a sampler or writer of another crate; the text follows "failed to load the
    /// state: ".
    #[error("{0}")]
    Other(String),
}

/// The contents of a buffer, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Frames.
    pub frames: usize,
    /// Trajectories that they are of, and how many of these reach the end of their episode; none
    /// where the writer does not keep frames in order.
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

/// The writers that a sample waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waited {
    /// None: no writer is attached.
    NoWriter,
    /// Attached writers.
    For {
        /// Number of attached writers.
        writers: usize,
        /// Duration of the wait.
        time: Duration,
    },
}

impl std::fmt::Display for Waited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoWriter => f.write_str("no writer is attached"),
            Self::For { writers, time } => {
                let noun = if *writers == 1 { "writer" } else { "writers" };
                write!(f, "waited {:.1} s for {writers} {noun}", time.as_secs_f64())
            }
        }
    }
}
