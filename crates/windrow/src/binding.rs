//! What the Python package needs beside the public names, without a promise of stability.

pub use windrow_collect::postproc::unpadded;
pub use windrow_collect::{LastStage, ProfilerRecipe, SentError, SinkWriter};
#[cfg(target_os = "linux")]
pub use windrow_collect::{Nursery, ParallelHandle};
pub use windrow_env::{Gathered, largest};
pub use windrow_policy::{EnvRows, KnownRows, Served};
pub use windrow_replay::Waited;

use std::error::Error;
use std::iter::successors;

use windrow_collect::{CollectError, WorkerError, WorkerFault};
use windrow_env::{EnvError, PoolError, VecEnvError};
use windrow_policy::PolicyError;
use windrow_slab::SinkError;
use windrow_sync::Interrupted;

/// `error`, and from the outside in what it came from: sources, and errors whose text it has as its own.
pub fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| {
        inside(error).or_else(|| error.source())
    })
}

/// The error that speaks for `error`, which names it as no source therefore.
fn inside<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    fn sent(sent: Option<&SentError>) -> Option<&(dyn Error + 'static)> {
        sent.map(|sent| sent as _)
    }
    if let Some(error) = error.downcast_ref::<CollectError>() {
        return match error {
            CollectError::Worker(error) | CollectError::Interrupted(error) => Some(error),
            CollectError::Stage(error) => Some(&**error),
            CollectError::WaitInterrupted(error) => Some(error),
            CollectError::Remote { sent: came, .. } => sent(came.as_ref()),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<WorkerError>() {
        return Some(error.fault());
    }
    if let Some(error) = error.downcast_ref::<WorkerFault>() {
        return match error {
            WorkerFault::Env(error) => Some(error),
            WorkerFault::Remote { sent: came, .. } => sent(came.as_ref()),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<EnvError>() {
        return match error {
            EnvError::Failed(error) => Some(&**error),
            EnvError::Member(error) => Some(&**error),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<PolicyError>() {
        return match error {
            PolicyError::Failed(error) => Some(&**error),
            PolicyError::Served(error) => Some(&**error),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<Interrupted>() {
        return Some(error.reason());
    }
    #[cfg(target_os = "linux")]
    if let Some(windrow_collect::MemberError::Failed { sent: came, .. }) = error.downcast_ref() {
        return sent(came.as_ref());
    }
    if let Some(error) = error.downcast_ref::<VecEnvError>() {
        return Some(&error.source);
    }
    if let Some(error) = error.downcast_ref::<PoolError>() {
        return match error {
            PoolError::Env(error) => Some(error),
            PoolError::Unmade(error) => Some(error),
            PoolError::Interrupted(error) => Some(error),
            _ => None,
        };
    }
    match error.downcast_ref()? {
        SinkError::Failed(error) => Some(&**error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envs::CartPole;
    use crate::{Collector, CollectorBuilder, error_chain};

    fn refused(builder: CollectorBuilder) -> CollectError {
        builder.frames_per_batch(10).build().unwrap_err()
    }

    #[test]
    fn a_reason_is_printed_once() {
        let error = error_chain(&refused(Collector::builder("CartPol-v1")));
        assert_eq!(error.matches("did you mean").count(), 1, "{error}");
    }

    #[test]
    fn the_error_of_the_users_own_is_among_the_causes() {
        let mine =
            || -> Result<CartPole, _> { Err(EnvError::failed(std::io::Error::other("mine"))) };
        let error = refused(Collector::builder(mine));
        let is_mine = |cause: &(dyn Error + 'static)| cause.is::<std::io::Error>();
        assert!(causes(&error).any(is_mine), "{error:?}");
        assert_eq!(
            error_chain(&error),
            "failed to make the environments of worker 0: mine"
        );
    }
}
