//! The processes of all members: what each does, and what is known of it.

use std::ops::Range;
use std::time::{Duration, Instant};

use serde_bytes::ByteBuf;
use windrow_env::{EnvError, VecEnvError};
use windrow_peer::{Event, Frame, ProcessError, Roster, WorkerProgram};
use windrow_sync::{Interrupt, Interrupted};

use super::error::MemberError;
use super::messages::{MemberAnswer, MemberCommand};
use crate::error::{SentError, last_words};
use crate::process::hang::{Finding, Observation, pause};
use crate::process::messages::{FromWorker, Specified, ToWorker};
use crate::process::program::or_current;
use crate::process::slot::WorkerProcess;
use crate::process::thread_state::Hang;
use crate::shared::heartbeat::{Heartbeat, Silence, environments, silent, unfinished};

/// How long members have to end by themselves where nobody asked to close them.
const DROPPED: Duration = Duration::from_millis(500);

/// What is started, and how it ends.
#[derive(Debug, Clone)]
pub(super) struct ParallelSpec {
    /// The recipe of each.
    pub(super) members: Vec<ByteBuf>,
    /// `None` for this program.
    pub(super) program: Option<WorkerProgram>,
    pub(super) patience: Duration,
    /// Whether they have as long when they are dropped.
    pub(super) is_patient: bool,
    /// How long a command may take before a member counts as frozen, and is killed.
    pub(super) step_timeout: Option<Duration>,
    /// Commands go on without members whose processes have ended.
    pub(super) outlives: bool,
    /// The number of the first member, if these are a part of more members.
    pub(super) first: usize,
    pub(super) interrupt: Interrupt,
}

/// The processes of all members.
pub(super) struct Children {
    /// `None` once they were closed.
    roster: Option<Roster<FromWorker>>,
    pub(super) each: Vec<Member>,
    /// Their recipes, and how they end.
    pub(super) spec: ParallelSpec,
    silence: Silence,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Member {
    /// Takes part in the next command.
    pub(super) selected: bool,
    /// What it does.
    pub(super) doing: Option<MemberCommand>,
    /// Its answer to that.
    pub(super) answered: Option<MemberAnswer>,
    /// What failed, and which of its environments it was.
    fault: Option<VecEnvError>,
    pub(super) returned: Option<Vec<u8>>,
    dead: Option<MemberError>,
    /// [`take_loss`](Self::take_loss) has returned its death.
    is_reported: bool,
    /// Number of commands that were sent to it.
    commands: u64,
    process: Option<WorkerProcess>,
    watch: Observation,
    /// Set once it has not moved for too long, and is about to be killed.
    hang: Option<Hang>,
}

impl Member {
    fn new() -> Self {
        Self {
            selected: false,
            doing: None,
            answered: None,
            fault: None,
            returned: None,
            dead: None,
            is_reported: false,
            commands: 0,
            process: None,
            watch: Observation::new(None, Instant::now()),
            hang: None,
        }
    }

    /// Notes that `command` was sent to it.
    pub(super) fn begin(&mut self, command: MemberCommand) {
        (self.doing, self.answered, self.returned) = (Some(command), None, None);
        self.commands += 1;
    }

    /// `None` while it has nothing to do.
    fn heartbeat(&self) -> Option<Heartbeat> {
        (!self.is_ready()).then_some(Heartbeat {
            seq: self.commands,
            beat: 0,
        })
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.is_some()
    }

    /// Its death, which is returned once.
    pub(super) fn take_loss(&mut self) -> Option<MemberError> {
        let is_new = !std::mem::replace(&mut self.is_reported, self.dead.is_some());
        self.dead.clone().filter(|_| is_new)
    }

    /// Notes that another process in its place has failed, by `error`, and that nobody uses it.
    pub(super) fn give_up(&mut self, error: &VecEnvError) {
        self.dead = Some(MemberError::Died {
            status: format!("ended, and the one in its place failed: {}", error.source),
            words: String::new(),
        });
        self.is_reported = true;
    }

    /// Whether it has executed its command, and all of its answer has come.
    pub(super) fn is_ready(&self) -> bool {
        let (Some(doing), None) = (self.doing, &self.dead) else {
            return true;
        };
        match self.answered {
            None => false,
            // Messages come by another way than answers, and may be later.
            Some(MemberAnswer::Done) => !doing.returns() || self.returned.is_some(),
            Some(MemberAnswer::Failed) => self.fault.is_some(),
        }
    }

    /// What failed, once; or its death.
    pub(super) fn take_fault(&mut self) -> Option<VecEnvError> {
        let dead = || Some(EnvError::from(self.dead.clone()?).of(0));
        self.fault.take().or_else(dead)
    }

