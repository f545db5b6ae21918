//! Writers decide which rows frames are written to.

use std::collections::BTreeMap;
use std::fmt::Debug;

use tensordict::{NestedKey, TensorDict};

use crate::{ReplayError, RowOrder, RowSet};

mod max_reward;
mod reuse;

pub use max_reward::MaxRewardWriter;
pub use reuse::ReuseWriter;

/// Decides which rows frames are written to. Its methods are never called concurrently: the buffer
/// holds its lock.
///
/// A writer of [`RowOrder::Ring`] leaves the choice of rows to the buffer, as [`RoundRobinWriter`]
/// does. A writer of [`RowOrder::Any`] implements [`place`](Self::place); the methods after it
/// matter only to writers that store something for each row.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use tensordict::{Tensor, TensorDict};
/// use windrow_replay::{ListStorage, ReplayBuffer, ReplayError, RowOrder, RowSet, Writer};
///
/// /// Keeps the first frames and drops all that come when the buffer is full.
/// #[derive(Debug, Clone)]
/// struct FirstComeWriter;
///
/// impl Writer for FirstComeWriter {
///     fn order(&self) -> RowOrder {
///         RowOrder::Any
///     }
///
///     fn place(
///         &mut self,
///         frames: &TensorDict,
///         rows: &RowSet,
///     ) -> Result<BTreeMap<u32, usize>, ReplayError> {
///         let free = (0..rows.capacity()).filter(|&row| !rows.contains(row));
///         Ok(free.map(|row| row as u32).zip(0..frames.numel()).collect())
///     }
/// }
///
/// let buffer = ReplayBuffer::builder()
///     .storage(ListStorage::new(3))
///     .writer(FirstComeWriter)
///     .build()?;
/// let mut frames = TensorDict::new([5]);
/// frames.set("t", Tensor::arange(0..5)?)?;
/// assert_eq!(buffer.extend(&frames)?, [0, 1, 2]);
/// assert_eq!(buffer.all()?.as_slice::<i64>("t")?, [0, 1, 2]);
/// # Ok::<(), ReplayError>(())
/// ```
pub trait Writer: CloneWriter + Debug + Send {
    /// Its name in error messages; by default its type.
    fn name(&self) -> &'static str {
        let path = std::any::type_name::<Self>();
        path.rsplit("::").next().unwrap_or(path)
    }

    /// The order in which it fills rows; always the same.
    fn order(&self) -> RowOrder;

    /// Called once, before anything else.
    ///
    /// # Errors
    /// [`ReplayError::Argument`] when an argument of the writer is invalid,
    /// [`ReplayError::NoMemory`] from [`check_room`](crate::check_room).
    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        let _ = capacity;
        Ok(())
    }

    /// Chooses a row for each of `frames` that is to be kept: rows, each with the place of its
    /// frame in `frames`. `rows` are those that hold frames already; a chosen one among them loses
    /// its frame. Not called in a ring.
    ///
    /// # Errors
    /// When an entry that the writer reads is missing. The writer must then be as it was before.
    fn place(
        &mut self,
        frames: &TensorDict,
        rows: &RowSet,
    ) -> Result<BTreeMap<u32, usize>, ReplayError> {
        let _ = (frames, rows);
        Ok(BTreeMap::new())
    }

    /// These rows, chosen last, could not be written and hold no frame now.
    fn lost(&mut self, rows: &[u32]) {
        let _ = rows;
    }

    /// All rows were dropped.
    fn cleared(&mut self) {}

    /// The entries of frames that [`found`](Self::found) reads.
    fn keys(&self) -> Vec<NestedKey> {
        Vec::new()
    }

    /// A storage on disk held `rows` already when it was opened; `frames` has their entries of
    /// [`keys`](Self::keys).
    ///
    /// # Errors
    /// When these entries are not of the right kind.
    fn found(&mut self, rows: &[u32], frames: &TensorDict) -> Result<(), ReplayError> {
        let _ = (rows, frames);
        Ok(())
    }

    /// The state from which another writer continues, when `rows` hold frames.
    ///
    /// # Errors
    /// When tensors cannot be made.
    fn state_dict(&self, rows: &[u32]) -> Result<TensorDict, ReplayError> {
        let _ = rows;
        Ok(TensorDict::new([]))
    }

    /// Continues from a state that was saved when `rows` held frames.
    ///
    /// # Errors
    /// When it is the state of another writer. The buffer then drops this writer, which is a copy.
    fn load_state_dict(&mut self, state: &TensorDict, rows: &[u32]) -> Result<(), ReplayError> {
        let _ = (state, rows);
        Ok(())
    }
}

impl<W: Writer + 'static> From<W> for Box<dyn Writer> {
    fn from(writer: W) -> Self {
        Box::new(writer)
    }
}

/// Copies a writer behind a `Box`. Every writer that is `Clone` has it.
pub trait CloneWriter {
    /// A copy.
    fn clone_box(&self) -> Box<dyn Writer>;
}

impl<W: Writer + Clone + 'static> CloneWriter for W {
    fn clone_box(&self) -> Box<dyn Writer> {
        Box::new(self.clone())
    }
}

/// Writes one row after another; the oldest frames are overwritten when all rows are full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundRobinWriter;

impl RoundRobinWriter {
    /// The writer, which has no arguments.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl Writer for RoundRobinWriter {
    fn order(&self) -> RowOrder {
        RowOrder::Ring
    }
}
