//! The desk of a worker in a process of its own.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windrow_policy::Published;
use windrow_process::{ChildEnd, Frame, WorkerLane, send};
use windrow_slab::{Part, RemoteRing};

use super::live::LiveProbe;
use super::messages::{Answer, Command, Fill, frame};
use super::weights::WeightReceiver;
use crate::error::{FaultKind, SendErrors, WorkerError, WorkerFault};
use crate::probe::Recorder;
use crate::shared::desk::{Desk, Job, Progress, Verdict};
use crate::shared::reentrancy::CollectorId;
use crate::sync::{Mutex, MutexGuard, lock};

/// Reaches the collector by a lane of shared memory, and for what is rare by a socket.
#[derive(Clone)]
pub(super) struct LaneDesk {
    worker: usize,
    /// Of this process alone: the collector itself is elsewhere.
    collector: CollectorId,
    ring: Arc<RemoteRing>,
    live: LiveProbe,
    /// Locked a few times a part, by this worker alone.
    link: Arc<Mutex<Link>>,
}

struct Link {
    lane: WorkerLane,
    weights: WeightReceiver,
    end: Arc<ChildEnd>,
    send_errors: SendErrors,
    /// How long the worker has waited since its last part.
    waited: Duration,
    /// The collector has no more parts, or there is no way to it.
    over: bool,
}

impl LaneDesk {
    pub(super) fn new(
        worker: usize,
        ring: Arc<RemoteRing>,
        live: LiveProbe,
        lane: WorkerLane,
        weights: WeightReceiver,
        (end, send_errors): (Arc<ChildEnd>, SendErrors),
    ) -> Self {
        Self {
            worker,
            collector: CollectorId::next(),
            ring,
            live,
            link: Arc::new(Mutex::new(Link {
                lane,
                weights,
                end,
                send_errors,
                waited: Duration::ZERO,
                over: false,
            })),
        }
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        lock(&self.link)
    }

    fn part(&self, fill: &Fill) -> Option<Part> {
        match self.ring.part(fill.slot, fill.part, fill.seq) {
            Ok(part) => Some(part),
            Err(error) => {
                let fault = WorkerFault::Slab(error);
                self.link()
                    .end_with(&WorkerError::new(self.worker, None, fault));
                None
            }
        }
    }
}

impl Link {
    /// The next command; `None` once there are none.
    fn receive(&mut self) -> Option<Command> {
        if self.over {
            return None;
        }
        let command = self.lane.receive();
        let command = command.and_then(|message| Command::from_message(&message));
        self.over = command.is_none();
        command
    }

    fn answer(&mut self, answer: Answer) {
        // An answer that nobody asked for is the only error: then the collector cannot be reached.
        self.over |= self.lane.send(answer.to_message()).is_err();
    }

    fn report(&mut self, kind: u8, error: &WorkerError) {
        let frame = Frame::json(kind, &error.to_send(self.send_errors));
        let sent = frame.and_then(|frame| send(self.end.socket().as_fd(), &frame));
        self.over |= sent.is_err();
    }

    fn end_with(&mut self, error: &WorkerError) {
        self.report(frame::LAST_FAULT, error);
        self.over = true;
    }
}

impl Desk for LaneDesk {
    type Notes = LiveProbe;

    fn worker(&self) -> usize {
        self.worker
    }

    fn collector(&self) -> CollectorId {
        self.collector
    }

    fn claim(&mut self) -> Option<Job> {
        let asked = Instant::now();
        let command = {
            let mut link = self.link();
            let command = link.receive();
            link.waited += asked.elapsed();
            command
        };
        let Some(Command::Fill(fill)) = command else {
            return None;
        };
        Some(Job {
            part: self.part(&fill)?,
            share: fill.share,
            orders: fill.orders,
        })
    }

    fn newer_weights(&self, held: Option<i64>) -> Option<Published> {
        let mut link = self.link();
        match link.weights.newest(held) {
            Ok(newest) => newest,
            Err(error) => {
                let fault = WorkerFault::Remote {
                    kind: FaultKind::Policy,
                    message: format!("failed to read new weights: {error}"),
                    env: None,
                    sent: None,
                };
                link.end_with(&WorkerError::new(self.worker, None, fault));
                None
            }
        }
    }

    fn notes(&self) -> LiveProbe {
        self.live.clone()
    }

    fn recorder(&mut self) -> Option<Box<Recorder>> {
        None
    }

    fn take_recorder(&mut self, _: Box<Recorder>, _: bool) {}

    fn deliver(&mut self, part: Part, progress: Progress) {
        let steps = part.steps();
        part.commit();
        let mut link = self.link();
        let waited = std::mem::take(&mut link.waited);
        link.answer(Answer::Filled {
            steps,
            progress,
            waited_ns: waited.as_nanos() as u64,
        });
    }

    fn give_back(&mut self, part: Part, progress: Progress) {
        drop(part);
        self.link().answer(Answer::Lost { progress });
    }

    fn lose(&mut self, error: WorkerError) -> Verdict {
        let mut link = self.link();
        link.report(frame::FAULT, &error);
        match link.receive() {
            Some(Command::Replace) => {
                link.answer(Answer::Replacing);
                Verdict::Replace
            }
            Some(Command::Fill(_)) | None => {
                link.over = true;
                Verdict::Stop
            }
        }
    }

    fn fail(&mut self, error: WorkerError) {
        self.link().end_with(&error);
    }
}
