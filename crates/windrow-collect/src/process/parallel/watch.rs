//! What the supervisor's thread hears of members, passed on to whoever waits for them.

use std::sync::Arc;

use windrow_peer::{Death, Events, Frame, ProcessError};
use windrow_slab::Ring;
use windrow_sync::mpsc::Sender;
use windrow_sync::{Mutex, lock};

use super::messages::{Fault, frame};
use crate::process::messages::{Refusal, Specified, frame as common};

/// What is heard of a member.
#[derive(Debug)]
pub(super) enum Report {
    Started(u32),
    Specified(Box<Specified>),
    Seated,
    /// What it was asked to make or to take up fails.
    Refused(Refusal),
    Fault(Fault),
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
        let report = match frame.kind {
            common::SPECIFIED => frame.parse().map(|made| Report::Specified(Box::new(made))),
            common::REFUSAL => frame.parse().map(Report::Refused),
            common::RETURNED => Ok(Report::Returned(frame.body)),
            frame::SEATED => Ok(Report::Seated),
            frame::FAULT => frame.parse().map(Report::Fault),
            other => Err(ProcessError::Handshake {
                what: "a member sent a frame of an unknown kind",
                expected: "one of this version".to_owned(),
                got: other.to_string(),
            }),
        };
        self.tell(member, report.unwrap_or_else(Report::Broken));
    }

    fn died(&mut self, member: usize, death: Death) {
        let report = Report::Died {
            status: death.exit.unasked(),
            stderr: death.stderr_tail,
        };
        self.tell(member, report);
    }
}
