use std::io;
use std::path::PathBuf;

use tensordict::{DType, NestedKey, TensorError};

/// Errors of a [`Store`](crate::Store): its size, the frames given to it, and its file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A store needs at least one row, and row numbers have 32 bits.
    #[error("a store needs between 1 and {} rows, got {capacity}", u32::MAX)]
    Capacity {
        /// Rows that were asked for.
        capacity: usize,
    },
    /// The frames have no entry.
    #[error("a store needs frames with at least one entry, got none")]
    NoEntries,
    /// The store does not fit into the address space.
    #[error("a store of {capacity} rows like these is too large: its size in bytes overflows")]
    TooLarge {
        /// Rows that were asked for.
        capacity: usize,
    },
    /// The system does not give the memory for the store.
    #[error(
        "no memory for a store of {capacity} rows of {} bytes each: the system does not give {bytes} bytes",
        bytes / capacity
    )]
    NoMemory {
        /// Rows that were asked for.
        capacity: usize,
        /// Size of the store.
        bytes: usize,
    },
    /// An entry that the store keeps is missing.
    #[error("frames lack entry {key:?}, which the first frames had")]
    Missing {
        /// Name of the entry.
        key: NestedKey,
    },
    /// An entry that the store has no room for.
    #[error("frames have entry {key:?}, which the first frames did not have")]
    Extra {
        /// Name of the entry.
        key: NestedKey,
    },
    /// An entry of another type or shape than the store keeps.
    #[error(
        "entry {key:?}: expected {expected_dtype} {expected:?} a frame, got {got_dtype} {got:?}"
    )]
    Entry {
        /// Name of the entry.
        key: NestedKey,
        /// Element type that the store keeps.
        expected_dtype: DType,
        /// Shape of one frame that the store keeps.
        expected: Box<[usize]>,
        /// Element type that came.
        got_dtype: DType,
        /// Shape of one frame that came.
        got: Box<[usize]>,
    },
    /// Frames with another number of batch dimensions than one.
    #[error("expected frames of batch size [n], got {batch_size:?}")]
    NotFlat {
        /// Batch size that came.
        batch_size: Vec<usize>,
    },
    /// More frames than rows.
    #[error("{frames} frames do not fit into {capacity} rows")]
    TooMany {
        /// Frames that came.
        frames: usize,
        /// Rows of the store.
        capacity: usize,
    },
    /// No such row.
    #[error("row {row} does not exist: there are {capacity} rows")]
    NoSuchRow {
        /// Row that was asked for.
        row: usize,
        /// Rows of the store.
        capacity: usize,
    },
    /// The row holds no frame, or was being written when the reader was registered.
    #[error("row {row} holds no frame")]
    NotFilled {
        /// Row that was asked for.
        row: u32,
    },
    /// A row names bytes that are no value: another program has changed the file.
    #[error(
        "row {row}, entry {key:?}: a value lies outside of the store; another program has changed its file"
    )]
    Stray {
        /// The row.
        row: u32,
        /// Name of the entry.
        key: NestedKey,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The file is not one of a store like this.
    #[error("{}: expected {expected}, got {got}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The value in a file of this store.
        expected: String,
        /// The value that was found.
        got: String,
    },
    /// Another process, or another store, has the file open.
    #[error("{} is in use by another storage", .path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("failed to {op} {}: {error}", .path.display())]
    Io {
        /// The operation.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
}
