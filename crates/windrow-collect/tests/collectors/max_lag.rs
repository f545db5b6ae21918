//! No part is older than `max_lag` allows, no frame is lost for that, and nobody waits for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

#[cfg(target_os = "linux")]
use crate::crew::world::{World, program};
use tensordict::TensorDict;
use windrow_collect::{
    AsyncCollector, Collector, CollectorBuilder, ControlError, Delivery, Handle,
    MultiSyncCollector, Placement, Stats,
};
use windrow_env::{CartPole, Env, EnvError, EnvSpec, Outcome};
use windrow_policy::{Head, NetworkPolicy, Policy, Weights, nn::Sequential};
use windrow_slab::{Row, RowMut, Sink, SinkError, WriterId};

const WORKERS: usize = 4;
const LAGS: [usize; 4] = [0, 1, 2, 8];

fn network() -> NetworkPolicy {
    let net = Sequential::new().linear(4, 8).tanh().linear(8, 2).seed(3);
    NetworkPolicy::new(net, Head::Categorical)
}

fn first_come(workers_per_batch: usize) -> Delivery {
    Delivery::FirstCome { workers_per_batch }
}

/// CartPole whose steps take longer or shorter.
struct Uneven {
    env: CartPole,
    steps: u64,
}

impl Uneven {
    fn new() -> Result<Self, EnvError> {
        Ok(Self {
            env: CartPole::new(),
            steps: 0,
        })
    }
}

impl Env for Uneven {
    fn spec(&self) -> &EnvSpec {
        self.env.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.steps = seed.unwrap_or(self.steps);
        self.env.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.steps = self
            .steps
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(99);
        thread::sleep(Duration::from_micros((self.steps >> 33) % 200));
        self.env.step(action, obs)
    }
}

/// Workers of both kinds whose parts take longer or shorter.
fn uneven(placement: Placement, delivery: Delivery, max_lag: usize) -> CollectorBuilder {
    let frames = match delivery {
        Delivery::FirstCome { workers_per_batch } => 8 * workers_per_batch,
        _ => 8 * WORKERS,
    };
    let builder = match placement {
        #[cfg(target_os = "linux")]
        Placement::Processes => {
            Collector::builder("CartPole-v1").worker_program(program(&World::default()))
        }
        _ => Collector::builder(Uneven::new),
    };
    builder
        .placement(placement)
        .delivery(delivery)
        .num_workers(WORKERS)
        .policy(network())
        .frames_per_batch(frames)
        .track_policy_version(true)
        .max_lag(max_lag)
        .seed(7)
}

/// Threads and processes with each way to make batches.
fn all() -> impl Iterator<Item = (Placement, Delivery)> {
    let placements = match cfg!(target_os = "linux") {
        true => &[Placement::Threads, Placement::Processes][..],
        false => &[Placement::Threads],
    };
    placements.iter().flat_map(|&placement| {
        let deliveries = [Delivery::Synchronous, first_come(1), first_come(3)];
        deliveries.map(|delivery| (placement, delivery))
    })
}

/// How many versions behind `newest` the oldest frame of `batch` is.
fn lag(batch: &TensorDict, newest: i64) -> i64 {
    let versions = batch
        .get("policy_version")
        .unwrap()
        .to_vec::<i64>()
        .unwrap();
    newest - versions.into_iter().min().unwrap()
}

#[test]
fn no_batch_is_older_than_allowed_where_the_learner_publishes_between_batches() {
    for (placement, delivery) in all() {
        for max_lag in LAGS {
            let mut collector = uneven(placement, delivery, max_lag).build().unwrap();
            let weights = network().weights();
            let mut newest = 0;
            for round in 0..40 {
                let batch = collector.next().unwrap().unwrap();
                let lag = lag(&batch, newest);
                assert!(lag <= max_lag as i64, "{placement:?} {delivery:?}: {lag}");
                // None for long, one, or several: those between two batches count as one in
                // `policy_age`, and each is a version.
                if round % 10 < 6 {
                    newest = collector.update_policy_weights(&weights).unwrap();
                }
            }
            let stats = collector.stats();
            assert!(stats.policy_age <= max_lag as u64, "{stats:?}");
            assert_eq!(stats.dropped_frames, 0);
        }
    }
}

