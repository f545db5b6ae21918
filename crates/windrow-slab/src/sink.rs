//! The interface between collectors and replay buffers (ADR 0011).

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;

use tensordict::TensorDict;

/// A destination of batches, such as a replay buffer. Several writers may be attached at a time,
/// each in a thread of its own.
///
/// A collector attaches when it begins, writes batch after batch, and detaches once, at its end; it
/// may attach again. Ids of trajectories are unique to one collector: two collectors use the same
/// ids for different trajectories. A sink that counts its frames:
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
    /// A collector begins to write: readers may wait for its frames. No other writer has the same
    /// id.
    fn attach(&self) -> WriterId;

    /// As [`attach`](Self::attach), by a collector that continues its earlier trajectories. `first`
    /// is its id from its first call of `attach`.
    fn attach_again(&self, first: WriterId) -> WriterId {
        let _ = first;
        self.attach()
    }

    /// Copies `batch`, `[time]` or `[…, time]`: all of it becomes visible, or none. May wait for
    /// room.
    ///
    /// # Errors
    /// [`SinkError::Detached`] when the writer was detached, also while it waited;
    /// [`SinkError::Failed`] when the sink cannot take the batch.
    fn extend(&self, writer: WriterId, batch: &TensorDict) -> Result<(), SinkError>;

    /// The collector writes no more; if it failed, readers that wait for its frames get `error`.
    /// Wakes a call of [`extend`](Self::extend) by the same writer in another thread. Detaching
    /// again does nothing.
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

/// The reason why a sink refused a batch, or why its writer ended. Cheap to clone, since each
/// waiting reader gets one.
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
