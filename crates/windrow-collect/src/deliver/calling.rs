//! Calls of the program's own in worker processes.

use std::time::Duration;

use windrow_sync::SLICE;
use windrow_sync::mpsc::RecvTimeoutError;

use super::handle::Handle;
use crate::{CollectError, Placement};

/// How often a call that waits for a worker to be free looks whether it is.
const CALL_SLICE: Duration = Duration::from_millis(5);

impl Handle {
    /// Has worker `worker`, a process whose program [answers calls](crate::WorkerMain::answer_calls), answer `request` between two
    /// parts, and waits for the answer. From time to time it calls `given_up`.
    ///
    /// # Errors
    /// [`CollectError::Needs`] where workers are no processes; [`CollectError::NoAnswer`] when the worker has ended, or there is no
    /// such worker; [`CollectError::CallGivenUp`] once `given_up` returns true: the worker may answer even so.
    pub fn call_worker(
        &self,
        worker: usize,
        request: Vec<u8>,
        given_up: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<u8>, CollectError> {
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
        let mut waited = Duration::ZERO;
        loop {
            self.core.ring.pump();
            match answer.recv_timeout(CALL_SLICE) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(CollectError::NoAnswer { worker });
                }
                Err(RecvTimeoutError::Timeout) => waited += CALL_SLICE,
            }
            if waited >= SLICE {
                waited = Duration::ZERO;
                if given_up() {
                    return Err(CollectError::CallGivenUp);
                }
            }
        }
    }
}
