//! Storages keep frames in rows.

use std::fmt::Debug;
use std::ops::Range;

use tensordict::{NestedKey, TensorDict};
use windrow_store::Store;

use crate::{Boundary, KeptRuns, ReplayError, RunKeys};

mod lazy;
mod list;
#[cfg(not(loom))]
mod memmap;
#[cfg(not(loom))]
mod run_file;
mod tensor;

pub use list::ListStorage;
#[cfg(not(loom))]
pub use memmap::LazyMemmapStorage;
pub use tensor::LazyTensorStorage;

/// Rows that keep one frame each.
///
/// A storage knows nothing of trajectories, order or priorities: the buffer decides which row a
/// frame goes to, and which rows are read. All methods may be called from any thread.
pub trait Storage: Send + Sync + Debug {
    /// Capacity in frames.
    fn capacity(&self) -> usize;

    /// Allocates memory for frames like these, if the storage has none yet or is empty; otherwise
    /// checks that they fit.
    ///
    /// `frames`: flat, `[n]`.
    ///
    /// # Errors
    /// [`ReplayError::Store`], naming the entry, when keys, dtypes or shapes differ from those of
    /// the first frames.
    fn prepare(&self, frames: &TensorDict) -> Result<(), ReplayError>;

    /// Writes frames `[n]` into the rows `first, first + 1, …`, where row 0 follows the last.
    ///
    /// All of them become readable at once. Waits for another writer, and for readers that began
    /// before; a thread must therefore drop its own reader before it writes. Prepares the storage
    /// when that has not happened yet.
    ///
    /// # Errors
    /// As [`prepare`](Storage::prepare), and [`ReplayError::Store`] when `first` is not a row or
    /// there are more frames than rows; nothing is written then.
    fn write(&self, first: usize, frames: &TensorDict) -> Result<(), ReplayError>;

    /// As [`write`](Storage::write), for frames that follow each other in a ring but at the
    /// boundaries in `runs`: a storage that outlives its process keeps these, so that no one has to
    /// read rows to find them. [`write`](Storage::write) itself leaves them alone.
    ///
    /// # Errors
    /// As [`write`](Storage::write).
    fn write_runs(
        &self,
        first: usize,
        frames: &TensorDict,
        runs: &RunMarks<'_>,
    ) -> Result<(), ReplayError> {
        let _ = runs;
        self.write(first, frames)
    }

    /// Replaces all runs that the storage keeps.
    ///
    /// # Errors
    /// [`ReplayError::Io`] when they cannot be written.
    fn keep_runs(&self, runs: &KeptRuns) -> Result<(), ReplayError> {
        let _ = runs;
        Ok(())
    }

    /// Registers a reader. The rows that are filled now stay as they are until it is dropped.
    fn read(&self) -> Box<dyn StorageRead + '_>;

    /// Drops all frames; the layout stays until other frames come. Waits as
    /// [`write`](Storage::write) does.
    fn clear(&self);

    /// Whether all frames have the keys, dtypes and shapes of the first.
    fn frames_are_alike(&self) -> bool {
        true
    }

    /// The rows found when the storage was opened, for the first who asks; `None` if it began
    /// empty.
    fn recovered(&self) -> Option<Recovered> {
        None
    }
}

/// A registered reader of a [`Storage`].
pub trait StorageRead {
    /// Copies rows into fresh memory, in the order given; rows may repeat. Result: `[rows.len()]`.
    ///
    /// # Errors
    /// [`ReplayError::Store`] when a row is not filled, or was being written when the reader was
    /// registered.
    fn gather(&self, rows: &[u32]) -> Result<TensorDict, ReplayError>;

    /// As [`gather`](StorageRead::gather), for these entries alone.
    ///
    /// # Errors
    /// The errors of [`gather`](StorageRead::gather), and an error that names a missing entry.
    fn gather_keys(&self, rows: &[u32], keys: &[NestedKey]) -> Result<TensorDict, ReplayError>;

    /// The rows that can be read, in order.
    fn filled(&self) -> Vec<Range<u32>>;
}

/// The capacity of a storage in memory or on disk that has `bytes` bytes for frames like `frames`,
/// which are flat. 0 when a single frame needs more.
///
/// ```
/// use tensordict::{DType, Tensor, TensorDict};
/// use windrow_replay::{LazyTensorStorage, Storage, frames_within};
///
/// let mut frames = TensorDict::new([1]);
/// frames.set("pixels", Tensor::zeros(DType::U8, [1, 84, 84, 4])?)?;
/// let storage = LazyTensorStorage::new(frames_within(1 << 30, &frames)?);
/// assert_eq!(storage.capacity(), 38_043);
/// # Ok::<(), windrow_replay::ReplayError>(())
/// ```
///
/// # Errors
/// [`ReplayError::Store`] when the frames are not flat.
pub fn frames_within(bytes: usize, frames: &TensorDict) -> Result<usize, ReplayError> {
    Ok(Store::rows_within(&Store::leaves(frames)?, bytes))
}

/// The contents of a storage when it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered {
    /// Rows that are whole, in order.
    pub rows: Vec<Range<u32>>,
    /// Row behind the last one written.
    pub cursor: usize,
    /// Rows written over the life of the storage.
    pub written: u64,
    /// The runs that these rows form, if they are known.
    pub runs: Option<KeptRuns>,
}

/// The runs of frames that are written together.
#[derive(Debug, Clone, Copy)]
pub struct RunMarks<'a> {
    /// The boundaries of these runs, in order. Without one in front of the first frame, that frame
    /// continues the run before it.
    pub boundaries: &'a [Boundary],
    /// As of [`RunKeys::fingerprint`].
    pub(crate) keys: u64,
}

impl<'a> RunMarks<'a> {
    /// The runs between `boundaries`, which are found by `keys`.
    #[must_use]
    pub fn new(boundaries: &'a [Boundary], keys: &RunKeys) -> Self {
        let keys = keys.fingerprint();
        Self { boundaries, keys }
    }
}
