use windrow_slab::SlabError;

use crate::NotFinite;

/// What an environment can report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// An action outside the action space.
    #[error("action out of range: expected {expected}, got {got}")]
    Action {
        /// The legal actions, in words.
        expected: String,
        /// The action that came.
        got: String,
    },
    /// `step` was called before the first `reset`.
    #[error("step was called before reset")]
    NotReset,
    /// A spec that contradicts itself, or one that an environment did not keep.
    #[error("{0}")]
    Spec(String),
    /// A row was accessed as something that the spec does not say.
    #[error("environment broke its spec: {0}")]
    Row(#[from] SlabError),
    /// A [`FiniteCheck`](crate::FiniteCheck) found a number that is infinite or none.
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// No environment is registered under this id.
    #[error("no environment is called {id:?}{}", others(near, known))]
    UnknownId {
        /// The id that was asked for.
        id: String,
        /// Registered ids of the same namespace that look like it, best first.
        near: Vec<String>,
        /// All registered ids.
        known: Vec<String>,
    },
    /// Whatever the environment itself ran into.
    #[error("{0}")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl EnvError {
    /// An error of the environment's own, from a message or another error.
    pub fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Failed(error.into())
    }
}

fn others(near: &[String], known: &[String]) -> String {
    match near {
        [] if known.is_empty() => String::new(),
        [] => format!("; there are {}", known.join(", ")),
        [name] => format!("; did you mean {name}?"),
        names => format!("; did you mean one of {}?", names.join(", ")),
    }
}

/// An [`EnvError`] and which of several environments it came from.
#[derive(Debug, thiserror::Error)]
#[error("environment {env}: {source}")]
pub struct VecEnvError {
    /// Index among the environments of the [`VecEnv`](crate::VecEnv).
    pub env: usize,
    /// What it reported.
    pub source: EnvError,
}

impl VecEnvError {
    /// The error of an environment whose vector has `first` others before it.
    #[must_use]
    pub(crate) fn shifted(self, first: usize) -> Self {
        Self {
            env: self.env + first,
            ..self
        }
    }
}
