//! The part of a state with which a run goes on bit for bit, beside counters and weights: the
//! states of workers, and the frames that were collected and not delivered yet.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use windrow_env::StateVisitor;
use windrow_sync::Interrupt;
use windrow_sync::atomic::Ordering;

use super::batches::{LoadedBatches, SavedBatches};
use super::driver::Driver;
use super::stage::LastStage;
use crate::error::{ControlError, ResumeError};
use crate::shared::calls::Request;
use crate::shared::commands::{Commands, Resume};
use crate::shared::link::Progress;
use crate::worker::saved::StateAnswer;

/// The form of [`Simulators`], which begins with this number.
const VERSION: u32 = 1;

/// All that a collector saves of its simulators.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Simulators {
    workers: Vec<ByteBuf>,
    /// Commands to each worker for its next part.
    commands: Vec<Commands>,
    #[serde(with = "serde_bytes")]
    statistics: Vec<u8>,
    pub(crate) batches: SavedBatches,
    dropped: u64,
    /// Whether environments may have been pickled.
    pickle: bool,
}

impl Simulators {
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, ResumeError> {
        let bytes = postcard::to_stdvec(&(VERSION, self));
        bytes.map_err(|error| ResumeError::Failed(error.to_string()))
    }

    /// # Errors
    /// [`ResumeError::Version`], and [`ResumeError::Failed`] for other bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, ResumeError> {
        let read = |error: postcard::Error| ResumeError::Failed(format!("simulators: {error}"));
        let (got, rest) = postcard::take_from_bytes::<u32>(bytes).map_err(read)?;
        match got == VERSION {
            true => postcard::from_bytes(rest).map_err(read),
            false => Err(ResumeError::Version {
                expected: VERSION,
                got,
            }),
        }
    }
}

/// The states of workers and statistics, to go back to.
struct Before {
    workers: Vec<StateAnswer>,
    statistics: Vec<u8>,
}

/// A state of which workers have loaded their part.
pub(crate) struct Loaded {
    saved: Simulators,
    batches: LoadedBatches,
    before: Before,
}

impl<S: LastStage> Driver<S> {
    /// Saves simulators, while the ring is held; in the inner error's place the reason why they
    /// cannot be saved. Environments of Python may be pickled, where `pickle`. `interrupt` ends
    /// waits for workers.
    ///
    /// # Errors
    /// [`ControlError::Next`] where a slab that was begun is not completed;
    /// [`ControlError::Simulators`] where saving fails.
    pub(crate) fn save(
        &mut self,
        pickle: bool,
        interrupt: &Interrupt,
    ) -> Result<Result<Simulators, String>, ControlError> {
        if self.core.shared.reports.alive() < self.core.workers() {
            return Ok(Err("a worker was lost".to_owned()));
        }
        if self.core.forget.swap(false, Ordering::Relaxed) {
            self.batches.drop_trajectories();
        }
        self.batches.slabs.complete_begun(interrupt)?;
        let mut workers = Vec::with_capacity(self.core.workers());
        for (worker, answer) in self.ask_all(pickle, interrupt)?.into_iter().enumerate() {
            match answer {
                StateAnswer::Saved(state) => workers.push(ByteBuf::from(state)),
                StateAnswer::NotHeld(reason) => return Ok(Err(reason)),
                other => return Err(failed(worker, other)),
            }
        }
        Ok(Ok(Simulators {
            workers,
            commands: self.core.shared.commanded(),
            statistics: self.statistics()?,
            batches: self.batches.saved()?,
            dropped: self.core.counters().dropped,
            pickle,
        }))
    }

    /// Lets workers load `saved`, while the ring is held. Where that fails, nothing has changed.
    ///
    /// # Errors
    /// [`ControlError::Simulators`] where the state does not fit.
    pub(crate) fn load(&mut self, saved: Simulators) -> Result<Loaded, ControlError> {
        let (expected, got) = (self.core.workers(), saved.workers.len());
        if expected != got || saved.commands.len() != got {
            return Err(ResumeError::Workers { expected, got }.into());
        }
        let interrupt = self.core.interrupt.clone();
        self.batches.slabs.complete_begun(&interrupt)?;
        let before = Before {
            workers: self.ask_all(saved.pickle, &interrupt)?,
            statistics: self.statistics()?,
        };
        let loaded = self
            .load_workers(&saved, &interrupt)
            .and_then(|()| Ok(self.batches.read(&saved.batches)?));
        match loaded {
            Ok(batches) => Ok(Loaded {
                saved,
                batches,
                before,
            }),
            Err(error) => {
                self.go_back_to(&before);
                Err(error)
            }
        }
    }

