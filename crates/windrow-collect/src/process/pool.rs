//! The worker processes of a collector: the lanes to them, and the parts that they fill.

use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use windrow_peer::{ControlBlock, EventQueue, Frame, ProcessError, Supervisor};
use windrow_slab::{LeafSpec, Pump};
use windrow_sync::{Condvar, Mutex, MutexGuard, lock, unpoisoned};

use super::hang::StopGuard;
use super::messages::{Command, FromWorker, ToWorker};
use super::setup::WorkerSetup;
use super::slot::{SlotState, WorkerProcess, WorkerSlot};
use crate::error::BuildError;
use crate::probe::NextRecording;
use crate::shared::Shared;
use crate::shared::calls::Request;
use crate::shared::link::Progress;

/// How long workers may take to end by themselves where nobody waits for them.
const PATIENCE: Duration = Duration::from_millis(500);

/// The workers of a collector, in processes.
///
/// The ring's [pump](Pump) gives parts to workers and takes what they have filled;
/// [`on_event`](Self::on_event) handles their starts, faults and deaths.
pub(crate) struct WorkerPool {
    pub(super) supervisor: Supervisor,
    pub(super) shared: Arc<Shared>,
    pub(super) setup: WorkerSetup,
    pub(super) control: ControlBlock,
    /// Columns of an action.
    pub(super) action: Vec<LeafSpec>,
    /// Lock order: the ring before this. While it is held, parts may be claimed, committed and
    /// dropped; any other function of the ring may call [`pump`](Pump::pump), which locks it.
    state: Mutex<PoolState>,
    /// Notified when a process has ended.
    ended: Condvar,
}

pub(super) struct PoolState {
    pub(super) phase: Phase,
    pub(super) slots: Vec<WorkerSlot>,
}

/// What workers may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Answer calls.
    Idle,
    /// Fill parts.
    Working,
    /// End.
    Ending,
    /// Nothing: those that have not ended in time are being killed.
    Killing,
}

