//! Events of a collector's worker processes: starts, messages, deaths.

use windrow_peer::{Death, Event};

use super::live::LastSeen;
use super::messages::{Command, FromWorker, Refusal};
use super::pool::{Phase, WorkerPool};
use super::slot::{SlotState, WorkerProcess};
use super::thread_state::Hang;
use crate::error::{BuildError, FaultKind, WorkerError, WorkerFault};
use crate::shared::link::OnFault;

/// Why the build of a collector fails, if this ends it.
pub(super) fn failure(worker: usize, event: Event<FromWorker>) -> Option<BuildError> {
    Some(match event {
        Event::Started(_) => return None,
        Event::Failed(error) => error.into(),
        Event::Message(FromWorker::Refused(Refusal {
            kind,
            message,
            interrupted,
            sent,
        })) => match interrupted {
            true => WorkerError::interruption(worker, message, sent).into(),
            false => BuildError::Remote {
                kind,
                message,
                sent,
            },
        },
        Event::Message(other) => unexpected(worker, &other).into(),
        Event::Died(death) => {
            let fault = last_words(&death, None, &LastSeen::default());
            WorkerError::new(worker, None, fault).into()
        }
    })
}

/// Called by the supervisor's thread. A process that comes later than the collector takes the place
/// of one that died.
impl WorkerPool {
    pub(super) fn on_event(&self, worker: usize, event: Event<FromWorker>) {
        let handled = match event {
            Event::Started(pid) => {
                let process = WorkerProcess::new(pid);
                self.slot(worker, |slot| slot.process = Some(process));
                self.shared.reports.runs_in(worker, process.own_pid());
                Ok(())
            }
            Event::Failed(error) => Err(error.into()),
            Event::Message(message) => self.on_message(worker, message),
            Event::Died(death) => self.on_exit(worker, &death),
        };
        if let Err(error) = handled {
            let fault = WorkerFault::Remake(Box::new(error));
            self.end_with(worker, WorkerError::new(worker, None, fault));
        }
    }

    fn on_message(&self, worker: usize, message: FromWorker) -> Result<(), BuildError> {
        match message {
            FromWorker::Fault(error) => self.on_fault(worker, error),
            FromWorker::LastFault(error) => self.end_with(worker, error),
            FromWorker::Refused(Refusal {
                message,
                interrupted,
                sent,
                ..
            }) => {
                let error = match interrupted {
                    true => WorkerError::interruption(worker, message, sent),
                    false => {
                        let fault = WorkerFault::Remote {
                            kind: FaultKind::Remake,
                            message: format!("failed to start over: {message}"),
                            env: None,
                            sent,
                        };
                        WorkerError::new(worker, None, fault)
                    }
                };
                self.end_with(worker, error);
            }
            FromWorker::Specified(made) => {
                self.slot(worker, |slot| {
                    slot.process = slot.process.map(|process| process.specified(&made));
                });
                self.setup.check(worker, &made)?;
                self.send(worker, &self.setup.bind())?;
            }
            FromWorker::Bound(policy) => {
                let ready = self.setup.ready(&policy, &self.control, &self.shared)?;
                self.supervisor.send(worker, ready)?;
                self.slot(worker, |slot| {
                    if slot.state == SlotState::Starting {
                        slot.state = SlotState::Working;
                    }
                });
                self.shared.ring.pump();
            }
            FromWorker::Returned(answer) => {
                self.shared.calls.answer(worker, answer);
                // The caller waits for the ring.
                if let Some(bell) = self.shared.ring.bell() {
                    bell.ring();
                }
            }
            FromWorker::Recorded(recorded) => self.shared.profile.recorded(worker, *recorded),
            other => self.end_with(worker, unexpected(worker, &other)),
        }
        Ok(())
    }

    /// Worker `worker` has reported a fault, for which its part was given back.
    fn on_fault(&self, worker: usize, error: WorkerError) {
        let (state, mut restarts) = self.slot(worker, |slot| {
            slot.poll_answer(worker, &self.shared);
            (slot.state, slot.restarts)
        });
        // While the collector ends, a fault is reported as well, as that of a worker in a thread.
        if !matches!(state, SlotState::Waiting | SlotState::Ending) {
            return;
        }
        let replaced = self.replaces(worker, &mut restarts, error);
        self.slot(worker, |slot| {
            slot.restarts = restarts;
            match replaced && slot.state == SlotState::Waiting {
                true => slot.send(Command::Replace),
                false => {
                    slot.end();
                    self.shared.calls.end(worker);
                }
            }
        });
        self.shared.ring.pump();
    }

