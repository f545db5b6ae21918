//! The desk of a worker in a process of its own.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use windrow_policy::Published;
use windrow_process::{ChildEnd, Frame, FrameReader, ProcessError, WorkerLane, send};
use windrow_slab::{Part, RemoteRing};
use windrow_sync::{Mutex, MutexGuard, error_chain, lock};

use super::live::LiveProbe;
use super::messages::{Answer, Command, Fill, frame};
use super::program::Program;
use super::weights::WeightReceiver;
use crate::error::{FaultKind, WorkerError, WorkerFault};
use crate::probe::{Order, Recorded, Recorder};
use crate::shared::desk::{Desk, Job, Progress, Verdict};
use crate::shared::reentrancy::CollectorId;

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
    program: Program,
    /// How long the worker has waited since its last part.
    waited: Duration,
    /// Where the worker's time is recorded, if it is.
    recorder: Option<Box<Recorder>>,
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
        (end, program): (Arc<ChildEnd>, Program),
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
                program,
                waited: Duration::ZERO,
                recorder: None,
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
    /// The next part to be filled; `None` once there are none.
    fn next_part(&mut self) -> Option<Fill> {
        loop {
            match self.receive() {
                Some(Command::Fill(fill)) => return Some(fill),
                Some(Command::Record) => self.record(),
                Some(Command::EndRecording) => {
                    self.end_recording();
                    self.answer(Answer::Heard);
                }
                Some(Command::Call) => self.answer_call(),
                Some(Command::Replace) | None => {
                    self.end_recording();
                    return None;
                }
            }
        }
    }

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

    /// `error`, as the collector is told of it.
    fn told(&self, error: &WorkerError) -> WorkerError {
        error.to_send(self.program.send_errors, self.program.is_interruption)
    }

    fn report(&mut self, kind: u8, content: &impl Serialize) {
        let sent =
            Frame::json(kind, content).and_then(|frame| send(self.end.socket().as_fd(), &frame));
        self.over |= sent.is_err();
    }

    /// The frame of a command that comes with one.
    fn frame(&self, kind: u8) -> Result<Frame, ProcessError> {
        // A whole frame at a time is read from the socket, so no reader holds some of the next one.
        let frame = FrameReader::default().read(self.end.socket().as_fd())?;
        let frame = frame.filter(|frame| frame.kind == kind);
        frame.ok_or(ProcessError::ShutDown)
    }

    fn answer_call(&mut self) {
        let answered = Frame::gathered(|| self.frame(frame::CALL)).and_then(|call| {
            let answer = (self.program.answer_calls)(&call);
            let mut pieces = Frame::pieces(frame::RETURNED, &answer);
            pieces.try_for_each(|piece| send(self.end.socket().as_fd(), &piece))
        });
        self.over |= answered.is_err();
        self.answer(Answer::Heard);
    }

    /// Makes the recorder that the collector asks for.
    fn record(&mut self) {
        let order = self
            .frame(frame::RECORD)
            .and_then(|frame| frame.parse::<Order>());
        match order.map(|order| order.recorder(self.program.make_profiler)) {
            Ok(Ok(recorder)) => self.recorder = Some(recorder),
            Ok(Err(failed)) => self.recorded(&failed),
            Err(_) => self.over = true,
        }
        self.answer(Answer::Heard);
    }

    /// Writes the trace of what was recorded, if there is a recording.
    fn end_recording(&mut self) {
        if let Some(mut recorder) = self.recorder.take() {
            self.recorded(&recorder.finished());
        }
    }

    fn recorded(&mut self, recorded: &Recorded) {
        self.report(frame::RECORDED, recorded);
    }

    fn end_with(&mut self, error: &WorkerError) {
        self.report(frame::LAST_FAULT, &self.told(error));
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
        let fill = {
            let mut link = self.link();
            let fill = link.next_part();
            link.waited += asked.elapsed();
            fill?
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
                    message: format!("failed to read new weights: {}", error_chain(&error)),
                    env: None,
                    sent: None,
                };
                link.end_with(&WorkerError::new(self.worker, None, fault));
                None
            }
        }
    }

    fn notes(&self) -> LiveProbe {
        self.live.of_part()
    }

    fn recorder(&mut self) -> Option<Box<Recorder>> {
        self.link().recorder.take()
    }

    fn take_recorder(&mut self, mut recorder: Box<Recorder>, filled: bool) {
        let recorded = recorder.end_rollout(filled);
        let mut link = self.link();
        if !recorded.is_over() {
            link.recorder = Some(recorder);
        }
        link.recorded(&recorded);
    }

    fn deliver(&mut self, part: Part, progress: Progress) {
        let steps = part.steps();
        part.commit();
        self.live.handed_over();
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
        self.live.handed_over();
        self.link().answer(Answer::Lost { progress });
    }

    fn lose(&mut self, error: WorkerError) -> Verdict {
        let mut link = self.link();
        let error = link.told(&error);
        link.report(frame::FAULT, &error);
        match link.receive() {
            Some(Command::Replace) => {
                link.answer(Answer::Heard);
                Verdict::Replace
            }
            Some(_) | None => {
                link.over = true;
                Verdict::Stop
            }
        }
    }

    fn fail(&mut self, error: WorkerError) {
        self.link().end_with(&error);
    }
}