impl WorkerPool {
    /// A pool of workers that all have been sent where their memory is.
    pub(super) fn new(
        supervisor: Supervisor,
        shared: Arc<Shared>,
        setup: WorkerSetup,
        control: ControlBlock,
        slots: Vec<WorkerSlot>,
    ) -> Self {
        for (worker, slot) in slots.iter().enumerate() {
            let pid = slot.process.and_then(WorkerProcess::own_pid);
            shared.reports.runs_in(worker, pid);
        }
        let phase = Phase::Idle;
        Self {
            supervisor,
            shared,
            action: setup.spec.action_leaves(),
            setup,
            control,
            state: Mutex::new(PoolState { phase, slots }),
            ended: Condvar::new(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, PoolState> {
        lock(&self.state)
    }

    /// Calls `change` with the slot of worker `worker`.
    pub(super) fn slot<R>(&self, worker: usize, change: impl FnOnce(&mut WorkerSlot) -> R) -> R {
        change(&mut self.state().slots[worker])
    }

    /// Gives workers parts from now on.
    pub(crate) fn begin(&self) {
        let mut state = self.state();
        if state.phase == Phase::Idle {
            state.phase = Phase::Working;
        }
    }

    /// Lets workers end, and waits at most `timeout` for that; how many still run.
    pub(crate) fn end(&self, timeout: Duration) -> usize {
        let mut state = self.state();
        if state.phase != Phase::Killing {
            state.phase = Phase::Ending;
        }
        for (worker, slot) in state.slots.iter_mut().enumerate() {
            if slot.state != SlotState::Lost {
                slot.state = SlotState::Ending;
            }
            self.shared.calls.end(worker);
        }
        self.control.close();
        let deadline = Instant::now() + timeout;
        loop {
            let running = state.slots.iter().filter(|slot| slot.process.is_some());
            let running = running.count();
            let left = deadline.saturating_duration_since(Instant::now());
            if running == 0 || left.is_zero() {
                return running;
            }
            state = unpoisoned(self.ended.wait_timeout(state, left)).0;
        }
    }

    /// Workers have loaded a state that goes on from `progress`.
    pub(crate) fn go_on_from(&self, progress: Progress) {
        for slot in &mut self.state().slots {
            slot.progress = progress;
            slot.resume = None;
        }
    }

    /// The process of worker `worker` has ended, and that has been handled.
    pub(super) fn count_out(&self, worker: usize) {
        self.slot(worker, |slot| slot.process = None);
        self.ended.notify_all();
    }

    /// Kills workers that still run; how many do not even end then.
    pub(crate) fn kill(&self) -> usize {
        self.state().phase = Phase::Killing;
        match self.supervisor.shutdown(Duration::ZERO) {
            Err(ProcessError::Unkillable { pids }) => pids.len(),
            _ => 0,
        }
    }

    pub(super) fn send(&self, worker: usize, message: &ToWorker) -> Result<(), ProcessError> {
        self.supervisor.send(worker, Frame::of(message)?)
    }

    /// Gives worker `worker`, which has nothing to do, a recording, a call or a part.
    fn assign(&self, worker: usize, slot: &mut WorkerSlot, phase: Phase) {
        let shared = &self.shared;
        if let Some(next) = shared.profile.next_command(worker) {
            let sent = match next {
                NextRecording::End => Ok(Command::EndRecording),
                NextRecording::Begin(order) => self
                    .send(worker, &ToWorker::Record(order))
                    .map(|()| Command::Record),
            };
            // Fails only after a shutdown.
            if let Ok(command) = sent {
                slot.send(command);
            }
        } else if let Some(request) = shared.calls.next(worker) {
            let sent = match request {
                Request::Program(call) => self
                    .send(worker, &ToWorker::Call(call))
                    .map(|()| Command::Call),
                Request::Save { pickle } => Ok(Command::Save { pickle }),
                Request::Load(state) => self
                    .send(worker, &ToWorker::State(state))
                    .map(|()| Command::Load),
            };
            match sent {
                Ok(command) => slot.send(command),
                Err(_) => shared.calls.lose(worker),
            }
        } else if phase == Phase::Working {
            slot.assign(worker, shared);
        }
    }
}

impl Pump for WorkerPool {
    fn pump(&self) {
        let PoolState { phase, slots } = &mut *self.state();
        for (worker, slot) in slots.iter_mut().enumerate() {
            slot.poll_answer(worker, &self.shared);
        }
        for (worker, slot) in slots.iter_mut().enumerate() {
            if slot.is_free() {
                self.assign(worker, slot, *phase);
            }
        }
    }
}

/// Dropping this shuts all worker processes down and joins the supervisor, also while others have
/// an `Arc` of the pool.
pub(crate) struct PoolGuard {
    pool: Arc<WorkerPool>,
    hang_detector: Option<StopGuard>,
}

impl PoolGuard {
    /// A pool that attends the ring and handles `events` from now on.
    pub(super) fn new(pool: WorkerPool, events: EventQueue<FromWorker>) -> Self {
        let pool = Arc::new(pool);
        let pump: Weak<WorkerPool> = Arc::downgrade(&pool);
        pool.shared.ring.attend(pump);
        let handler = Arc::downgrade(&pool);
        events.handled_by(move |worker, event| {
            if let Some(pool) = handler.upgrade() {
                pool.on_event(worker, event);
            }
        });
        Self {
            pool,
            hang_detector: None,
        }
    }

    /// Kills workers that do not move for `patience` from now on.
    ///
    /// # Errors
    /// [`BuildError::Thread`] when the operating system refuses a thread.
    pub(crate) fn detect_hangs(&mut self, patience: Duration) -> Result<(), BuildError> {
        self.hang_detector = Some(super::hang::start(&self.pool, patience)?);
        Ok(())
    }
}

impl Deref for PoolGuard {
    type Target = Arc<WorkerPool>;

    fn deref(&self) -> &Arc<WorkerPool> {
        &self.pool
    }
}

impl std::fmt::Debug for PoolGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolGuard").finish_non_exhaustive()
    }
}

impl Drop for PoolGuard {
    fn drop(&mut self) {
        // Nothing can take an error any more.
        let _ = self.pool.supervisor.shutdown(PATIENCE);
    }
}
