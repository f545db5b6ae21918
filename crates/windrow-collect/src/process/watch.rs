//! What happens to worker processes: starts, frames, deaths.

use std::sync::{Arc, Weak};

use windrow_peer::{Death, Events, Frame, ProcessError};

use super::crew::{Crew, Duty, Report};
use super::frozen::Frozen;
use super::live::LastSeen;
use super::messages::{FromWorker, Refusal};
use crate::error::{CollectError, FaultKind, WorkerError, WorkerFault};

/// Hears of all that happens to a crew's processes, in the supervisor's thread.
pub(super) struct Watch {
    crew: Weak<Crew>,
    /// What each worker makes, as JSON.
    hellos: Vec<Vec<u8>>,
    /// The recipe of their policies.
    policy: Vec<u8>,
}

impl Watch {
    pub(super) fn new(crew: &Arc<Crew>, hellos: Vec<Vec<u8>>, policy: Vec<u8>) -> Self {
        Self {
            crew: Arc::downgrade(crew),
            hellos,
            policy,
        }
    }

    fn greet(&self, crew: &Crew, worker: usize) -> Result<(), ProcessError> {
        let supervisor = crew.supervisor()?;
        for message in [&self.hellos[worker], &self.policy] {
            supervisor.send(worker, Frame::from(message.clone()))?;
        }
        Ok(())
    }

    /// A frame while the collector is being built.
    fn report(&self, crew: &Crew, worker: usize, frame: &Frame) -> Result<Report, ProcessError> {
        Ok(match frame.parse()? {
            FromWorker::Specified(made) => {
                crew.introduce(worker, &made);
                Report::Specified(made)
            }
            FromWorker::Bound(policy) => Report::Bound(*policy),
            FromWorker::Refused(Refusal {
                kind,
                message,
                interrupted,
                sent,
            }) => Report::Failed(match interrupted {
                true => WorkerError::interruption(worker, message, sent).into(),
                false => CollectError::Remote {
                    kind,
                    message,
                    sent,
                },
            }),
            other => Report::Failed(CollectError::Worker(unexpected(worker, &other))),
        })
    }

    /// A frame while the collector works. Processes that come later than the collector take the place of one that died.
    fn answer(
        &self,
        crew: &Crew,
        duty: &Duty,
        worker: usize,
        frame: &Frame,
    ) -> Result<(), CollectError> {
        match frame.parse()? {
            FromWorker::Fault(error) => duty.fault(worker, error),
            FromWorker::LastFault(error) => duty.last_fault(worker, error),
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
                duty.last_fault(worker, error);
            }
            FromWorker::Specified(made) => {
                crew.introduce(worker, &made);
                let bind = duty.agreement.bind(worker, &made)?;
                crew.supervisor()?.send(worker, bind)?;
            }
            FromWorker::Bound(policy) => {
                let ready = duty.ready(&policy)?;
                crew.supervisor()?.send(worker, ready)?;
                duty.seated(worker);
            }
            FromWorker::Returned(answer) => {
                duty.shared.calls.answer(worker, answer);
                // The caller waits for the ring.
                if let Some(bell) = duty.shared.ring.bell() {
                    bell.ring();
                }
            }
            FromWorker::Recorded(recorded) => duty.shared.profile.hear(worker, *recorded),
            other => duty.last_fault(worker, unexpected(worker, &other)),
        }
        Ok(())
    }
}

impl Events for Watch {
    fn started(&mut self, worker: usize, pid: Result<u32, ProcessError>) {
        let Some(crew) = self.crew.upgrade() else {
            return;
        };
        let greeted = pid.and_then(|pid| {
            crew.count_in(worker, pid);
            self.greet(&crew, worker)
        });
        let Err(error) = greeted else { return };
        match crew.duty() {
            None => crew.report(worker, Report::Failed(error.into())),
            Some(duty) => duty.last_fault(worker, remade(worker, error.into())),
        }
    }

    fn frame(&mut self, worker: usize, frame: Frame) {
        let Some(crew) = self.crew.upgrade() else {
            return;
        };
        match crew.duty() {
            None => {
                let report = self.report(&crew, worker, &frame);
                crew.report(
                    worker,
                    report.unwrap_or_else(|error| Report::Failed(error.into())),
                );
            }
            Some(duty) => {
                if let Err(error) = self.answer(&crew, duty, worker, &frame) {
                    duty.last_fault(worker, remade(worker, error));
                }
            }
        }
    }

    fn died(&mut self, worker: usize, death: Death) {
        let Some(crew) = self.crew.upgrade() else {
            return;
        };
        if crew.duty().is_none() {
            let error =
                WorkerError::new(worker, None, last_words(&death, None, &LastSeen::default()));
            crew.report(worker, Report::Failed(error.into()));
        }
        // The collector may have been built meanwhile, and have looked for failures before this one was reported.
        let duty = crew.duty();
        let frozen = crew.take_frozen(worker);
        let again = duty
            .is_some_and(|duty| duty.died(worker, &death, |seen| last_words(&death, frozen, seen)));
        if again
            && let Err(error) = crew
                .supervisor()
                .and_then(|supervisor| supervisor.spawn(worker))
            && let Some(duty) = crew.duty()
        {
            duty.last_fault(worker, remade(worker, error.into()));
        }
        crew.count_out(worker);
    }
}

/// What is known of a process that has ended.
fn last_words(death: &Death, frozen: Option<Frozen>, seen: &LastSeen) -> WorkerFault {
    let status = match frozen {
        None => format!("ended with {}", death.exit.unasked()),
        Some(frozen) => frozen.end(death.exit),
    };
    WorkerFault::Died {
        status,
        stderr: death.stderr_tail.clone(),
        doing: seen.doing.clone(),
        action: seen.action.clone(),
    }
}

fn remade(worker: usize, error: CollectError) -> WorkerError {
    WorkerError::new(worker, None, WorkerFault::Remake(Box::new(error)))
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
