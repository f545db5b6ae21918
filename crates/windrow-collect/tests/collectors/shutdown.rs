//! What a shutdown leaves behind: no environment, wherever workers run and however collection came
//! to its end.

use tensordict::TensorDict;
use windrow_collect::{CollectorBuilder, NextError, Placement, TrajFormat};
use windrow_sync::error_chain;

use crate::crew::world::{PLACEMENTS, World};
use crate::faulty::{At, Fault, How, Makes, Notes};

/// Counts environments.
struct Counted {
    made: Notes,
    dropped: Notes,
}

impl Counted {
    fn alive(&self) -> usize {
        self.made.count() - self.dropped.count()
    }
}

/// Two workers of two environments, which fail in step `step` and may burst when they are dropped.
fn counted(placement: Placement, step: Option<u64>, bursts: bool) -> (CollectorBuilder, Counted) {
    let counted = Counted {
        made: Notes::default(),
        dropped: Notes::default(),
    };
    let fault = step.map(|step| Fault::new(At::Step(step), How::Error, usize::MAX));
    let makes = Makes {
        fault,
        made: Some(counted.made.clone()),
        dropped: Some(counted.dropped.clone()),
        bursts,
        ..Makes::default()
    };
    let builder = World::of(vec![makes; 2])
        .builder(placement)
        .num_envs(2)
        .frames_per_batch(40)
        .seed(0);
    (builder, counted)
}

#[test]
fn environments_are_dropped_by_a_shutdown_and_batches_stay() {
    for &placement in PLACEMENTS {
        for batches in [0, 1, 3] {
            let (builder, alive) = counted(placement, None, false);
            let mut collector = builder.build().unwrap();
            assert_eq!(alive.alive(), 4);
            let kept: Vec<_> = collector
                .by_ref()
                .take(batches)
                .map(Result::unwrap)
                .collect();
            collector.shutdown().unwrap();
            assert_eq!(alive.alive(), 0, "{placement:?} {batches}");
            collector.shutdown().unwrap();
            assert!(kept.iter().all(|batch| batch.numel() == 40));
            assert!(matches!(collector.next(), Some(Err(NextError::ShutDown))));
            assert!(collector.next().is_none());
        }
    }
}

#[test]
fn environments_are_dropped_by_a_shutdown_after_the_end_and_after_an_error() {
    for &placement in PLACEMENTS {
        let (builder, alive) = counted(placement, None, false);
        let mut collector = builder.total_frames(80).build().unwrap();
        assert_eq!(collector.by_ref().map(Result::unwrap).count(), 2);
        collector.shutdown().unwrap();
        assert_eq!(alive.alive(), 0, "{placement:?}");

        let (builder, alive) = counted(placement, Some(26), false);
        let mut collector = builder.build().unwrap();
        let error = collector.by_ref().find_map(Result::err).unwrap();
        assert!(matches!(error, NextError::Worker(_)), "{error}");
        // Other workers may have failed meanwhile.
        let _ = collector.shutdown();
        assert_eq!(alive.alive(), 0, "{placement:?}");
    }
}

#[test]
fn frames_that_a_shutdown_leaves_undelivered_are_counted_as_dropped() {
    for (&placement, step) in PLACEMENTS
        .iter()
        .flat_map(|at| [(at, None), (at, Some(47))])
    {
        let (builder, _) = counted(placement, step, false);
        let mut collector = builder
            .trajs_per_batch(3)
            .traj_format(TrajFormat::Cat)
            .build()
            .unwrap();
        let batches: Vec<_> = collector.by_ref().take(4).map_while(Result::ok).collect();
        // Other workers may have failed meanwhile.
        let _ = collector.shutdown();
        let delivered: usize = batches.iter().map(TensorDict::numel).sum();
        let stats = collector.stats();
        assert!(stats.dropped_frames > 0, "{placement:?} {step:?}");
        let known = delivered as u64 + stats.dropped_frames;
        assert_eq!(known, stats.frames, "{placement:?} {step:?}");
    }
}

#[test]
fn a_panic_as_environments_are_dropped_is_told_by_the_shutdown() {
    for &placement in PLACEMENTS {
        for batches in [0, 1] {
            let (builder, _) = counted(placement, None, true);
            // One environment of each worker, since a second panic in the same drop would end the
            // process.
            let mut collector = builder.num_envs(1).build().unwrap();
            assert_eq!(collector.by_ref().take(batches).count(), batches);
            let error = error_chain(&collector.shutdown().unwrap_err());
            assert!(error.contains("made to panic in drop"), "{error}");
            collector.shutdown().unwrap();
        }
    }
}
