//! The states of a ring's slabs, which its lock guards, and the only functions that change them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windrow_sync::atomic::Ordering;

use super::age::Ages;
use super::{Commit, Order, RingSpec};
use crate::SlabError;
use crate::control::Control;
use crate::layout::Layout;
use crate::slab::Slab;

/// Which slab is in which state, and which worker has which part.
#[derive(Debug)]
pub(super) struct SlabStates {
    layout: Arc<Layout>,
    pub(super) spec: RingSpec,
    control: Arc<Control>,
    source: MemorySource,
    pub(super) slots: Vec<Slot>,
    /// Free slots, the one freed last on top: its memory is the warmest.
    free: Vec<usize>,
    /// Slots whose parts are all committed, in the order in which they became so.
    pub(super) ready: VecDeque<usize>,
    /// Parts that were dropped without commit.
    orphans: Vec<Ticket>,
    /// By worker: how many slabs each worker has claimed its part of.
    laps: Vec<u64>,
    /// By arrival: how many parts were claimed.
    tickets: u64,
    /// Slabs that the consumer has asked for since the start.
    pub(super) requested: u64,
    /// Slabs that were taken and not delivered: they come before others.
    pub(super) kept: u64,
    /// Whether nobody waits for what was asked for.
    pub(super) is_unattended: bool,
    /// Slabs that the consumer was given.
    pub(super) delivered: u64,
    pub(super) ages: Ages,
    /// Since when a complete slab waits for an older one.
    held_back: Option<Instant>,
    /// How long slabs have waited so.
    pub(super) was_held_back: Duration,
    /// Slabs from this one on are not to be started.
    pub(super) end: u64,
    /// Parts that are being written.
    lent: usize,
    pub(super) paused: bool,
    /// Workers that fill no more parts.
    retired: Vec<bool>,
    /// Parts that the workers in `others` fill in turn, since their own have retired; in order.
    reassigned: Vec<usize>,
    /// Workers that have not retired, in order, where there are such parts.
    others: Vec<usize>,
    pub(super) stopped: bool,
}

/// Where the memory of slabs comes from.
#[derive(Debug)]
pub(super) enum MemorySource {
    Heap,
    /// Memory that workers in other processes map as well.
    #[cfg(target_os = "linux")]
    Shared(Arc<crate::shared::Segment>),
}

impl MemorySource {
    /// The memory of slab `slot`; `None` when the system does not give it.
    #[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
    fn slab(&self, layout: &Layout, slot: usize) -> Option<Slab> {
        match self {
            Self::Heap => Slab::on_heap(layout),
            #[cfg(target_os = "linux")]
            Self::Shared(segment) => segment.grow(layout, slot),
        }
    }
}

#[derive(Debug)]
pub(super) struct Slot {
    slab: Arc<Slab>,
    pub(super) phase: Phase,
    /// The commit of each part; `None` before it.
    commits: Vec<Option<Commit>>,
    /// The worker that claimed each part.
    workers: Vec<usize>,
    /// The epoch in which it did.
    epochs: Vec<u64>,
    /// The number of slabs before which it is to be taken.
    pub(super) due: u64,
    /// How many parts were committed before each.
    ranks: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    Filling { seq: u64, committed: usize },
    Ready { seq: u64 },
    Leased,
}

impl Phase {
    /// Whether parts were claimed that the consumer has not taken.
    pub(super) fn is_out(self) -> bool {
        matches!(self, Self::Filling { .. } | Self::Ready { .. })
    }
}

/// Stands for the worker of a part that was not claimed yet.
const NOBODY: usize = usize::MAX;

/// The right to write one part of one slab.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    pub(crate) slot: usize,
    pub(crate) part: usize,
    pub(crate) seq: u64,
}

/// Why a claim came back without a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Nothing will ever be filled again.
    Over,
    /// The consumer has not asked for that many slabs yet, or the ring is paused.
    NotNow,
    /// No slab is free and the ring may not, or cannot, grow.
    Exhausted,
}

/// A slab that was taken.
pub(super) struct Taken {
    pub(super) slot: usize,
    pub(super) seq: u64,
    pub(super) slab: Arc<Slab>,
    pub(super) commits: Vec<Commit>,
    /// See [`Lease::ages`](crate::Lease::ages).
    pub(super) ages: Vec<u64>,
    /// See [`Lease::order`](crate::Lease::order).
    pub(super) order: Option<Vec<usize>>,
    /// Whether a worker that waits may go on now. By arrival, one that left the last parts to
    /// others may take one; by worker, only a request lets workers on, and one that is woken for
    /// nothing may come back on a core that another uses.
    pub(super) lets_workers_on: bool,
}

