//! Who may write which slab, and who may read it. The protocol is told in the crate's README.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use crate::SlabError;
use crate::layout::{Layout, Slab};
use crate::lease::Lease;
use crate::part::Part;
use crate::sync::{AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, spin_until};

/// Which part of which slab a worker gets when it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Worker `w` fills part `w` of one slab after the other: rows do not depend on who was faster.
    ByWorker,
    /// Whoever asks next fills the next part.
    ByArrival,
}

/// How a ring lends its slabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSpec {
    /// Which part a worker gets.
    pub order: Order,
    /// Workers that claim parts, numbered from 0. By worker, there are as many parts as workers.
    pub workers: usize,
    /// Slabs that may be started beyond those requested: how stale the oldest batch can be.
    pub ahead: usize,
    /// Slabs that the ring may grow to when the consumer keeps batches alive.
    pub max_slabs: usize,
    /// Once this many parts of a slab are committed, the others are to be cut short at their next step.
    pub cut_after: Option<usize>,
}

/// The slabs of one collector and their states.
///
/// ```text
///         first claim              all parts committed          take               last view dropped
///  Free ──────────────▶ Filling ───────────────────────▶ Ready ──────▶ Leased ─────────────────────▶ Free
///                          │ a part dropped without commit is claimed again by its worker before any other
/// ```
///
/// All transitions happen here, under one lock that is held for some tens of nanoseconds a part; nobody holds it
/// while touching a slab's memory.
#[derive(Debug)]
pub struct Ring {
    layout: Arc<Layout>,
    spec: RingSpec,
    state: Mutex<State>,
    /// Workers wait here until they may start another slab.
    room: Condvar,
    /// The consumer waits here for a slab.
    ready: Condvar,
    /// Counts the changes of `state`, so that waiting threads can look for one without taking the lock.
    changes: AtomicU32,
    /// Parts of slabs before this one are to be cut short at their next step.
    cut: AtomicU64,
}

#[derive(Debug)]
struct State {
    slots: Vec<Slot>,
    /// Free slots, the one freed last on top: its memory is the warmest.
    free: Vec<usize>,
    /// Slots whose parts are all committed, in the order in which they became so.
    ready: VecDeque<usize>,
    /// Parts that were dropped without commit.
    orphans: Vec<Ticket>,
    /// By worker: how many slabs each worker has claimed its part of.
    laps: Vec<u64>,
    /// By arrival: how many parts were claimed.
    tickets: u64,
    /// Slabs that the consumer has asked for since the start.
    requested: u64,
    /// Slabs that the consumer was given.
    delivered: u64,
    /// Slabs from this one on are not to be started.
    end: u64,
    /// Parts that are being written.
    lent: usize,
    paused: bool,
    /// Workers that fill no more parts.
    retired: Vec<bool>,
    stopped: bool,
    /// Workers asleep on `room`.
    sleeping_workers: usize,
    /// Consumers asleep on `ready`.
    sleeping_consumers: usize,
}

#[derive(Debug)]
struct Slot {
    slab: Arc<Slab>,
    phase: Phase,
    /// What each part was committed with.
    commits: Vec<Commit>,
    /// Who claimed each part.
    workers: Vec<usize>,
}

/// What a part was committed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Commit {
    /// Steps that are written.
    pub steps: usize,
    /// Version of the weights that acted.
    pub version: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free,
    Filling { seq: u64, committed: usize },
    Ready { seq: u64 },
    Leased,
}

/// The right to write one part of one slab.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    pub(crate) slot: usize,
    pub(crate) part: usize,
    pub(crate) seq: u64,
}

/// Why a claim came back without a part.
enum Refusal {
    /// There is nothing left to be filled, ever.
    Over,
    /// The consumer has not asked for that many slabs yet, or the ring is paused.
    NotNow,
    /// No slab is free and the ring may not grow.
    Exhausted,
}

