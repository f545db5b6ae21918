//! The sink that a collector writes to, and the writer that it is there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensordict::TensorDict;
use tracing::warn;
use windrow_slab::{Sink, SinkError, WriterId};
use windrow_sync::{Mutex, MutexGuard, lock};

use crate::shared::lifecycle::Lifecycle;
use crate::{NextError, TARGET};

/// Seconds from which on a write is reported as slow.
const SLOW: f64 = 1.0;

/// Writes a collector's batches to its sink, to which the collector is attached while it collects.
#[derive(Debug)]
pub struct SinkWriter {
    sink: Box<dyn Sink>,
    state: Mutex<WriterState>,
    lifecycle: Arc<Lifecycle>,
}

#[derive(Debug, Default)]
struct WriterState {
    writer: Option<WriterId>,
    /// The writer that the collector was at first: the sink tells its trajectories from those of
    /// others by it.
    first: Option<WriterId>,
    /// When the present write began.
    began: Option<Instant>,
}

/// Attached until this is dropped.
#[derive(Debug)]
pub(crate) struct Attached<'a>(&'a SinkWriter);

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        self.0.detach(None);
    }
}

impl SinkWriter {
    pub(crate) fn new(sink: Box<dyn Sink>, lifecycle: Arc<Lifecycle>) -> Self {
        Self {
            sink,
            state: Mutex::default(),
            lifecycle,
        }
    }

    /// Begins to write.
    ///
    /// # Errors
    /// [`NextError::ShutDown`] where the collector is over.
    pub(crate) fn attach(&self) -> Result<(), NextError> {
        if self.is_shut() {
            return Err(NextError::ShutDown);
        }
        let writer = match self.first() {
            Some(first) => self.sink.attach_again(first),
            None => self.sink.attach(),
        };
        // A shutdown that comes later detaches it.
        let mut state = self.lock();
        if self.is_shut() {
            drop(state);
            self.sink.detach(writer, None);
            return Err(NextError::ShutDown);
        }
        state.writer = Some(writer);
        state.first.get_or_insert(writer);
        Ok(())
    }

    /// Numbers trajectories anew from the next attachment on: their ids stand for others than
    /// before.
    pub(crate) fn renumber(&self) {
        self.lock().first = None;
    }

    /// As [`attach`](Self::attach), until the returned value is dropped.
    pub(crate) fn attached(&self) -> Result<Attached<'_>, NextError> {
        self.attach()?;
        Ok(Attached(self))
    }

    /// Writes one batch.
    ///
    /// # Errors
    /// [`NextError::ShutDown`] after a shutdown, also where the write was waiting;
    /// [`NextError::Sink`] when the sink refused the batch.
    pub fn extend(&self, batch: &TensorDict) -> Result<(), NextError> {
        // Not locked meanwhile: the write may wait until the collector is detached.
        let written = match self.id() {
            Some(writer) => self.sink.extend(writer, batch),
            None => Err(SinkError::Detached),
        };
        written.map_err(|error| match error {
            SinkError::Detached if self.is_shut() => NextError::ShutDown,
            error => NextError::Sink(error),
        })
    }

    /// The writer that the collector is now, while it is attached.
    #[must_use]
    pub fn id(&self) -> Option<WriterId> {
        self.lock().writer
    }

    /// The writer that the collector was at first: its trajectories go on in the frames of that
    /// writer.
    #[must_use]
    pub fn first(&self) -> Option<WriterId> {
        self.lock().first
    }

    /// Whether the collector is ending: a write must not wait any more.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.lifecycle.is_ending()
    }

    /// Whether the collector is over: it writes no more.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.lifecycle.is_over()
    }

    /// Runs `write`, and measures how long it takes.
    pub(crate) fn timed<R>(&self, write: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        self.lock().began = Some(began);
        let written = write();
        self.lock().began = None;
        let seconds = began.elapsed().as_secs_f64();
        if seconds >= SLOW {
            warn!(target: TARGET, seconds, "a write to the replay buffer was slow");
        }
        written
    }

    /// How long the present write has taken so far.
    pub(crate) fn waited(&self) -> Option<Duration> {
        self.lock().began.map(|began| began.elapsed())
    }

    /// Stops writing; `error` is the failure of the collector, if there was one.
    pub(crate) fn detach(&self, error: Option<String>) {
        let writer = self.lock().writer.take();
        if let Some(writer) = writer {
            let told =
                error.map(|error| SinkError::failed(format!("the collector failed: {error}")));
            self.sink.detach(writer, told);
        }
    }

    fn lock(&self) -> MutexGuard<'_, WriterState> {
        // The sink's code never runs under the lock.
        lock(&self.state)
    }
}