impl Slot {
    /// The worker and the epoch of each part that was claimed.
    pub(super) fn claims(&self) -> impl Iterator<Item = (usize, u64)> {
        let claims = self.workers.iter().zip(&self.epochs);
        let claims = claims.filter(|(worker, _)| **worker != NOBODY);
        claims.map(|(&worker, &epoch)| (worker, epoch))
    }

    /// See [`Lease::order`](crate::Lease::order).
    fn order(&self) -> Option<Vec<usize>> {
        let mut by_worker: Vec<usize> = (0..self.workers.len()).collect();
        by_worker.sort_unstable_by_key(|&part| (self.workers[part], self.ranks[part]));
        let each = || by_worker.chunk_by(|&a, &b| self.workers[a] == self.workers[b]);
        if each().all(|own| own.len() == 1) {
            return None;
        }
        let is_in_order = each().all(<[usize]>::is_sorted);
        // The first part of each worker, then the second.
        let turns = each().flat_map(|own| own.iter().enumerate());
        let mut order: Vec<(usize, usize)> = turns
            .map(|(turn, &part)| (if is_in_order { 0 } else { turn }, part))
            .collect();
        order.sort_unstable();
        Some(order.into_iter().map(|(_, part)| part).collect())
    }
}

impl SlabStates {
    /// Without slabs; `None` if there is no memory for the records of `spec.workers` workers.
    pub(super) fn new(
        layout: Arc<Layout>,
        spec: RingSpec,
        control: Arc<Control>,
        source: MemorySource,
    ) -> Option<Self> {
        let workers = spec.workers;
        let (mut laps, mut retired) = (Vec::new(), Vec::new());
        laps.try_reserve_exact(workers).ok()?;
        retired.try_reserve_exact(workers).ok()?;
        laps.resize(workers, 0);
        retired.resize(workers, false);
        Some(Self {
            layout,
            spec,
            control,
            source,
            slots: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            orphans: Vec::new(),
            laps,
            tickets: 0,
            requested: 0,
            kept: 0,
            is_unattended: false,
            delivered: 0,
            ages: Ages::new(workers),
            held_back: None,
            was_held_back: Duration::ZERO,
            end: u64::MAX,
            lent: 0,
            paused: false,
            retired,
            reassigned: Vec::new(),
            others: Vec::new(),
            stopped: false,
        })
    }

