//! Slabs that workers have filled, one after the other and counted, up to a short last one.

use std::collections::VecDeque;
use std::sync::Arc;

use windrow_slab::SlabError;
use windrow_sync::Interrupt;
use windrow_sync::atomic::Ordering;

use crate::deliver::assemble::Filled;
use crate::deliver::core::Core;
use crate::error::NextError;
use crate::placement::Workers;

/// Asks the workers for slabs.
pub(crate) struct Slabs {
    pub(crate) workers: Workers,
    core: Arc<Core>,
    /// The slab that was started last, where it was ready before others. Not counted.
    pub(crate) last: Option<Filled>,
    /// Slabs that are taken, and not counted, before any other: workers had to complete them, or a
    /// saved state had them.
    pub(crate) waiting: VecDeque<Filled>,
    /// A slab was asked for, and the wait for it interrupted: workers have begun it.
    pub(crate) asked: bool,
}

impl Slabs {
    pub(crate) fn new(workers: Workers, core: Arc<Core>) -> Self {
        Self {
            workers,
            core,
            last: None,
            waiting: VecDeque::new(),
            asked: false,
        }
    }

    /// Whether no frames are left.
    pub(crate) fn are_over(&self) -> bool {
        self.core.frames_left() == 0
    }

    /// The next slab with frames, counted, of `wanted` for one batch; `None` when no frames are
    /// left. `interrupt` ends waits for workers.
    ///
    /// # Errors
    /// As [`take`](Self::take), and that of the interrupt.
    pub(crate) fn next(
        &mut self,
        wanted: usize,
        interrupt: &Interrupt,
    ) -> Result<Option<Filled>, NextError> {
        let core = Arc::clone(&self.core);
        let wanted = wanted.saturating_sub(self.waiting.len());
        if core.ages_are_bounded && wanted > 0 {
            // Workers may begin all of them, though they may not run ahead.
            core.ring.request_many(wanted)?;
        }
        let kept = |last: &Option<Filled>| last.as_ref().map_or(0, Filled::frames);
        while core.frames_left() > kept(&self.last) {
            if core.ring.is_at_end() && self.waiting.is_empty() {
                if self.last.is_some() {
                    break;
                }
                // Parts that were cut short have left frames over.
                core.count_on(core.ring.begun());
            }
            let slab = self.take(interrupt)?;
            if self.comes_before_others(&slab) {
                self.last = Some(slab);
                self.count_undelivered();
            } else if self.count(&slab) > 0 {
                return Ok(Some(slab));
            }
            // Slabs without frames may follow each other for ever.
            interrupt.check()?;
        }
        let last = self.last.take();
        self.count_undelivered();
        Ok(last.inspect(|slab| {
            self.count(slab);
        }))
    }

    /// Whether `slab` was started last, and is ready before a slower worker's that was started
    /// earlier. It may be short.
    fn comes_before_others(&self, slab: &Filled) -> bool {
        let (core, frames) = (&self.core, slab.frames());
        core.plan.ahead(core.workers()) > 0
            && frames > 0
            && core.frames_left() > frames
            && slab.lease.seq() + 1 == core.shared.schedule().end()
    }

    /// Counts the frames of `slab`: how many there are. A worker that is gone may have left a part
    /// without any.
    fn count(&self, slab: &Filled) -> u64 {
        let (core, lease, frames) = (&self.core, &slab.lease, slab.frames());
        core.counters().frames += frames;
        if core.plan.ahead(core.workers()) == 0 {
            // Frames that were not collected, since a part was cut short or a worker is gone, are
            // left to be.
            core.count_on(match self.waiting.is_empty() {
                true => lease.seq() + 1,
                false => core.ring.begun(),
            });
        }
        if frames > 0 {
            let newest = core.shared.weights.version();
            core.counters().collected(frames, newest, lease);
        }
        frames
    }

    /// The next whole slab, not counted.
    ///
    /// # Errors
    /// [`NextError::WaitInterrupted`]: the next call waits for the same slab. Otherwise the failure of a worker, or
    /// [`NextError::ShutDown`].
    pub(crate) fn take(&mut self, interrupt: &Interrupt) -> Result<Filled, NextError> {
        let filled = match self.waiting.pop_front() {
            Some(filled) => {
                self.asked = false;
                self.count_undelivered();
                filled
            }
            None => self.fill(interrupt)?,
        };
        self.core.shared.statistics.take(&filled.lease);
        Ok(filled)
    }

    fn count_undelivered(&self) {
        let slabs = self.waiting.iter().chain(&self.last);
        let frames = slabs.map(Filled::frames).sum();
        self.core.undelivered.store(frames, Ordering::Relaxed);
        self.core.ring.keep(self.waiting.len());
    }

    /// Sets the slabs that are taken first.
    pub(crate) fn begin_with(&mut self, waiting: VecDeque<Filled>) {
        self.waiting = waiting;
        self.count_undelivered();
    }

    /// Has workers of a ring that is held complete the slabs that they have begun, and keeps these
    /// to be taken first. Then no frame that was collected lies in a slab that is not whole. The
    /// ring is held again.
    ///
    /// # Errors
    /// Those of [`take`](Self::take).
    pub(crate) fn complete_begun(&mut self, interrupt: &Interrupt) -> Result<(), NextError> {
        let ring = Arc::clone(&self.core.ring);
        ring.end_at(ring.begun());
        if ring.is_at_end() {
            self.end_as_scheduled();
            return Ok(());
        }
        let asked = self.asked;
        ring.resume();
        let mut completed = Ok(());
        while completed.is_ok() && !ring.is_at_end() {
            completed = self
                .fill(interrupt)
                .map(|slab| self.waiting.push_back(slab));
        }
        ring.pause();
        self.end_as_scheduled();
        self.count_undelivered();
        self.asked = asked;
        completed
    }

    /// Lets the ring end where the schedule says so.
    pub(crate) fn end_as_scheduled(&self) {
        let end = self.core.shared.schedule().end();
        self.core.ring.end_at(end);
    }

    /// A slab that workers fill now.
    fn fill(&mut self, interrupt: &Interrupt) -> Result<Filled, NextError> {
        let core = &self.core;
        let taken = self.workers.next(&core.shared, interrupt);
        // Also after an error: then nothing that could be waited for is under way.
        self.asked = matches!(taken, Err(NextError::WaitInterrupted(_)));
        if self.asked {
            core.ring.leave_unattended();
        }
        let lease = taken.map_err(|error| match error {
            NextError::Slab(SlabError::Stopped) => {
                let failure = core.shared.reports.take_failure();
                failure.map_or(NextError::ShutDown, NextError::from)
            }
            other => other,
        })?;
        let schedule = core.shared.schedule();
        let shares = (0..lease.commits().len()).map(|part| schedule.share(lease.seq(), part));
        let steps = shares.map(|share| share.steps).max().unwrap_or(0);
        drop(schedule);
        Ok(Filled { lease, steps })
    }

    /// Forgets a slab that was collected and not delivered.
    pub(crate) fn clear(&mut self) {
        self.last = None;
        self.begin_with(VecDeque::new());
    }
}
