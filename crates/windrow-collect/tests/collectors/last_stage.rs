//! A last stage of one's own, and what becomes of batches that it could not finish or that nobody
//! waited for.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use tensordict::TensorDict;
use windrow_collect::{
    Collector, Delivery, Interrupt, LastStage, NextError, Placement, SinkWriter,
};
use windrow_slab::{Sink, SinkError, WriterId};

use crate::crew::world::{PLACEMENTS, World};
use crate::crew::{Crew, all};
use crate::faulty::{At, Fault, Gate, How, Makes};
use crate::frames::{MAX_LENGTH, by_env, check_contiguous, frames, with_old_ids};

/// A signal that came while a batch was finished.
#[derive(Debug, thiserror::Error)]
#[error("told to wait")]
struct Interruption;

fn told_to_wait(error: &(dyn Error + 'static)) -> bool {
    error.is::<Interruption>()
}

/// Delivers how many frames each batch has, and fails at those that it is told to.
#[derive(Debug, Default)]
struct Counts {
    interrupted: Vec<usize>,
    broken: Option<usize>,
    calls: usize,
    /// How many contexts were begun and ended.
    contexts: (usize, usize),
    heard: Option<Sender<String>>,
}

impl LastStage for Counts {
    type Out = usize;

    const TRIES_AGAIN: bool = true;

    fn prepare(&mut self, _again: bool) -> Result<(), NextError> {
        self.contexts.0 += 1;
        Ok(())
    }

    fn collected(&mut self) {
        self.contexts.1 += 1;
    }

    fn finish(&mut self, batch: TensorDict, _: u64) -> Result<usize, NextError> {
        assert_eq!(self.contexts.0, self.contexts.1);
        self.calls += 1;
        if self.interrupted.contains(&self.calls) {
            return Err(NextError::Stage(Box::new(Interruption)));
        }
        if self.broken == Some(self.calls) {
            return Err(NextError::Stage("it broke".into()));
        }
        Ok(batch.numel())
    }

    fn preview(&mut self, zeros: TensorDict, _: u64) -> Result<usize, NextError> {
        Ok(zeros.numel())
    }

    fn write(&mut self, batch: usize, _: &SinkWriter) -> Result<usize, NextError> {
        Ok(batch)
    }

    fn join(&mut self, written: Vec<usize>) -> Result<usize, NextError> {
        Ok(written.iter().sum())
    }

    fn fail(&mut self, failure: NextError) -> Option<NextError> {
        if let Some(heard) = &self.heard {
            heard.send(failure.to_string()).unwrap();
            return None;
        }
        Some(failure)
    }
}

/// Takes nothing: the stage writes.
#[derive(Debug)]
struct Nowhere;

impl Sink for Nowhere {
    fn attach(&self) -> WriterId {
        WriterId(0)
    }

    fn extend(&self, _: WriterId, _: &TensorDict) -> Result<(), SinkError> {
        Err(SinkError::Detached)
    }

    fn detach(&self, _: WriterId, _: Option<SinkError>) {}
}

fn counted(placement: Placement, stage: Counts) -> Collector<Counts> {
    let world = World::of(vec![Makes::default(); 2]);
    let builder = world.builder(placement).frames_per_batch(10);
    let builder = builder.total_frames(40).interruptions(told_to_wait);
    builder.build_with(stage).unwrap()
}

#[test]
fn a_collector_delivers_what_its_last_stage_makes() {
    for &placement in PLACEMENTS {
        let mut collector = counted(placement, Counts::default());
        assert_eq!(collector.fake_batch().unwrap(), 10);
        let batches: Vec<usize> = collector.by_ref().map(Result::unwrap).collect();
        assert_eq!(batches, [10; 4]);
        collector.shutdown().unwrap();
    }
}

#[test]
fn a_batch_whose_last_stage_was_interrupted_is_the_next() {
    for &placement in PLACEMENTS {
        let interrupted = vec![2, 3];
        let stage = Counts {
            interrupted,
            ..Counts::default()
        };
        let mut collector = counted(placement, stage);
        let items: Vec<_> = collector.by_ref().collect();
        let came: Vec<bool> = items.iter().map(Result::is_ok).collect();
        assert_eq!(came, [true, false, false, true, true, true]);
        assert_eq!(collector.stats().batches, 4);
        assert!(!collector.stats().failed);
    }
}

#[test]
fn an_error_of_the_last_stage_ends_the_collector() {
    for &placement in PLACEMENTS {
        let broken = Some(2);
        let stage = Counts {
            broken,
            ..Counts::default()
        };
        let mut collector = counted(placement, stage);
        let items: Vec<_> = collector.by_ref().collect();
        assert!(matches!(items[..], [Ok(10), Err(NextError::Stage(_))]));
        assert!(collector.stats().failed);
    }
}

#[test]
fn a_stage_that_takes_a_failure_over_is_the_only_one_to_tell_of_it() {
    for &placement in PLACEMENTS {
        let (heard, told) = channel();
        let stage = Counts {
            broken: Some(3),
            heard: Some(heard),
            ..Counts::default()
        };
        let world = World::of([Makes::default()]);
        let builder = world.builder(placement).frames_per_batch(10);
        let builder = builder.replay_buffer(Nowhere);
        let mut collector = builder.build_with(stage).unwrap();
        collector.start().unwrap();
        assert_eq!(told.recv().unwrap(), "it broke");
        assert!(collector.finish_within(Duration::MAX).unwrap());
        assert!(collector.stats().failed);
        assert!(matches!(collector.check(), Err(NextError::ShutDown)));
        collector.shutdown().unwrap();
    }
}

/// Workers beside this thread, whose batches wait for all of them.
fn beside() -> impl Iterator<Item = Crew> {
    let beside = all().filter(|crew| crew.placement != Placement::Inline);
    beside.filter(|crew| crew.delivery == Delivery::Synchronous)
}

#[test]
fn a_wait_that_was_interrupted_loses_nothing() {
    for crew in beside() {
        let gate = Gate::default();
        let fault = Fault::new(At::Step(13), How::Wait(gate.clone()), 1);
        let builder = crew.builder([None, Some(fault)]);
        let mut collector = builder.interrupt(gate.interrupt()).build().unwrap();
        let mut batches = Vec::new();
        loop {
            match collector.next().unwrap() {
                Ok(batch) => batches.push(batch.detach()),
                Err(error) => {
                    assert!(matches!(error, NextError::WaitInterrupted(_)));
                    break;
                }
            }
        }
        gate.open();
        let next = collector.by_ref().take(5);
        batches.extend(next.map(|batch| batch.unwrap().detach()));
        for frames in by_env(batches.iter().flat_map(frames)).values() {
            check_contiguous(frames, MAX_LENGTH);
        }
    }
}

#[test]
fn a_batch_that_nobody_waited_for_is_not_taken_for_a_rollout() {
    for crew in beside() {
        let gate = Gate::default();
        let fault = Fault::new(At::Step(13), How::Wait(gate.clone()), 1);
        let builder = crew.builder([None, Some(fault)]);
        let mut collector = builder.interrupt(gate.interrupt()).build().unwrap();
        let mut batches = Vec::new();
        while let Ok(batch) = collector.next().unwrap() {
            batches.push(batch.detach());
        }
        gate.open();
        let rollout = collector.rollout().unwrap().detach();
        batches.push(collector.next().unwrap().unwrap().detach());
        batches.push(rollout);
        batches.push(collector.next().unwrap().unwrap().detach());
        let rollout = batches.len() - 2;
        for frames in by_env(with_old_ids(&batches, &[rollout])).values() {
            check_contiguous(frames, MAX_LENGTH);
        }
    }
}

#[test]
fn a_pause_that_is_held_by_name_lasts_until_it_is_released() {
    for crew in beside() {
        let is_held = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_held);
        let interrupt = Interrupt::when(move || seen.load(Ordering::Relaxed));
        let builder = crew.builder([None, None]).interrupt(interrupt);
        let mut collector = builder.build().unwrap();
        assert!(collector.next().unwrap().is_ok());
        collector.hold(Duration::MAX).unwrap();
        is_held.store(true, Ordering::Relaxed);
        let waited = collector.next();
        assert!(matches!(waited, Some(Err(NextError::WaitInterrupted(_)))));
        is_held.store(false, Ordering::Relaxed);
        collector.release();
        assert!(collector.next().unwrap().is_ok());
    }
}

