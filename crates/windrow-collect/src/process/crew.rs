//! The worker processes of a collector: the lanes to them, and the parts that they fill.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use windrow_peer::{ControlBlock, Death, Frame, Lane, ProcessError, Supervisor};
use windrow_policy::PolicySpec;
use windrow_slab::{LeafSpec, Pump};
use windrow_sync::atomic::{AtomicBool, Ordering};
use windrow_sync::mpsc::Sender;
use windrow_sync::{Condvar, Mutex, MutexGuard, lock, unpoisoned};

use super::agreement::Agreement;
use super::frozen::{Frozen, Thread};
use super::live::LastSeen;
use super::messages::{Answer, Command, Specified, ToWorker};
use super::seat::{Seat, Stage};
use super::watchdog::{self, Answers, Leash, Pulse};
use crate::error::{CollectError, WorkerError, WorkerFault};
use crate::probe::Due;
use crate::shared::Shared;
use crate::shared::desk::Verdict;

/// What a worker tells while the collector is being built.
#[derive(Debug)]
pub(super) enum Report {
    Specified(Box<Specified>),
    Bound(PolicySpec),
    Failed(CollectError),
}

/// The workers of a collector, in processes.
///
/// The ring's [pump](Pump) gives parts to workers and takes what they have filled; [`Watch`](super::watch::Watch) sees to
/// their starts, faults and deaths.
pub(crate) struct Crew {
    supervisor: OnceLock<Supervisor>,
    /// Where workers report while the collector is being built.
    reports: Mutex<Sender<(usize, Report)>>,
    /// Processes that run, by worker, and a bell for those who wait for their end.
    running: Mutex<BTreeMap<usize, Runner>>,
    ended: Condvar,
    duty: OnceLock<Duty>,
    /// Whether workers get parts.
    begun: AtomicBool,
    leash: Mutex<Option<Leash>>,
}

/// A process that runs.
#[derive(Debug, Clone, Copy)]
struct Runner {
    pid: u32,
    /// The thread of its worker; that of `main` before it has said more.
    thread: u32,
    /// Whether it answers SIGUSR2 with its stack.
    shows_stack: bool,
}

/// What the crew has from the moment the collector is built.
pub(super) struct Duty {
    pub(super) shared: Arc<Shared>,
    pub(super) agreement: Agreement,
    pub(super) control: ControlBlock,
    /// Columns of an action.
    action: Vec<LeafSpec>,
    /// Not to be held while a function of the ring is called, except to claim, commit and drop parts: the ring has a pump run.
    seats: Mutex<Vec<Seat>>,
    /// Whether processes are being killed that have not ended in time.
    kills: AtomicBool,
}

impl Crew {
    pub(super) fn new(reports: Sender<(usize, Report)>) -> Self {
        Self {
            supervisor: OnceLock::new(),
            reports: Mutex::new(reports),
            running: Mutex::default(),
            ended: Condvar::new(),
            duty: OnceLock::new(),
            begun: AtomicBool::new(false),
            leash: Mutex::new(None),
        }
    }

    pub(super) fn supervised_by(&self, supervisor: Supervisor) {
        // Set once, before the first worker is asked for.
        let _ = self.supervisor.set(supervisor);
    }

    pub(super) fn supervisor(&self) -> Result<&Supervisor, ProcessError> {
        self.supervisor.get().ok_or(ProcessError::ShutDown)
    }

    /// Takes up work: all workers were told where their memory is.
    pub(super) fn begin(
        &self,
        shared: Arc<Shared>,
        agreement: Agreement,
        control: ControlBlock,
        lanes: Vec<Lane<Command, Answer>>,
    ) {
        let duty = Duty {
            shared,
            action: agreement.spec.action_leaves(),
            agreement,
            control,
            seats: Mutex::new(lanes.into_iter().map(Seat::new).collect()),
            kills: AtomicBool::new(false),
        };
        // Held until the duty is there: a process that ends meanwhile is not left in the reports.
        let running = lock(&self.running);
        for (&worker, runner) in running.iter() {
            duty.shared.reports.runs_in(worker, Some(runner.pid));
        }
        // Set once, by the build.
        let _ = self.duty.set(duty);
    }

