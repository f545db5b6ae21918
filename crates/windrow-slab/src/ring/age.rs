//! How old the weights of a part may be when the consumer takes it (ADR 0044).
//!
//! Time is counted in *deliveries*: it moves on when the consumer has taken all slabs that it has
//! asked for. Publications between two deliveries count as one, an *epoch*. A part remembers the
//! epoch in which its worker claimed it; its age is the number of epochs that have begun since.

use std::ops::Range;
use std::time::Duration;

use super::Ring;
use super::state::{Phase, SlabStates};

/// The largest age that a part may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxAge {
    /// Epochs that may begin between the claim of a part and its delivery.
    pub epochs: usize,
    /// Slabs that the consumer takes for one batch.
    pub slabs_per_batch: usize,
}

impl MaxAge {
    /// Slabs that may be started before they are asked for.
    #[must_use]
    pub fn ahead(self) -> usize {
        self.epochs.saturating_mul(self.slabs_per_batch)
    }
}

/// The epochs of workers, and the publication that is under way.
#[derive(Debug)]
pub(super) struct Ages {
    /// The present epoch of each worker.
    epochs: Vec<u64>,
    /// After how many deliveries the last epoch of each worker began.
    begun_after: Vec<Option<u64>>,
    /// How often the consumer has taken all slabs that it has asked for.
    deliveries: u64,
    /// Publications that have ended.
    ended: u64,
    publication: Option<Progress>,
}

/// A publication for one worker, or for all.
#[derive(Debug, Clone, Copy)]
struct Progress {
    worker: Option<usize>,
    is_granted: bool,
}

impl Ages {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            epochs: vec![0; workers],
            begun_after: vec![None; workers],
            deliveries: 0,
            ended: 0,
            publication: None,
        }
    }

    pub(super) fn epoch(&self, worker: usize) -> u64 {
        self.epochs[worker]
    }

    /// Whether `worker` may claim no part: it would load weights while they are replaced.
    pub(super) fn are_replaced(&self, worker: usize) -> bool {
        self.publication.is_some_and(|progress| {
            progress.is_granted && progress.worker.is_none_or(|only| only == worker)
        })
    }

    /// Whether a publication waits for parts that are out.
    pub(super) fn is_awaited(&self) -> bool {
        self.publication
            .is_some_and(|progress| !progress.is_granted)
    }

    /// The workers whose weights the publication under way replaces.
    fn addressed(&self) -> Range<usize> {
        match self.publication.and_then(|progress| progress.worker) {
            Some(worker) => worker..worker + 1,
            None => 0..self.epochs.len(),
        }
    }

    /// Whether a publication for `worker` begins an epoch now.
    fn begins_epoch(&self, worker: usize) -> bool {
        self.begun_after[worker] != Some(self.deliveries)
    }
}

impl SlabStates {
    /// Begins a publication; false while another one is under way.
    pub(super) fn begin_publication(&mut self, worker: Option<usize>) -> bool {
        if self.ages.publication.is_some() {
            return false;
        }
        self.ages.publication = Some(Progress {
            worker,
            is_granted: false,
        });
        self.grant_publication();
        true
    }

    /// Whether weights may be replaced now, as no part will be too old.
    pub(super) fn is_granted(&mut self) -> bool {
        self.grant_publication();
        self.ages
            .publication
            .is_some_and(|progress| progress.is_granted)
    }

    /// How many publications have ended; `None` while workers claim nothing, since weights are
    /// being replaced.
    pub(super) fn publications(&self) -> Option<u64> {
        if self.spec.max_age.is_none() {
            return Some(0);
        }
        let is_granted = self
            .ages
            .publication
            .is_some_and(|progress| progress.is_granted);
        (self.stopped || !is_granted).then_some(self.ages.ended)
    }

    /// Ends the publication under way. A new epoch begins if weights `were_replaced`, unless one
    /// has begun since the last delivery.
    pub(super) fn end_publication(&mut self, were_replaced: bool) {
        if were_replaced {
            for worker in self.ages.addressed() {
                if self.ages.begins_epoch(worker) {
                    self.ages.epochs[worker] += 1;
                    self.ages.begun_after[worker] = Some(self.ages.deliveries);
                }
            }
        }
        self.ages.publication = None;
        self.ages.ended += 1;
    }

    /// Workers with a part that would be too old after the publication that waits.
    pub(super) fn delaying(&self) -> Vec<usize> {
        let mut workers = Vec::new();
        if let Some(max) = self.spec.max_age {
            for (worker, age) in self.ages_of_parts() {
                let age = age + u64::from(self.ages.begins_epoch(worker));
                if age >= max.epochs as u64 && !workers.contains(&worker) {
                    workers.push(worker);
                }
            }
        }
        workers.sort_unstable();
        workers
    }

    /// The worker and the age of each part that was claimed and not taken.
    pub(super) fn ages_of_parts(&self) -> impl Iterator<Item = (usize, u64)> {
        self.slots
            .iter()
            .filter(|slot| slot.phase.is_out())
            .flat_map(|slot| slot.claims())
            .map(|(worker, epoch)| (worker, self.ages.epoch(worker) - epoch))
    }

    /// The consumer has taken a slab. After the last that it has asked for, a publication that
    /// waits may go on.
    pub(super) fn count_delivery(&mut self) {
        if self.delivered == self.requested {
            self.ages.deliveries += 1;
            self.grant_publication();
        }
    }

