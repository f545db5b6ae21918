//! The processes themselves: what each was told, and what is known of it.

use std::sync::Arc;
use std::time::Duration;

use windrow_env::{EnvError, EnvRecipe, VecEnvError};
use windrow_peer::{Frame, Supervisor, WorkerProgram};
use windrow_sync::Interrupt;
use windrow_sync::mpsc::{Receiver, channel};

use super::error::MemberError;
use super::messages::{MemberAnswer, MemberCommand};
use super::watch::{Door, Report, Watch};
use crate::CollectError;
use crate::error::{SentError, last_words};
use crate::process::messages::ToWorker;
use crate::process::program::is_prepared;

/// How long members have to end by themselves where nobody asked to close them.
const DROPPED: Duration = Duration::from_millis(500);

/// What is started, and how it ends.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) members: Vec<EnvRecipe>,
    /// `None` for this program.
    pub(super) program: Option<WorkerProgram>,
    pub(super) patience: Duration,
    /// Whether they have as long when they are dropped.
    pub(super) is_patient: bool,
    pub(super) interrupt: Interrupt,
}

/// The processes of all members.
pub(super) struct Staff {
    /// `None` once they were closed.
    supervisor: Option<Supervisor>,
    reports: Receiver<(usize, Report)>,
    pub(super) door: Arc<Door>,
    pub(super) each: Vec<Member>,
    patience: Duration,
    is_patient: bool,
    pub(super) interrupt: Interrupt,
    /// The process that started them.
    owner: u32,
}

/// One of them.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) pid: Option<u32>,
    /// Takes part in the next command.
    pub(super) told: bool,
    /// What it does.
    pub(super) doing: Option<MemberCommand>,
    /// Its answer to that.
    pub(super) answered: Option<MemberAnswer>,
    /// What failed, and which of its environments it was.
    pub(super) fault: Option<VecEnvError>,
    pub(super) returned: Option<Vec<u8>>,
    dead: Option<MemberError>,
}

impl Member {
    /// Whether it has done what it was told, and all that it has to say to it was heard.
    pub(super) fn is_ready(&self) -> bool {
        let (Some(doing), None) = (self.doing, &self.dead) else {
            return true;
        };
        match self.answered {
            None => false,
            // Frames come by another way than answers, and may be later.
            Some(MemberAnswer::Done) => doing != MemberCommand::Call || self.returned.is_some(),
            Some(MemberAnswer::Failed) => self.fault.is_some(),
        }
    }

    /// What failed, once; or its death.
    pub(super) fn take_fault(&mut self) -> Option<VecEnvError> {
        let dead = || Some(EnvError::from(self.dead.clone()?).of(0));
        self.fault.take().or_else(dead)
    }

    /// It has sent what no member sends.
    pub(super) fn fail_with(&mut self, error: EnvError) {
        (self.answered, self.fault) = (Some(MemberAnswer::Failed), Some(error.of(0)));
    }

    fn fail(&mut self, env: usize, message: String, sent: Option<SentError>) {
        let failed = MemberError::Failed { message, sent };
        self.fault = Some(EnvError::from(failed).of(env));
    }
}

impl Staff {
    /// Starts a process for each member.
    pub(super) fn start(terms: &Terms) -> Result<Self, EnvError> {
        let program = match &terms.program {
            Some(program) => program.clone(),
            None if is_prepared() => WorkerProgram::current(),
            None => return Err(EnvError::failed(CollectError::NoWorkerMain)),
        };
        let (sender, reports) = channel();
        let door = Arc::<Door>::default();
        let watch = Watch::new(sender, Arc::clone(&door));
        let count = terms.members.len();
        let supervisor = Supervisor::start(program, count, watch).map_err(EnvError::failed)?;
        for (member, env) in terms.members.iter().enumerate() {
            let introduced = || {
                let frame = Frame::of(&ToWorker::Member(env.clone()))?;
                supervisor.spawn(member)?;
                supervisor.send(member, frame)
            };
            introduced().map_err(EnvError::failed)?;
        }
        Ok(Self {
            supervisor: Some(supervisor),
            reports,
            door,
            each: (0..count).map(|_| Member::default()).collect(),
            patience: terms.patience,
            is_patient: terms.is_patient,
            interrupt: terms.interrupt.clone(),
            owner: std::process::id(),
        })
    }

