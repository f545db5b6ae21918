use std::fmt::Display;

use tensordict::{DType, NestedKey, Shape};

/// Errors of a layout, its memory and the rows lent out of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlabError {
    /// Two columns of one record have the same name.
    #[error("column {key:?} is defined twice in one record; rename one of the two")]
    DuplicateColumn {
        /// The name that occurs twice.
        key: NestedKey,
    },
    /// A record's size does not fit into the address space.
    #[error("a slab of {frames} frames is too large: its size in bytes overflows")]
    TooLarge {
        /// Frames that one slab was to hold.
        frames: usize,
    },
    /// The system does not give the memory for a slab.
    #[error(
        "no memory for {frames} frames of {} bytes each: the system does not give {bytes} bytes",
        bytes / frames.max(&1)
    )]
    NoMemory {
        /// Frames that the slab was to hold.
        frames: usize,
        /// Its size.
        bytes: usize,
    },
    /// The system does not give the memory for values of variable size.
    #[error("no memory for values of bytes: the system does not give {bytes} bytes more")]
    NoRoom {
        /// What was needed.
        bytes: u64,
    },
    /// A value of variable size is longer than a cell can say.
    #[error("expected a value of fewer than 4 GiB, got one of {len} bytes")]
    LongValue {
        /// Its length.
        len: usize,
    },
    /// A cell names bytes that are no value of its part: another process has overwritten it.
    #[error(
        "a value of {len} bytes at {start} lies outside of the memory for values: a process has overwritten its cell"
    )]
    Stray {
        /// Where it should begin.
        start: u64,
        /// Its length.
        len: usize,
    },
    /// A slab without room for a single frame was requested.
    #[error(
        "a slab needs at least one part, one step and one environment, got {parts} parts of {steps} steps and {envs} environments"
    )]
    Empty {
        /// Parts in the slab.
        parts: usize,
        /// Steps of the shortest part.
        steps: usize,
        /// Environments in each part.
        envs: usize,
    },
    /// Parts that are to lie side by side differ in length.
    #[error("interleaved parts need equally many steps, got {shortest} and {other}")]
    Unequal {
        /// Steps of the shortest part.
        shortest: usize,
        /// Steps of another.
        other: usize,
    },
    /// The rows of a part came from elsewhere, and are not of its kind.
    #[error("expected {expected} bytes of rows, got {got}")]
    RowBytes {
        /// Bytes of the part's rows.
        expected: usize,
        /// Their number, or what is wrong with them.
        got: String,
    },
    /// A ring's parts, workers and slabs do not fit together.
    #[error(
        "a ring needs at least one worker and one slab and, by worker, as many parts as workers; got {workers} workers, {slabs} slabs, {parts} parts"
    )]
    Workers {
        /// Parts in a slab.
        parts: usize,
        /// Workers that were to fill them.
        workers: usize,
        /// Slabs that the ring may have.
        slabs: usize,
    },
    /// More workers than there is memory to keep apart.
    #[error("no memory for what a ring notes about {workers} workers")]
    ManyWorkers {
        /// Workers that were to claim parts.
        workers: usize,
    },
    /// A row was asked for a leaf that its spec does not have.
    #[error("leaf {leaf} does not exist: the spec has {leaves} leaves")]
    NoSuchLeaf {
        /// Index that was asked for.
        leaf: usize,
        /// Leaves that the row has.
        leaves: usize,
    },
    /// A row was read or written as another element type than its spec says.
    #[error("leaf {leaf} holds {expected}, but was accessed as {got}")]
    DType {
        /// Index of the leaf in its spec.
        leaf: usize,
        /// Element type of the spec.
        expected: DType,
        /// Element type that was asked for.
        got: DType,
    },
    /// A row was written with another number of elements than its spec says.
    #[error("leaf {leaf} holds {expected} elements a row, got {got}")]
    Length {
        /// Index of the leaf in its spec.
        leaf: usize,
        /// Elements of the spec.
        expected: usize,
        /// Elements that were given.
        got: usize,
    },
    /// A block of rows has fewer environments than were asked for.
    #[error("expected at most {most} environments, got {got}")]
    Envs {
        /// Environments of the block.
        most: usize,
        /// Environments that were asked for.
        got: usize,
    },
    /// Two sets of rows that should agree do not.
    #[error(
        "rows of different layouts: expected leaf {leaf} as {expected_dtype} {expected:?}, got {got_dtype} {got:?}"
    )]
    Mismatch {
        /// Index of the first leaf that differs.
        leaf: usize,
        /// Element type of the receiving rows.
        expected_dtype: DType,
        /// Shape of the receiving rows, environments first.
        expected: Shape,
        /// Element type of the given rows.
        got_dtype: DType,
        /// Shape of the given rows, environments first.
        got: Shape,
    },
    /// Every slab is held by leases that are still alive, and the ring may not grow further.
    #[error(
        "all {slabs} slabs ({bytes} bytes each) are held by batches that are still alive; drop one, call `detach()` on those to keep, or raise the limit of slabs"
    )]
    Exhausted {
        /// Slabs that the ring may have.
        slabs: usize,
        /// Size of one slab.
        bytes: usize,
    },
    /// The system refuses something that memory between processes needs.
    #[error("{call} failed: {}", std::io::Error::from_raw_os_error(*code))]
    System {
        /// The system call, and its purpose.
        call: &'static str,
        /// What it said.
        code: i32,
    },
    /// This process may not open another file, and shared memory is one.
    #[error(
        "no shared memory for slabs: all {limit} file descriptors of this process are in use; close some, or raise the limit with `ulimit -n`"
    )]
    Descriptors {
        /// Descriptors that the process may have.
        limit: u64,
    },
    /// Memory that should be that of a ring is something else.
    #[error(
        "the shared memory is not that of a ring: expected it to begin with {expected:#018x}, got {got:#018x}; parent and worker are different versions of windrow, or the descriptor is another file's"
    )]
    NoRing {
        /// Begins the memory of every ring of this version.
        expected: u64,
        /// Begins this memory.
        got: u64,
    },
    /// A worker in another process expects columns elsewhere than the ring's owner.
    #[error(
        "the ring's slabs are laid out otherwise than this worker expects: expected fingerprint {expected:#018x}, got {got:#018x}; parent and worker are different programs or builds, or have different specs"
    )]
    OtherLayout {
        /// Fingerprint of the worker's layout.
        expected: u64,
        /// Fingerprint of the ring's layout.
        got: u64,
    },
    /// A worker in another process named a part that slabs do not have.
    #[error("part {part} does not exist: slabs have {parts} parts")]
    NoSuchPart {
        /// Index that was asked for.
        part: usize,
        /// Parts of a slab.
        parts: usize,
    },
    /// A worker in another process named a slab that the ring has not made.
    #[error("slab {slot} does not exist: the ring's memory ends before it")]
    NoSuchSlab {
        /// Index that was asked for.
        slot: usize,
    },
    /// A worker in another process named a part that it still has.
    #[error("part {part} of slab {slot} is still being written here; commit or drop it first")]
    StillLent {
        /// Index of the slab.
        slot: usize,
        /// Index of the part.
        part: usize,
    },
    /// The ring was stopped: nothing can be claimed or taken any more.
    #[error("the ring was stopped")]
    Stopped,
}

/// Two numbers to choose from, for a message: `"6 or 8"`, and one where both are the same.
#[must_use]
pub fn either<T: Display + PartialEq>(below: &T, above: &T) -> String {
    match below == above {
        true => below.to_string(),
        false => format!("{below} or {above}"),
    }
}
