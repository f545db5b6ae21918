//! One worker's share of a slab, while it is being written.

pub(crate) mod bytes;

use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::Arc;

use tensordict::{DType, Element};
use windrow_sync::atomic::{AtomicU64, Ordering};

use self::bytes::runs_of;
use crate::layout::{Layout, PartLayout};
use crate::ring::{Commit, Ticket};
use crate::rows::Column;
use crate::slab::{PartBlocks, Slab};
use crate::{Rows, RowsMut};

/// Lends parts and takes them back: the ring, here or in another process. A part calls it a few
/// times in its life, never for a step.
pub(crate) trait Owner: Debug + Send + Sync {
    fn layout(&self) -> &Layout;

    /// Parts of slabs before this number are to be cut short. A hint: nothing else is ordered by
    /// it.
    fn cut(&self) -> &AtomicU64;

    /// Takes a part that is written.
    fn commit(&self, ticket: Ticket, commit: Commit);

    /// Takes a part back unwritten.
    fn orphan(&self, ticket: Ticket);
}

/// The exclusive right to write one part of a slab.
///
/// [`commit`](Self::commit) hands it over to the consumer; dropping it instead gives it back
/// unwritten, and no reader ever sees its content.
///
/// A part cannot be written after it was committed:
/// ```compile_fail,E0382
/// fn late(mut part: windrow_slab::Part) {
///     part.commit();
///     let _ = part.rows();
/// }
/// ```
/// and no row of it outlives it:
/// ```compile_fail,E0597
/// fn kept<'a>(ring: &'a std::sync::Arc<windrow_slab::Ring>) -> Option<windrow_slab::RowsMut<'a>> {
///     let mut part = ring.claim(0)?;
///     let row = part.first_obs();
///     Some(row)
/// }
/// ```
/// nor does a value of variable size outlive the right to its part, after which another worker may
/// write there:
/// ```compile_fail,E0505
/// fn late(part: windrow_slab::Part) -> usize {
///     let text = part.obs(0).expect("a step").strings(windrow_slab::Key::new(0)).expect("text");
///     part.commit();
///     text.len()
/// }
/// ```
#[derive(Debug)]
pub struct Part {
    owner: Arc<dyn Owner>,
    slab: Arc<Slab>,
    ticket: Ticket,
    steps: usize,
    committed: bool,
}

impl Part {
    pub(crate) fn new(owner: Arc<dyn Owner>, slab: Arc<Slab>, ticket: Ticket) -> Self {
        let steps = owner.layout().parts[ticket.part].steps;
        let mut part = Self {
            owner,
            slab,
            ticket,
            steps,
            committed: false,
        };
        part.clear_root_flags();
        part.clear_values();
        part
    }

    /// Empties all values of variable size, whose memory is then used again. A claim does that;
    /// whoever keeps a part and writes its rows again and again calls it when nobody needs the
    /// values any more.
    pub fn clear_values(&mut self) {
        if let Some(arena) = self.slab.arenas.get(self.ticket.part) {
            #[cfg(loom)]
            self.slab.shadow[self.ticket.part].write();
            // SAFETY: this `Part` has its part to itself and is borrowed exclusively, so no rows of
            // it are lent.
            unsafe { arena.clear() };
            self.clear_cells();
        }
    }