#[test]
fn without_a_lag_a_collector_that_runs_ahead_gives_the_bytes_of_one_that_does_not() {
    let run = |builder: CollectorBuilder| {
        let mut collector = builder
            .policy(network())
            .num_envs(3)
            .frames_per_batch(60)
            .track_policy_version(true)
            .seed(11)
            .build()
            .unwrap();
        let mut weights = network().weights();
        let batches = (0..8).map(|round| {
            let batch = collector.next().unwrap().unwrap().to_bytes().unwrap();
            weights
                .as_mut_slice::<f32>("0.weight")
                .unwrap()
                .fill(round as f32);
            collector.update_policy_weights(&weights).unwrap();
            batch
        });
        batches.collect::<Vec<_>>()
    };
    let expected = run(Collector::builder("CartPole-v1").merge_statistics(true));
    assert_eq!(
        run(AsyncCollector::builder("CartPole-v1").max_lag(0)),
        expected
    );
}

/// Takes everything, after a time that differs.
#[derive(Debug)]
struct Drain;

impl Sink for Drain {
    fn attach(&self) -> WriterId {
        WriterId(0)
    }

    fn extend(&self, _: WriterId, batch: &TensorDict) -> Result<(), SinkError> {
        let observation = batch.get("observation").unwrap().to_vec::<f32>().unwrap();
        let micros = u64::from(observation[0].to_bits()) % 300;
        thread::sleep(Duration::from_micros(micros));
        Ok(())
    }

    fn detach(&self, _: WriterId, _: Option<SinkError>) {}
}

/// Publishes to all, or to one, until `is_over`.
fn publish(handle: &Handle, weights: &Weights, is_over: &AtomicBool) {
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        let published = match round % 5 {
            0 => handle.update_worker_weights(round % WORKERS, weights),
            _ => handle.update_policy_weights(weights),
        };
        published.unwrap();
        thread::sleep(Duration::from_micros(50 * (round % 7) as u64));
        round += 1;
    }
}

/// Whether batches were delivered and weights published often enough.
fn has_run(stats: &Stats) -> bool {
    stats.batches >= 40 && stats.policy_version >= 20
}

#[test]
fn weights_that_another_thread_publishes_wait_for_parts_that_would_be_too_old() {
    for (placement, delivery) in all() {
        for max_lag in LAGS {
            let mut collector = uneven(placement, delivery, max_lag).build().unwrap();
            let (handle, weights) = (collector.handle(), network().weights());
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| publish(&handle, &weights, &is_over));
                while !has_run(&collector.stats()) {
                    collector.next().unwrap().unwrap();
                }
                is_over.store(true, Ordering::Relaxed);
            });
            let stats = collector.stats();
            assert!(stats.policy_age <= max_lag as u64, "{stats:?}");
        }
    }
}

#[test]
fn the_same_holds_for_what_a_thread_of_the_collector_writes() {
    for (placement, delivery) in all() {
        for max_lag in [0, 1] {
            let builder = uneven(placement, delivery, max_lag);
            let mut collector = builder.replay_buffer(Drain).build().unwrap();
            collector.start().unwrap();
            let (handle, weights) = (collector.handle(), network().weights());
            let is_over = Arc::new(AtomicBool::new(false));
            let publisher = {
                let is_over = Arc::clone(&is_over);
                thread::spawn(move || publish(&handle, &weights, &is_over))
            };
            while !has_run(&collector.stats()) {
                thread::sleep(Duration::from_millis(1));
            }
            is_over.store(true, Ordering::Relaxed);
            publisher.join().unwrap();
            let stats = collector.stats();
            assert!(stats.policy_age <= max_lag as u64, "{stats:?}");
            collector.shutdown().unwrap();
        }
    }
}

/// Publishes from within its own step.
struct Learning {
    env: CartPole,
    handle: Arc<std::sync::Mutex<Option<Handle>>>,
    result: Arc<std::sync::Mutex<Option<ControlError>>>,
}

impl Env for Learning {
    fn spec(&self) -> &EnvSpec {
        self.env.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.env.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        if let Some(handle) = self.handle.lock().unwrap().take() {
            let published = handle.update_policy_weights(&network().weights());
            *self.result.lock().unwrap() = published.err();
        }
        self.env.step(action, obs)
    }
}

#[test]
fn a_part_that_publishes_for_itself_is_told_so_instead_of_waiting_for_ever() {
    let (given, result) = (Arc::default(), Arc::default());
    let (handle, found) = (Arc::clone(&given), Arc::clone(&result));
    let env = move || {
        Ok::<_, EnvError>(Learning {
            env: CartPole::new(),
            handle: Arc::clone(&handle),
            result: Arc::clone(&found),
        })
    };
    let builder = MultiSyncCollector::builder(env).num_workers(2);
    let builder = builder.placement(Placement::Threads).policy(network());
    let mut collector = builder.frames_per_batch(20).max_lag(0).build().unwrap();
    *given.lock().unwrap() = Some(collector.handle());
    collector.next().unwrap().unwrap();
    let result = result.lock().unwrap().take();
    assert!(
        matches!(result, Some(ControlError::WaitsForItself)),
        "{result:?}"
    );
}