    /// It has sent what no member sends.
    pub(super) fn break_off(&mut self, error: ProcessError) {
        self.answered = Some(MemberAnswer::Failed);
        self.fault = Some(EnvError::failed(error).of(0));
    }

    fn fail(&mut self, env: usize, message: String, sent: Option<SentError>) {
        let failed = MemberError::Failed { message, sent };
        self.fault = Some(EnvError::from(failed).of(env));
    }

    fn note(&mut self, event: Event<FromWorker>) {
        match event {
            Event::Started(_) => {}
            Event::Failed(error) => self.break_off(error),
            Event::Message(message) => match message {
                FromWorker::MemberFault(fault) => self.fail(fault.env, fault.message, fault.sent),
                FromWorker::Refused(refusal) => self.fail(0, refusal.message, refusal.sent),
                FromWorker::Returned(answer) => self.returned = Some(answer),
                other => self.fail(
                    0,
                    format!("its process sent {other:?}, which is not due"),
                    None,
                ),
            },
            Event::Died(death) => {
                let doing = match self.doing {
                    Some(MemberCommand::Step) => "in `step`",
                    Some(MemberCommand::Reset) => "in `reset`",
                    Some(command) if command.returns() => "answering a call",
                    Some(_) | None => "",
                };
                let status = match self.hang.take() {
                    None => format!("ended with {}", death.exit.unasked()),
                    Some(hang) => hang.end(death.exit),
                };
                let words = last_words(doing, None, &death.stderr_tail);
                // A failed replacement has said more already.
                self.dead.get_or_insert(MemberError::Died { status, words });
            }
        }
    }
}

/// The fault that ends a wait for all members.
struct Fault(VecEnvError);

impl From<ProcessError> for Fault {
    fn from(error: ProcessError) -> Self {
        Self(EnvError::failed(error).of(0))
    }
}

impl From<Interrupted> for Fault {
    fn from(error: Interrupted) -> Self {
        Self(EnvError::failed(error).of(0))
    }
}

impl Children {
    /// Starts a process for each member.
    pub(super) fn start(spec: &ParallelSpec) -> Result<Self, EnvError> {
        let program = or_current(spec.program.as_ref()).map_err(EnvError::failed)?;
        let count = spec.members.len();
        let roster = Roster::new(program, count).map_err(EnvError::failed)?;
        let mut children = Self {
            roster: Some(roster),
            each: (0..count).map(|_| Member::new()).collect(),
            spec: spec.clone(),
            silence: Silence::default(),
        };
        (0..count).try_for_each(|member| children.spawn(member))?;
        Ok(children)
    }

    /// Starts a process for `member`, which has none.
    pub(super) fn spawn(&mut self, member: usize) -> Result<(), EnvError> {
        let roster = self.roster.as_ref().ok_or(MemberError::Closed)?;
        let first = Frame::of(&ToWorker::Member(self.spec.members[member].to_vec()));
        first
            .and_then(|first| roster.spawn(member, [first]))
            .map_err(EnvError::failed)?;
        self.each[member] = Member {
            commands: self.each[member].commands,
            ..Member::new()
        };
        Ok(())
    }

    /// Waits until each of `members` has described what it has made. The error is the first fault
    /// of one, with its number.
    pub(super) fn specified(
        &mut self,
        members: Range<usize>,
    ) -> Result<Vec<Specified>, VecEnvError> {
        let made = self.gather(members.clone(), |message| match message {
            FromWorker::Specified(made) => Ok(*made),
            other => Err(other),
        })?;
        let pids = self.pids();
        for (member, made) in members.zip(&made) {
            let process = pids[member].map(|pid| WorkerProcess::new(pid).specified(made));
            self.each[member].process = process;
        }
        Ok(made)
    }

    /// Waits until each of `members` has sent a message that `pick` accepts. The error is the first
    /// fault of one, with its number.
    pub(super) fn gather<T>(
        &mut self,
        members: Range<usize>,
        pick: fn(FromWorker) -> Result<T, FromWorker>,
    ) -> Result<Vec<T>, VecEnvError> {
        let closed = || EnvError::from(MemberError::Closed).of(0);
        let Self {
            roster, each, spec, ..
        } = self;
        let roster = roster.as_mut().ok_or_else(closed)?;
        let wanted = members.clone();
        let gathered = roster.gather_from(members, &spec.interrupt, |index, event| {
            let member = &mut each[index];
            match event {
                Event::Message(message) => match pick(message) {
                    Ok(picked) => return Ok(Some(picked)),
                    Err(other) => member.note(Event::Message(other)),
                },
                event => member.note(event),
            }
            if !wanted.contains(&index) {
                return Ok(None);
            }
            // Of members of one environment, which they all are before they say otherwise.
            let fault = member.take_fault();
            fault.map_or(Ok(None), |fault| Err(Fault(fault.source.of(index))))
        });
        gathered.map_err(|Fault(fault)| fault)
    }

