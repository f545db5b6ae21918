//! Calls of the program's own in worker processes.

use super::handle::Handle;
use crate::config::plan::Placement;
use crate::error::{ArgumentError, ControlError};
use crate::shared::calls::Request;

impl Handle {
    /// Has worker `worker`, a process whose program [answers
    /// calls](crate::WorkerMain::answer_calls), answer `request` between two parts, and waits for
    /// the answer.
    ///
    /// # Errors
    /// [`ControlError::Argument`] where workers are no processes; [`ControlError::NoAnswer`] when
    /// the worker has ended, or there is no such worker; [`ControlError::WaitInterrupted`]: the
    /// worker may answer even so; [`ControlError::Next`] when the collector is over.
    #[doc(hidden)]
    pub fn call_worker(&self, worker: usize, request: Vec<u8>) -> Result<Vec<u8>, ControlError> {
        self.check_running()?;
        if self.core.plan.placement != Placement::Processes {
            let needs = ArgumentError::Needs {
                name: "call_worker",
                needs: "placement processes",
            };
            return Err(needs.into());
        }
        if worker >= self.core.workers() {
            return Err(ControlError::NoAnswer { worker });
        }
        let request = Request::Program(request);
        self.core.ask(worker, request, &self.core.interrupt)
    }
}