    /// Gives workers parts from now on.
    pub(crate) fn employ(&self) {
        self.begun.store(true, Ordering::Release);
    }

    pub(super) fn duty(&self) -> Option<&Duty> {
        self.duty.get()
    }

    pub(super) fn report(&self, worker: usize, report: Report) {
        // The receiver is gone where the build has failed.
        let _ = lock(&self.reports).send((worker, report));
    }

    /// Process `pid` of worker `worker` has started.
    pub(super) fn count_in(&self, worker: usize, pid: u32) {
        let mut running = lock(&self.running);
        let runner = Runner {
            pid,
            thread: pid,
            shows_stack: false,
        };
        running.insert(worker, runner);
        if let Some(duty) = self.duty() {
            duty.shared.reports.runs_in(worker, Some(pid));
        }
    }

    /// The process of worker `worker` has said what it is.
    pub(super) fn introduce(&self, worker: usize, made: &Specified) {
        if let Some(runner) = lock(&self.running).get_mut(&worker) {
            runner.thread = made.thread.unwrap_or(runner.pid);
            runner.shows_stack = made.shows_stack;
        }
    }

    /// The process of worker `worker` has ended.
    pub(super) fn count_out(&self, worker: usize) {
        lock(&self.running).remove(&worker);
        self.ended.notify_all();
    }

    /// Lets workers end, and waits at most `timeout` for that; how many still run.
    pub(crate) fn end(&self, timeout: Duration) -> usize {
        if let Some(duty) = self.duty() {
            duty.close();
        }
        let deadline = Instant::now() + timeout;
        let mut running = lock(&self.running);
        while !running.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.ended.wait_timeout(running, left);
            running = unpoisoned(waited).0;
        }
        running.len()
    }

    /// Kills workers that still run; how many do not even end then.
    pub(crate) fn kill(&self) -> usize {
        if let Some(duty) = self.duty() {
            duty.kills.store(true, Ordering::Release);
        }
        match self
            .supervisor
            .get()
            .map(|supervisor| supervisor.shutdown(Duration::ZERO))
        {
            Some(Err(ProcessError::Unkillable { pids })) => pids.len(),
            _ => 0,
        }
    }
}

/// For the watchdog.
impl Crew {
    /// Has worker processes that do not move for `patience` killed.
    pub(crate) fn watched_for(crew: &Arc<Self>, patience: Duration) -> Result<(), CollectError> {
        let leash = watchdog::start(crew, patience)?;
        *lock(&crew.leash) = Some(leash);
        Ok(())
    }

    /// Where each worker is; `None` for one that has nothing to do.
    pub(super) fn pulses(&self) -> Vec<Option<Pulse>> {
        let Some(duty) = self.duty() else {
            return Vec::new();
        };
        let seats = duty.seats();
        let pulse = |(worker, seat): (usize, &Seat)| {
            let seq = seat.part.as_ref()?.seq();
            let beat = duty.control.place(worker).ok()?.beat;
            Some(Pulse { seq, beat })
        };
        seats.iter().enumerate().map(pulse).collect()
    }

    fn runner(&self, worker: usize) -> Option<Runner> {
        lock(&self.running).get(&worker).copied()
    }

    /// Whether a debugger holds worker `worker`.
    pub(super) fn is_debugged(&self, worker: usize) -> bool {
        let runner = self.runner(worker);
        runner.is_some_and(|Runner { pid, .. }| Thread::look(pid, pid).is_traced())
    }

