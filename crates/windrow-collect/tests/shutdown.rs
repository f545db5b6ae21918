//! What a shutdown leaves behind: no environment, wherever workers run and however collection came to its end.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use windrow_collect::{CollectError, Collector, CollectorBuilder, Placement};
use windrow_env::testing::LedgerEnv;
use windrow_env::{Env, EnvError, EnvSpec, Outcome};
use windrow_slab::{Row, RowMut};

const PLACEMENTS: [Placement; 2] = [Placement::Inline, Placement::Threads];

/// Counts those of its kind that there are.
struct Counted {
    inner: LedgerEnv,
    alive: Arc<AtomicUsize>,
    steps_left: u64,
    bursts: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
        assert!(!self.bursts, "made to panic in drop");
    }
}

impl Env for Counted {
    fn spec(&self) -> &EnvSpec {
        self.inner.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.inner.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.steps_left = self
            .steps_left
            .checked_sub(1)
            .ok_or_else(|| EnvError::failed("made to fail"))?;
        self.inner.step(action, obs)
    }
}

/// Two workers of two environments, which fail after `steps` steps each and may burst when they are dropped.
fn counted(placement: Placement, steps: u64, bursts: bool) -> (CollectorBuilder, Arc<AtomicUsize>) {
    let alive = Arc::new(AtomicUsize::new(0));
    let made = Arc::clone(&alive);
    let env = move || {
        made.fetch_add(1, Ordering::Relaxed);
        Counted {
            inner: LedgerEnv::from_seed(),
            alive: Arc::clone(&made),
            steps_left: steps,
            bursts,
        }
    };
    let builder = Collector::builder(env)
        .num_workers(2)
        .num_envs(2)
        .placement(placement)
        .frames_per_batch(40);
    (builder, alive)
}

#[test]
fn environments_are_dropped_by_a_shutdown_and_batches_stay() {
    for placement in PLACEMENTS {
        for batches in [0, 1, 3] {
            let (builder, alive) = counted(placement, u64::MAX, false);
            let mut collector = builder.build().unwrap();
            assert_eq!(alive.load(Ordering::Relaxed), 4);
            let kept: Vec<_> = collector
                .by_ref()
                .take(batches)
                .map(Result::unwrap)
                .collect();
            collector.shutdown().unwrap();
            assert_eq!(alive.load(Ordering::Relaxed), 0, "{placement:?} {batches}");
            collector.shutdown().unwrap();
            assert!(kept.iter().all(|batch| batch.numel() == 40));
            assert!(matches!(
                collector.next(),
                Some(Err(CollectError::ShutDown))
            ));
            assert!(collector.next().is_none());
        }
    }
}

#[test]
fn environments_are_dropped_by_a_shutdown_after_the_end_and_after_an_error() {
    for placement in PLACEMENTS {
        let (builder, alive) = counted(placement, u64::MAX, false);
        let mut collector = builder.total_frames(80).build().unwrap();
        assert_eq!(collector.by_ref().map(Result::unwrap).count(), 2);
        collector.shutdown().unwrap();
        assert_eq!(alive.load(Ordering::Relaxed), 0, "{placement:?}");

        let (builder, alive) = counted(placement, 25, false);
        let mut collector = builder.build().unwrap();
        let error = collector.by_ref().find_map(Result::err).unwrap();
        assert!(matches!(error, CollectError::Worker(_)), "{error}");
        // Other workers may have failed meanwhile.
        let _ = collector.shutdown();
        assert_eq!(alive.load(Ordering::Relaxed), 0, "{placement:?}");
    }
}

#[test]
fn a_panic_as_environments_are_dropped_is_told_by_the_shutdown() {
    for placement in PLACEMENTS {
        for batches in [0, 1] {
            let (builder, _) = counted(placement, u64::MAX, true);
            // One environment of each worker, since a second panic in the same drop would end the process.
            let mut collector = builder.num_envs(1).build().unwrap();
            assert_eq!(collector.by_ref().take(batches).count(), batches);
            let error = collector.shutdown().unwrap_err().to_string();
            assert!(error.contains("made to panic in drop"), "{error}");
            collector.shutdown().unwrap();
        }
    }
}
