use std::sync::Arc;

use windrow_slab::Ring;

/// Stops a collector, or its present batch, from any thread.
#[derive(Debug, Clone)]
pub struct Handle {
    ring: Arc<Ring>,
}

impl Handle {
    pub(crate) fn new(ring: Arc<Ring>) -> Self {
        Self { ring }
    }

    /// Ends collection: whoever waits for a batch is told that the collector was shut down.
    pub fn shutdown(&self) {
        self.ring.stop();
    }

    /// Cuts every part short at its next step, until [`start_collection`](Self::start_collection): batches come early, with
    /// what there is.
    pub fn stop_collection(&self) {
        self.ring.cut_all(true);
    }

    /// Parts are filled whole again.
    pub fn start_collection(&self) {
        self.ring.cut_all(false);
    }
}
