//! Where a collector puts what it collects, if the consumer does not take it.

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;

use tensordict::TensorDict;

/// Takes in what collectors collect, such as a replay buffer. Several writers may be attached at a time, each from a
/// thread of its own.
///
/// A collector attaches when it begins, writes batch after batch, and detaches once, at its end; it may attach again. Ids of
/// trajectories are unique to one collector: two of them use the same ids for other trajectories. A sink that counts what it
/// has taken in:
///
/// ```
/// use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
///
/// use tensordict::{DType, Tensor, TensorDict};
/// use windrow_slab::{Sink, SinkError, WriterId};
///
/// #[derive(Debug, Default)]
/// struct Counter {
///     writers: AtomicU64,
///     frames: AtomicUsize,
/// }
///
/// impl Sink for Counter {
///     fn attach(&self) -> WriterId {
///         WriterId(self.writers.fetch_add(1, Ordering::Relaxed))
///     }
///
///     fn extend(&self, _: WriterId, batch: &TensorDict) -> Result<(), SinkError> {
///         self.frames.fetch_add(batch.numel(), Ordering::Relaxed);
///         Ok(())
///     }
///
///     fn detach(&self, _: WriterId, _: Option<SinkError>) {}
/// }
///
/// let sink = Counter::default();
/// let writer = sink.attach();
/// let mut batch = TensorDict::new([2, 3]);
/// batch.set("reward", Tensor::zeros(DType::F32, [2, 3])?)?;
/// sink.extend(writer, &batch)?;
/// sink.detach(writer, None);
/// assert_eq!(sink.frames.into_inner(), 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Sink: Send + Sync + Debug {
    /// A collector begins to write: readers may wait for its frames. The id is this writer's alone.
    fn attach(&self) -> WriterId;

    /// As [`attach`](Self::attach), by a collector that goes on with trajectories that it wrote before: `first` is what it was
    /// given when it attached for the first time.
    fn attach_again(&self, first: WriterId) -> WriterId {
        let _ = first;
        self.attach()
    }

    /// Takes a copy of `batch` in, `[time]` or `[…, time]`: all of it becomes visible, or none. May wait until there is
    /// room.
    ///
    /// # Errors
    /// [`SinkError::Detached`] when the writer was detached, also while it waited; [`SinkError::Failed`] when the sink cannot
    /// take the batch.
    fn extend(&self, writer: WriterId, batch: &TensorDict) -> Result<(), SinkError>;

    /// The collector writes no more, and if it failed, `error` says why: readers that wait for frames are told so. Wakes
    /// a call of [`extend`](Self::extend) by the same writer in another thread. Detaching again does nothing.
    fn detach(&self, writer: WriterId, error: Option<SinkError>);
}

impl<S: Sink + ?Sized> Sink for Arc<S> {
    fn attach(&self) -> WriterId {
        (**self).attach()
    }

    fn attach_again(&self, first: WriterId) -> WriterId {
        (**self).attach_again(first)
    }

    fn extend(&self, writer: WriterId, batch: &TensorDict) -> Result<(), SinkError> {
        (**self).extend(writer, batch)
    }

    fn detach(&self, writer: WriterId, error: Option<SinkError>) {
        (**self).detach(writer, error);
    }
}

/// One writer of a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriterId(pub u64);

/// Why a sink took nothing in, or why its writer ended. Cheap to clone, since each reader that waits is told.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The writer was detached.
    #[error("the writer was detached: it writes no more")]
    Detached,
    /// Something failed.
    #[error(transparent)]
    Failed(Arc<dyn Error + Send + Sync>),
}

impl SinkError {
    /// Wraps what failed.
    pub fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(Arc::from(error.into()))
    }
}