    pub(super) fn slabs(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn workers(&self) -> usize {
        self.spec.workers
    }

    pub(super) fn begun(&self) -> u64 {
        match self.spec.order {
            Order::ByWorker => self.laps.iter().copied().max().unwrap_or(0),
            Order::ByArrival => self.tickets.div_ceil(self.parts() as u64),
        }
    }

    /// Whether every slab before the end was delivered.
    pub(super) fn is_over(&self) -> bool {
        self.delivered >= self.end
    }

    /// Whether no part is being written.
    pub(super) fn is_quiet(&self) -> bool {
        self.lent == 0
    }

    /// Asks for one more slab, unless one that was asked for is still to come.
    pub(super) fn ask(&mut self) -> Result<(), SlabError> {
        self.ask_for(1)
    }

    /// Asks for `slabs` slabs, those that were asked for and are still to come among them.
    pub(super) fn ask_for(&mut self, slabs: u64) -> Result<(), SlabError> {
        self.requested = self.requested.max(self.delivered + slabs);
        self.is_unattended = false;
        self.make_room()
    }

    /// Nobody waits for what was asked for, until more is asked for.
    pub(super) fn leave_unattended(&mut self) {
        self.is_unattended = true;
        self.grant_publication();
    }

    /// The part that `worker` is to fill now.
    pub(super) fn lend(&mut self, worker: usize) -> Result<(Ticket, Arc<Slab>), Refusal> {
        match self.paused && !self.is_over_for(worker) {
            true => Err(Refusal::NotNow),
            false => self.lend_held(worker),
        }
    }

    /// As [`lend`](Self::lend), also while it is paused.
    pub(super) fn lend_held(&mut self, worker: usize) -> Result<(Ticket, Arc<Slab>), Refusal> {
        if self.is_over_for(worker) {
            return Err(Refusal::Over);
        }
        if self.spec.max_age.is_some() && self.ages.are_replaced(worker) {
            return Err(Refusal::NotNow);
        }
        let ticket = match (self.orphan_of(worker), self.spec.order) {
            (Some(i), _) => self.orphans.swap_remove(i),
            (None, Order::ByWorker) => self.next_by_worker(worker)?,
            (None, Order::ByArrival) => self.next_by_arrival(worker)?,
        };
        self.lent += 1;
        let slot = &mut self.slots[ticket.slot];
        slot.workers[ticket.part] = worker;
        slot.epochs[ticket.part] = self.ages.epoch(worker);
        Ok((ticket, Arc::clone(&slot.slab)))
    }

    fn is_over_for(&self, worker: usize) -> bool {
        self.stopped || self.retired[worker]
    }

    /// The first part, by slab and place in it, that `worker` fills and nobody has claimed before.
    fn next_by_worker(&mut self, worker: usize) -> Result<Ticket, Refusal> {
        let others = self.reassigned.iter().copied();
        let reassigned =
            others.filter(|&part| self.substitute(part, self.laps[part]) == Some(worker));
        let next = |part: &usize| (self.laps[*part], *part);
        let part = reassigned.chain([worker]).min_by_key(next);
        let part = part.expect("A worker has a part of its own.");
        let seq = self.laps[part];
        // Others were dropped. Which of the two is first in a slab must not depend on when its
        // worker was lost.
        if let Some(i) = self.dropped_by_others(worker, seq) {
            return Ok(self.orphans.swap_remove(i));
        }
        let slot = self.open(seq)?;
        self.laps[part] += 1;
        Ok(Ticket { slot, part, seq })
    }

    /// A part of a slab before `seq` that was dropped by a worker that has retired, and that
    /// `worker` fills.
    fn dropped_by_others(&self, worker: usize, seq: u64) -> Option<usize> {
        let is_next = |orphan: &Ticket| {
            orphan.seq < seq
                && self.retired[self.slots[orphan.slot].workers[orphan.part]]
                && self.substitute(orphan.part, orphan.seq) == Some(worker)
        };
        let orphans = self.orphans.iter().enumerate();
        let next = orphans.filter(|(_, orphan)| is_next(orphan));
        let next = next.min_by_key(|(_, orphan)| (orphan.seq, orphan.part));
        next.map(|(i, _)| i)
    }

    /// The worker that fills part `part` of slab `seq` in the place of one that has retired.
    fn substitute(&self, part: usize, seq: u64) -> Option<usize> {
        let place = self.reassigned.binary_search(&part).ok()?;
        let turn = (seq + place as u64).checked_rem(self.others.len() as u64)?;
        Some(self.others[turn as usize])
    }

    /// The next part of all.
    fn next_by_arrival(&mut self, worker: usize) -> Result<Ticket, Refusal> {
        if self.is_far_ahead(worker) {
            return Err(Refusal::NotNow);
        }
        let parts = self.parts() as u64;
        let (seq, part) = (self.tickets / parts, (self.tickets % parts) as usize);
        let slot = self.open(seq)?;
        self.tickets += 1;
        Ok(Ticket { slot, part, seq })
    }

    /// Whether, by arrival, `worker` has to leave the parts that may still be started to workers
    /// without a part in an undelivered slab. Otherwise a quick worker could claim all of them,
    /// since it asks again before others are awake.
    fn is_far_ahead(&self, worker: usize) -> bool {
        if !self.is_under_way(worker) {
            return false;
        }
        let slabs = (self.requested + self.ahead()).min(self.end);
        let left = (slabs * self.parts() as u64).saturating_sub(self.tickets);
        let waiting = (0..self.retired.len())
            .filter(|&other| !self.retired[other] && !self.is_under_way(other))
            .count();
        left <= waiting as u64
    }

    /// Slabs that may be started before they are asked for.
    fn ahead(&self) -> u64 {
        let ahead = self.spec.ahead as u64;
        if self.spec.max_age.is_none() {
            return ahead;
        }
        // Parts ahead would be older after a publication that waits for those that are out.
        match self.ages.is_awaited() {
            true => 0,
            false => ahead.saturating_sub(self.kept),
        }
    }

    /// Whether an undelivered slab has a part of `worker`.
    fn is_under_way(&self, worker: usize) -> bool {
        let mut out = self.slots.iter().filter(|slot| slot.phase.is_out());
        out.any(|slot| slot.workers.contains(&worker))
    }

    /// A part that `worker` has dropped uncommitted. As long as it has not retired, no other worker
    /// fills it: its frames would then lie before frames that it has collected earlier.
    fn orphan_of(&self, worker: usize) -> Option<usize> {
        let is_of = |orphan: &Ticket| self.slots[orphan.slot].workers[orphan.part] == worker;
        self.orphans.iter().position(is_of)
    }

    /// The slot that is being filled with slab `seq`, started if need be.
    fn open(&mut self, seq: u64) -> Result<usize, Refusal> {
        let filled_with =
            |slot: &Slot| matches!(slot.phase, Phase::Filling { seq: other, .. } if other == seq);
        if let Some(slot) = self.slots.iter().position(filled_with) {
            return Ok(slot);
        }
        if seq >= self.end || seq >= self.requested + self.ahead() {
            return Err(Refusal::NotNow);
        }
        let (index, due) = (self.free_slot()?, self.due());
        let slot = &mut self.slots[index];
        slot.due = due;
        slot.phase = Phase::Filling { seq, committed: 0 };
        slot.workers.fill(NOBODY);
        slot.commits.fill(None);
        if self.spec.order == Order::ByWorker {
            for part in 0..self.retired.len() {
                if self.retired[part] && !self.is_reassigned(part) {
                    self.mark_committed(index, part, Commit::default());
                }
            }
        }
        if self.spec.cut_after == Some(0) {
            self.control.cut.fetch_max(seq + 1, Ordering::Relaxed);
        }
        Ok(index)
    }

    fn free_slot(&mut self) -> Result<usize, Refusal> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        if self.slots.len() >= self.spec.max_slabs {
            return Err(Refusal::Exhausted);
        }
        self.grow().ok_or(Refusal::Exhausted)
    }

