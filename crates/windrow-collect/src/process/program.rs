//! What a worker's program adds to being a worker.

use std::sync::atomic::{AtomicBool, Ordering};

use windrow_peer::WorkerProgram;

use crate::error::{BuildError, IsInterruption, SendErrors};
use crate::probe::MakeProfiler;

/// Whether the program has said what it does as a worker.
static PREPARED: AtomicBool = AtomicBool::new(false);

/// This program has said so.
pub(super) fn prepared() {
    PREPARED.store(true, Ordering::Release);
}

/// What runs as a worker process: `chosen`, or this program again.
///
/// # Errors
/// [`BuildError::NoWorkerMain`] where none is chosen and this program does not serve as a worker.
pub(crate) fn or_current(chosen: Option<&WorkerProgram>) -> Result<WorkerProgram, BuildError> {
    match chosen {
        Some(program) => Ok(program.clone()),
        None if PREPARED.load(Ordering::Acquire) => Ok(WorkerProgram::current()),
        None => Err(BuildError::NoWorkerMain),
    }
}

/// Turns a call into an answer.
pub(super) type AnswerCalls = fn(&[u8]) -> Vec<u8>;

/// What [`WorkerMain`](super::entry::WorkerMain) knows of the program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Program {
    /// Which errors are no faults.
    pub(super) is_interruption: IsInterruption,
    /// Whether it answers SIGUSR2 with a stack on its standard error.
    pub(super) shows_stack: bool,
    pub(super) send_errors: SendErrors,
    pub(super) answer_calls: AnswerCalls,
    pub(super) make_profiler: MakeProfiler,
}

impl Default for Program {
    fn default() -> Self {
        Self {
            is_interruption: |_| false,
            shows_stack: false,
            send_errors: |_| None,
            answer_calls: |_| Vec::new(),
            make_profiler: |_, _| Err("the worker's program makes no profilers".into()),
        }
    }
}
