//! The seam between a worker and its collector.

use serde::{Deserialize, Serialize};
use windrow_policy::Published;
use windrow_slab::Part;

use super::commands::Commands;
use super::reentrancy::CollectorId;
use super::schedule::Share;
use crate::error::WorkerError;
use crate::probe::{Probe, Recorder};

/// Where a worker takes parts, commands and weights from, and reports to: all that it knows of its
/// collector.
///
/// Asked once or a few times a part, never in a step. [`ThreadLink`](super::ThreadLink) serves
/// workers in threads of the collector's process; a worker elsewhere needs another link and nothing
/// else.
pub(crate) trait WorkerLink: Clone {
    /// What the link notes of a rollout as it goes on.
    type ProgressProbe: Probe;

    /// Number of the worker.
    fn worker(&self) -> usize;

    /// The collector whose worker it is.
    fn collector(&self) -> CollectorId;

    /// Waits for the next order; `None` when this worker has no part to fill any more.
    fn claim(&mut self) -> Option<Order>;

    /// Answers the last order, which was to save or to load a state.
    fn answer(&mut self, answer: Vec<u8>);

    /// The newest weights, unless they have the version `held`.
    fn newer_weights(&self, held: Option<i64>) -> Option<Published>;

    /// The probe of the next rollout.
    fn progress_probe(&self) -> Self::ProgressProbe;

    /// The recorder of this worker's time, if it is profiled: given back after each part.
    fn recorder(&mut self) -> Option<Box<Recorder>>;

    /// Takes the recorder back; `filled`: whether the part was handed over.
    fn take_recorder(&mut self, recorder: Box<Recorder>, filled: bool);

    /// Hands a filled part over to the consumer.
    fn deliver(&mut self, part: Part, progress: Progress);

    /// Gives a part back that could not be filled.
    fn give_back(&mut self, part: Part, progress: Progress);

    /// Reports a fault, and asks how to go on. The part was given back before.
    fn lose(&mut self, error: WorkerError) -> OnFault;

    /// Ends the collector with `error`.
    fn fail(&mut self, error: WorkerError);
}

/// What a worker does next.
#[derive(Debug)]
pub(crate) enum Order {
    /// Fill a part.
    Fill(Assignment),
    /// Answer with its state.
    Save { pickle: bool },
    /// Go on from a state.
    Load(Vec<u8>),
}

/// A part to be filled, and what to do for it.
#[derive(Debug)]
pub(crate) struct Assignment {
    pub(crate) part: Part,
    pub(crate) share: Share,
    pub(crate) commands: Commands,
}

/// How far a worker has come, reported with each part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Version of the weights that have acted.
    pub(crate) version: i64,
    /// The smallest frame from which none of its environments' noise and seeds were drawn yet.
    pub(crate) next_frame: u64,
    /// The smallest trajectory id that none of its frames carries yet.
    pub(crate) next_traj_id: i64,
}

/// How a worker goes on after a fault.
#[derive(Debug)]
pub(crate) enum OnFault {
    /// With new environments and a new policy.
    Replace,
    /// Not at all: the next claim gives no part.
    Stop,
    /// With new episodes, once the call that waits for a batch has returned this error: it is no
    /// fault of environments or policy.
    Interrupted(WorkerError),
}
