//! Whether a collector goes on, is ending or is over.

use windrow_sync::{Mutex, MutexGuard, lock};

use crate::error::NextError;

/// The state of a collector, which its iterator, its handles, the background thread and the writer
/// to its sink share.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    life: Life,
    /// Whether an error has ended it.
    failed: bool,
}

#[derive(Debug, Default)]
enum Life {
    #[default]
    Running,
    /// The present batch of a started collector is its last, and no write waits any more.
    Ending,
    /// Shut down or failed, with the error that the iterator returns before it ends.
    Over(Option<NextError>),
}

impl Lifecycle {
    /// Whether no write waits any more, and a started collector begins no other batch.
    pub(crate) fn is_ending(&self) -> bool {
        !matches!(self.state().life, Life::Running)
    }

    /// Whether it was shut down or has failed.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state().life, Life::Over(_))
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state().failed
    }

    pub(crate) fn end(&self) {
        let mut state = self.state();
        if matches!(state.life, Life::Running) {
            state.life = Life::Ending;
        }
    }

    pub(crate) fn shut_down(&self) {
        let mut state = self.state();
        if !matches!(state.life, Life::Over(_)) {
            state.life = Life::Over(Some(NextError::ShutDown));
        }
    }

    /// An error has ended it. `failure` is for the next call; without it, others have it.
    pub(crate) fn fail(&self, failure: Option<NextError>) {
        *self.state() = State {
            life: Life::Over(failure.or(Some(NextError::ShutDown))),
            failed: true,
        };
    }

    /// The iterator returns `error`, which has ended it.
    pub(crate) fn end_with(&self, error: &NextError) {
        let mut state = self.state();
        state.life = Life::Over(None);
        state.failed |= !matches!(error, NextError::ShutDown);
    }

    /// The last item of the iterator where the collector is over: an error the first time, then
    /// none.
    pub(crate) fn last_item(&self) -> Option<Option<NextError>> {
        match &mut self.state().life {
            Life::Over(last) => Some(last.take()),
            Life::Running | Life::Ending => None,
        }
    }

    /// # Errors
    /// Where it is over: the failure, once, or [`NextError::ShutDown`].
    pub(crate) fn check(&self) -> Result<(), NextError> {
        match self.is_over() {
            true => Err(self.take_failure().unwrap_or(NextError::ShutDown)),
            false => Ok(()),
        }
    }

    /// # Errors
    /// As [`check`](Self::check), where it has failed.
    pub(crate) fn check_failure(&self) -> Result<(), NextError> {
        match self.has_failed() {
            true => self.check(),
            false => Ok(()),
        }
    }

    /// The failure that no call has delivered. The iterator says that it is over.
    pub(crate) fn take_failure(&self) -> Option<NextError> {
        match &mut self.state().life {
            Life::Over(Some(last)) if !matches!(last, NextError::ShutDown) => {
                Some(std::mem::replace(last, NextError::ShutDown))
            }
            _ => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Lifecycle;
    use crate::error::NextError;

    fn failed() -> NextError {
        NextError::Panic("ouch".to_owned())
    }

    fn text(result: Result<(), NextError>) -> String {
        result.map_or_else(|error| error.to_string(), |()| "fine".to_owned())
    }

    #[test]
    fn a_failure_is_delivered_once_by_whoever_asks_first() {
        let shut_down = text(Err(NextError::ShutDown));
        let asked = Lifecycle::default();
        assert_eq!(text(asked.check()), "fine");
        asked.fail(Some(failed()));
        assert!(asked.is_over() && asked.is_ending() && asked.has_failed());
        assert_eq!(text(asked.check_failure()), text(Err(failed())));
        assert_eq!(text(asked.check()), shut_down);
        assert!(matches!(asked.last_item(), Some(Some(NextError::ShutDown))));
        assert!(matches!(asked.last_item(), Some(None)));
        assert_eq!(text(asked.check()), shut_down);
        let iterated = Lifecycle::default();
        iterated.fail(Some(failed()));
        assert!(matches!(
            iterated.last_item(),
            Some(Some(NextError::Panic(_)))
        ));
        assert!(matches!(iterated.last_item(), Some(None)));
        assert!(iterated.take_failure().is_none());
    }

    #[test]
    fn a_shutdown_is_no_failure_and_hides_none() {
        let life = Lifecycle::default();
        life.end();
        assert!(life.is_ending() && !life.is_over() && life.last_item().is_none());
        life.shut_down();
        assert!(life.is_over() && !life.has_failed());
        assert_eq!(text(life.check_failure()), "fine");
        // The thread of a started collector may fail after it.
        life.fail(Some(failed()));
        life.shut_down();
        assert!(matches!(life.take_failure(), Some(NextError::Panic(_))));
        life.end_with(&NextError::ShutDown);
        assert!(life.has_failed() && matches!(life.last_item(), Some(None)));
    }

    #[test]
    fn a_failure_that_others_have_taken_leaves_a_shutdown() {
        let life = Lifecycle::default();
        life.fail(None);
        assert!(life.has_failed() && life.take_failure().is_none());
        assert!(matches!(life.last_item(), Some(Some(NextError::ShutDown))));
    }
}
