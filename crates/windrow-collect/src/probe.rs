//! Records the phases of the step loop, or nothing at no cost.

mod config;
mod external;
mod profile;
mod recorder;
#[cfg(target_os = "linux")]
mod remote;
mod summary;
mod trace;

use crate::error::Place;

pub use config::ProfileConfig;
pub use external::{Profiler, ProfilerRecipe};
pub use summary::{PhaseProfile, ProfileSummary, WorkerProfile};

#[cfg(target_os = "linux")]
pub(crate) use external::MakeProfiler;
pub(crate) use profile::Profile;
pub(crate) use recorder::{Recorder, Timeline};
#[cfg(target_os = "linux")]
pub(crate) use remote::{NextRecording, Order, Recorded};

/// What a worker is doing. Each phase begins where the one before has ended, so that the phases of
/// a rollout add up to it.
///
/// ```
/// use windrow_collect::Phase;
///
/// assert_eq!(Phase::ALL.len(), 8);
/// assert_eq!(Phase::EnvStep.name(), "EnvStep");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// All other phases together, from the end of the rollout before to the end of this one.
    Rollout,
    /// The worker waits for a part to fill. Where workers run in the caller's thread, this includes
    /// what the caller does between batches.
    WaitSlab,
    /// The worker takes the newest weights, and what else has changed since the last part.
    LoadWeights,
    /// The worker copies in the observations that the part starts from; where a reset was asked
    /// for, it resets all environments.
    Open,
    /// The policy acts, once a step.
    Policy,
    /// The environments step, once a step.
    EnvStep,
    /// The worker records flags, ids and final observations, and resets ended environments, once a
    /// step.
    Close,
    /// The worker commits the part.
    Commit,
}

impl Phase {
    /// All phases, in the order in which they begin.
    pub const ALL: [Self; 8] = [
        Self::Rollout,
        Self::WaitSlab,
        Self::LoadWeights,
        Self::Open,
        Self::Policy,
        Self::EnvStep,
        Self::Close,
        Self::Commit,
    ];

    /// The name of the phase in traces and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rollout => "Rollout",
            Self::WaitSlab => "WaitSlab",
            Self::LoadWeights => "LoadWeights",
            Self::Open => "Open",
            Self::Policy => "Policy",
            Self::EnvStep => "EnvStep",
            Self::Close => "Close",
            Self::Commit => "Commit",
        }
    }

    /// Whether the phase occurs once a step.
    fn is_of_step(self) -> bool {
        matches!(self, Self::Policy | Self::EnvStep | Self::Close)
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Gets the ends of the phases of a rollout.
pub(crate) trait Probe {
    /// Ends `phase`, which began at the last mark.
    fn mark(&mut self, phase: Phase);

    /// A part was opened or a step is done; environments of the worker with other episodes than
    /// before stand where `begun` says.
    #[inline(always)]
    fn stands<I: Iterator<Item = (usize, Place)>>(&mut self, begun: impl FnOnce() -> I) {
        let _ = begun;
    }
}

/// Both are told.
impl<A: Probe, B: Probe> Probe for (&mut A, B) {
    #[inline]
    fn mark(&mut self, phase: Phase) {
        self.0.mark(phase);
        self.1.mark(phase);
    }

    #[inline]
    fn stands<I: Iterator<Item = (usize, Place)>>(&mut self, begun: impl FnOnce() -> I) {
        self.1.stands(begun);
    }
}
