//! Calls of the program's own in worker processes.

use windrow_sync::mpsc::TryRecvError;

use super::handle::Handle;
use crate::{CollectError, Placement};

impl Handle {
    /// Has worker `worker`, a process whose program [answers calls](crate::WorkerMain::answer_calls), answer `request` between two
    /// parts, and waits for the answer.
    ///
    /// # Errors
    /// [`CollectError::Needs`] where workers are no processes; [`CollectError::NoAnswer`] when the worker has ended, or there is no
    /// such worker; [`CollectError::WaitInterrupted`]: the worker may answer even so.
    #[doc(hidden)]
    pub fn call_worker(&self, worker: usize, request: Vec<u8>) -> Result<Vec<u8>, CollectError> {
        self.check_running()?;
        if self.core.plan.placement != Placement::Processes {
            return Err(CollectError::Needs {
                name: "call_worker",
                needs: "placement processes",
            });
        }
        if worker >= self.core.workers() {
            return Err(CollectError::NoAnswer { worker });
        }
        let answer = self.core.shared.calls.ask(worker, request);
        let received = || match answer.try_recv() {
            Ok(answer) => Some(Ok(answer)),
            Err(TryRecvError::Disconnected) => Some(Err(CollectError::NoAnswer { worker })),
            Err(TryRecvError::Empty) => None,
        };
        let ring = &self.core.ring;
        self.core
            .interrupt
            .wait(|slice| ring.wait_within(slice, received))?
    }
}
