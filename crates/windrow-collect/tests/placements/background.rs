//! How those hear of a failure who do not ask for batches.

use std::error::Error;
use std::thread;
use std::time::Duration;

use tensordict::TensorDict;
use windrow_collect::{Collector, CollectorBuilder, ControlError, NextError, Placement};
use windrow_env::testing::{FailAt, FailingEnv, Failure, LedgerEnv};
use windrow_policy::Registry;
use windrow_slab::{Sink, SinkError, WriterId};

use crate::program::{placed, placements};

pub(crate) fn names(registry: &mut Registry) -> Result<(), Box<dyn Error + Send + Sync>> {
    registry.env("Failing", || {
        FailingEnv::new(LedgerEnv::from_seed(), FailAt::Step(25), Failure::Error)
    })?;
    Ok(())
}

/// Takes everything, and keeps nothing.
#[derive(Debug)]
struct Drain;

impl Sink for Drain {
    fn attach(&self) -> WriterId {
        WriterId(0)
    }

    fn extend(&self, _: WriterId, _: &TensorDict) -> Result<(), SinkError> {
        Ok(())
    }

    fn detach(&self, _: WriterId, _: Option<SinkError>) {}
}

/// Fails in its 25th step.
fn failing(placement: Placement) -> CollectorBuilder {
    placed!(Collector::builder("Failing"), placement).frames_per_batch(10)
}

#[test]
fn who_looks_at_figures_only_sees_that_the_background_has_failed_and_can_ask_why() {
    for placement in placements() {
        let mut collector = failing(placement).replay_buffer(Drain).build().unwrap();
        let handle = collector.handle();
        collector.start().unwrap();
        // A loop that asks for nothing else comes to its end.
        while !collector.stats().failed {
            thread::sleep(Duration::from_millis(1));
        }
        while collector.is_running() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(handle.stats().failed);
        assert!(matches!(collector.check(), Err(NextError::Worker(_))));
        assert!(matches!(collector.check(), Err(NextError::ShutDown)));
        let weights = handle.policy_weights();
        assert!(matches!(
            handle.update_policy_weights(&weights),
            Err(ControlError::Next(NextError::ShutDown))
        ));
        collector.shutdown().unwrap();
        assert!(collector.stats().failed);
    }
}

#[test]
fn a_failure_that_a_batch_has_told_of_shows_in_the_figures() {
    for placement in placements() {
        let mut collector = failing(placement).build().unwrap();
        assert_eq!(collector.by_ref().filter(Result::is_ok).count(), 2);
        assert!(collector.stats().failed);
    }
}

#[test]
fn an_end_or_a_shutdown_is_no_failure() {
    for placement in placements() {
        let mut collector = failing(placement).total_frames(20).build().unwrap();
        assert_eq!(collector.by_ref().count(), 2);
        collector.check().unwrap();
        collector.shutdown().unwrap();
        assert!(matches!(collector.next(), Some(Err(NextError::ShutDown))));
        assert!(!collector.stats().failed);
        assert!(matches!(collector.check(), Err(NextError::ShutDown)));
    }
}
