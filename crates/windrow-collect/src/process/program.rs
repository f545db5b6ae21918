//! What a worker's program adds to being a worker.

use crate::error::{IsInterruption, SendErrors};

/// Turns a call into an answer.
pub(super) type AnswerCalls = fn(&[u8]) -> Vec<u8>;

/// What [`WorkerMain`](super::entry::WorkerMain) was told of the program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Program {
    /// Which errors are no faults.
    pub(super) is_interruption: IsInterruption,
    /// Whether it answers SIGUSR2 with a stack on its standard error.
    pub(super) shows_stack: bool,
    pub(super) send_errors: SendErrors,
    pub(super) answer_calls: AnswerCalls,
}

impl Default for Program {
    fn default() -> Self {
        Self {
            is_interruption: |_| false,
            shows_stack: false,
            send_errors: |_| None,
            answer_calls: |_| Vec::new(),
        }
    }
}