    /// Lets the publication go on, if all parts that are out can be delivered before they are too
    /// old, the publications after the next deliveries counted. That is certain while the consumer
    /// waits for no slab.
    pub(super) fn grant_publication(&mut self) {
        let Some(progress) = self.ages.publication else {
            return;
        };
        if progress.is_granted {
            return;
        }
        let is_free = self.stopped || self.is_unattended || self.delivered >= self.requested;
        let dues = self.dues_after_publication();
        let mut sorted: Vec<u64> = dues.iter().map(|&(_, due)| due).collect();
        sorted.sort_unstable();
        let in_time = |(at, due): (usize, &u64)| *due > self.delivered + at as u64;
        if !is_free && !sorted.iter().enumerate().all(in_time) {
            return;
        }
        for (slot, due) in dues {
            self.slots[slot].due = due;
        }
        self.ages.publication = Some(Progress {
            is_granted: true,
            ..progress
        });
    }

    /// The slots with parts that are out, each with the number of slabs before which it is taken
    /// then.
    fn dues_after_publication(&self) -> Vec<(usize, u64)> {
        let Some(max) = self.spec.max_age else {
            return Vec::new();
        };
        let (most, per_batch) = (max.epochs as u64, max.slabs_per_batch as u64);
        let addressed = self.ages.addressed();
        // The batch that the consumer waits for, or the next one.
        let next = match self.requested.saturating_sub(self.delivered) {
            0 => self.delivered + per_batch,
            left => self.delivered + left,
        };
        let out = self.slots.iter().enumerate();
        let out = out.filter(|(_, slot)| slot.phase.is_out());
        out.map(|(index, slot)| {
            let claims = slot
                .claims()
                .filter(|(worker, _)| addressed.contains(worker));
            let dues = claims.map(|(worker, epoch)| {
                let begins = u64::from(self.ages.begins_epoch(worker));
                let age = self.ages.epoch(worker) + begins - epoch;
                match most.checked_sub(age) {
                    Some(left) => next.saturating_add(per_batch.saturating_mul(left)),
                    // Too old already.
                    None => 0,
                }
            });
            (index, dues.min().unwrap_or(u64::MAX).min(slot.due))
        })
        .collect()
    }

    /// The number of slabs before which one that is started now is to be taken.
    pub(super) fn due(&self) -> u64 {
        let max = self.spec.max_age.map(MaxAge::ahead);
        max.map_or(u64::MAX, |ahead| {
            let asked = self.requested.max(self.delivered);
            asked.saturating_add(ahead as u64).saturating_sub(self.kept)
        })
    }

    /// The place in the queue of the slab that may be taken next: the one that was completed first
    /// of those after which all others can be taken in time.
    pub(super) fn next_in_time(&self) -> Option<usize> {
        if self.spec.max_age.is_none() {
            return (!self.ready.is_empty()).then_some(0);
        }
        let out = (0..self.slots.len()).filter(|&slot| self.slots[slot].phase.is_out());
        let mut out: Vec<_> = out
            .map(|slot| {
                let order = match self.slots[slot].phase {
                    Phase::Filling { seq, .. } | Phase::Ready { seq } => seq,
                    Phase::Free | Phase::Leased => u64::MAX,
                };
                (self.slots[slot].due, order, slot)
            })
            .collect();
        out.sort_unstable();
        // Those up to this one have to be taken before any after it.
        let urgent = out
            .iter()
            .enumerate()
            .position(|(at, (due, ..))| *due <= self.delivered + at as u64 + 1);
        let candidates = &out[..urgent.map_or(out.len(), |at| at + 1)];
        self.ready
            .iter()
            .position(|ready| candidates.iter().any(|(.., slot)| slot == ready))
    }
}

/// The right to replace weights that workers load when they claim a part, one at a time. Dropped
/// before it is [finished](Self::finish), nothing was published.
#[derive(Debug)]
pub struct Publication<'a> {
    ring: &'a Ring,
    worker: Option<usize>,
    /// Whether the ring knows of it: not while another one is under way.
    has_begun: bool,
}

impl<'a> Publication<'a> {
    /// For `worker` of `ring`, or for all.
    pub(super) fn new(ring: &'a Ring, worker: Option<usize>) -> Self {
        Self {
            ring,
            worker,
            has_begun: false,
        }
    }

    /// Waits until weights may be replaced: true then, and false when that took longer than
    /// `timeout`.
    ///
    /// It waits for parts that would exceed [`RingSpec::max_age`](crate::RingSpec), and only while
    /// the consumer waits for slabs: they become ready, and it takes them. While it waits, workers
    /// begin no part that the consumer has not asked for. From now on until the end of the
    /// publication, they claim none.
    #[must_use]
    pub fn wait_within(&mut self, timeout: Duration) -> bool {
        let Self {
            ring,
            worker,
            has_begun,
        } = self;
        let granted = ring
            .waits
            .room
            .wait_within(&ring.states, Some(timeout), |states| {
                if !*has_begun {
                    *has_begun = states.begin_publication(*worker);
                }
                (*has_begun && states.is_granted()).then_some(())
            });
        granted.is_some()
    }

    /// Workers with a part for which it waits.
    #[must_use]
    pub fn delaying(&self) -> Vec<usize> {
        self.ring.locked(|states| states.delaying())
    }

    /// Weights were replaced.
    pub fn finish(mut self) {
        self.end(true);
    }

    fn end(&mut self, were_replaced: bool) {
        if std::mem::take(&mut self.has_begun) {
            self.ring
                .locked(|states| states.end_publication(were_replaced));
            self.ring.waits.wake_workers();
        }
    }
}

impl Drop for Publication<'_> {
    fn drop(&mut self) {
        self.end(false);
    }
}
