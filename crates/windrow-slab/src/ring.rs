//! Lends the parts of slabs to workers, and whole slabs to the consumer. The crate's README
//! describes the protocol; ADR 0002 says why one mutex guards it.

mod age;
#[cfg(target_os = "linux")]
mod pump;
#[cfg(target_os = "linux")]
mod shared;
mod state;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use windrow_sync::atomic::{AtomicU64, Ordering};
use windrow_sync::{Mutex, lock};

use crate::SlabError;
use crate::control::Control;
use crate::layout::Layout;
use crate::lease::{Lease, Parts};
use crate::part::{Owner, Part};
use crate::slab::Slab;

pub use age::{MaxAge, Publication};
#[cfg(target_os = "linux")]
pub use pump::Pump;
pub(crate) use state::Ticket;
use state::{MemorySource, Refusal, SlabStates, Taken};
use waits::Waits;

/// Which part of which slab a worker gets when it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Worker `w` fills part `w` of one slab after the other: rows do not depend on which worker
    /// was faster.
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
    /// Once this many parts of a slab are committed, the others are to be cut short at their next
    /// step.
    pub cut_after: Option<usize>,
    /// How old the weights of a part may be when its slab is taken; without it, any age will do,
    /// and the slab that is complete first is taken first.
    pub max_age: Option<MaxAge>,
}

impl RingSpec {
    /// # Errors
    /// [`SlabError::Workers`].
    fn check(&self, layout: &Layout) -> Result<(), SlabError> {
        let parts = layout.parts.len();
        let fits = self.order == Order::ByArrival || parts == self.workers;
        if self.workers == 0 || self.max_slabs == 0 || !fits {
            return Err(SlabError::Workers {
                parts,
                workers: self.workers,
                slabs: self.max_slabs,
            });
        }
        Ok(())
    }
}

