use serde::{Deserialize, Serialize};

/// Whether a policy samples its action or takes its best guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExplorationType {
    /// Sample from the policy's distribution.
    #[default]
    Random,
    /// The most likely action.
    Mode,
    /// The mean action; the most likely one where actions have no mean.
    Mean,
    /// The action that the distribution calls its deterministic one.
    Deterministic,
}
