//! Calls of the program's own in worker processes.

use windrow_sync::mpsc::TryRecvError;

use super::handle::Handle;
use crate::config::plan::Placement;
use crate::error::{ArgumentError, ControlError};

impl Handle {
    /// Has worker `worker`, a process whose program [answers calls](crate::WorkerMain::answer_calls), answer `request` between two
    /// parts, and waits for the answer.
    ///
    /// # Errors
    /// [`ControlError::Argument`] where workers are no processes; [`ControlError::NoAnswer`] when the worker has ended, or there is no
    /// such worker; [`ControlError::WaitInterrupted`]: the worker may answer even so; [`ControlError::Next`] when the collector is over.
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
        let answer = self.core.shared.calls.ask(worker, request);
        let received = || match answer.try_recv() {
            Ok(answer) => Some(Ok(answer)),
            Err(TryRecvError::Disconnected) => Some(Err(ControlError::NoAnswer { worker })),
            Err(TryRecvError::Empty) => None,
        };
        let ring = &self.core.ring;
        self.core
            .interrupt
            .wait(|slice| ring.wait_within(slice, received))?
    }
}
