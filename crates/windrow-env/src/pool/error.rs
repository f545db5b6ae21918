//! What goes wrong with a pool of environments.

use std::fmt::{Display, Formatter};
use std::time::Duration;

use windrow_sync::Interrupted;

use super::member::Command;
use crate::{EnvError, SpecError, VecEnvError};

/// An error of an [`AsyncEnvPool`](super::AsyncEnvPool). After any of them but
/// [`Closed`](Self::Closed), the pool can be used further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// An environment failed; the error names it. It has to be reset before it is stepped again.
    #[error(transparent)]
    Env(#[from] VecEnvError),
    /// The pool could not be made.
    #[error(transparent)]
    Unmade(#[from] EnvError),
    /// A thread could not be started.
    #[error("the pool's threads could not be started")]
    Thread(#[source] std::io::Error),
    /// An environment panicked, in this call or before. Nothing is called on it any more.
    #[error("environment {env} panicked: {message}; make another pool")]
    Panicked {
        /// Number of the environment.
        env: usize,
        /// What the panic said.
        message: String,
    },
    /// A call out of order: the environment's last command is still to be received.
    #[error(
        "environment {env}: expected {told}_recv, since {told}_send was called, got {called}_send"
    )]
    Busy {
        /// Number of the environment.
        env: usize,
        /// What it does.
        told: Command,
        /// What it was told now.
        called: Command,
    },
    /// The environment's results, or its actions, are being used at this moment.
    #[error("environment {env}: expected its results to be dropped before {called}_send")]
    Held {
        /// Number of the environment.
        env: usize,
        /// What it was told.
        called: Command,
    },
    /// A call out of order: an environment was never reset, or has failed since.
    #[error("environment {env}: expected async_reset_send and async_reset_recv, since {}, got {called}_send", Since(*.has_failed))]
    NotReset {
        /// Number of the environment.
        env: usize,
        /// Whether it has failed.
        has_failed: bool,
        /// What it was told.
        called: Command,
    },
    /// A call out of order: too few environments were told what is to be received.
    #[error("{called}_recv waits for {min}, expected as many told by {called}_send, got {told}{}", Others(.others))]
    NotSent {
        /// What is to be received.
        called: Command,
        /// From how many.
        min: usize,
        /// How many were told.
        told: usize,
        /// The first environment that was told something else, and what it was told.
        others: Option<(usize, Command)>,
    },
    /// A call out of order: one environment was told something else than what is to be received.
    #[error("environment {env}: expected {}, got {called}_recv", Next(.told))]
    NotSentTo {
        /// Number of the environment.
        env: usize,
        /// What is to be received.
        called: Command,
        /// What it was told.
        told: Option<Command>,
    },
    /// An environment is named twice in one call.
    #[error("environment {env} is named twice in one call")]
    Repeated {
        /// Number of the environment.
        env: usize,
    },
    /// There is no such environment.
    #[error("expected an environment from 0 to {}, got {env}", envs.saturating_sub(1))]
    NoSuchEnv {
        /// The number that came.
        env: usize,
        /// How many there are.
        envs: usize,
    },
    /// Limits on what is received that contradict each other, or no environment at all.
    #[error("expected from 1 to max_get environments, got min_get={min}{}", Max(.max))]
    Bounds {
        /// From how many environments.
        min: usize,
        /// From how many at most.
        max: Option<usize>,
    },
    /// Actions for another number of environments.
    #[error("expected a row of actions for each of {expected} environments, got {got}")]
    Rows {
        /// Rows for the environments that are stepped.
        expected: usize,
        /// Rows that came.
        got: usize,
    },
    /// Members of a pool are vectors of different lengths.
    #[error(
        "expected {expected} environments in each member of the pool, got {got} in member {member}"
    )]
    Unequal {
        /// Environments in the first member.
        expected: usize,
        /// Number of the other member.
        member: usize,
        /// Environments in it.
        got: usize,
    },
    /// Too few answers came in time. They stay, and can be received by a later call.
    #[error(
        "{called}_recv: expected {min} results within {timeout:?}, got {got}, which the next call may receive"
    )]
    TimedOut {
        /// What was to be received.
        called: Command,
        /// From how many environments.
        min: usize,
        /// How many have answered.
        got: usize,
        /// The time.
        timeout: Duration,
    },
    /// The pool's [interrupt](super::AsyncEnvPool::interrupt) has ended the wait.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The pool was shut down.
    #[error("the pool was shut down: make another one")]
    Closed,
    /// Some environments did not return from a step or a reset in time. Their threads end when they
    /// do.
    #[error(
        "environments {envs:?} did not return within {timeout:?}: their threads are left behind"
    )]
    Stuck {
        /// Their numbers.
        envs: Vec<usize>,
        /// The time.
        timeout: Duration,
    },
}

impl From<SpecError> for PoolError {
    fn from(error: SpecError) -> Self {
        Self::Unmade(error.into())
    }
}

struct Since(bool);

impl Display for Since {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0 {
            "it has failed"
        } else {
            "it was never reset"
        })
    }
}

struct Others<'a>(&'a Option<(usize, Command)>);

impl Display for Others<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some((env, told)) => write!(f, "; environment {env} was told by {told}_send"),
            None => Ok(()),
        }
    }
}

struct Next<'a>(&'a Option<Command>);

impl Display for Next<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(told) => write!(f, "{told}_recv, since {told}_send was called"),
            None => f.write_str("a send first, since it was told nothing"),
        }
    }
}

struct Max<'a>(&'a Option<usize>);

impl Display for Max<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |max| write!(f, " and max_get={max}"))
    }
}
