use std::sync::Arc;

use windrow_slab::{Lease, Ring, SlabError};

use crate::error::NextError;
use crate::shared::ThreadLink;
use crate::worker::Worker;

/// Workers that run when a batch is asked for, in the thread that asks.
#[derive(Debug)]
pub(crate) struct Inline {
    workers: Vec<Worker<ThreadLink>>,
    /// Whose turn it is.
    turn: usize,
}

impl Inline {
    pub(crate) fn new(workers: Vec<Worker<ThreadLink>>) -> Self {
        Self { workers, turn: 0 }
    }

    /// Lets one worker after the other fill a part until a slab is whole.
    pub(crate) fn next(&mut self, ring: &Arc<Ring>) -> Result<Lease, NextError> {
        ring.request()?;
        let (mut idle, mut publications) = (0, ring.publications());
        while idle < self.workers.len() {
            if let Some(lease) = ring.try_next() {
                return Ok(lease);
            }
            let worker = &mut self.workers[self.turn];
            match worker.link.try_claim()? {
                Some(assignment) => {
                    worker.fill(assignment).map_err(NextError::Interrupted)?;
                    idle = 0;
                }
                None => idle += 1,
            }
            if idle == self.workers.len() {
                // Nobody gets a part while weights are being replaced.
                let now = ring.publications();
                if std::mem::replace(&mut publications, now) != now {
                    idle = 0;
                }
            }
            self.turn = (self.turn + 1) % self.workers.len();
        }
        Ok(ring.try_next().ok_or(SlabError::Stopped)?)
    }

    pub(super) fn worker(&mut self, worker: usize) -> Option<&mut Worker<ThreadLink>> {
        self.workers.get_mut(worker)
    }

    /// Drops the workers, in the thread that asks.
    pub(crate) fn end(&mut self) {
        for worker in self.workers.drain(..) {
            worker.contained(drop);
        }
    }
}
