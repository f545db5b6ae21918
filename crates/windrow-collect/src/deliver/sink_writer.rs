//! Where a collector writes, and as which writer.

use std::sync::PoisonError;

use tensordict::TensorDict;
use windrow_slab::{Sink, SinkError, WriterId};

use crate::CollectError;
use crate::sync::{Mutex, MutexGuard};

/// A sink, to which the collector is attached while it collects for it.
#[derive(Debug)]
pub(crate) struct Outlet {
    sink: Box<dyn Sink>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    writer: Option<WriterId>,
    /// As which writer the collector was first attached, since it numbers its trajectories as it does.
    first: Option<WriterId>,
    /// Shut for good: nobody attaches any more.
    shut: bool,
}

/// Attached until this is dropped.
#[derive(Debug)]
pub(crate) struct Attached<'a>(&'a Outlet);

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        self.0.detach(None);
    }
}

impl Outlet {
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
    /// [`CollectError::ShutDown`] after [`shut`](Self::shut), also when the sink was waiting; [`CollectError::Sink`] when
    /// the sink did not take the batch.
    pub(crate) fn extend(&self, batch: &TensorDict) -> Result<(), CollectError> {
        // Not locked meanwhile: the sink may wait until it is detached from.
        let writer = self.lock().writer;
        let written = match writer {
            Some(writer) => self.sink.extend(writer, batch),
            None => Err(SinkError::Detached),
        };
        written.map_err(|error| match error {
            SinkError::Detached if self.lock().shut => CollectError::ShutDown,
            error => CollectError::Sink(error),
        })
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
