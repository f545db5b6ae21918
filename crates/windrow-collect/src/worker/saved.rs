//! The state of a worker: of its environments, its policy and its cursor.

use serde::{Deserialize, Serialize};
use windrow_env::{EnvError, StateVisitor, VecEnv};
use windrow_sync::{catch_panic, error_chain};

use super::Worker;
use crate::shared::link::WorkerLink;
use crate::shared::reentrancy::ReentrancyGuard;

/// A worker's answer to the order to save or to load its state.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum StateAnswer {
    /// Its state.
    Saved(Vec<u8>),
    /// It has loaded a state.
    Loaded,
    /// Its state cannot be saved, for this reason.
    NotHeld(String),
    /// It could not save or load, for this reason. A state that could not be loaded may be there in
    /// part.
    Failed(String),
}

impl StateAnswer {
    /// In the form in which it is sent.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("Numbers, texts and bytes can be written.")
    }

    /// An answer that says why there is no state, as an error of environments.
    #[cfg(target_os = "linux")]
    pub(crate) fn into_error(self) -> EnvError {
        match self {
            Self::NotHeld(reason) => EnvError::NotHeld(reason),
            Self::Failed(reason) => EnvError::Foreign(reason),
            Self::Saved(_) | Self::Loaded => {
                EnvError::Foreign("an answer to another request".to_owned())
            }
        }
    }

    /// What [`to_bytes`](Self::to_bytes) has written.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        // A worker of the program's own may answer nothing.
        postcard::from_bytes(bytes).unwrap_or_else(|error| Self::Failed(error.to_string()))
    }

    /// The answer of environments, whose state is saved by `visit`. Those of Python may be pickled,
    /// where `pickle`.
    pub(crate) fn of_saving(
        pickle: bool,
        visit: impl FnOnce(&mut StateVisitor<'_>) -> Result<(), EnvError>,
    ) -> Self {
        let saved = catch_panic(|| {
            let mut state = StateVisitor::saving().with_pickle(pickle);
            visit(&mut state)?;
            state.finish()
        });
        match saved {
            Ok(Ok(state)) => Self::Saved(state),
            Ok(Err(EnvError::NotHeld(reason))) => Self::NotHeld(reason),
            Ok(Err(error)) => Self::Failed(error_chain(&error)),
            Err(message) => Self::Failed(format!("panicked: {message}")),
        }
    }

    /// As [`of_saving`](Self::of_saving), of loading `bytes`.
    pub(crate) fn of_loading(
        bytes: &[u8],
        visit: impl FnOnce(&mut StateVisitor<'_>) -> Result<(), EnvError>,
    ) -> Self {
        let loaded = catch_panic(|| {
            let mut state = StateVisitor::loading(bytes);
            visit(&mut state)?;
            state.finish()
        });
        match loaded {
            Ok(Ok(_)) => Self::Loaded,
            Ok(Err(error)) => Self::Failed(error_chain(&error)),
            Err(message) => Self::Failed(format!("panicked: {message}")),
        }
    }
}

impl<D: WorkerLink> Worker<D> {
    /// The state with which the worker begins its next part. Environments of Python may be pickled,
    /// where `pickle`.
    pub(crate) fn save(&mut self, pickle: bool) -> StateAnswer {
        let _guard = ReentrancyGuard::enter(self.link.collector());
        StateAnswer::of_saving(pickle, |state| self.visit_state(state))
    }

    /// Goes on from what [`save`](Self::save) has returned, with the newest weights.
    pub(crate) fn load(&mut self, bytes: &[u8]) -> StateAnswer {
        let _guard = ReentrancyGuard::enter(self.link.collector());
        let loaded = StateAnswer::of_loading(bytes, |state| self.visit_state(state));
        self.actor.forget_version();
        loaded
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        self.env.visit_state(state)?;
        self.actor.visit_state(state)?;
        self.cursor.visit_state(state)
    }
}
