//! Errors: one enum for each operation, so that its documentation lists all that can go wrong there
//! (ADR 0030).
//!
//! | operation | error |
//! |---|---|
//! | a constructor with arguments | [`ArgumentError`] |
//! | building a collector or an evaluator, and making a lost worker anew | [`BuildError`] |
//! | collecting batches | [`NextError`] |
//! | controlling and ending a collector | [`ControlError`]; [`ProfileError`] for profiles, [`ResumeError`] for states |
//! | evaluating | [`EvaluateError`] |
//! | `worker_main` | [`WorkerMainError`] |
//!
//! An operation that meets the failure of another wraps its error. Each error has a
//! [kind](ErrorKind).

mod argument;
mod build;
mod control;
mod evaluate;
mod kind;
mod next;
mod profile;
mod resume;
mod worker;
#[cfg(target_os = "linux")]
mod worker_main;
mod written;

pub use argument::ArgumentError;
pub use build::BuildError;
pub use control::{ControlError, Stuck};
pub use evaluate::EvaluateError;
pub use kind::ErrorKind;
pub use next::NextError;
pub use profile::ProfileError;
pub use resume::ResumeError;
pub use worker::{FaultKind, SentError, WorkerError, WorkerFault};
pub(crate) use worker::{IsInterruption, Place};
#[cfg(target_os = "linux")]
pub(crate) use worker::{SendErrors, last_words, message_to_send, sent};
#[cfg(target_os = "linux")]
pub use worker_main::WorkerMainError;
