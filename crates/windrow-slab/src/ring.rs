//! Who may write which slab, and who may read it. The protocol is told in the crate's README.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use crate::SlabError;
use crate::layout::{Layout, Slab};
use crate::lease::Lease;
use crate::part::Part;
use crate::sync::{AtomicU32, Condvar, Mutex, MutexGuard, Ordering, spin_until};

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
}

/// The slabs of one collector and their states.
///
/// ```text
///         first claim              all parts committed          take               last view dropped
///  Free ──────────────▶ Filling ───────────────────────▶ Ready ──────▶ Leased ─────────────────────▶ Free
///                          │ a part dropped without commit is claimed again before any new one
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
    /// Steps that each part was committed with.
    steps_done: Vec<usize>,
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
    /// The consumer has not asked for that many slabs yet.
    NotRequested,
    /// No slab is free and the ring may not grow.
    Exhausted,
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
                stopped: false,
                sleeping_workers: 0,
                sleeping_consumers: 0,
            }),
            spec,
            room: Condvar::new(),
            ready: Condvar::new(),
            changes: AtomicU32::new(0),
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

    /// How many slabs `worker` has claimed its part of, by worker; how many were begun, by arrival.
    #[must_use]
    pub fn claimed(&self, worker: usize) -> u64 {
        let state = self.lock();
        match self.spec.order {
            Order::ByWorker => state.laps.get(worker).copied().unwrap_or(0),
            Order::ByArrival => state.tickets.div_ceil(self.layout.parts.len() as u64),
        }
    }

    /// Waits until `worker` may fill a part, and lends it; `None` once the ring is stopped.
    #[must_use]
    pub fn claim(self: &Arc<Self>, worker: usize) -> Option<Part> {
        self.wait(
            &self.room,
            |state| &mut state.sleeping_workers,
            |state| {
                if state.stopped {
                    return Some(None);
                }
                self.lend(state, worker).ok().map(Some)
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
        if state.stopped {
            return Ok(None);
        }
        match self.lend(&mut state, worker) {
            Ok((ticket, slab)) => Ok(Some(self.part(ticket, slab))),
            Err(Refusal::NotRequested) => Ok(None),
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
                if state.stopped {
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

    /// Refuses all further claims and wakes whoever waits. Parts that are out can still be committed, and whole
    /// slabs still be taken.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        self.changed(&mut state);
    }

    /// Marks a part as written; its slab is whole with the last one.
    pub(crate) fn commit(&self, ticket: Ticket, steps_done: usize) {
        let mut state = self.lock();
        let parts = self.layout.parts.len();
        let slot = &mut state.slots[ticket.slot];
        slot.steps_done[ticket.part] = steps_done;
        if let Phase::Filling { seq, committed } = &mut slot.phase {
            *committed += 1;
            if *committed == parts {
                slot.phase = Phase::Ready { seq: *seq };
                state.ready.push_back(ticket.slot);
            }
        }
        self.changed(&mut state);
    }

    /// Takes a part back unwritten: the next claim that may have it gets it again.
    pub(crate) fn orphan(&self, ticket: Ticket) {
        let mut state = self.lock();
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

    fn lease(self: &Arc<Self>, (slot, seq, slab, steps): Taken) -> Lease {
        Lease::new(Arc::clone(self), slab, slot, seq, steps)
    }

    /// The part that `worker` is to fill now.
    fn lend(&self, state: &mut State, worker: usize) -> Result<(Ticket, Arc<Slab>), Refusal> {
        let mine = |orphan: &Ticket| self.spec.order == Order::ByArrival || orphan.part == worker;
        if let Some(i) = state.orphans.iter().position(mine) {
            let ticket = state.orphans.swap_remove(i);
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
        if seq >= state.requested + self.spec.ahead as u64 {
            return Err(Refusal::NotRequested);
        }
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None if state.slots.len() < self.spec.max_slabs => {
                let slab = Slab::new(&self.layout).ok_or(Refusal::Exhausted)?;
                state.slots.push(Slot {
                    slab: Arc::new(slab),
                    phase: Phase::Free,
                    steps_done: vec![0; self.layout.parts.len()],
                });
                state.slots.len() - 1
            }
            None => return Err(Refusal::Exhausted),
        };
        state.slots[slot].phase = Phase::Filling { seq, committed: 0 };
        Ok(slot)
    }

    fn take(&self, state: &mut State) -> Option<Taken> {
        let slot = state.ready.pop_front()?;
        let taken = &mut state.slots[slot];
        let Phase::Ready { seq } = taken.phase else {
            return None;
        };
        taken.phase = Phase::Leased;
        let out = (slot, seq, Arc::clone(&taken.slab), taken.steps_done.clone());
        state.delivered += 1;
        Some(out)
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

/// A slab that was taken: slot, sequence number, memory, steps of each part.
type Taken = (usize, u64, Arc<Slab>, Vec<usize>);