impl State {
    /// Whether, by arrival, two slabs with parts of `worker` are still to be delivered. A quick worker could have all that may
    /// be started ahead to itself otherwise, since it asks again before others are awake.
    fn is_far_ahead(&self, worker: usize, order: Order) -> bool {
        let undelivered = |slot: &&Slot| {
            matches!(slot.phase, Phase::Filling { .. } | Phase::Ready { .. })
                && slot.workers.contains(&worker)
        };
        order == Order::ByArrival && self.slots.iter().filter(undelivered).count() >= 2
    }

    /// A part that `worker` has given back unwritten. Nobody else fills it: their frames would then lie before ones that
    /// they have collected earlier.
    fn orphan_of(&self, worker: usize) -> Option<usize> {
        let is_of = |orphan: &Ticket| self.slots[orphan.slot].workers[orphan.part] == worker;
        self.orphans.iter().position(is_of)
    }
}

impl Ring {
    /// A ring of slabs laid out by `layout`. Memory is allocated when a slab is first needed.
    ///
    /// # Errors
    /// [`SlabError::Empty`] without workers or slabs, or, by worker, when there are not as many parts as workers.
    pub fn new(layout: Layout, spec: RingSpec) -> Result<Arc<Self>, SlabError> {
        let parts = layout.parts.len();
        let fits = spec.order == Order::ByArrival || parts == spec.workers;
        if spec.workers == 0 || spec.max_slabs == 0 || !fits {
            return Err(SlabError::Workers {
                parts,
                workers: spec.workers,
                slabs: spec.max_slabs,
            });
        }
        Ok(Arc::new(Self {
            layout: Arc::new(layout),
            state: Mutex::new(State {
                slots: Vec::new(),
                free: Vec::new(),
                ready: VecDeque::new(),
                orphans: Vec::new(),
                laps: vec![0; spec.workers],
                tickets: 0,
                requested: 0,
                delivered: 0,
                end: u64::MAX,
                lent: 0,
                paused: false,
                retired: vec![false; spec.workers],
                stopped: false,
                sleeping_workers: 0,
                sleeping_consumers: 0,
            }),
            spec,
            room: Condvar::new(),
            ready: Condvar::new(),
            changes: AtomicU32::new(0),
            cut: AtomicU64::new(0),
        }))
    }

    /// Where columns lie in each slab.
    #[must_use]
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Slabs allocated so far.
    #[must_use]
    pub fn slabs(&self) -> usize {
        self.lock().slots.len()
    }

    /// Slabs that were started so far.
    #[must_use]
    pub fn begun(&self) -> u64 {
        let state = self.lock();
        match self.spec.order {
            Order::ByWorker => state.laps.iter().copied().max().unwrap_or(0),
            Order::ByArrival => state.tickets.div_ceil(self.layout.parts.len() as u64),
        }
    }