/// The states of a new ring, with room for one slab.
fn states(
    layout: &Arc<Layout>,
    spec: RingSpec,
    control: &Arc<Control>,
    source: MemorySource,
) -> Result<CachePadded<Mutex<SlabStates>>, SlabError> {
    let workers = spec.workers;
    let states = SlabStates::new(Arc::clone(layout), spec, Arc::clone(control), source);
    let mut states = states.ok_or(SlabError::ManyWorkers { workers })?;
    states.make_room()?;
    Ok(CachePadded::new(Mutex::new(states)))
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
/// All transitions happen in `SlabStates`, under one lock that is held for some tens of nanoseconds
/// a part, and never while a slab's memory is touched.
#[derive(Debug)]
pub struct Ring {
    layout: Arc<Layout>,
    states: CachePadded<Mutex<SlabStates>>,
    control: Arc<Control>,
    waits: Waits,
    /// Where the slabs lie, where workers are in other processes.
    #[cfg(target_os = "linux")]
    segment: Option<Arc<crate::shared::Segment>>,
}

impl Ring {
    /// A ring of slabs laid out by `layout`. Memory is allocated for the first of them, and for
    /// another when it is first needed.
    ///
    /// # Errors
    /// [`SlabError::Workers`] without workers or slabs, or, by worker, when there are not as many
    /// parts as workers; [`SlabError::ManyWorkers`], [`SlabError::NoMemory`].
    pub fn new(layout: Layout, spec: RingSpec) -> Result<Arc<Self>, SlabError> {
        spec.check(&layout)?;
        let control = Arc::new(Control::own());
        let (layout, source) = (Arc::new(layout), MemorySource::Heap);
        let states = states(&layout, spec, &control, source)?;
        Ok(Arc::new(Self {
            layout,
            states,
            control,
            waits: Waits::new(),
            #[cfg(target_os = "linux")]
            segment: None,
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

    /// How many workers there are.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.locked(|states| states.workers())
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
    /// When the ring has no such worker: they are counted from 0, and [`RingSpec::workers`] says
    /// how many there are.
    #[must_use]
    pub fn claim(self: &Arc<Self>, worker: usize) -> Option<Part> {
        self.waits
            .room
            .wait(&self.states, |states| match states.lend(worker) {
                Ok(lent) => Some(Some(lent)),
                Err(Refusal::Over) => Some(None),
                Err(Refusal::NotNow | Refusal::Exhausted) => None,
            })
            .map(|lent| self.part(lent))
    }

    /// As [`claim`](Self::claim), until `other` returns something: an order beside the ring, of
    /// which [`notify`](Self::notify) tells. `other` must not use the ring.
    ///
    /// # Errors
    /// What `other` has returned.
    ///
    /// # Panics
    /// As [`claim`](Self::claim).
    pub fn claim_unless<R>(
        self: &Arc<Self>,
        worker: usize,
        mut other: impl FnMut() -> Option<R>,
    ) -> Result<Option<Part>, R> {
        let lent = self.waits.room.wait(&self.states, |states| {
            if let Some(other) = other() {
                return Some(Err(other));
            }
            match states.lend(worker) {
                Ok(lent) => Some(Ok(Some(lent))),
                Err(Refusal::Over) => Some(Ok(None)),
                Err(Refusal::NotNow | Refusal::Exhausted) => None,
            }
        })?;
        Ok(lent.map(|lent| self.part(lent)))
    }

    /// Lets all who wait look again: something beside the ring has changed that they look at too.
    pub fn notify(&self) {
        // Whoever has looked before the change is known to wait once the lock is free.
        self.locked(|_| ());
        self.waits.wake_everyone();
    }

    /// A part for frames that were collected before, while the ring is [held](Self::hold) and
    /// workers get none. By worker, it is the part of `worker`. `None` when nothing may be filled
    /// now.
    ///
    /// # Errors
    /// As [`try_claim`](Self::try_claim).
    ///
    /// # Panics
    /// As [`claim`](Self::claim).
    pub fn claim_held(self: &Arc<Self>, worker: usize) -> Result<Option<Part>, SlabError> {
        self.lent(|states| states.lend_held(worker))
    }

    /// As [`claim`](Self::claim) without waiting: `None` when nothing may be filled now.
    ///
    /// # Errors
    /// [`SlabError::Exhausted`] when only batches that are still alive keep the worker from going
    /// on, [`SlabError::NoMemory`] when there is none for another slab.
    ///
    /// # Panics
    /// As [`claim`](Self::claim).
    pub fn try_claim(self: &Arc<Self>, worker: usize) -> Result<Option<Part>, SlabError> {
        self.lent(|states| states.lend(worker))
    }

    fn lent(
        self: &Arc<Self>,
        lend: impl FnOnce(&mut SlabStates) -> Result<(Ticket, Arc<Slab>), Refusal>,
    ) -> Result<Option<Part>, SlabError> {
        let lent = self.locked(|states| match lend(states) {
            Ok(lent) => Ok(Some(lent)),
            Err(Refusal::Over | Refusal::NotNow) => Ok(None),
            Err(Refusal::Exhausted) => Err(states.exhausted()),
        })?;
        Ok(lent.map(|lent| self.part(lent)))
    }

    /// Asks for one more slab, unless one that was asked for is still to come.
    ///
    /// # Errors
    /// [`SlabError::Exhausted`] when batches that are still alive hold every slab,
    /// [`SlabError::NoMemory`] when they do and there is no memory for another.
    pub fn request(&self) -> Result<(), SlabError> {
        self.locked(|states| states.ask())?;
        self.waits.wake_workers();
        Ok(())
    }

    /// Asks for `slabs` slabs at once, those that were asked for and are still to come among them:
    /// workers may begin all of them.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn request_many(&self, slabs: usize) -> Result<(), SlabError> {
        self.locked(|states| states.ask_for(slabs as u64))?;
        self.waits.wake_workers();
        Ok(())
    }

    /// Nobody waits for what was requested, until the next request: no publication waits until it
    /// is taken.
    pub fn leave_unattended(&self) {
        self.locked(SlabStates::leave_unattended);
        self.waits.wake_workers();
    }

    /// The consumer has taken `slabs` slabs that it delivers before others: those that are started
    /// now come later by as many, which counts for [`RingSpec::max_age`].
    pub fn keep(&self, slabs: usize) {
        let slabs = slabs as u64;
        if self.locked(|states| std::mem::replace(&mut states.kept, slabs)) != slabs {
            self.waits.wake_workers();
        }
    }

    /// A publication of what workers load when they claim a part, such as weights, for `worker` or
    /// for all. It counts for [`Lease::ages`].
    #[must_use]
    pub fn publication(&self, worker: Option<usize>) -> Publication<'_> {
        Publication::new(self, worker)
    }

    /// How many publications have ended, after each of which workers that were refused a part may
    /// get one; waits for the end of one under way. Always 0 without [`RingSpec::max_age`].
    #[must_use]
    pub fn publications(&self) -> u64 {
        let ended = |states: &mut SlabStates| states.publications();
        self.waits.room.wait(&self.states, ended)
    }

    /// The age of the oldest part that was claimed and not taken: see [`Lease::ages`].
    #[must_use]
    pub fn oldest(&self) -> u64 {
        self.locked(|states| states.ages_of_parts().map(|(_, age)| age).max())
            .unwrap_or(0)
    }

    /// How long complete slabs have waited for older ones, which would have been too old after
    /// them.
    #[must_use]
    pub fn was_held_back(&self) -> Duration {
        self.locked(|states| states.was_held_back)
    }

    /// Asks for one more slab and waits until it is complete.
    ///
    /// # Errors
    /// [`SlabError::Exhausted`] and [`SlabError::NoMemory`] as [`request`](Self::request);
    /// [`SlabError::Stopped`] once the ring is stopped and all complete slabs were taken.
    pub fn next(self: &Arc<Self>) -> Result<Lease, SlabError> {
        loop {
            if let Some(lease) = self.wait_for_next(None)? {
                return Ok(lease);
            }
        }
    }

    /// As [`next`](Self::next), but waits no longer than `timeout`: `None` when no slab was
    /// complete by then. The next call asks for the same slab.
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
        if let Some(taken) = at_once {
            // Workers may go on after the request.
            self.waits.wake_workers();
            return Ok(Some(self.lease(taken)));
        }
        // The wait below runs the pump, which wakes workers in other processes.
        self.waits.room.wake_all();
        let taken = self.waits.wait(&self.states, timeout, |states| {
            if let Some(taken) = states.take() {
                return Some(Ok(taken));
            }
            if states.stopped || states.is_over() {
                return Some(Err(SlabError::Stopped));
            }
            states.make_room().err().map(Err)
        });
        let taken = taken.transpose()?;
        Ok(taken.map(|taken| self.lease_and_wake(taken)))
    }

    /// Waits until [`next`](Self::next) does not wait for the slab that was requested last, and
    /// takes none.
    pub fn wait_until_ready(&self) {
        let ready = |states: &mut SlabStates| states.answers().then_some(());
        while self.waits.wait(&self.states, None, ready).is_none() {}
    }

    /// Calls `attempt` after each change in the ring, and each ring of its bell, until it returns
    /// something or `timeout` has passed. Runs the pump for workers in other processes meanwhile.
    /// `attempt` must not use the ring.
    pub fn wait_within<R>(
        &self,
        timeout: Duration,
        mut attempt: impl FnMut() -> Option<R>,
    ) -> Option<R> {
        self.waits.wait(&self.states, Some(timeout), |_| attempt())
    }

    /// The slab that was completed first; `None` when none is complete.
    #[must_use]
    pub fn try_next(self: &Arc<Self>) -> Option<Lease> {
        let taken = match self.locked(SlabStates::take) {
            None if self.waits.pump() => self.locked(SlabStates::take),
            taken => taken,
        };
        Some(self.lease_and_wake(taken?))
    }

    /// Refuses all further claims, wakes all waiters, and cuts claimed parts short at their next
    /// step; these no longer complete a slab. Complete slabs can still be taken.
    pub fn stop(&self) {
        self.locked(|states| {
            states.stopped = true;
            self.control.cut.store(u64::MAX, Ordering::Relaxed);
        });
        self.waits.wake_everyone();
    }

    /// Starts no slab from number `end` on: workers that ask for one wait, and the consumer gets
    /// [`SlabError::Stopped`].
    pub fn end_at(&self, end: u64) {
        if self.locked(|states| std::mem::replace(&mut states.end, end)) != end {
            self.waits.wake_everyone();
        }
    }

    /// Whether it is [held](Self::hold).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.locked(|states| states.paused)
    }

    /// Lends nothing until [`resume`](Self::resume). Returns whether every part is committed or
    /// dropped.
    pub fn hold(&self) -> bool {
        self.locked(|states| {
            states.paused = true;
            states.is_quiet()
        }) || (self.waits.pump() && self.locked(|states| states.is_quiet()))
    }

    /// As [`hold`](Self::hold), but waits up to `timeout` until every claimed part is committed or
    /// dropped.
    pub fn hold_within(&self, timeout: Duration) -> bool {
        let quiet = |states: &mut SlabStates| states.is_quiet().then_some(());
        self.hold()
            || self
                .waits
                .wait(&self.states, Some(timeout), quiet)
                .is_some()
    }

    /// As [`hold`](Self::hold), and waits until every claimed part is committed or dropped.
    pub fn pause(&self) {
        let quiet = |states: &mut SlabStates| states.is_quiet().then_some(());
        self.hold();
        while self.waits.wait(&self.states, None, quiet).is_none() {}
    }

    /// Lends again.
    pub fn resume(&self) {
        self.locked(|states| states.paused = false);
        self.waits.wake_everyone();
    }

    /// Cuts all parts short at their next step, also those that are claimed later; with `false`, no
    /// longer does.
    pub fn cut_all(&self, cut: bool) {
        self.locked(|states| {
            // Nothing takes a stop back.
            let all = cut || states.stopped;
            let before = if all { u64::MAX } else { 0 };
            self.control.cut.store(before, Ordering::Relaxed);
        });
    }

    /// Retires `worker`: it claims no more parts. A part that it has dropped, or drops from now on,
    /// counts as committed with no step; a part that it has claimed may still be committed. By
    /// worker, its part of every further slab stays empty; by arrival, other workers fill it.
    /// Returns whether parts stay empty. Retiring a worker again changes nothing.
    ///
    /// # Panics
    /// As [`claim`](Self::claim).
    pub fn retire(&self, worker: usize) -> bool {
        let own = self.locked(|states| states.retire(worker));
        self.waits.wake_everyone();
        own
    }

    /// Retires `worker` as [`retire`](Self::retire) does. By worker, those that are left fill its
    /// parts in turn, also one that it has dropped, or drops from now on: the `n`-th of the parts
    /// without a worker in slab `seq` is that of number `seq + n` among these workers, all counted
    /// from 0, and of what it has to fill in a slab, a worker claims the first part first. One that
    /// was claimed before comes last: see [`Lease::order`].
    ///
    /// # Panics
    /// As [`claim`](Self::claim).
    pub fn reassign(&self, worker: usize) {
        self.locked(|states| states.reassign(worker));
        self.waits.wake_everyone();
    }

    /// Takes a slab back from the consumer.
    pub(crate) fn release(&self, slot: usize) {
        if self.locked(|states| states.release(slot)) {
            self.waits.wake_workers();
        }
    }

    fn part(self: &Arc<Self>, (ticket, slab): (Ticket, Arc<Slab>)) -> Part {
        let owner: Arc<dyn Owner> = Arc::<Self>::clone(self);
        Part::new(owner, slab, ticket)
    }

    /// As [`lease`](Self::lease), and wakes the workers that may go on since the slab was taken.
    fn lease_and_wake(self: &Arc<Self>, taken: Taken) -> Lease {
        match taken.lets_workers_on {
            true => self.waits.wake_workers(),
            false => drop(self.waits.pump()),
        }
        self.lease(taken)
    }

    /// The lease of a slab that was taken.
    fn lease(self: &Arc<Self>, taken: Taken) -> Lease {
        let Taken {
            slot,
            seq,
            slab,
            commits,
            ages,
            order,
            ..
        } = taken;
        let parts = Parts {
            commits,
            ages,
            order,
        };
        Lease::new(Arc::clone(self), slab, slot, seq, parts)
    }

    fn locked<R>(&self, change: impl FnOnce(&mut SlabStates) -> R) -> R {
        change(&mut lock(&self.states))
    }
}

impl Owner for Ring {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn cut(&self) -> &AtomicU64 {
        &self.control.cut
    }

    /// The last part completes its slab.
    fn commit(&self, ticket: Ticket, commit: Commit) {
        if self.locked(|states| states.commit(ticket, commit)) {
            self.waits.wake_consumer();
        }
    }

    /// Its worker gets the part again with the next claim, or another worker in its place.
    fn orphan(&self, ticket: Ticket) {
        if self.locked(|states| states.orphan(ticket)) {
            // The thread that waits runs the pump, for workers in other processes.
            self.waits.room.wake_all();
            self.waits.wake_consumer();
        }
    }
}
