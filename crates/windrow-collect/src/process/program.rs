//! What a worker's program adds to being a worker.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{IsInterruption, SendErrors};
use crate::probe::MakeProfiler;

/// Whether the program has said what it does as a worker.
static PREPARED: AtomicBool = AtomicBool::new(false);

/// This program has said so.
pub(super) fn prepared() {
    PREPARED.store(true, Ordering::Release);
}

/// Whether this program can be run again as a worker.
pub(super) fn is_prepared() -> bool {
    PREPARED.load(Ordering::Acquire)
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
