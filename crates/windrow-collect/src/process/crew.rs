//! The worker processes of a collector: the lanes to them, and the parts that they fill.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use windrow_policy::PolicySpec;
use windrow_process::{ControlBlock, Frame, Lane, ProcessError, Supervisor};
use windrow_slab::{LeafSpec, Part, Pump};

use super::agreement::Agreement;
use super::live::LastSeen;
use super::messages::{Answer, Command, Fill, Specified, frame};
use super::watchdog::{self, Leash, Pulse, is_traced};
use crate::error::{CollectError, WorkerError, WorkerFault};
use crate::probe::Due;
use crate::shared::Shared;
use crate::shared::desk::{Progress, Verdict};
use crate::shared::orders::Resume;
use crate::sync::mpsc::Sender;
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, lock};

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
    running: Mutex<BTreeMap<usize, u32>>,
    ended: Condvar,
    duty: OnceLock<Duty>,
    /// Whether workers get parts.
    begun: AtomicBool,
    leash: Mutex<Option<Leash>>,
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
}

/// One worker, as its collector sees it.
struct Seat {
    lane: Lane,
    /// The part that the worker fills.
    part: Option<Part>,
    stage: Stage,
    /// How far it had come with its last part.
    progress: Progress,
    /// From where a process in the place of one that died goes on.
    resume: Option<Resume>,
    /// How often environments and policy were made anew.
    restarts: usize,
    /// For how long it had not moved when it was killed for it.
    frozen: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its process makes environments and policy.
    Starting,
    /// It fills parts.
    Working,
    /// It has reported that a part is lost, and waits to hear how to go on.
    Waiting,
    /// It gets no more parts.
    Ending,
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
        lanes: Vec<Lane>,
    ) {
        let seat = |lane| Seat {
            lane,
            part: None,
            stage: Stage::Working,
            progress: Progress::default(),
            resume: None,
            restarts: 0,
            frozen: None,
        };
        let duty = Duty {
            shared,
            action: agreement.spec.action_leaves(),
            agreement,
            control,
            seats: Mutex::new(lanes.into_iter().map(seat).collect()),
        };
        // Held until the duty is there: a process that ends meanwhile is not left in the reports.
        let running = lock(&self.running);
        for (&worker, &pid) in running.iter() {
            duty.shared.reports.runs_in(worker, Some(pid));
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
        running.insert(worker, pid);
        if let Some(duty) = self.duty() {
            duty.shared.reports.runs_in(worker, Some(pid));
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
            running = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        running.len()
    }

    /// Kills workers that still run; how many do not even end then.
    pub(crate) fn kill(&self) -> usize {
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

    /// Whether a debugger holds worker `worker`.
    pub(super) fn is_debugged(&self, worker: usize) -> bool {
        let pid = lock(&self.running).get(&worker).copied();
        pid.is_some_and(is_traced)
    }

    /// Kills worker `worker`, which has not moved for `patience`.
    pub(super) fn kill_frozen(&self, worker: usize, patience: Duration) {
        let Some(duty) = self.duty() else { return };
        duty.seats()[worker].frozen = Some(patience);
        // Nothing is left to be killed after a shutdown.
        let _ = self
            .supervisor()
            .and_then(|supervisor| supervisor.kill(worker));
    }

    /// For how long worker `worker` had not moved when it was killed for it.
    pub(super) fn take_frozen(&self, worker: usize) -> Option<Duration> {
        self.duty()?.seats()[worker].frozen.take()
    }
}

/// For calls and profiles.
impl Crew {
    /// Has worker `worker`, which has nothing to do, answer a call.
    fn call(&self, worker: usize, seat: &mut Seat, request: Vec<u8>) {
        let frame = Frame {
            kind: frame::CALL,
            body: request,
            fds: Vec::new(),
        };
        // There is no way to any worker after a shutdown.
        let sent = self
            .supervisor()
            .and_then(|supervisor| supervisor.send(worker, frame));
        if sent.is_ok() {
            seat.stage = seat.send(Command::Call, Stage::Working);
        }
    }

    /// Has worker `worker`, which has nothing to do, begin or end a recording.
    fn instruct(&self, worker: usize, seat: &mut Seat, due: Due) {
        let command = match due {
            Due::End => Command::EndRecording,
            Due::Begin(order) => {
                let sent = Frame::json(frame::RECORD, &order)
                    .and_then(|frame| self.supervisor()?.send(worker, frame));
                // There is no way to any worker after a shutdown.
                if sent.is_err() {
                    return;
                }
                Command::Record
            }
        };
        seat.stage = seat.send(command, Stage::Working);
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
                self.instruct(worker, seat, due);
            } else if let Some(request) = duty.shared.calls.next(worker) {
                self.call(worker, seat, request);
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
            seat.stage = Stage::Ending;
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
                false => self.end(worker, seat),
            }
        }
        self.shared.ring.pump();
    }

    /// Worker `worker` ends with `error`, and with it the collector.
    pub(super) fn last_fault(&self, worker: usize, error: WorkerError) {
        self.end(worker, &mut self.seats()[worker]);
        self.shared.fail(error);
    }

    /// Process `pid` of worker `worker` has ended: whether another one is to take its place. `fault` is told what it was doing.
    pub(super) fn died(
        &self,
        worker: usize,
        pid: u32,
        fault: impl FnOnce(&LastSeen) -> WorkerFault,
    ) -> bool {
        // Before anybody hears of the loss.
        self.shared.reports.runs_in(worker, None);
        self.shared.profile.bury(worker, pid);
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
            if seat.stage == Stage::Ending {
                return false;
            }
            seat.stage = Stage::Starting;
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
                false => self.end(worker, seat),
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

    /// Lets worker `worker` end.
    fn end(&self, worker: usize, seat: &mut Seat) {
        seat.stage = Stage::Ending;
        seat.lane.close();
        self.shared.calls.end(worker);
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

impl Seat {
    /// Takes the worker's answer, if there is one.
    fn hear(&mut self, worker: usize, shared: &Shared) {
        let Some(message) = self.lane.try_receive() else {
            return;
        };
        match Answer::from_message(&message) {
            Some(Answer::Filled {
                steps,
                progress,
                waited_ns,
            }) => {
                self.progress = progress;
                shared
                    .reports
                    .waited(worker, Duration::from_nanos(waited_ns));
                if let Some(mut part) = self.part.take() {
                    part.shorten(steps);
                    shared.deliver(worker, part, progress);
                }
            }
            Some(Answer::Lost { progress }) => {
                self.progress = progress;
                shared.reports.advance(progress);
                self.part = None;
                if self.stage == Stage::Working {
                    self.stage = Stage::Waiting;
                }
            }
            Some(Answer::Heard) | None => {}
        }
    }

    /// Whether it works and has nothing to do.
    fn is_free(&self) -> bool {
        self.stage == Stage::Working && self.part.is_none() && self.lane.is_free()
    }

    /// Gives the worker, which has none, a part, if there is one.
    fn employ(&mut self, worker: usize, shared: &Arc<Shared>) {
        // Where batches that are alive hold all memory, the consumer is told when it asks for a batch.
        let Ok(Some(part)) = shared.ring.try_claim(worker) else {
            return;
        };
        let mut job = shared.job(worker, part);
        if let Some(resume) = self.resume.take()
            && job.orders.resume.is_none()
        {
            job.orders.resume = Some(resume);
        }
        if let Some(saved) = job.orders.resume {
            self.progress.next_frame = saved.frame;
            self.progress.next_traj_id = saved.traj_id;
        }
        let fill = Fill {
            slot: job.part.slot(),
            part: job.part.index(),
            seq: job.part.seq(),
            share: job.share,
            orders: job.orders,
        };
        self.stage = self.send(Command::Fill(fill), Stage::Working);
        self.part = Some(job.part);
    }

    /// Sends `command`; the stage that follows.
    fn send(&mut self, command: Command, then: Stage) -> Stage {
        match self.lane.send(command.to_message()) {
            Ok(()) => then,
            // It has an answer to give yet, which this side did not expect: it is asked for nothing more.
            Err(_) => Stage::Ending,
        }
    }

    /// Frames and ids that a part of `steps` steps may have used are not used again.
    fn skip(&mut self, steps: usize, total_envs: u64) {
        let lost = steps as u64 + 1;
        self.progress.next_frame += lost;
        self.progress.next_traj_id += (lost * total_envs).cast_signed();
    }

    /// Where a process in this worker's place goes on.
    fn resumption(&self, seed: u64, total_envs: u64) -> Resume {
        let id = self.progress.next_traj_id.cast_unsigned();
        Resume {
            frame: self.progress.next_frame,
            // Ids tell environments apart: the first one is a multiple of their number.
            traj_id: id.next_multiple_of(total_envs).cast_signed(),
            seed,
        }
    }
}
