//! Lends the parts of slabs to workers, and whole slabs to the consumer. The crate's README tells the protocol.

mod state;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::SlabError;
use crate::layout::{Layout, Slab};
use crate::lease::Lease;
use crate::part::Part;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::wait_queue::{WaitQueue, locked};

pub(crate) use state::Ticket;
use state::{Refusal, SlabStates, Taken};

/// Which part of which slab a worker gets when it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Worker `w` fills part `w` of one slab after the other: rows do not depend on which worker was faster.
    ByWorker,
    /// The next worker that asks fills the next part.
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

/// How much of a part was written, and under which weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Commit {
    /// Steps that are written.
    pub steps: usize,
    /// Version of the weights that acted.
    pub version: i64,
}

/// The slabs of one collector and their states.
///
/// ```text
///         first claim              all parts committed          take               last view dropped
///  Free ──────────────▶ Filling ───────────────────────▶ Ready ──────▶ Leased ─────────────────────▶ Free
///                          │ a part dropped without commit is claimed again by its worker before any other
/// ```
///
/// All transitions happen in [`SlabStates`], under one lock that is held for some tens of nanoseconds a part, and never
/// while a slab's memory is touched.
#[derive(Debug)]
pub struct Ring {
    layout: Arc<Layout>,
    states: CachePadded<Mutex<SlabStates>>,
    /// Parts of slabs before this number are to be cut short at their next step; written under the lock. A hint: nothing
    /// else is ordered by it.
    cut: Arc<CachePadded<AtomicU64>>,
    /// Workers wait here until they may fill another part.
    room: WaitQueue,
    /// The consumer waits here for a slab, or for all parts to come back.
    ready: WaitQueue,
}

impl Ring {
    /// A ring of slabs laid out by `layout`. Memory is allocated for the first of them, and for another when it is first
    /// needed.
    ///
    /// # Errors
    /// [`SlabError::Workers`] without workers or slabs, or, by worker, when there are not as many parts as workers;
    /// [`SlabError::ManyWorkers`], [`SlabError::NoMemory`].
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
        let (layout, workers) = (Arc::new(layout), spec.workers);
        let cut = Arc::new(CachePadded::new(AtomicU64::new(0)));
        let mut states = SlabStates::new(Arc::clone(&layout), spec, Arc::clone(&cut))
            .ok_or(SlabError::ManyWorkers { workers })?;
        states.make_room()?;
        Ok(Arc::new(Self {
            layout,
            states: CachePadded::new(Mutex::new(states)),
            cut,
            room: WaitQueue::new(),
            ready: WaitQueue::new(),
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
        self.locked(|states| states.slabs())
    }

    /// Slabs that were started so far.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.locked(|states| states.begun())
    }

    /// Whether every slab before the [end](Self::end_at) was delivered.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.locked(|states| states.is_over())
    }

    /// Waits until `worker` may fill a part, and lends it; `None` once the ring is stopped.
    ///
    /// # Panics
    /// When the ring has no such worker: they are counted from 0, and [`RingSpec::workers`] says how many there are.
    #[must_use]
    pub fn claim(self: &Arc<Self>, worker: usize) -> Option<Part> {
        self.room
            .wait(&self.states, |states| match states.lend(worker) {
                Ok(lent) => Some(Some(lent)),
                Err(Refusal::Over) => Some(None),
                Err(Refusal::NotNow | Refusal::Exhausted) => None,
            })
            .map(|lent| self.part(lent))
    }

    /// As [`claim`](Self::claim) without waiting: `None` when nothing may be filled now.
    ///
    /// # Errors
    /// [`SlabError::Exhausted`] when only batches that are still alive keep the worker from going on,
    /// [`SlabError::NoMemory`] when there is none for another slab.
    ///
    /// # Panics
    /// As [`claim`](Self::claim).
    pub fn try_claim(self: &Arc<Self>, worker: usize) -> Result<Option<Part>, SlabError> {
        let lent = self.locked(|states| match states.lend(worker) {
            Ok(lent) => Ok(Some(lent)),
            Err(Refusal::Over | Refusal::NotNow) => Ok(None),
            Err(Refusal::Exhausted) => Err(states.exhausted()),
        })?;
        Ok(lent.map(|lent| self.part(lent)))
    }

    /// Asks for one more slab, unless one that was asked for is still to come.
    ///
    /// # Errors
    /// [`SlabError::Exhausted`] when batches that are still alive hold every slab, [`SlabError::NoMemory`] when they do and
    /// there is no memory for another.
    pub fn request(&self) -> Result<(), SlabError> {
        self.locked(|states| states.ask())?;
        self.room.wake_all();
        Ok(())
    }

    /// Asks for one more slab and waits until it is complete.
    ///
    /// # Errors
    /// [`SlabError::Exhausted`] and [`SlabError::NoMemory`] as [`request`](Self::request); [`SlabError::Stopped`] once the ring
    /// is stopped and all complete slabs were taken.
    pub fn next(self: &Arc<Self>) -> Result<Lease, SlabError> {
        loop {
            if let Some(lease) = self.wait_for_next(None)? {
                return Ok(lease);
            }
        }
    }

