//! The link to its collector of a worker in a process of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windrow_policy::Published;
use windrow_slab::Part;
use windrow_sync::{Mutex, MutexGuard, error_chain, lock};

use super::channel::Channel;
use super::child::Child;
use super::live::LiveProbe;
use super::messages::{Answer, Command, Fill, FromWorker, ToWorker};
use crate::error::{FaultKind, WorkerError, WorkerFault};
use crate::probe::{Recorded, Recorder};
use crate::shared::link::{Assignment, OnFault, Order, Progress, WorkerLink};
use crate::shared::reentrancy::CollectorId;

/// Reaches the collector by its channel, and for what is rare by a message.
#[derive(Clone)]
pub(super) struct ProcessLink {
    worker: usize,
    /// Of this process alone: the collector itself is elsewhere.
    collector: CollectorId,
    live: LiveProbe,
    /// Locked a few times a part, by this worker alone.
    connection: Arc<Mutex<Connection>>,
}

struct Connection {
    channel: Box<dyn Channel>,
    child: Child,
    /// How long the worker has waited since its last part.
    waited: Duration,
    /// Where the worker's time is recorded, if it is.
    recorder: Option<Box<Recorder>>,
    /// Whether the recorder is lent, and comes back behind the next answer.
    recording: bool,
    /// The collector has no more parts, or there is no way to it.
    over: bool,
}

impl ProcessLink {
    pub(super) fn new(
        worker: usize,
        channel: impl Channel + 'static,
        live: LiveProbe,
        child: Child,
    ) -> Self {
        Self {
            worker,
            collector: CollectorId::next(),
            live,
            connection: Arc::new(Mutex::new(Connection {
                channel: Box::new(channel),
                child,
                waited: Duration::ZERO,
                recorder: None,
                recording: false,
                over: false,
            })),
        }
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        lock(&self.connection)
    }

    fn part(&self, fill: &Fill) -> Option<Part> {
        let mut connection = self.connection();
        match connection.channel.part(fill) {
            Ok(part) => Some(part),
            Err(error) => {
                let fault = WorkerFault::Slab(error);
                connection.end_with(&WorkerError::new(self.worker, None, fault));
                None
            }
        }
    }
}

/// An order whose part was not looked up yet.
enum ProcessOrder {
    Fill(Fill),
    Save { pickle: bool },
    Load(Vec<u8>),
}