    /// Worker `worker` ends with `error`, and with it the collector.
    fn end_with(&self, worker: usize, error: WorkerError) {
        self.slot(worker, |slot| slot.end());
        self.shared.calls.end(worker);
        self.shared.fail(error);
    }

    /// The process of worker `worker` has ended: starts another one, or counts the worker as lost.
    fn on_exit(&self, worker: usize, death: &Death) -> Result<(), BuildError> {
        let replaced = self.replaces_dead(worker, death);
        let spawned = match replaced {
            true => self.spawn(worker),
            false => Ok(()),
        };
        self.count_out(worker);
        spawned
    }

    fn spawn(&self, worker: usize) -> Result<(), BuildError> {
        self.supervisor.spawn(worker)?;
        for frame in self.setup.first(worker) {
            self.supervisor.send(worker, frame)?;
        }
        Ok(())
    }

    /// Takes back what a process that has ended had; whether another one is to take its place.
    fn replaces_dead(&self, worker: usize, death: &Death) -> bool {
        // Before the loss is reported.
        self.shared.reports.runs_in(worker, None);
        self.shared.profile.process_ended(worker, death.pid);
        let total_envs = self.setup.ready.beginning.total_envs as u64;
        let (mut restarts, hang, seen) = {
            let state = &mut *self.state();
            let slot = &mut state.slots[worker];
            // Its last answer may not have been taken yet.
            slot.poll_answer(worker, &self.shared);
            let is_here = slot
                .process
                .is_some_and(|process| process.own_pid().is_some());
            let seen = slot.part.take().map(|part| {
                slot.skip(part.steps(), total_envs);
                self.shared.reports.advance(slot.progress);
                match (is_here, &slot.hang) {
                    (true, _) => LastSeen::of(worker, &self.control, &part, &self.action),
                    // Its rows have not come, but where it hangs has.
                    (false, Some(_)) => LastSeen::of(worker, &self.control, &part, &[]),
                    (false, None) => LastSeen::default(),
                }
            });
            slot.lane.reset();
            self.shared.calls.lose(worker);
            let hang = slot.hang.take();
            match slot.state {
                SlotState::Lost => return false,
                SlotState::Ending if is_expected(death, state.phase) => return false,
                // Reported as the loss of a worker in a thread.
                SlotState::Ending => {}
                SlotState::Starting | SlotState::Working | SlotState::Waiting => {
                    slot.state = SlotState::Starting;
                }
            }
            (slot.restarts, hang, seen.unwrap_or_default())
        };
        // The exchange has all workers of the collector.
        let _ = self.setup.weights.exchange.unpin_dead(worker);
        let fault = last_words(death, hang, &seen);
        let error = WorkerError::new(worker, seen.place, fault);
        let replaced = self.replaces(worker, &mut restarts, error);
        let replaced = self.slot(worker, |slot| {
            slot.restarts = restarts;
            let replaced = replaced && slot.state == SlotState::Starting;
            match replaced {
                true => slot.resume = Some(slot.resumption(self.shared.seed(), total_envs)),
                false => {
                    slot.end();
                    self.shared.calls.end(worker);
                }
            }
            replaced
        });
        self.shared.ring.pump();
        replaced
    }

    /// Counts a loss; whether the worker is replaced.
    fn replaces(&self, worker: usize, restarts: &mut usize, error: WorkerError) -> bool {
        match self.shared.lose(worker, restarts, error) {
            OnFault::Replace => true,
            OnFault::Stop => false,
            OnFault::Interrupted(error) => {
                // The interrupted call waits in another process: only the end of the collector
                // reaches it.
                self.shared.fail(error);
                false
            }
        }
    }
}

/// Whether a process of a collector that ends has ended as it should: by itself, or since the
/// collector has lost patience.
fn is_expected(death: &Death, phase: Phase) -> bool {
    // Where the system tells no status, none can be found wrong.
    let exit = death.exit;
    exit.status().is_none() || exit.is_success() || phase == Phase::Killing
}

/// The fault that the end of a process amounts to.
fn last_words(death: &Death, hang: Option<Hang>, seen: &LastSeen) -> WorkerFault {
    let status = match hang {
        None => format!("ended with {}", death.exit.unasked()),
        Some(hang) => hang.end(death.exit),
    };
    WorkerFault::Died {
        status,
        stderr: death.stderr_tail.clone(),
        doing: seen.doing.clone(),
        action: seen.action.clone(),
    }
}

fn unexpected(worker: usize, message: &FromWorker) -> WorkerError {
    let fault = WorkerFault::Remote {
        kind: FaultKind::Start,
        message: format!("its process sent {message:?}, which is not due"),
        env: None,
        sent: None,
    };
    WorkerError::new(worker, None, fault)
}