    /// Has each member report once; the first fault of one.
    pub(super) fn gather<T>(
        &mut self,
        pick: fn(Report) -> Option<T>,
    ) -> Result<Vec<T>, VecEnvError> {
        let mut all: Vec<Option<T>> = self.each.iter().map(|_| None).collect();
        while all.iter().any(Option::is_none) {
            let received = self.interrupt.receive(&self.reports);
            match received.map_err(|error| EnvError::failed(error).of(0))? {
                Some((member, report @ (Report::Specified(_) | Report::Attached))) => {
                    all[member] = pick(report);
                }
                Some((member, report)) => self.note(member, report),
                None => return Err(EnvError::from(MemberError::Closed).of(0)),
            }
            // Of members of one environment, which they all are before they say otherwise.
            let mut each = self.each.iter_mut().enumerate();
            let fault = each.find_map(|(index, member)| Some((index, member.take_fault()?)));
            if let Some((member, fault)) = fault {
                return Err(fault.source.of(member));
            }
        }
        Ok(all.into_iter().flatten().collect())
    }

    /// Takes the reports that are there.
    pub(super) fn hear(&mut self) {
        while let Ok((member, report)) = self.reports.try_recv() {
            self.note(member, report);
        }
    }

    fn note(&mut self, member: usize, report: Report) {
        let member = &mut self.each[member];
        match report {
            Report::Started(pid) => member.pid = Some(pid),
            Report::Fault(fault) => member.fail(fault.env, fault.message, fault.sent),
            Report::Refused(refusal) => member.fail(0, refusal.message, refusal.sent),
            Report::Broken(error) => member.fault = Some(EnvError::failed(error).of(0)),
            Report::Returned(answer) => member.returned = Some(answer),
            Report::Died { status, stderr } => {
                let doing = match member.doing {
                    Some(MemberCommand::Step) => "in `step`",
                    Some(MemberCommand::Reset) => "in `reset`",
                    Some(MemberCommand::Call) => "answering a call",
                    Some(MemberCommand::Move) | None => "",
                };
                let words = last_words(doing, None, &stderr);
                member.pid = None;
                member.dead = Some(MemberError::Died { status, words });
            }
            Report::Specified(_) | Report::Attached => {}
        }
    }

    /// Checks that the members are this process's, open and alive.
    pub(super) fn check(&mut self) -> Result<(), VecEnvError> {
        let here = std::process::id();
        if self.owner != here {
            let owner = self.owner;
            return Err(EnvError::from(MemberError::Foreign { owner, here }).of(0));
        }
        if self.supervisor.is_none() {
            return Err(EnvError::from(MemberError::Closed).of(0));
        }
        self.hear();
        let mut each = self.each.iter_mut().enumerate();
        let fault = each.find_map(|(index, member)| {
            // What failed in a call that was given up is of no use any more.
            member.fault = None;
            Some(member.take_fault()?.source.of(index))
        });
        fault.map_or(Ok(()), Err)
    }

    pub(super) fn send(&self, member: usize, frame: Frame) -> Result<(), EnvError> {
        let supervisor = self.supervisor.as_ref().ok_or(MemberError::Closed)?;
        supervisor.send(member, frame).map_err(EnvError::failed)
    }

    /// Ends the processes, once `lanes` were closed, and waits for their ends.
    pub(super) fn end(&mut self, is_asked: bool, lanes: impl FnOnce()) {
        let Some(supervisor) = self.supervisor.take() else {
            return;
        };
        if self.owner != std::process::id() {
            // They are those of the process that this one was forked from, and so is the thread that watches over them.
            std::mem::forget(supervisor);
            return;
        }
        lanes();
        // One that was left in the middle of a step has been waited for long enough.
        let is_left = self.each.iter().any(|member| member.doing.is_some());
        let patience = match (is_asked || self.is_patient) && !is_left {
            true => self.patience,
            false => self.patience.min(DROPPED),
        };
        // Those that cannot be killed are left behind.
        let _ = supervisor.shutdown(patience);
        self.each.iter_mut().for_each(|member| member.pid = None);
    }
}
