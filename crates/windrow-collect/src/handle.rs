use std::sync::Arc;

use windrow_slab::Ring;

use crate::outlet::Outlet;

/// Stops a collector, or its present batch, from any thread.
#[derive(Debug, Clone)]
pub struct Handle {
    ring: Arc<Ring>,
    outlet: Option<Arc<Outlet>>,
}

impl Handle {
    pub(crate) fn new(ring: Arc<Ring>, outlet: Option<Arc<Outlet>>) -> Self {
        Self { ring, outlet }
    }

    /// Ends collection: whoever waits for a batch is told that the collector was shut down. One that writes to a replay buffer
    /// writes no more, also if it waits there.
    pub fn shutdown(&self) {
        self.ring.stop();
        if let Some(outlet) = &self.outlet {
            outlet.shut();
        }
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