    /// Takes the events that are there.
    pub(super) fn poll(&mut self) {
        while let Some((member, event)) = self.roster.as_mut().and_then(Roster::try_next) {
            self.each[member].note(event);
        }
    }

    pub(super) fn pids(&mut self) -> Vec<Option<u32>> {
        self.poll();
        let roster = self.roster.as_ref();
        roster.map_or_else(
            || vec![None; self.each.len()],
            |roster| roster.pids().to_vec(),
        )
    }

    /// Calls `bell` behind each event from now on.
    pub(super) fn ring(&self, bell: impl Fn() + Send + 'static) {
        if let Some(roster) = &self.roster {
            roster.ring(bell);
        }
    }

    /// Kills members that have not answered a command for too long.
    pub(super) fn kill_hung(&mut self) {
        let (Some(patience), Some(roster)) = (self.spec.step_timeout, &self.roster) else {
            return;
        };
        for (index, member) in self.each.iter_mut().enumerate() {
            let Some(process) = member.process else {
                continue;
            };
            let heartbeat = member.heartbeat();
            let watch = &mut member.watch;
            let found = watch.look(heartbeat, patience, || process.is_debugged());
            match found {
                Finding::Fine => {}
                Finding::Recovered => member.hang = None,
                Finding::Hung => {
                    let (hang, shows_stack) = process.hang(patience);
                    member.hang = Some(hang);
                    if !shows_stack || roster.ask_for_stack(index).is_err() {
                        // Nothing is left to be killed after a shutdown.
                        let _ = roster.kill(index);
                        member.watch.was_killed();
                    }
                }
                Finding::Unanswering => {
                    let _ = roster.kill(index);
                }
            }
        }
    }

    /// Reports members, of `envs` environments each, that have not answered a command for long.
    pub(super) fn report_silent(&mut self, envs: usize) -> Result<(), Interrupted> {
        let ParallelSpec {
            interrupt, first, ..
        } = &self.spec;
        let Some(after) = interrupt.reports_after() else {
            return Ok(());
        };
        for member in self
            .silence
            .look(self.each.iter().map(Member::heartbeat), after)
        {
            let (worker, process) = (first + member, self.each[member].process);
            let name = format!("worker {worker}, {}", environments(worker * envs, envs));
            let doing = process.map_or_else(String::new, WorkerProcess::doing);
            let report = match envs {
                1 => silent(&name, after, &doing),
                // Each of them may have returned.
                _ => unfinished(&name, after, &doing),
            };
            interrupt.report(&report)?;
        }
        Ok(())
    }

    /// The longest wait between two looks at them.
    pub(super) fn pause(&self) -> Duration {
        let looks = self.spec.step_timeout.map(pause);
        looks.unwrap_or(Interrupt::SLICE).min(Interrupt::SLICE)
    }

    /// Checks that the members are open, belong to this process, and are alive, apart from deaths
    /// that [`take_loss`](Member::take_loss) has still to report.
    pub(super) fn check(&mut self) -> Result<(), VecEnvError> {
        let Some(roster) = &self.roster else {
            return Err(EnvError::from(MemberError::Closed).of(0));
        };
        let (owner, here) = (roster.owner(), std::process::id());
        if owner != here {
            return Err(EnvError::from(MemberError::Foreign { owner, here }).of(0));
        }
        self.poll();
        let outlives = self.spec.outlives;
        let mut each = self.each.iter_mut().enumerate();
        let fault = each.find_map(|(index, member)| {
            // What failed in a call that was given up is of no use any more.
            member.fault = None;
            if outlives && !member.is_reported {
                return None;
            }
            Some(member.take_fault()?.source.of(index))
        });
        fault.map_or(Ok(()), Err)
    }

    pub(super) fn send(&self, member: usize, frame: Frame) -> Result<(), EnvError> {
        let roster = self.roster.as_ref().ok_or(MemberError::Closed)?;
        roster.send(member, frame).map_err(EnvError::failed)
    }

    /// Ends the processes, once `close` has closed their lanes, and waits for their ends.
    pub(super) fn end(&mut self, is_asked: bool, close: impl FnOnce()) {
        let Some(roster) = self.roster.take() else {
            return;
        };
        if roster.owner() == std::process::id() {
            close();
        }
        // One that was left in the middle of a step has been waited for long enough.
        let is_left = self.each.iter().any(|member| member.doing.is_some());
        let ParallelSpec {
            patience,
            is_patient,
            ..
        } = self.spec;
        roster.end(match (is_asked || is_patient) && !is_left {
            true => patience,
            false => patience.min(DROPPED),
        });
    }
}