    /// Number of the slab since the start: batches by worker are delivered in this order.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.ticket.seq
    }

    /// Which of the ring's slabs the part lies in, counted from 0: a worker in another process maps
    /// it by this number.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.ticket.slot
    }

    /// Which part of the slab this is.
    #[must_use]
    pub fn index(&self) -> usize {
        self.ticket.part
    }

    /// Steps to be written.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Whether the part is to be cut short at its next step, because the consumer does not wait for
    /// the rest.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.owner.cut().load(Ordering::Relaxed) > self.ticket.seq
    }

    /// Leaves the steps from `steps` on unwritten, as in the short last batch.
    pub fn shorten(&mut self, steps: usize) {
        self.steps = self.steps.min(steps);
    }

    /// Environments in the part.
    #[must_use]
    pub fn envs(&self) -> usize {
        self.owner.layout().shares.envs
    }

    /// The observations of the first step: the cursor carries them in from the part before, the
    /// step loop only reads them.
    #[must_use]
    pub fn first_obs(&mut self) -> RowsMut<'_> {
        // SAFETY: this `Part` has all rows of its part to itself and is borrowed exclusively.
        // Memory starts zeroed and is only written as what each column holds.
        unsafe { RowsMut::new(&self.blocks().obs, 0) }
    }

    /// Numbers beside the frames: as many as [`RecordSpec::notes`](crate::RecordSpec::notes),
    /// rounded up to whole cache lines. They are as whoever had the part last has left them.
    #[must_use]
    pub fn notes(&mut self) -> &mut [f64] {
        let (offset, count) = self.owner.layout().notes(self.ticket.part);
        // SAFETY: the offset lies within the slab's memory and is aligned. This `Part` has the
        // notes of its part to itself and is borrowed exclusively; memory starts zeroed, and every
        // bit pattern is a number.
        unsafe {
            let first = self.slab.memory.ptr().add(offset).cast::<f64>();
            std::slice::from_raw_parts_mut(first.as_ptr(), count)
        }
    }

    /// The rows of the part, one step after the other.
    #[inline]
    #[must_use]
    pub fn rows(&mut self) -> PartRows<'_> {
        #[cfg(loom)]
        self.slab.shadow[self.ticket.part].write();
        let (base, columns) = (self.slab.memory.ptr(), &self.layout().columns);
        PartRows {
            blocks: self.blocks(),
            reward: start(base, &columns.reward),
            terminated: start(base, &columns.terminated),
            truncated: start(base, &columns.truncated),
            done: start(base, &columns.done),
            traj_ids: columns.traj_ids.as_ref().map(|column| start(base, column)),
            version: columns.version.as_ref().map(|column| start(base, column)),
            cut: self.owner.cut(),
            seq: self.ticket.seq,
            envs: self.envs(),
            across: self.owner.layout().row_envs(),
            steps: self.steps,
            t: 0,
        }
    }

    /// Hands the part over: all its steps are written.
    pub fn commit(self) {
        self.commit_version(0);
    }

    /// As [`commit`](Self::commit), and says which version of the weights acted.
    pub fn commit_version(mut self, version: i64) {
        self.committed = true;
        let steps = self.steps;
        self.owner.commit(self.ticket, Commit { steps, version });
    }

    /// The observations of step `step`, which must have been written: those that followed the step
    /// before, or the first.
    #[must_use]
    pub fn obs(&self, step: usize) -> Option<Rows<'_>> {
        // SAFETY: this `Part` has all rows of its part to itself and is borrowed, so no one writes
        // them meanwhile. Memory starts zeroed and is only written as what each column holds.
        (step < self.layout().steps).then(|| unsafe { Rows::new(&self.blocks().obs, step) })
    }

    /// The policy's rows of step `step`: its action, then its extra columns.
    #[must_use]
    pub fn policy(&self, step: usize) -> Option<Rows<'_>> {
        // SAFETY: as in `obs`.
        (step < self.layout().steps).then(|| unsafe { Rows::new(&self.blocks().policy, step) })
    }

    fn layout(&self) -> &PartLayout {
        &self.owner.layout().parts[self.ticket.part]
    }

    fn blocks(&self) -> &PartBlocks {
        &self.slab.parts[self.ticket.part]
    }

    /// A holder of the batch before may have written into this memory, and these columns have no
    /// writer.
    fn clear_root_flags(&mut self) {
        let flags = self.layout().columns.root_flags;
        self.zero(&flags);
    }

    /// The cells of the batch before name values that are gone.
    #[cold]
    fn clear_cells(&mut self) {
        let columns = self.layout().columns.iter().copied();
        let cells = columns.filter(|column| column.dtype == DType::Bytes);
        let cells: Vec<_> = cells.collect();
        self.zero(&cells);
    }

    fn zero(&mut self, columns: &[Column]) {
        let steps = self.steps;
        let base = self.slab.memory.ptr().as_ptr();
        for run in columns.iter().flat_map(|column| runs_of(column, steps)) {
            // SAFETY: the run belongs to this part's rows of the column, which this `Part` has to
            // itself; zero is `false`, and the cell of an empty value.
            unsafe { base.add(run.offset).write_bytes(0, run.len) };
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.committed {
            self.owner.orphan(self.ticket);
        }
    }
}

/// Where a column of one element an environment starts.
fn start<T: Element>(base: NonNull<u8>, column: &Column) -> NonNull<T> {
    debug_assert_eq!(column.dtype, T::DTYPE);
    // SAFETY: the offsets of a layout lie within its memory.
    unsafe { base.add(column.offset) }.cast()
}

/// Goes through the steps of a part.
#[derive(Debug)]
pub struct PartRows<'p> {
    blocks: &'p PartBlocks,
    reward: NonNull<f32>,
    terminated: NonNull<bool>,
    truncated: NonNull<bool>,
    done: NonNull<bool>,
    traj_ids: Option<NonNull<i64>>,
    version: Option<NonNull<i64>>,
    cut: &'p AtomicU64,
    seq: u64,
    envs: usize,
    /// Environments from one row to the next, those of parts beside this one included.
    across: usize,
    steps: usize,
    t: usize,
}