    /// Whether every slab before the [end](Self::end_at) was delivered.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.is_over(&self.lock())
    }

    /// Waits until `worker` may fill a part, and lends it; `None` once the ring is stopped.
    #[must_use]
    pub fn claim(self: &Arc<Self>, worker: usize) -> Option<Part> {
        self.wait(
            &self.room,
            |state| &mut state.sleeping_workers,
            |state| match self.lend(state, worker) {
                Ok(lent) => Some(Some(lent)),
                Err(Refusal::Over) => Some(None),
                Err(_) => None,
            },
        )
        .map(|(ticket, slab)| self.part(ticket, slab))
    }

    /// As [`claim`](Self::claim) without waiting: `None` when nothing may be filled now.
    ///
    /// # Errors
    /// [`SlabError::Exhausted`] when only batches that are still alive keep the worker from going on.
    pub fn try_claim(self: &Arc<Self>, worker: usize) -> Result<Option<Part>, SlabError> {
        let mut state = self.lock();
        match self.lend(&mut state, worker) {
            Ok((ticket, slab)) => Ok(Some(self.part(ticket, slab))),
            Err(Refusal::Over | Refusal::NotNow) => Ok(None),
            Err(Refusal::Exhausted) => Err(self.exhausted(&state)),
        }
    }

    /// Asks for one more slab, unless one that was asked for is still to come.
    ///
    /// # Errors
    /// [`SlabError::Exhausted`] when batches that are still alive hold every slab.
    pub fn request(&self) -> Result<(), SlabError> {
        let mut state = self.lock();
        state.requested = state.delivered + 1;
        if self.is_exhausted(&state) {
            return Err(self.exhausted(&state));
        }
        self.changed(&mut state);
        Ok(())
    }

    /// Asks for one more slab and waits until it is whole.
    ///
    /// # Errors
    /// [`SlabError::Exhausted`] when batches that are still alive hold every slab; [`SlabError::Stopped`] once the
    /// ring is stopped and all whole slabs were taken.
    pub fn next(self: &Arc<Self>) -> Result<Lease, SlabError> {
        self.request()?;
        let taken = self.wait(
            &self.ready,
            |state| &mut state.sleeping_consumers,
            |state| {
                if let Some(taken) = self.take(state) {
                    return Some(Ok(taken));
                }
                if state.stopped || self.is_over(state) {
                    return Some(Err(SlabError::Stopped));
                }
                self.is_exhausted(state).then(|| Err(self.exhausted(state)))
            },
        );
        taken.map(|taken| self.lease(taken))
    }

    /// The slab that became whole first, if there is one.
    #[must_use]
    pub fn try_next(self: &Arc<Self>) -> Option<Lease> {
        let taken = self.take(&mut self.lock())?;
        Some(self.lease(taken))
    }

    /// Refuses all further claims, wakes whoever waits, and cuts parts that are out short at their next step; they make no
    /// slab whole any more. Slabs that are whole can still be taken.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        self.cut.store(u64::MAX, Ordering::Relaxed);
        self.changed(&mut state);
    }

    /// No slab from number `end` on is started: workers that ask for one wait, and the consumer is told that it is over.
    pub fn end_at(&self, end: u64) {
        let mut state = self.lock();
        state.end = end;
        self.changed(&mut state);
    }

    /// Lends nothing until [`resume`](Self::resume), and waits until every part that is out is committed or dropped.
    pub fn pause(&self) {
        self.lock().paused = true;
        self.wait(
            &self.ready,
            |state| &mut state.sleeping_consumers,
            |state| (state.lent == 0).then_some(()),
        );
    }

    /// Lends again.
    pub fn resume(&self) {
        let mut state = self.lock();
        state.paused = false;
        self.changed(&mut state);
    }

    /// Cuts all parts short at their next step, also those that are claimed later; or no longer does.
    pub fn cut_all(&self, cut: bool) {
        let state = self.lock();
        // A stop is not taken back.
        let all = cut || state.stopped;
        self.cut
            .store(if all { u64::MAX } else { 0 }, Ordering::Relaxed);
    }

    /// Parts of slabs before this number are to be cut short. A hint: nothing else is ordered by it.
    pub(crate) fn cut(&self) -> &AtomicU64 {
        &self.cut
    }

    /// Marks a part as written; its slab is whole with the last one.
    pub(crate) fn commit(&self, ticket: Ticket, commit: Commit) {
        let mut state = self.lock();
        state.lent -= 1;
        // After a stop, parts are cut short and nobody waits for them.
        if !state.stopped {
            self.mark_committed(&mut state, ticket.slot, ticket.part, commit);
        }
        self.changed(&mut state);
    }

    /// Lets `worker` fill no more parts. One that it has given back counts as committed without a step; by worker, so does
    /// its part of every slab from now on, while by arrival others fill what it would have. Returns whether parts stay empty.
    pub fn retire(&self, worker: usize) -> bool {
        let mut state = self.lock();
        state.retired[worker] = true;
        let own = self.spec.order == Order::ByWorker;
        if own {
            let unclaimed = state.laps[worker];
            for slot in 0..state.slots.len() {
                if matches!(state.slots[slot].phase, Phase::Filling { seq, .. } if seq >= unclaimed)
                {
                    self.mark_committed(&mut state, slot, worker, Commit::default());
                }
            }
        }
        while let Some(i) = state.orphan_of(worker) {
            let Ticket { slot, part, .. } = state.orphans.swap_remove(i);
            self.mark_committed(&mut state, slot, part, Commit::default());
        }
        self.changed(&mut state);
        own
    }

    fn mark_committed(&self, state: &mut State, index: usize, part: usize, commit: Commit) {
        let parts = self.layout.parts.len();
        let slot = &mut state.slots[index];
        slot.commits[part] = commit;
        if let Phase::Filling { seq, committed } = &mut slot.phase {
            *committed += 1;
            // Parts that nobody fills say nothing about who is slow.
            let filled = slot
                .commits
                .iter()
                .filter(|commit| commit.steps > 0)
                .count();
            if self.spec.cut_after.is_some_and(|after| filled >= after) {
                self.cut.fetch_max(*seq + 1, Ordering::Relaxed);
            }
            if *committed == parts {
                slot.phase = Phase::Ready { seq: *seq };
                state.ready.push_back(index);
            }
        }
    }

    /// Takes a part back unwritten: its worker gets it again with the next claim.
    pub(crate) fn orphan(&self, ticket: Ticket) {
        let mut state = self.lock();
        state.lent -= 1;
        state.orphans.push(ticket);
        self.changed(&mut state);
    }

    /// Takes a slab back from the consumer.
    pub(crate) fn release(&self, slot: usize) {
        let mut state = self.lock();
        state.slots[slot].phase = Phase::Free;
        state.free.push(slot);
        self.changed(&mut state);
    }

    fn part(self: &Arc<Self>, ticket: Ticket, slab: Arc<Slab>) -> Part {
        Part::new(Arc::clone(self), slab, ticket)
    }

    fn lease(self: &Arc<Self>, (slot, seq, slab, commits): Taken) -> Lease {
        Lease::new(Arc::clone(self), slab, slot, seq, commits)
    }

    /// The part that `worker` is to fill now.
    fn lend(&self, state: &mut State, worker: usize) -> Result<(Ticket, Arc<Slab>), Refusal> {
        if state.stopped || state.retired[worker] {
            return Err(Refusal::Over);
        }
        if state.paused || state.is_far_ahead(worker, self.spec.order) {
            return Err(Refusal::NotNow);
        }
        if let Some(i) = state.orphan_of(worker) {
            let ticket = state.orphans.swap_remove(i);
            state.lent += 1;
            state.slots[ticket.slot].workers[ticket.part] = worker;
            let slab = Arc::clone(&state.slots[ticket.slot].slab);
            return Ok((ticket, slab));
        }
        // The only place where "wait for all" and "first come" differ.
        let parts = self.layout.parts.len();
        let (seq, part) = match self.spec.order {
            Order::ByWorker => (state.laps[worker], worker),
            Order::ByArrival => (
                state.tickets / parts as u64,
                (state.tickets % parts as u64) as usize,
            ),
        };
        let slot = self.open(state, seq)?;
        match self.spec.order {
            Order::ByWorker => state.laps[worker] += 1,
            Order::ByArrival => state.tickets += 1,
        }
        state.lent += 1;
        state.slots[slot].workers[part] = worker;
        let slab = Arc::clone(&state.slots[slot].slab);
        Ok((Ticket { slot, part, seq }, slab))
    }

    /// The slot that is being filled with slab `seq`, started if need be.
    fn open(&self, state: &mut State, seq: u64) -> Result<usize, Refusal> {
        let filled_with =
            |slot: &Slot| matches!(slot.phase, Phase::Filling { seq: other, .. } if other == seq);
        if let Some(slot) = state.slots.iter().position(filled_with) {
            return Ok(slot);
        }
        if seq >= state.end || seq >= state.requested + self.spec.ahead as u64 {
            return Err(Refusal::NotNow);
        }
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None if state.slots.len() < self.spec.max_slabs => {
                let slab = Slab::new(&self.layout).ok_or(Refusal::Exhausted)?;
                state.slots.push(Slot {
                    slab: Arc::new(slab),
                    phase: Phase::Free,
                    commits: vec![Commit::default(); self.layout.parts.len()],
                    workers: vec![0; self.layout.parts.len()],
                });
                state.slots.len() - 1
            }
            None => return Err(Refusal::Exhausted),
        };
        state.slots[slot].phase = Phase::Filling { seq, committed: 0 };
        state.slots[slot].workers.fill(NOBODY);
        state.slots[slot].commits.fill(Commit::default());
        if self.spec.order == Order::ByWorker {
            for part in (0..state.retired.len())
                .filter(|&worker| state.retired[worker])
                .collect::<Vec<_>>()
            {
                self.mark_committed(state, slot, part, Commit::default());
            }
        }
        if self.spec.cut_after == Some(0) {
            self.cut.fetch_max(seq + 1, Ordering::Relaxed);
        }
        Ok(slot)
    }

    fn take(&self, state: &mut State) -> Option<Taken> {
        let slot = state.ready.pop_front()?;
        let taken = &mut state.slots[slot];
        let Phase::Ready { seq } = taken.phase else {
            return None;
        };
        taken.phase = Phase::Leased;
        let out = (slot, seq, Arc::clone(&taken.slab), taken.commits.clone());
        state.delivered += 1;
        Some(out)
    }

    /// Whether every slab before the end was delivered.
    fn is_over(&self, state: &State) -> bool {
        state.delivered >= state.end
    }

    /// Whether nothing can become whole until a batch is dropped.
    fn is_exhausted(&self, state: &State) -> bool {
        state.slots.len() >= self.spec.max_slabs
            && state.slots.iter().all(|slot| slot.phase == Phase::Leased)
    }

    #[cold]
    fn exhausted(&self, state: &State) -> SlabError {
        SlabError::Exhausted {
            slabs: state.slots.len(),
            bytes: self.layout.bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code of users runs under the lock, so a panic cannot leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whoever waits that the state is another one.
    fn changed(&self, state: &mut State) {
        self.changes.fetch_add(1, Ordering::Release);
        if state.sleeping_workers > 0 {
            self.room.notify_all();
        }
        if state.sleeping_consumers > 0 {
            self.ready.notify_all();
        }
    }

    /// Waits until `attempt` gives something: looking for a change at first, then asleep on `bell`.
    fn wait<R>(
        &self,
        bell: &Condvar,
        sleepers: impl Fn(&mut State) -> &mut usize,
        mut attempt: impl FnMut(&mut State) -> Option<R>,
    ) -> R {
        loop {
            let seen = self.changes.load(Ordering::Acquire);
            if let Some(out) = attempt(&mut self.lock()) {
                return out;
            }
            if !spin_until(|| self.changes.load(Ordering::Acquire) != seen) {
                break;
            }
        }
        let mut state = self.lock();
        loop {
            if let Some(out) = attempt(&mut state) {
                return out;
            }
            *sleepers(&mut state) += 1;
            state = bell.wait(state).unwrap_or_else(PoisonError::into_inner);
            *sleepers(&mut state) -= 1;
        }
    }
}

/// Stands for the worker of a part that was not claimed yet.
const NOBODY: usize = usize::MAX;

/// A slab that was taken: slot, sequence number, memory, what each part was committed with.
type Taken = (usize, u64, Arc<Slab>, Vec<Commit>);
