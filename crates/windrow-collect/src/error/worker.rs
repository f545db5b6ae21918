//! Errors of workers.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};
use windrow_env::VecEnvError;
use windrow_policy::PolicyError;
use windrow_slab::SlabError;
use windrow_sync::error_chain;

use super::build::BuildError;

/// A worker failed: which one, where it stood, and why.
///
/// It can be written down, and read in another process: its fault is a message and a
/// [kind](FaultKind) there, [`WorkerFault::Remote`].
#[derive(Debug)]
pub struct WorkerError {
    pub(super) worker: usize,
    pub(super) place: Option<Place>,
    fault: Box<WorkerFault>,
}

/// Where an environment stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Place {
    pub(crate) env: usize,
    pub(crate) episode: u64,
    pub(crate) step: u64,
}

impl WorkerError {
    pub(crate) fn new(worker: usize, place: Option<Place>, fault: WorkerFault) -> Self {
        Self {
            worker,
            place,
            fault: Box::new(fault),
        }
    }

    /// Number of the worker.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Number of the environment over all workers, if one of them failed.
    #[must_use]
    pub fn env(&self) -> Option<usize> {
        self.place.map(|place| place.env)
    }

    /// Episode of that environment, counted from 0.
    #[must_use]
    pub fn episode(&self) -> Option<u64> {
        self.place.map(|place| place.episode)
    }

    /// Step within the episode, counted from 0.
    #[must_use]
    pub fn step(&self) -> Option<u64> {
        self.place.map(|place| place.step)
    }

    /// That a worker in a process was interrupted.
    #[cfg(target_os = "linux")]
    pub(crate) fn interruption(worker: usize, message: String, sent: Option<SentError>) -> Self {
        let fault = WorkerFault::Remote {
            kind: FaultKind::Interruption,
            message,
            env: None,
            sent,
        };
        Self::new(worker, None, fault)
    }

    /// What happened.
    #[must_use]
    pub fn fault(&self) -> &WorkerFault {
        &self.fault
    }

    /// This error as another process has it, which cannot ask whether it `is_interruption`, and to
    /// which `send_errors` adds something.
    #[cfg(target_os = "linux")]
    pub(crate) fn to_send(&self, send_errors: SendErrors, is_interruption: IsInterruption) -> Self {
        let fault = WorkerFault::Remote {
            kind: match is_interruption(&*self.fault) {
                true => FaultKind::Interruption,
                false => self.fault.kind(),
            },
            message: message_to_send(&*self.fault),
            env: self.fault.env(),
            sent: sent(&*self.fault, send_errors),
        };
        Self::new(self.worker, self.place, fault)
    }
}

impl fmt::Display for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "worker {}{}: {}",
            self.worker,
            at(self.place),
            self.fault
        )
    }
}

/// The text of the fault is in its own.
impl Error for WorkerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.fault.source()
    }
}

fn at(place: Option<Place>) -> String {
    place.map_or_else(String::new, |Place { env, episode, step }| {
        format!(", environment {env}, episode {episode}, step {step}")
    })
}

/// What failed in a worker. [`kind`](Self::kind) tells it for workers in this process and in
/// others.
#[derive(Debug)]
#[non_exhaustive]
pub enum WorkerFault {
    /// An environment.
    Env(VecEnvError),
    /// The policy.
    Policy(PolicyError),
    /// The memory that it fills.
    Slab(SlabError),
    /// The thread that it should run in.
    Start(std::io::Error),
    /// Environment or policy panicked.
    Panic(String),
    /// Environments or policy could not be made anew after a loss.
    Remake(Box<BuildError>),
    /// Any of these in another process, which sent it as text.
    Remote {
        /// What failed there.
        kind: FaultKind,
        /// The message that it has there.
        message: String,
        /// The environment that failed, among the worker's own, where one returned an error.
        env: Option<usize>,
        /// What that process has sent of the error beside the message.
        sent: Option<SentError>,
    },
    /// The process that it runs in has ended.
    Died {
        /// How it ended, in words that follow "its process": `was ended by signal 9 (SIGKILL)`.
        status: String,
        /// The last lines that it wrote to its standard error.
        stderr: String,
        /// What it was doing, in words that follow "it was", such as ``in `step` ``; empty where
        /// that is not known. Several environments step as one: their places and last actions are
        /// here, since nobody knows which of them it was.
        doing: String,
        /// The last action that its only environment was given, if it is known.
        action: Option<String>,
    },
}

