//! Where a collector writes, and as which writer.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tensordict::TensorDict;
use windrow_slab::{Sink, SinkError, WriterId};

use crate::CollectError;
use crate::sync::{Mutex, MutexGuard};

/// A sink, to which the collector is attached while it collects for it.
#[derive(Debug)]
pub struct SinkWriter {
    sink: Box<dyn Sink>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    writer: Option<WriterId>,
    /// As which writer the collector was first attached, since it numbers its trajectories as it does.
    first: Option<WriterId>,
    /// When the write that is under way began.
    began: Option<Instant>,
    /// Whether writes are to wait for nothing any more.
    hurried: bool,
    /// Shut for good: attaching again is refused.
    shut: bool,
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
    pub(crate) fn new(sink: Box<dyn Sink>) -> Self {
        Self {
            sink,
            state: Mutex::default(),
        }
    }

    /// Begins to write.
    ///
    /// # Errors
    /// [`CollectError::ShutDown`] after [`shut`](Self::shut).
    pub(crate) fn attach(&self) -> Result<(), CollectError> {
        let first = {
            let state = self.lock();
            if state.shut {
                return Err(CollectError::ShutDown);
            }
            state.first
        };
        let writer = match first {
            Some(first) => self.sink.attach_again(first),
            None => self.sink.attach(),
        };
        let mut state = self.lock();
        if state.shut {
            drop(state);
            self.sink.detach(writer, None);
            return Err(CollectError::ShutDown);
        }
        state.writer = Some(writer);
        state.first.get_or_insert(writer);
        Ok(())
    }

    /// From the next attachment on, ids of trajectories stand for others than before.
    pub(crate) fn renumber(&self) {
        self.lock().first = None;
    }

    /// As [`attach`](Self::attach), for as long as what is returned is held.
    pub(crate) fn attached(&self) -> Result<Attached<'_>, CollectError> {
        self.attach()?;
        Ok(Attached(self))
    }

    /// Writes one batch.
    ///
    /// # Errors
    /// [`CollectError::ShutDown`] after a shutdown, also when the sink was waiting; [`CollectError::Sink`] when the sink did
    /// not take the batch.
    pub fn extend(&self, batch: &TensorDict) -> Result<(), CollectError> {
        // Not locked meanwhile: the sink may wait until it is detached from.
        let written = match self.id() {
            Some(writer) => self.sink.extend(writer, batch),
            None => Err(SinkError::Detached),
        };
        written.map_err(|error| match error {
            SinkError::Detached if self.is_shut() => CollectError::ShutDown,
            error => CollectError::Sink(error),
        })
    }

    /// As which writer the collector is attached.
    #[must_use]
    pub fn id(&self) -> Option<WriterId> {
        self.lock().writer
    }

    /// As which writer the collector was attached first: its trajectories go on in what this one has written.
    #[must_use]
    pub fn first(&self) -> Option<WriterId> {
        self.lock().first
    }

    /// Whether the collector ends: a write that would have to wait is to be given up.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        let state = self.lock();
        state.hurried || state.shut
    }

    /// Whether the collector was shut down: nothing is to be written any more.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.lock().shut
    }

    /// What `write` returns, a write from its beginning to its end.
    pub(crate) fn timed<R>(&self, write: impl FnOnce() -> R) -> R {
        self.lock().began = Some(Instant::now());
        let written = write();
        self.lock().began = None;
        written
    }

    /// How long the write that is under way has taken so far.
    pub(crate) fn waited(&self) -> Option<Duration> {
        self.lock().began.map(|began| began.elapsed())
    }

    /// Lets writes wait for nothing any more.
    pub(crate) fn hurry(&self) {
        self.lock().hurried = true;
    }

    /// Writes no more; `error`: because the collector failed.
    pub(crate) fn detach(&self, error: Option<String>) {
        let writer = self.lock().writer.take();
        if let Some(writer) = writer {
            let told =
                error.map(|error| SinkError::failed(format!("the collector failed: {error}")));
            self.sink.detach(writer, told);
        }
    }

    /// Writes no more, ever.
    pub(crate) fn shut(&self) {
        self.lock().shut = true;
        self.detach(None);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code of the sink's runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