#[test]
fn what_is_under_way_is_cut_short_and_written_where_a_start_is_finished() {
    for &placement in PLACEMENTS {
        let (begins, begun) = channel();
        let (heard, told) = channel();
        let world = World::of([Makes {
            step_time: Duration::from_millis(5),
            ..Makes::default()
        }]);
        let builder = world.builder(placement).frames_per_batch(10_000);
        let builder = builder.pre_collect_hook(move || begins.send(()).unwrap());
        let builder = builder.post_collect_hook(move |batch| heard.send(batch.numel()).unwrap());
        let mut collector = builder.replay_buffer(Takes).build().unwrap();
        collector.start().unwrap();
        begun.recv().unwrap();
        assert!(collector.finish_within(Duration::MAX).unwrap());
        collector.shutdown().unwrap();
        let frames = collector.stats().frames;
        drop(collector);
        let written: usize = told.iter().sum();
        assert_eq!(frames, written as u64);
        assert!((1..10_000).contains(&written));
    }
}

/// Takes everything, and keeps nothing.
#[derive(Debug)]
struct Takes;

impl Sink for Takes {
    fn attach(&self) -> WriterId {
        WriterId(0)
    }

    fn extend(&self, _: WriterId, _: &TensorDict) -> Result<(), SinkError> {
        Ok(())
    }

    fn detach(&self, _: WriterId, _: Option<SinkError>) {}
}
