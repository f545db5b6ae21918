//! Where workers run.

mod inline;
mod threads;

use std::sync::Arc;
use std::time::Duration;

use windrow_slab::{Lease, Ring};

use crate::CollectError;
use crate::config::plan::Placement;
use crate::shared::LocalDesk;
use crate::sync::GivenUp;
use crate::worker::Worker;

use inline::Inline;
use threads::Threads;

/// The workers of a collector, where they run.
#[derive(Debug)]
pub(crate) enum Workers {
    Inline(Inline),
    Threads(Threads),
}

impl Workers {
    pub(crate) fn new(placement: Placement, workers: Vec<Worker<LocalDesk>>) -> Self {
        match placement {
            Placement::Inline => Self::Inline(Inline::new(workers)),
            Placement::Threads => Self::Threads(Threads::new(workers)),
        }
    }

    /// The next whole slab.
    ///
    /// # Errors
    /// [`CollectError::Slab`] as [`Ring::next`]; [`CollectError::Interrupted`] where workers run in this thread, and
    /// [`CollectError::BatchGivenUp`] where they do not and `given_up`, which is called from time to time, returns true.
    pub(crate) fn next(
        &mut self,
        ring: &Arc<Ring>,
        given_up: &mut GivenUp<'_>,
    ) -> Result<Lease, CollectError> {
        match self {
            Self::Inline(inline) => inline.next(ring),
            Self::Threads(threads) => threads.next(ring, given_up),
        }
    }

    /// Waits at most `timeout` until all workers have ended, and drops them; returns how many still run. Stop the ring before.
    pub(crate) fn join(&mut self, timeout: Duration) -> usize {
        match self {
            Self::Inline(inline) => {
                inline.end();
                0
            }
            Self::Threads(threads) => threads.join(timeout),
        }
    }
}