impl Connection {
    /// The next order; `None` once there are none.
    fn next_order(&mut self) -> Option<ProcessOrder> {
        loop {
            match self.receive() {
                Some(Command::Fill(fill)) => return Some(ProcessOrder::Fill(fill)),
                Some(Command::Save { pickle }) => return Some(ProcessOrder::Save { pickle }),
                Some(Command::Load) => match self.child.next() {
                    Ok((ToWorker::State(state), _)) => return Some(ProcessOrder::Load(state)),
                    _ => self.over = true,
                },
                Some(Command::Record) => self.record(),
                Some(Command::EndRecording) => {
                    self.end_recording();
                    self.answer(Answer::Done);
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
        let command = self.channel.receive();
        self.over = command.is_none();
        command
    }

    fn answer(&mut self, answer: Answer) {
        self.answer_with(answer, None, 0);
    }

    /// Answers the last command, with the part that it asked for; `follow` messages come at once.
    fn answer_with(&mut self, answer: Answer, part: Option<Part>, follow: usize) {
        let recorded = usize::from(std::mem::take(&mut self.recording));
        self.over |= !self.channel.answer(answer, part, follow + recorded);
    }

    /// `error`, as it is sent to the collector.
    fn told(&self, error: &WorkerError) -> WorkerError {
        let program = &self.child.program;
        error.to_send(program.send_errors, program.is_interruption)
    }

    fn report(&mut self, message: &FromWorker) {
        self.over |= self.child.send(message).is_err();
    }

    fn answer_call(&mut self) {
        self.over |= self.child.answer_call().is_err();
        self.answer(Answer::Done);
    }

    /// Makes the recorder that the collector asks for.
    fn record(&mut self) {
        match self.child.next() {
            Ok((ToWorker::Record(order), _)) => {
                match order.recorder(self.child.program.make_profiler) {
                    Ok(recorder) => self.recorder = Some(recorder),
                    Err(failed) => self.recorded(failed),
                }
            }
            _ => self.over = true,
        }
        self.answer(Answer::Done);
    }

    /// Writes the trace of what was recorded, if there is a recording.
    fn end_recording(&mut self) {
        if let Some(mut recorder) = self.recorder.take() {
            self.recorded(Box::new(recorder.finished()));
        }
    }

    fn recorded(&mut self, recorded: Box<Recorded>) {
        self.report(&FromWorker::Recorded(recorded));
    }

    fn end_with(&mut self, error: &WorkerError) {
        self.report(&FromWorker::LastFault(self.told(error)));
        self.over = true;
    }
}

impl WorkerLink for ProcessLink {
    type ProgressProbe = LiveProbe;

    fn worker(&self) -> usize {
        self.worker
    }

    fn collector(&self) -> CollectorId {
        self.collector
    }

    fn claim(&mut self) -> Option<Order> {
        let asked = Instant::now();
        let order = {
            let mut connection = self.connection();
            let order = connection.next_order();
            connection.waited += asked.elapsed();
            order?
        };
        Some(match order {
            ProcessOrder::Fill(fill) => Order::Fill(Assignment {
                part: self.part(&fill)?,
                share: fill.share,
                commands: fill.commands,
            }),
            ProcessOrder::Save { pickle } => Order::Save { pickle },
            ProcessOrder::Load(state) => Order::Load(state),
        })
    }

    fn answer(&mut self, answer: Vec<u8>) {
        let mut connection = self.connection();
        connection.report(&FromWorker::Returned(answer));
        connection.answer(Answer::Done);
    }

    fn newer_weights(&self, held: Option<i64>) -> Option<Published> {
        let mut connection = self.connection();
        match connection.channel.newest_weights(held) {
            Ok(newest) => newest,
            Err(error) => {
                let fault = WorkerFault::Remote {
                    kind: FaultKind::Policy,
                    message: format!("failed to read new weights: {}", error_chain(&error)),
                    env: None,
                    sent: None,
                };
                connection.end_with(&WorkerError::new(self.worker, None, fault));
                None
            }
        }
    }

    fn progress_probe(&self) -> LiveProbe {
        self.live.of_part()
    }

    fn recorder(&mut self) -> Option<Box<Recorder>> {
        let mut connection = self.connection();
        connection.recording = connection.recorder.is_some();
        connection.recorder.take()
    }

    fn take_recorder(&mut self, mut recorder: Box<Recorder>, filled: bool) {
        let recorded = recorder.end_rollout(filled);
        let mut connection = self.connection();
        if !recorded.is_over() {
            connection.recorder = Some(recorder);
        }
        connection.recorded(Box::new(recorded));
    }

    fn deliver(&mut self, part: Part, progress: Progress) {
        self.live.handed_over();
        let mut connection = self.connection();
        let waited = std::mem::take(&mut connection.waited);
        let answer = Answer::Filled {
            steps: part.steps(),
            progress,
            waited_ns: waited.as_nanos() as u64,
        };
        connection.answer_with(answer, Some(part), 0);
    }

    fn give_back(&mut self, part: Part, progress: Progress) {
        drop(part);
        self.live.handed_over();
        // The fault itself comes at once.
        self.connection()
            .answer_with(Answer::Lost { progress }, None, 1);
    }

    fn lose(&mut self, error: WorkerError) -> OnFault {
        let mut connection = self.connection();
        let error = connection.told(&error);
        connection.report(&FromWorker::Fault(error));
        match connection.receive() {
            Some(Command::Replace) => {
                connection.answer(Answer::Done);
                OnFault::Replace
            }
            Some(_) | None => {
                connection.over = true;
                OnFault::Stop
            }
        }
    }

    fn fail(&mut self, error: WorkerError) {
        self.connection().end_with(&error);
    }
}