    /// One more slot; `None` when the system does not give the memory.
    fn grow(&mut self) -> Option<usize> {
        let slab = self.source.slab(&self.layout, self.slots.len())?;
        self.slots.push(Slot {
            slab: Arc::new(slab),
            phase: Phase::Free,
            commits: vec![None; self.parts()],
            workers: vec![NOBODY; self.parts()],
            epochs: vec![0; self.parts()],
            due: u64::MAX,
            ranks: vec![0; self.parts()],
        });
        Some(self.slots.len() - 1)
    }

    /// Marks a part as written; the last one completes its slab. Returns whether a thread may wait
    /// for that.
    pub(super) fn commit(&mut self, ticket: Ticket, commit: Commit) -> bool {
        self.lent -= 1;
        // After a stop, parts are cut short and no thread waits for them.
        let whole = !self.stopped && self.mark_committed(ticket.slot, ticket.part, commit);
        whole || self.is_awaited()
    }

    /// Takes a part back unwritten. That of a retired worker counts as committed, unless others
    /// fill it. Returns whether a thread may wait for that.
    pub(super) fn orphan(&mut self, ticket: Ticket) -> bool {
        self.lent -= 1;
        let is_retired = self.retired[self.slots[ticket.slot].workers[ticket.part]];
        let is_reassigned = self.is_reassigned(ticket.part);
        if !is_retired || is_reassigned {
            self.orphans.push(ticket);
            return is_retired || self.is_awaited();
        }
        let empty = Commit::default();
        let whole = !self.stopped && self.mark_committed(ticket.slot, ticket.part, empty);
        whole || self.is_awaited()
    }

    /// Whether a thread may wait until no part is being written.
    fn is_awaited(&self) -> bool {
        self.paused && self.lent == 0
    }

    /// Retires `worker`: it claims no more parts, but can still commit a claimed one. Returns
    /// whether its parts stay empty.
    pub(super) fn retire(&mut self, worker: usize) -> bool {
        if self.is_reassigned(worker) {
            return false;
        }
        self.leave(worker);
        let own = self.spec.order == Order::ByWorker;
        if own {
            let unclaimed = self.laps[worker];
            for slot in 0..self.slots.len() {
                if matches!(self.slots[slot].phase, Phase::Filling { seq, .. } if seq >= unclaimed)
                {
                    self.mark_committed(slot, worker, Commit::default());
                }
            }
        }
        while let Some(i) = self.orphan_of(worker) {
            let Ticket { slot, part, .. } = self.orphans.swap_remove(i);
            self.mark_committed(slot, part, Commit::default());
        }
        own
    }

    /// Retires `worker`, as [`retire`](Self::retire) does; by worker, others fill its parts in
    /// turn.
    pub(super) fn reassign(&mut self, worker: usize) {
        if self.spec.order == Order::ByArrival {
            self.retire(worker);
            return;
        }
        if let Err(place) = self.reassigned.binary_search(&worker) {
            self.reassigned.insert(place, worker);
        }
        self.leave(worker);
    }