// SAFETY: stands for the exclusive borrow of a `Part`, whose memory may be written from any one
// thread.
unsafe impl Send for PartRows<'_> {}

/// The rows of one step, `[envs, *shape]` each, by writer.
#[derive(Debug)]
pub struct Step<'a> {
    /// Observations that the policy acts on.
    pub obs: Rows<'a>,
    /// Action and extra columns, written by the policy.
    pub policy: RowsMut<'a>,
    /// Observations that followed, written by the environment.
    pub next_obs: RowsMut<'a>,
    /// Rewards, written by the environment. `[envs]`.
    pub reward: &'a mut [f32],
    /// Written by the environment. `[envs]`.
    pub terminated: &'a mut [bool],
    /// Written by the environment. `[envs]`.
    pub truncated: &'a mut [bool],
    /// `terminated` or `truncated`, written by the engine. `[envs]`.
    pub done: &'a mut [bool],
    /// Written by the engine; `[envs]`, empty when the record has no such column.
    pub traj_ids: &'a mut [i64],
    /// Version of the weights that acted, written by the engine; `[envs]`, empty when the record
    /// has no such column.
    pub version: &'a mut [i64],
    /// Observations of the following step; `None` at the part's last one.
    pub following: Option<RowsMut<'a>>,
}

impl PartRows<'_> {
    /// Whether to cut the part short here, because the consumer does not wait for the rest.
    #[inline(always)]
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed) > self.seq
    }

    /// Steps gone through so far.
    #[inline(always)]
    #[must_use]
    pub fn steps_done(&self) -> usize {
        self.t
    }

    /// The flags of the last step gone through: `truncated` and `done`; `None` before the first.
    pub fn last_flags(&mut self) -> Option<(&mut [bool], &mut [bool])> {
        let row = self.t.checked_sub(1)? * self.across;
        // SAFETY: the step was gone through, so its row belongs to the part; the two columns do not
        // overlap, and `self` is borrowed exclusively.
        Some(unsafe { (self.slice(self.truncated, row), self.slice(self.done, row)) })
    }

    /// The observations that followed the last step gone through; `None` before the first.
    pub fn last_next_obs(&mut self) -> Option<RowsMut<'_>> {
        let t = self.t.checked_sub(1)?;
        // SAFETY: the step was gone through, so its rows belong to the part, and `self` is borrowed
        // exclusively.
        Some(unsafe { RowsMut::new(&self.blocks.next_obs, t) })
    }

    /// The next step; `None` after the last one.
    #[inline(always)]
    pub fn next_step(&mut self) -> Option<Step<'_>> {
        let t = self.t;
        if t == self.steps {
            return None;
        }
        self.t = t + 1;
        let PartBlocks {
            obs,
            policy,
            next_obs,
        } = self.blocks;
        let row = t * self.across;
        // SAFETY: `t < steps`, the columns of a part lie within the slab and do not overlap, rows
        // `t` and `t + 1` of `obs` are different ones, and `self` stands for the exclusive borrow
        // of the part and is itself borrowed as long as the step lives. Memory starts zeroed and is
        // only written as what each column holds.
        unsafe {
            Some(Step {
                obs: Rows::new(obs, t),
                policy: RowsMut::new(policy, t),
                next_obs: RowsMut::new(next_obs, t),
                reward: self.slice(self.reward, row),
                terminated: self.slice(self.terminated, row),
                truncated: self.slice(self.truncated, row),
                done: self.slice(self.done, row),
                traj_ids: self.optional(self.traj_ids, row),
                version: self.optional(self.version, row),
                following: (t + 1 < self.steps).then(|| RowsMut::new(obs, t + 1)),
            })
        }
    }

    /// The `envs` elements from `row` on.
    ///
    /// # Safety
    /// They belong to the part, and no other reference to them exists during `'a`.
    #[inline(always)]
    unsafe fn slice<'a, T>(&self, column: NonNull<T>, row: usize) -> &'a mut [T] {
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts_mut(column.as_ptr().add(row), self.envs) }
    }

    /// As [`slice`](Self::slice); empty for a column that the record lacks.
    ///
    /// # Safety
    /// As for `slice`.
    #[inline(always)]
    unsafe fn optional<'a, T>(&self, column: Option<NonNull<T>>, row: usize) -> &'a mut [T] {
        match column {
            // SAFETY: promised by the caller.
            Some(column) => unsafe { self.slice(column, row) },
            None => &mut [],
        }
    }
}