    /// Worker `worker` has not moved for `patience`: notes what it does, and asks for its stack where it shows one.
    pub(super) fn frozen(&self, worker: usize, patience: Duration) -> Answers {
        let (Some(duty), Some(runner)) = (self.duty(), self.runner(worker)) else {
            return Answers::Nothing;
        };
        let thread = Thread::look(runner.pid, runner.thread);
        duty.seats()[worker].frozen = Some(Frozen {
            patience,
            seen: thread.describe(),
        });
        let asks = runner.shows_stack && !thread.is_stopped();
        match asks
            .then(|| self.supervisor()?.ask_for_stack(worker))
            .transpose()
        {
            Ok(Some(())) => Answers::Stack,
            Ok(None) | Err(_) => Answers::Nothing,
        }
    }

    /// Worker `worker` moves again.
    pub(super) fn thawed(&self, worker: usize) {
        self.take_frozen(worker);
    }

    /// Kills worker `worker`, which has not moved.
    pub(super) fn kill_frozen(&self, worker: usize) {
        // Nothing is left to be killed after a shutdown.
        let _ = self
            .supervisor()
            .and_then(|supervisor| supervisor.kill(worker));
    }

    /// What is known of worker `worker`, if it is killed for not having moved.
    pub(super) fn take_frozen(&self, worker: usize) -> Option<Frozen> {
        self.duty()?.seats()[worker].frozen.take()
    }
}

/// For calls and profiles.
impl Crew {
    /// Has worker `worker`, which has nothing to do, answer a call.
    fn call(&self, worker: usize, seat: &mut Seat, request: Vec<u8>) -> Result<(), ProcessError> {
        self.send(worker, &ToWorker::Call(request))?;
        seat.stage = seat.send(Command::Call, Stage::Working);
        Ok(())
    }

    /// Has worker `worker`, which has nothing to do, begin or end a recording.
    fn instruct(&self, worker: usize, seat: &mut Seat, due: Due) -> Result<(), ProcessError> {
        let command = match due {
            Due::End => Command::EndRecording,
            Due::Begin(order) => {
                self.send(worker, &ToWorker::Record(order))?;
                Command::Record
            }
        };
        seat.stage = seat.send(command, Stage::Working);
        Ok(())
    }

    fn send(&self, worker: usize, message: &ToWorker) -> Result<(), ProcessError> {
        self.supervisor()?.send(worker, Frame::of(message)?)
    }
}

impl Pump for Crew {
    fn pump(&self) {
        let Some(duty) = self.duty() else { return };
        let mut seats = duty.seats();
        for (worker, seat) in seats.iter_mut().enumerate() {
            seat.hear(worker, &duty.shared);
        }
        for (worker, seat) in seats.iter_mut().enumerate() {
            if !seat.is_free() {
                continue;
            }
            if let Some(due) = duty.shared.profile.due(worker) {
                // There is no way to any worker after a shutdown.
                let _ = self.instruct(worker, seat, due);
            } else if let Some(request) = duty.shared.calls.next(worker) {
                if self.call(worker, seat, request).is_err() {
                    duty.shared.calls.lose(worker);
                }
            } else if self.begun.load(Ordering::Acquire) {
                seat.employ(worker, &duty.shared);
            }
        }
    }
}

