//! The processes of all members: what each does, and what is known of it.

use std::time::Duration;

use serde_bytes::ByteBuf;
use windrow_env::{EnvError, VecEnvError};
use windrow_peer::{Event, Frame, ProcessError, Roster, WorkerProgram};
use windrow_sync::{Interrupt, Interrupted};

use super::error::MemberError;
use super::messages::{MemberAnswer, MemberCommand};
use crate::error::{SentError, last_words};
use crate::process::messages::{FromWorker, ToWorker};
use crate::process::program::or_current;

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
    pub(super) interrupt: Interrupt,
}

/// The processes of all members.
pub(super) struct Children {
    /// `None` once they were closed.
    roster: Option<Roster<FromWorker>>,
    pub(super) each: Vec<Member>,
    patience: Duration,
    is_patient: bool,
    pub(super) interrupt: Interrupt,
}

/// One of them.
#[derive(Debug, Default)]
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
}

impl Member {
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
                let status = death.exit.unasked();
                let words = last_words(doing, None, &death.stderr_tail);
                self.dead = Some(MemberError::Died { status, words });
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
        for (member, env) in spec.members.iter().enumerate() {
            let first = Frame::of(&ToWorker::Member(env.to_vec()));
            first
                .and_then(|first| roster.spawn(member, [first]))
                .map_err(EnvError::failed)?;
        }
        Ok(Self {
            roster: Some(roster),
            each: (0..count).map(|_| Member::default()).collect(),
            patience: spec.patience,
            is_patient: spec.is_patient,
            interrupt: spec.interrupt.clone(),
        })
    }

    /// Waits until each member has sent a message of which `pick` makes something; the first fault
    /// of one, with its number.
    pub(super) fn gather<T>(
        &mut self,
        pick: fn(FromWorker) -> Result<T, FromWorker>,
    ) -> Result<Vec<T>, VecEnvError> {
        let closed = || EnvError::from(MemberError::Closed).of(0);
        let Self { roster, each, .. } = self;
        let roster = roster.as_mut().ok_or_else(closed)?;
        let gathered = roster.gather(&self.interrupt, |index, event| {
            let member = &mut each[index];
            match event {
                Event::Message(message) => match pick(message) {
                    Ok(picked) => return Ok(Some(picked)),
                    Err(other) => member.note(Event::Message(other)),
                },
                event => member.note(event),
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

    /// Checks that the members are this process's, open and alive.
    pub(super) fn check(&mut self) -> Result<(), VecEnvError> {
        let Some(roster) = &self.roster else {
            return Err(EnvError::from(MemberError::Closed).of(0));
        };
        let (owner, here) = (roster.owner(), std::process::id());
        if owner != here {
            return Err(EnvError::from(MemberError::Foreign { owner, here }).of(0));
        }
        self.poll();
        let mut each = self.each.iter_mut().enumerate();
        let fault = each.find_map(|(index, member)| {
            // What failed in a call that was given up is of no use any more.
            member.fault = None;
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
        roster.end(match (is_asked || self.is_patient) && !is_left {
            true => self.patience,
            false => self.patience.min(DROPPED),
        });
    }
}
