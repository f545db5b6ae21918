use std::error::Error;
use std::fmt;

use windrow_slab::SlabError;

use crate::names::others;
use crate::{NotFinite, SpecError};

/// An error of an environment, or of making one.
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
    /// A spec, an argument or a value that does not fit.
    #[error(transparent)]
    Spec(Box<SpecError>),
    /// An environment of another library breaks its spec, or has a spec that does not fit; its
    /// adapter gives the reason.
    #[error("{0}")]
    Foreign(String),
    /// The error of one of several environments.
    #[error(transparent)]
    Member(Box<VecEnvError>),
    /// A vector without environments.
    #[error("a vector of environments needs at least one, got none")]
    Empty,
    /// More than one copy of a vector of environments.
    #[error(
        "already a vector of {envs} environments, asked for {asked} of them; leave num_envs out"
    )]
    AlreadyVector {
        /// Environments in each copy.
        envs: usize,
        /// Copies that were asked for.
        asked: usize,
    },
    /// Too little memory for the environments.
    #[error("no memory for {num_envs} environments")]
    NoMemory {
        /// Environments that were asked for.
        num_envs: usize,
    },
    /// An environment that does not exist, or has no row.
    #[error(
        "environment {env} was addressed, but there are {envs} environments and rows for {rows}"
    )]
    OutOfRange {
        /// Index of the environment.
        env: usize,
        /// Number of environments.
        envs: usize,
        /// Number of rows.
        rows: usize,
    },
    /// A transform reads or replaces rows of the environments' own, but did not ask for them or
    /// does not fill them.
    #[error(
        "the transform fills no rows of the environments' own for {rows}: replace them in attach, and fill them"
    )]
    Unfilled {
        /// Observations or actions.
        rows: &'static str,
    },
    /// A row was accessed by a wrong column or element type.
    #[error("environment broke its spec")]
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
    /// Another environment is registered under this id.
    #[error("an environment is registered as {id:?} already; choose another id")]
    IdTaken {
        /// The id.
        id: String,
    },
    /// Arguments for environments that take none.
    #[error("{id} takes no arguments, got {got}")]
    NoArguments {
        /// Its id.
        id: String,
        /// The arguments, as JSON.
        got: String,
    },
    /// Single environments of an id under which vectors are registered.
    #[error("{id} is registered as vectors of environments: make_vec makes them")]
    OnlyVectors {
        /// The id.
        id: String,
    },
    /// A second registry was to be installed for the program.
    #[error("a registry is installed already: a program installs one, once, at the start of main")]
    Installed,
    /// Environments that cannot be written down.
    #[error(
        "environments made by {factory} cannot be written down, which worker processes need: register them under a name with windrow::worker_main at the start of main and pass the name, or choose placement threads"
    )]
    Unwritable {
        /// Type of the factory that makes them.
        factory: &'static str,
    },
    /// Something written that cannot be read.
    #[error("{what} cannot be read: {reason}")]
    Unreadable {
        /// The thing that was read: a transform, a recipe.
        what: String,
        /// Why it cannot be read.
        reason: String,
    },
    /// A state that cannot be saved, see [`Env::visit_state`](crate::Env::visit_state).
    /// It says whose state, and what lets it be saved.
    #[error("{0}")]
    NotHeld(String),
    /// A state that does not fit.
    #[error("the state does not fit: expected {expected}, got {got}")]
    State {
        /// What was to be loaded.
        expected: String,
        /// What was saved.
        got: String,
    },
    /// An error of the environment's own.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

impl EnvError {
    /// An error of the environment's own, from a message or another error.
    pub fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(error.into())
    }

    /// The error of `what`, which does not implement `visit_state`.
    #[must_use]
    pub fn not_held(what: &str) -> Self {
        let way = "implement visit_state for it";
        Self::NotHeld(format!("the state of {what} cannot be saved: {way}"))
    }

    /// The same as an error of environment `env` among several.
    #[must_use]
    pub fn of(self, env: usize) -> VecEnvError {
        VecEnvError { env, source: self }
    }
}

impl From<SpecError> for EnvError {
    fn from(error: SpecError) -> Self {
        Self::Spec(Box::new(error))
    }
}

/// An [`EnvError`] and which of several environments it came from.
#[derive(Debug)]
pub struct VecEnvError {
    /// Index among the environments of the [`VecEnv`](crate::VecEnv).
    pub env: usize,
    /// The error.
    pub source: EnvError,
}

impl fmt::Display for VecEnvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "environment {}: {}", self.env, self.source)
    }
}

/// The text of the environment's error is in its own.
impl Error for VecEnvError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
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
