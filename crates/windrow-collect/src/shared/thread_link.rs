//! The link of workers in the collector's own process.

use std::sync::Arc;
use std::time::Instant;

use windrow_policy::Published;
use windrow_slab::{Part, SlabError};

use super::Shared;
use super::calls::Request;
use super::heartbeat::PulseProbe;
use super::link::{Assignment, OnFault, Order, Progress, WorkerLink};
use super::reentrancy::CollectorId;
use crate::error::WorkerError;
use crate::probe::Recorder;

/// Reaches what is shared directly.
#[derive(Debug, Clone)]
pub(crate) struct ThreadLink {
    worker: usize,
    shared: Arc<Shared>,
    /// How often environments and policy were made anew.
    restarts: usize,
}

impl ThreadLink {
    pub(crate) fn new(worker: usize, shared: Arc<Shared>) -> Self {
        Self {
            worker,
            shared,
            restarts: 0,
        }
    }

    /// As [`claim`](WorkerLink::claim) without waiting: `None` when nothing may be filled now.
    ///
    /// # Errors
    /// As [`Ring::try_claim`](windrow_slab::Ring::try_claim).
    pub(crate) fn try_claim(&mut self) -> Result<Option<Assignment>, SlabError> {
        let part = self.shared.ring.try_claim(self.worker)?;
        Ok(part.map(|part| self.shared.assignment(self.worker, part)))
    }
}

impl WorkerLink for ThreadLink {
    type ProgressProbe = PulseProbe;

    fn worker(&self) -> usize {
        self.worker
    }

    fn collector(&self) -> CollectorId {
        self.shared.collector
    }

    fn claim(&mut self) -> Option<Order> {
        let asked = Instant::now();
        let (calls, worker) = (&self.shared.calls, self.worker);
        let claimed = self.shared.ring.claim_unless(worker, || calls.next(worker));
        match claimed {
            Ok(Some(part)) => {
                self.shared.reports.waited(worker, asked.elapsed());
                Some(Order::Fill(self.shared.assignment(worker, part)))
            }
            Ok(None) => {
                calls.end(worker);
                self.shared.profile.end_with_thread(worker);
                None
            }
            Err(Request::Save { pickle }) => Some(Order::Save { pickle }),
            Err(Request::Load(state)) => Some(Order::Load(state)),
            Err(Request::Program(_)) => {
                unreachable!("Only workers in processes get calls of the program's own.")
            }
        }
    }

    fn answer(&mut self, answer: Vec<u8>) {
        self.shared.calls.answer(self.worker, answer);
        // Whoever has asked waits for the ring.
        self.shared.ring.notify();
    }

    fn newer_weights(&self, held: Option<i64>) -> Option<Published> {
        let weights = &self.shared.weights;
        match held {
            Some(version) => weights.other_than(version, self.worker),
            None => weights.newest(self.worker),
        }
    }

    fn progress_probe(&self) -> PulseProbe {
        self.shared.reports.pulse(self.worker).begin()
    }

    fn recorder(&mut self) -> Option<Box<Recorder>> {
        self.shared.profile.lend(self.worker)
    }

    fn take_recorder(&mut self, recorder: Box<Recorder>, filled: bool) {
        self.shared.profile.give_back(recorder, filled);
    }

    fn deliver(&mut self, part: Part, progress: Progress) {
        self.shared.reports.pulse(self.worker).end();
        self.shared.deliver(self.worker, part, progress);
    }

    fn give_back(&mut self, part: Part, progress: Progress) {
        self.shared.reports.pulse(self.worker).end();
        // Before others learn that the part is not being written any more.
        self.shared.reports.advance(progress);
        drop(part);
    }

    fn lose(&mut self, error: WorkerError) -> OnFault {
        self.shared.lose(self.worker, &mut self.restarts, error)
    }

    fn fail(&mut self, error: WorkerError) {
        self.shared.fail(error);
    }
}