impl fmt::Display for WorkerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The place of the worker's error says which of all environments.
            Self::Env(error) => error.source.fmt(f),
            Self::Policy(_) => f.write_str("the policy failed"),
            Self::Slab(error) => error.fmt(f),
            Self::Start(_) => f.write_str("failed to start its thread"),
            Self::Panic(message) => write!(f, "panicked: {message}"),
            Self::Remake(_) => f.write_str("failed to start over"),
            Self::Remote { message, .. } => f.write_str(message),
            Self::Died {
                status,
                stderr,
                doing,
                action,
            } => {
                let words = last_words(doing, action.as_deref(), stderr);
                write!(f, "its process {status}{words}")
            }
        }
    }
}

impl Error for WorkerFault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Env(error) => error.source.source(),
            Self::Policy(error) => Some(error),
            Self::Slab(error) => error.source(),
            Self::Start(error) => Some(error),
            Self::Remake(error) => Some(&**error),
            Self::Panic(_) | Self::Remote { .. } | Self::Died { .. } => None,
        }
    }
}

/// An error that another process has sent in a form of the program's own, such as an exception of
/// an interpreter: see `WorkerMain::send_errors`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct SentError {
    message: String,
    bytes: Vec<u8>,
}

impl SentError {
    /// What was sent.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Tells an interruption from a fault.
pub(crate) type IsInterruption = fn(&(dyn Error + 'static)) -> bool;

/// Turns an error into what is sent of it beside its message; `None` for nothing.
#[cfg(target_os = "linux")]
pub(crate) type SendErrors = fn(&(dyn Error + 'static)) -> Option<Vec<u8>>;

/// What `send_errors` sends of `error`.
#[cfg(target_os = "linux")]
pub(crate) fn sent(error: &(dyn Error + 'static), send_errors: SendErrors) -> Option<SentError> {
    Some(SentError {
        bytes: send_errors(error)?,
        message: message_to_send(error),
    })
}

/// Bytes of the longest message that is sent whole: however it is written, it fits into a frame.
#[cfg(target_os = "linux")]
const LONG: usize = 1 << 20;

/// The message of `error`; of one that is too long, its beginning.
#[cfg(target_os = "linux")]
pub(crate) fn message_to_send(error: &(dyn Error + 'static)) -> String {
    let mut message = error_chain(error);
    let all = message.len();
    if all > LONG {
        let whole = (0..=LONG).rev().find(|&at| message.is_char_boundary(at));
        message.truncate(whole.unwrap_or_default());
        message.push_str(&format!("… ({all} bytes)"));
    }
    message
}

/// What failed in a worker, roughly: the same in whichever process the worker runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FaultKind {
    /// An environment.
    Env,
    /// The policy.
    Policy,
    /// The memory that it fills.
    Slab,
    /// The start of its thread.
    Start,
    /// Environment or policy panicked.
    Panic,
    /// Environments or policy could not be made anew after a loss.
    Remake,
    /// Its process has ended.
    Died,
    /// Nothing: a worker in a process was interrupted, as `WorkerMain::interruptions` tells.
    Interruption,
}

impl WorkerFault {
    /// What failed, roughly.
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::Env(_) => FaultKind::Env,
            Self::Policy(_) => FaultKind::Policy,
            Self::Slab(_) => FaultKind::Slab,
            Self::Start(_) => FaultKind::Start,
            Self::Panic(_) => FaultKind::Panic,
            Self::Remake(_) => FaultKind::Remake,
            Self::Remote { kind, .. } => *kind,
            Self::Died { .. } => FaultKind::Died,
        }
    }

    /// The environment that failed, among the worker's own.
    pub(crate) fn env(&self) -> Option<usize> {
        match self {
            Self::Env(error) => Some(error.env),
            Self::Remote { env, .. } => *env,
            Self::Policy(_)
            | Self::Slab(_)
            | Self::Start(_)
            | Self::Panic(_)
            | Self::Remake(_)
            | Self::Died { .. } => None,
        }
    }
}

/// The last words and the last action of a process that has ended.
pub(crate) fn last_words(doing: &str, action: Option<&str>, stderr: &str) -> String {
    let doing = match doing {
        "" => String::new(),
        doing => format!("; it was {doing}"),
    };
    let action = action.map_or_else(String::new, |action| {
        format!("; the last action of its environment was {action}")
    });
    match stderr.trim_end() {
        "" => format!("{doing}{action}; it wrote nothing to its stderr"),
        lines => format!("{doing}{action}; the last lines of its stderr:\n{lines}"),
    }
}

impl From<SlabError> for WorkerFault {
    fn from(error: SlabError) -> Self {
        Self::Slab(error)
    }
}

impl From<VecEnvError> for WorkerFault {
    fn from(error: VecEnvError) -> Self {
        Self::Env(error)
    }
}

impl From<PolicyError> for WorkerFault {
    fn from(error: PolicyError) -> Self {
        Self::Policy(error)
    }
}
