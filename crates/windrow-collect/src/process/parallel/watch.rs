//! What the supervisor's thread hears of members, passed on to whoever waits for them.

use std::sync::Arc;

use windrow_peer::{Death, Events, Frame, ProcessError};
use windrow_slab::Ring;
use windrow_sync::mpsc::Sender;
use windrow_sync::{Mutex, lock};

use super::messages::MemberFault;
use crate::process::messages::{FromWorker, Refusal, Specified};

/// What is heard of a member.
#[derive(Debug)]
pub(super) enum Report {
    Started(u32),
    Specified(Box<Specified>),
    Attached,
    /// What it was asked to make or to take up fails.
    Refused(Refusal),
    Fault(MemberFault),
    Returned(Vec<u8>),
    Died {
        status: String,
        stderr: String,
    },
    Broken(ProcessError),
}

/// Rung with every report.
#[derive(Debug, Default)]
pub(super) struct Door(Mutex<Option<Arc<Ring>>>);

impl Door {
    /// Whoever waits now waits for this ring.
    pub(super) fn hang(&self, ring: &Arc<Ring>) {
        *lock(&self.0) = Some(Arc::clone(ring));
    }

    fn ring(&self) {
        if let Some(bell) = lock(&self.0).as_ref().and_then(|ring| ring.bell()) {
            bell.ring();
        }
    }
}

pub(super) struct Watch {
    reports: Sender<(usize, Report)>,
    door: Arc<Door>,
}

impl Watch {
    pub(super) fn new(reports: Sender<(usize, Report)>, door: Arc<Door>) -> Self {
        Self { reports, door }
    }

    fn tell(&self, member: usize, report: Report) {
        // The receiver is gone once the environments are.
        let _ = self.reports.send((member, report));
        self.door.ring();
    }
}

impl Events for Watch {
    fn started(&mut self, member: usize, pid: Result<u32, ProcessError>) {
        self.tell(member, pid.map_or_else(Report::Broken, Report::Started));
    }

    fn frame(&mut self, member: usize, frame: Frame) {
        let report = match frame.parse() {
            Ok(FromWorker::Specified(made)) => Report::Specified(made),
            Ok(FromWorker::Refused(refusal)) => Report::Refused(refusal),
            Ok(FromWorker::Returned(answer)) => Report::Returned(answer),
            Ok(FromWorker::Attached) => Report::Attached,
            Ok(FromWorker::MemberFault(fault)) => Report::Fault(fault),
            Ok(other) => Report::Broken(ProcessError::Handshake {
                what: "a member sent what only workers of collectors send",
                expected: "a report of a member".to_owned(),
                got: format!("{other:?}"),
            }),
            Err(error) => Report::Broken(error),
        };
        self.tell(member, report);
    }

    fn died(&mut self, member: usize, death: Death) {
        let report = Report::Died {
            status: death.exit.unasked(),
            stderr: death.stderr_tail,
        };
        self.tell(member, report);
    }
}
