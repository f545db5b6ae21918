//! What it costs to hand batches and weights over between threads.
//!
//! Ratios are at least their target; names that end in `_us`, and `publish_25m`, are at most.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "common/free.rs"]
mod free;
#[path = "common/net.rs"]
mod net;
#[path = "common/mod.rs"]
mod timing;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windrow::env::Serial;
use windrow::env::testing::LedgerEnv;
use windrow::policy::WeightStore;
use windrow::slab::{Layout, Order, RecordSpec, Ring, RingSpec, Shares};
use windrow::{Collector, Head, MultiAsyncCollector, NetworkPolicy, Policy, Tensor, TensorDict};

fn main() {
    two_threads();
    handover();
    unequal_steps();
    padded_trajectories();
    publish_small();
    publish_large();
}

fn policy() -> NetworkPolicy {
    NetworkPolicy::new(net::network(), Head::Categorical)
}

/// Two workers in threads over one in the calling thread, CartPole with the 4-64-64-2 network.
fn two_threads() {
    let mut one = Collector::builder("CartPole-v1")
        .num_envs(64)
        .policy(policy())
        .frames_per_batch(8192)
        .build()
        .unwrap();
    let mut two = MultiAsyncCollector::builder("CartPole-v1")
        .num_workers(2)
        .num_envs(64)
        .policy(policy())
        .frames_per_batch(8192)
        .build()
        .unwrap();
    if !timing::is_chosen("two_threads") {
        return;
    }
    let pairs = (0..15).map(|_| {
        // What was collected while the other side was timed does not count.
        for _ in 0..4 {
            drop(two.next());
        }
        let both = timing::rate(&mut || black_box(two.next().unwrap().unwrap()).numel() as u64);
        let _paused = two.pause();
        let alone = timing::rate(&mut || black_box(one.next().unwrap().unwrap()).numel() as u64);
        (both, alone)
    });
    timing::report("two_threads", 1.9, pairs.collect());
}

/// One part from a worker to the consumer and its memory back, while both run.
fn handover() {
    let shares = Shares {
        steps: vec![1],
        envs: 1,
        batched: false,
    };
    let spec = RingSpec {
        order: Order::ByArrival,
        workers: 1,
        ahead: 1,
        max_slabs: 4,
        cut_after: None,
    };
    timing::at_most("handover_us", 2.0, || {
        let layout = Layout::new(&RecordSpec::default(), shares.clone()).unwrap();
        let ring = Ring::new(layout, spec).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while let Some(part) = ring.claim(0) {
                    part.commit();
                }
            });
            const PARTS: u32 = 50_000;
            drop(ring.next().unwrap());
            let start = Instant::now();
            for _ in 0..PARTS {
                drop(ring.next().unwrap());
            }
            let each = start.elapsed() / PARTS;
            ring.stop();
            each.as_secs_f64() * 1e6
        })
    });
}

/// Eight environments, four of 1 ms and four of 5 ms a step: as they come, over threads that only step.
fn unequal_steps() {
    let millis = |worker: usize| Duration::from_millis(if worker < 4 { 1 } else { 5 });
    let env = move |worker| LedgerEnv::new(worker as i64).with_step_time(millis(worker));
    const RUN: Duration = Duration::from_secs(2);
    let collected = || {
        let mut collector = MultiAsyncCollector::builder("CartPole-v1")
            .worker_envs((0..8).map(|worker| move || env(worker)))
            .frames_per_batch(10)
            .build()
            .unwrap();
        drop(collector.next());
        let (start, mut frames) = (Instant::now(), 0);
        while start.elapsed() < RUN {
            frames += collector.next().unwrap().unwrap().numel();
        }
        frames as f64 / start.elapsed().as_secs_f64()
    };
    let free = || free::rate(8, RUN, |worker| Serial::new(vec![env(worker)]).unwrap());
    if timing::is_chosen("unequal_steps") {
        let pairs = (0..3).map(|_| (collected(), free()));
        timing::report("unequal_steps", 0.95, pairs.collect());
    }
}

/// Whole trajectories, padded, over batches of frames.
fn padded_trajectories() {
    let build = |trajectories: Option<usize>| {
        let builder = Collector::builder("CartPole-v1")
            .num_envs(64)
            .policy(policy())
            .frames_per_batch(4096);
        match trajectories {
            Some(n) => builder.trajs_per_batch(n),
            None => builder,
        }
        .build()
        .unwrap()
    };
    let (mut padded, mut plain) = (build(Some(64)), build(None));
    timing::ratio(
        "padded_trajectories",
        0.7,
        &mut || {
            let batch = padded.next().unwrap().unwrap();
            let mask = batch.as_slice::<bool>(("collector", "mask")).unwrap();
            mask.iter().filter(|valid| **valid).count() as u64
        },
        &mut || black_box(plain.next().unwrap().unwrap()).numel() as u64,
    );
}

/// A publish of the 4-64-64-2 network's 4610 parameters that nobody else is at.
fn publish_small() {
    let weights = policy().weights();
    let store = WeightStore::new(1);
    timing::at_most("publish_5k_us", 5.0, || {
        const TIMES: u32 = 2000;
        let start = Instant::now();
        for _ in 0..TIMES {
            black_box(store.publish(&weights));
        }
        (start.elapsed() / TIMES).as_secs_f64() * 1e6
    });
}

/// A publish of 25 million parameters over a plain copy of as many numbers.
fn publish_large() {
    const LAYERS: usize = 5;
    const LAYER: usize = 5_000_000;
    let plain: Vec<Vec<f32>> = (0..LAYERS).map(|_| vec![0.5; LAYER]).collect();
    let mut weights = TensorDict::new([]);
    for (i, values) in plain.iter().enumerate() {
        let tensor = Tensor::from_slice(values, [LAYER]).unwrap();
        weights.set(&*format!("{i}.weight"), tensor).unwrap();
    }
    let store = WeightStore::new(1);
    let time = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    // Both sides keep what they made until the next one is made, as the store does.
    let mut kept = Arc::new(Vec::new());
    timing::at_most("publish_25m", 1.2, || {
        let published = time(&mut || {
            black_box(store.publish(&weights));
        });
        let copied = time(&mut || kept = Arc::new(black_box(plain.clone())));
        published / copied
    });
    drop(kept);
}