    fn leave(&mut self, worker: usize) {
        self.retired[worker] = true;
        if !self.reassigned.is_empty() {
            let workers = 0..self.retired.len();
            self.others = workers.filter(|&worker| !self.retired[worker]).collect();
        }
    }

    fn is_reassigned(&self, part: usize) -> bool {
        self.reassigned.binary_search(&part).is_ok()
    }

    /// Returns whether this completes the slab. A part counts once.
    fn mark_committed(&mut self, index: usize, part: usize, commit: Commit) -> bool {
        let slot = &mut self.slots[index];
        let Phase::Filling { seq, committed } = &mut slot.phase else {
            unreachable!(
                "A slab with a part that is not committed is being filled: {:?}",
                slot.phase
            );
        };
        if slot.commits[part].is_some() {
            return false;
        }
        slot.commits[part] = Some(commit);
        slot.ranks[part] = *committed;
        *committed += 1;
        if let Some(after) = self.spec.cut_after {
            // Empty parts of retired workers say nothing about which worker is slow.
            let commits = slot.commits.iter().flatten();
            let filled = commits.filter(|commit| commit.steps > 0);
            if filled.count() >= after {
                self.control.cut.fetch_max(*seq + 1, Ordering::Relaxed);
            }
        }
        if *committed < slot.commits.len() {
            return false;
        }
        slot.phase = Phase::Ready { seq: *seq };
        self.ready.push_back(index);
        true
    }

    /// Whether the consumer need not wait: a slab is complete, or none comes, or there is no memory
    /// for one.
    pub(super) fn answers(&mut self) -> bool {
        self.next_in_time().is_some() || self.stopped || self.is_over() || self.make_room().is_err()
    }

    /// The slab that was completed first, or an earlier one that would be too old after it.
    pub(super) fn take(&mut self) -> Option<Taken> {
        let Some(place) = self.next_in_time() else {
            if !self.ready.is_empty() && self.held_back.is_none() {
                self.held_back = Some(Instant::now());
            }
            return None;
        };
        let slot = self.ready.remove(place)?;
        if let Some(since) = self.held_back.take() {
            self.was_held_back += since.elapsed();
        }
        let order = match self.reassigned.is_empty() {
            true => None,
            false => self.slots[slot].order(),
        };
        let taken = &mut self.slots[slot];
        let Phase::Ready { seq } = taken.phase else {
            unreachable!(
                "The queue of ready slabs holds such a slab: {:?}",
                taken.phase
            );
        };
        taken.phase = Phase::Leased;
        let claims = taken.claims();
        let ages = claims.map(|(worker, epoch)| self.ages.epoch(worker) - epoch);
        let ages = ages.collect();
        let commits = taken.commits.iter().copied().flatten().collect();
        let slab = Arc::clone(&taken.slab);
        self.delivered += 1;
        let lets_publish = self.ages.is_awaited();
        self.count_delivery();
        Some(Taken {
            slot,
            seq,
            slab,
            commits,
            ages,
            order,
            lets_workers_on: lets_publish || self.spec.order == Order::ByArrival,
        })
    }

    /// Takes a slab back from the consumer. Returns whether a worker may wait for it.
    pub(super) fn release(&mut self, slot: usize) -> bool {
        let lacking = self.free.is_empty() && self.slots.len() >= self.spec.max_slabs;
        self.slots[slot].phase = Phase::Free;
        self.free.push(slot);
        lacking
    }

    /// Makes sure that at least one slab is not leased, so that the consumer, and not a worker,
    /// learns of missing memory.
    ///
    /// # Errors
    /// When no slab can be filled until a batch is dropped.
    pub(super) fn make_room(&mut self) -> Result<(), SlabError> {
        let leased = |slot: &Slot| slot.phase == Phase::Leased;
        if self.stopped || self.is_over() || !self.slots.iter().all(leased) {
            return Ok(());
        }
        let slot = self.free_slot().map_err(|_| self.exhausted())?;
        self.free.push(slot);
        Ok(())
    }

    #[cold]
    pub(super) fn exhausted(&self) -> SlabError {
        let (slabs, bytes) = (self.slots.len(), self.layout.bytes);
        if slabs < self.spec.max_slabs {
            let frames = self.layout.frames();
            return SlabError::NoMemory { frames, bytes };
        }
        SlabError::Exhausted { slabs, bytes }
    }

    fn parts(&self) -> usize {
        self.layout.parts.len()
    }
}
