//! What the Python package needs beside the public names, without a promise of stability.

pub use windrow_collect::WeightUpdate;
pub use windrow_collect::postproc::unpadded;

use std::error::Error;
use std::iter::successors;

use windrow_collect::{
    BuildError, ControlError, ErrorKind, EvaluateError, NextError, ProfileError, SentError,
    WorkerError, WorkerFault,
};
use windrow_env::{EnvError, PoolError, VecEnvError};
use windrow_policy::PolicyError;
use windrow_slab::SinkError;
use windrow_sync::Interrupted;

/// `error`, and from the outside in what it came from: sources, and errors whose text it has as its
/// own.
pub fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| {
        inside(error).or_else(|| error.source())
    })
}

/// The kind of an error of a collector or an evaluator; of others, that of a failure.
pub fn kind(error: &(dyn Error + 'static)) -> ErrorKind {
    if let Some(error) = error.downcast_ref::<BuildError>() {
        return error.kind();
    }
    if let Some(error) = error.downcast_ref::<NextError>() {
        return error.kind();
    }
    if let Some(error) = error.downcast_ref::<ControlError>() {
        return error.kind();
    }
    if let Some(error) = error.downcast_ref::<EvaluateError>() {
        return error.kind();
    }
    if let Some(error) = error.downcast_ref::<ProfileError>() {
        return error.kind();
    }
    #[cfg(target_os = "linux")]
    if let Some(error) = error.downcast_ref::<windrow_collect::WorkerMainError>() {
        return error.kind();
    }
    ErrorKind::Failure
}

/// The failure of a worker that an error of a collector or an evaluator stands for.
pub fn lost_worker<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a WorkerError> {
    if let Some(error) = error.downcast_ref() {
        return match error {
            NextError::Worker(lost) => Some(lost),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref() {
        return match error {
            BuildError::Worker(lost) => Some(lost),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref() {
        return match error {
            ControlError::Next(error) => lost_worker(error),
            _ => None,
        };
    }
    match error.downcast_ref()? {
        EvaluateError::Build(error) => lost_worker(error),
        EvaluateError::Weights(error) => lost_worker(error),
        EvaluateError::Next(error) => lost_worker(error),
        _ => None,
    }
}

/// The error that speaks for `error`, which names it as no source therefore.
fn inside<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    if let Some(error) = error.downcast_ref::<NextError>() {
        return match error {
            NextError::Worker(error) | NextError::Interrupted(error) => Some(error),
            NextError::Stage(error) => Some(&**error),
            NextError::WaitInterrupted(error) => Some(error),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<BuildError>() {
        return match error {
            BuildError::Worker(error) => Some(error),
            BuildError::WaitInterrupted(error) => Some(error),
            BuildError::Remote { sent: came, .. } => sent(came.as_ref()),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<ControlError>() {
        return match error {
            ControlError::Next(error) => Some(error),
            ControlError::WaitInterrupted(error) => Some(error),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<EvaluateError>() {
        return match error {
            EvaluateError::Build(error) => Some(error),
            EvaluateError::Weights(error) => Some(error),
            EvaluateError::Next(error) => Some(error),
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

fn sent(sent: Option<&SentError>) -> Option<&(dyn Error + 'static)> {
    sent.map(|sent| sent as _)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envs::CartPole;
    use crate::envs::testing::{FailAt, FailingEnv, Failure};
    use crate::{Collector, CollectorBuilder, Evaluator, RandomPolicy, error_chain};

    fn refused(builder: CollectorBuilder) -> BuildError {
        builder.frames_per_batch(10).build().unwrap_err()
    }

    #[test]
    fn a_reason_is_printed_once() {
        let error = error_chain(&refused(Collector::builder("CartPol-v1")));
        assert_eq!(error.matches("did you mean").count(), 1, "{error}");
    }

    #[test]
    fn a_lost_worker_is_found_in_the_errors_of_all_operations() {
        let failing = || FailingEnv::new(CartPole::v1(), FailAt::Step(3), Failure::Error);
        let is_of_step_3 = |error: &(dyn Error + 'static)| {
            assert_eq!(kind(error), ErrorKind::Failure, "{error}");
            lost_worker(error).is_some_and(|lost| lost.step() == Some(2))
        };
        let mut collector = Collector::builder(failing)
            .frames_per_batch(10)
            .build()
            .unwrap();
        let next = collector.next().unwrap().unwrap_err();
        assert!(is_of_step_3(&next), "{next}");
        assert!(is_of_step_3(&ControlError::from(next)));
        let evaluator = Evaluator::builder(failing).policy(RandomPolicy::new());
        let error = evaluator.build().unwrap().evaluate(None, None).unwrap_err();
        assert!(is_of_step_3(&error), "{error}");
        let panics = || -> Result<CartPole, EnvError> { panic!("no road") };
        let build = refused(Collector::builder(panics));
        assert!(lost_worker(&build).is_some(), "{build}");
        assert!(lost_worker(&refused(Collector::builder("CartPol-v1"))).is_none());
    }

    #[test]
    fn errors_keep_their_kind_in_those_that_wrap_them() {
        let argument = refused(Collector::builder("CartPol-v1"));
        assert_eq!(kind(&argument), ErrorKind::Argument);
        assert_eq!(kind(&EvaluateError::from(argument)), ErrorKind::Argument);
        let file = || ProfileError::File {
            worker: 0,
            path: "trace.json".into(),
            source: std::io::ErrorKind::NotFound.into(),
        };
        assert_eq!(kind(&file()), ErrorKind::File);
        let next = NextError::from(file());
        assert_eq!(kind(&next), ErrorKind::File);
        assert_eq!(kind(&ControlError::from(next)), ErrorKind::File);
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
