//! Looks at the phases of the step loop, or does not.

mod config;
mod profile;
mod recorder;
mod summary;
mod trace;

use crate::error::Place;

pub use config::ProfileConfig;
pub use summary::{PhaseProfile, ProfileSummary, WorkerProfile};

pub(crate) use profile::Profile;
pub(crate) use recorder::{Recorder, Timeline};

/// What a worker does, one phase after the other. Each begins where the one before has ended, so that the phases of a
/// rollout add up to it.
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
    /// All of the others, from the end of the rollout before to the end of this one.
    Rollout,
    /// Waits for a part to fill. Where workers run in the thread that asks for batches, also what this thread does
    /// otherwise.
    WaitSlab,
    /// Takes up the newest weights and what else has changed between two parts.
    LoadWeights,
    /// Copies in the observations that the part starts from; begins all episodes anew where that was asked for.
    Open,
    /// The policy acts, once a step.
    Policy,
    /// The environments step, once a step.
    EnvStep,
    /// Flags, ids and final observations, and new episodes in place of ended ones, once a step.
    Close,
    /// Hands the part over.
    Commit,
}

impl Phase {
    /// All of them, in the order in which they begin.
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

    /// The name under which it appears in traces and tables.
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

    /// Whether it comes once a step.
    fn is_of_step(self) -> bool {
        matches!(self, Self::Policy | Self::EnvStep | Self::Close)
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Is told where the phases of a rollout end.
pub(crate) trait Probe {
    /// What was done since the last mark was `phase`.
    fn mark(&mut self, phase: Phase);

    /// The worker's first environment stands where `at` says, now that episodes have begun or a step is done.
    #[inline(always)]
    fn stands(&mut self, at: impl FnOnce() -> Place) {
        let _ = at;
    }
}

/// Looks away, at no cost.
#[derive(Debug)]
pub(crate) struct NoProbe;

impl Probe for NoProbe {
    #[inline(always)]
    fn mark(&mut self, _: Phase) {}
}
