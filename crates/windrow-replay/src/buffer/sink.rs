//! Collectors write to the buffer.

use tensordict::TensorDict;
use windrow_slab::{Sink, SinkError, WriterId};

use super::ReplayBuffer;
use crate::ReplayError;

impl ReplayBuffer {
    /// Returns the failure of a collector that wrote to the buffer, once: to one call of this,
    /// `sample` or `extend`. Waits for nothing, so that a loop which only looks at
    /// [`len`](Self::len) can call it too.
    ///
    /// # Errors
    /// [`ReplayError::Writer`] when a collector has failed and its failure was not reported yet.
    pub fn check_writers(&self) -> Result<(), ReplayError> {
        self.shared.lock().writers.news().map_or(Ok(()), Err)
    }
}

impl Sink for ReplayBuffer {
    fn attach(&self) -> WriterId {
        WriterId(self.shared.lock().writers.attach(None))
    }

    fn attach_again(&self, first: WriterId) -> WriterId {
        WriterId(self.shared.lock().writers.attach(Some(first.0)))
    }

    /// As [`ReplayBuffer::extend`], but a limiter is waited for until the writer is detached.
    fn extend(&self, writer: WriterId, batch: &TensorDict) -> Result<(), SinkError> {
        self.put_for_writer(batch, writer, None)
    }

    fn detach(&self, writer: WriterId, error: Option<SinkError>) {
        let failure = match error {
            Some(SinkError::Failed(failure)) => Some(failure),
            _ => None,
        };
        self.shared.lock().writers.detach(writer.0, failure);
        self.shared.readable.notify_all();
        self.shared.writable.notify_all();
    }
}