    /// As [`next`](Self::next), but waits no longer than `timeout`: `None` when no slab was complete by then. The next call
    /// asks for the same slab.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn next_within(self: &Arc<Self>, timeout: Duration) -> Result<Option<Lease>, SlabError> {
        self.wait_for_next(Some(timeout))
    }

    fn wait_for_next(
        self: &Arc<Self>,
        timeout: Option<Duration>,
    ) -> Result<Option<Lease>, SlabError> {
        let at_once = self.locked(|states| {
            states.ask()?;
            Ok(states.take())
        })?;
        // Workers may go on after a request, and after a slab was taken.
        self.room.wake_all();
        if let Some(taken) = at_once {
            return Ok(Some(self.lease(taken)));
        }
        let taken = self.ready.wait_within(&self.states, timeout, |states| {
            if let Some(taken) = states.take() {
                return Some(Ok(taken));
            }
            if states.stopped || states.is_over() {
                return Some(Err(SlabError::Stopped));
            }
            states.make_room().err().map(Err)
        });
        let Some(taken) = taken.transpose()? else {
            return Ok(None);
        };
        self.room.wake_all();
        Ok(Some(self.lease(taken)))
    }

    /// The slab that was completed first; `None` when none is complete.
    #[must_use]
    pub fn try_next(self: &Arc<Self>) -> Option<Lease> {
        let taken = self.locked(SlabStates::take)?;
        self.room.wake_all();
        Some(self.lease(taken))
    }

    /// Refuses all further claims, wakes all waiters, and cuts claimed parts short at their next step; these no longer complete
    /// a slab. Complete slabs can still be taken.
    pub fn stop(&self) {
        self.locked(|states| {
            states.stopped = true;
            self.cut.store(u64::MAX, Ordering::Relaxed);
        });
        self.wake_everyone();
    }

    /// Starts no slab from number `end` on: workers that ask for one wait, and the consumer gets [`SlabError::Stopped`].
    pub fn end_at(&self, end: u64) {
        self.locked(|states| states.end = end);
        self.wake_everyone();
    }

    /// Lends nothing until [`resume`](Self::resume). Returns whether every part is committed or dropped.
    pub fn hold(&self) -> bool {
        self.locked(|states| {
            states.paused = true;
            states.is_quiet()
        })
    }

    /// As [`hold`](Self::hold), but waits up to `timeout` until every claimed part is committed or dropped.
    pub fn hold_within(&self, timeout: Duration) -> bool {
        let quiet = |states: &mut SlabStates| states.is_quiet().then_some(());
        self.hold()
            || self
                .ready
                .wait_within(&self.states, Some(timeout), quiet)
                .is_some()
    }

    /// As [`hold`](Self::hold), and waits until every claimed part is committed or dropped.
    pub fn pause(&self) {
        self.hold();
        self.ready
            .wait(&self.states, |states| states.is_quiet().then_some(()));
    }

    /// Lends again.
    pub fn resume(&self) {
        self.locked(|states| states.paused = false);
        self.wake_everyone();
    }

    /// Cuts all parts short at their next step, also those that are claimed later; with `false`, no longer does.
    pub fn cut_all(&self, cut: bool) {
        self.locked(|states| {
            // Nothing takes a stop back.
            let all = cut || states.stopped;
            let before = if all { u64::MAX } else { 0 };
            self.cut.store(before, Ordering::Relaxed);
        });
    }

    /// Lets `worker` claim no more parts. A part that it has dropped, or drops from now on, counts as committed with no step; a
    /// part that it has claimed may still be committed. By worker, its part of every further slab stays empty; by arrival,
    /// other workers fill it. Returns whether parts stay empty. Retiring a worker again changes nothing.
    ///
    /// # Panics
    /// As [`claim`](Self::claim).
    pub fn retire(&self, worker: usize) -> bool {
        let own = self.locked(|states| states.retire(worker));
        self.wake_everyone();
        own
    }

    /// Parts of slabs before this number are to be cut short. A hint: nothing else is ordered by it.
    pub(crate) fn cut(&self) -> &AtomicU64 {
        &self.cut
    }

    /// Marks a part as written; the last one completes its slab.
    pub(crate) fn commit(&self, ticket: Ticket, commit: Commit) {
        if self.locked(|states| states.commit(ticket, commit)) {
            self.ready.wake_all();
        }
    }

    /// Takes a part back unwritten: its worker gets it again with the next claim, unless it is retired.
    pub(crate) fn orphan(&self, ticket: Ticket) {
        if self.locked(|states| states.orphan(ticket)) {
            self.ready.wake_all();
        }
    }

    /// Takes a slab back from the consumer.
    pub(crate) fn release(&self, slot: usize) {
        if self.locked(|states| states.release(slot)) {
            self.room.wake_all();
        }
    }

    fn part(self: &Arc<Self>, (ticket, slab): (Ticket, Arc<Slab>)) -> Part {
        Part::new(Arc::clone(self), slab, ticket)
    }

    fn lease(self: &Arc<Self>, taken: Taken) -> Lease {
        let Taken {
            slot,
            seq,
            slab,
            commits,
        } = taken;
        Lease::new(Arc::clone(self), slab, slot, seq, commits)
    }

    fn locked<R>(&self, change: impl FnOnce(&mut SlabStates) -> R) -> R {
        change(&mut locked(&self.states))
    }

    fn wake_everyone(&self) {
        self.room.wake_all();
        self.ready.wake_all();
    }
}