    /// Goes back to what was before a state was loaded.
    pub(crate) fn unload(&mut self, loaded: Loaded) {
        let Loaded {
            batches, before, ..
        } = loaded;
        drop(batches);
        self.go_back_to(&before);
    }

    /// Goes on from a state that was loaded, with what was collected then.
    pub(crate) fn go_on_from(&mut self, loaded: Loaded, resume: Resume) {
        let Loaded { saved, batches, .. } = loaded;
        self.clear();
        self.batches.go_on_with(batches);
        let core = &self.core;
        core.counters().dropped = saved.dropped;
        core.shared.go_on_from(resume, &saved.commands);
        let progress = Progress {
            version: core.shared.weights.version(),
            next_frame: resume.frame,
            next_traj_id: resume.traj_id,
        };
        self.batches.slabs.workers.go_on_from(progress);
    }

    fn load_workers(
        &mut self,
        saved: &Simulators,
        interrupt: &Interrupt,
    ) -> Result<(), ControlError> {
        let mut state = StateVisitor::loading(&saved.statistics);
        let statistics = &self.core.shared.statistics;
        statistics
            .visit_state(&mut state)
            .and_then(|()| state.finish())
            .map_err(ResumeError::Statistics)?;
        for (worker, state) in saved.workers.iter().enumerate() {
            match self.ask(worker, Request::Load(state.to_vec()), interrupt)? {
                StateAnswer::Loaded => {}
                other => return Err(failed(worker, other)),
            }
        }
        Ok(())
    }

    fn go_back_to(&mut self, before: &Before) {
        let interrupt = self.core.interrupt.clone();
        // Whoever has saved a state can load it, unless its worker is gone.
        let mut state = StateVisitor::loading(&before.statistics);
        let _ = self.core.shared.statistics.visit_state(&mut state);
        for (worker, state) in before.workers.iter().enumerate() {
            if let StateAnswer::Saved(state) = state {
                let _ = self.ask(worker, Request::Load(state.clone()), &interrupt);
            }
        }
        self.batches.slabs.end_as_scheduled();
    }

    fn statistics(&self) -> Result<Vec<u8>, ControlError> {
        let mut state = StateVisitor::saving();
        let visited = self.core.shared.statistics.visit_state(&mut state);
        let saved = visited.and_then(|()| state.finish());
        Ok(saved.map_err(ResumeError::Statistics)?)
    }

    /// The states of all workers.
    fn ask_all(
        &mut self,
        pickle: bool,
        interrupt: &Interrupt,
    ) -> Result<Vec<StateAnswer>, ControlError> {
        let workers = 0..self.core.workers();
        workers
            .map(|worker| self.ask(worker, Request::Save { pickle }, interrupt))
            .collect()
    }

    fn ask(
        &mut self,
        worker: usize,
        request: Request,
        interrupt: &Interrupt,
    ) -> Result<StateAnswer, ControlError> {
        let slabs = &mut self.batches.slabs;
        if let Some(worker) = slabs.workers.here(worker) {
            return Ok(match request {
                Request::Load(state) => worker.load(&state),
                Request::Save { pickle } => worker.save(pickle),
                Request::Program(_) => unreachable!("The driver asks for states only."),
            });
        }
        match self.core.ask(worker, request, interrupt) {
            Ok(answer) => Ok(StateAnswer::from_bytes(&answer)),
            Err(ControlError::NoAnswer { worker }) => {
                Ok(StateAnswer::NotHeld(format!("worker {worker} has ended")))
            }
            Err(error) => Err(error),
        }
    }
}

fn failed(worker: usize, answer: StateAnswer) -> ControlError {
    let reason = match answer {
        StateAnswer::NotHeld(reason) | StateAnswer::Failed(reason) => reason,
        StateAnswer::Saved(_) | StateAnswer::Loaded => "an answer to another request".to_owned(),
    };
    ResumeError::Worker { worker, reason }.into()
}