impl Duty {
    fn seats(&self) -> MutexGuard<'_, Vec<Seat>> {
        lock(&self.seats)
    }

    /// Gives no more parts.
    fn close(&self) {
        for (worker, seat) in self.seats().iter_mut().enumerate() {
            if seat.stage != Stage::Lost {
                seat.stage = Stage::Ending;
            }
            self.shared.calls.end(worker);
        }
        self.control.close();
    }

    /// The process of worker `worker` is at its desk.
    pub(super) fn seated(&self, worker: usize) {
        {
            let seat = &mut self.seats()[worker];
            if seat.stage == Stage::Starting {
                seat.stage = Stage::Working;
            }
        }
        self.shared.ring.pump();
    }

    /// Worker `worker` has reported a fault, for which its part was given back.
    pub(super) fn fault(&self, worker: usize, error: WorkerError) {
        let mut restarts = {
            let seat = &mut self.seats()[worker];
            seat.hear(worker, &self.shared);
            // While the collector ends, a fault is told as well: that of a worker in a thread would be.
            if !matches!(seat.stage, Stage::Waiting | Stage::Ending) {
                return;
            }
            seat.restarts
        };
        let replaced = self.replaces(worker, &mut restarts, error);
        {
            let seat = &mut self.seats()[worker];
            seat.restarts = restarts;
            match replaced && seat.stage == Stage::Waiting {
                true => seat.stage = seat.send(Command::Replace, Stage::Working),
                false => {
                    seat.end();
                    self.shared.calls.end(worker);
                }
            }
        }
        self.shared.ring.pump();
    }

    /// Worker `worker` ends with `error`, and with it the collector.
    pub(super) fn last_fault(&self, worker: usize, error: WorkerError) {
        self.seats()[worker].end();
        self.shared.calls.end(worker);
        self.shared.fail(error);
    }

    /// The process of worker `worker` has ended: whether another one is to take its place. `fault` is told what it was doing.
    pub(super) fn died(
        &self,
        worker: usize,
        death: &Death,
        fault: impl FnOnce(&LastSeen) -> WorkerFault,
    ) -> bool {
        // Before anybody hears of the loss.
        self.shared.reports.runs_in(worker, None);
        self.shared.profile.bury(worker, death.pid);
        let (mut restarts, seen) = {
            let seat = &mut self.seats()[worker];
            // Its last answer may not have been heard yet.
            seat.hear(worker, &self.shared);
            let seen = seat.part.take().map(|part| {
                seat.skip(part.steps(), self.total_envs());
                self.shared.reports.advance(seat.progress);
                LastSeen::of(worker, &self.control, &part, &self.action)
            });
            seat.lane.reset();
            self.shared.calls.lose(worker);
            match seat.stage {
                Stage::Lost => return false,
                Stage::Ending if self.is_expected(death) => return false,
                // Told as any other loss: that of a worker in a thread would be.
                Stage::Ending => {}
                Stage::Starting | Stage::Working | Stage::Waiting => seat.stage = Stage::Starting,
            }
            (seat.restarts, seen.unwrap_or_default())
        };
        // The exchange has all workers of the collector.
        let _ = self.agreement.weights.exchange.unpin_dead(worker);
        let error = WorkerError::new(worker, seen.place, fault(&seen));
        let replaced = self.replaces(worker, &mut restarts, error);
        let again = {
            let seat = &mut self.seats()[worker];
            seat.restarts = restarts;
            let again = replaced && seat.stage == Stage::Starting;
            match again {
                true => {
                    let seed = self.shared.seed();
                    seat.resume = Some(seat.resumption(seed, self.total_envs()));
                }
                false => {
                    seat.end();
                    self.shared.calls.end(worker);
                }
            }
            again
        };
        self.shared.ring.pump();
        again
    }

    /// Where the memory lies, for a worker whose policy is `bound`.
    pub(super) fn ready(&self, bound: &PolicySpec) -> Result<Frame, CollectError> {
        self.agreement.ready(bound, &self.control, &self.shared)
    }

    /// Whether a process of a collector that ends has ended as it should: by itself, or since the collector has lost patience.
    fn is_expected(&self, death: &Death) -> bool {
        // Where the system tells no status, none can be found wrong.
        let exit = death.exit;
        exit.status().is_none() || exit.is_success() || self.kills.load(Ordering::Acquire)
    }

    fn total_envs(&self) -> u64 {
        self.agreement.ready.beginning.total_envs as u64
    }

    /// Counts a loss; whether the worker is replaced.
    fn replaces(&self, worker: usize, restarts: &mut usize, error: WorkerError) -> bool {
        match self.shared.lose(worker, restarts, error) {
            Verdict::Replace => true,
            Verdict::Stop => false,
            Verdict::Interrupted(error) => {
                // The interrupted call waits in another process: only the end of the collector reaches it.
                self.shared.fail(error);
                false
            }
        }
    }
}
