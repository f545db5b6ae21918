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

use windrow::envs::testing::LedgerEnv;
use windrow::envs::{Env, EnvError, EnvFactory, EnvSpec, Outcome, Serial, Spec};
use windrow::policy::WeightStore;
use windrow::{
    Collector, DType, Head, Key, MultiAsyncCollector, MultiSyncCollector, NetworkPolicy, Policy,
    Row, RowMut, Tensor, TensorDict,
};
use windrow_slab::{Layout, Order, PartOrder, RecordSpec, Ring, RingSpec, Shares};

fn main() {
    two_threads();
    flat_batches("cartpole", 64, 1024, 1.2, &"CartPole-v1");
    flat_batches("pixels", 8, 32, 1.2, &Pixels::new);
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

/// Flat batches of two workers with `envs` environments each over those of one worker with all of
/// them, and the pages that a batch of the former touches for the first time. A flag of 64
/// environments fills a cache line: with fewer, both workers write the same lines.
fn flat_batches(
    name: &str,
    envs: usize,
    steps: usize,
    target: f64,
    env: &(impl EnvFactory + Clone + Send + Sync + 'static),
) {
    let build = |workers: usize| {
        let mut collector = MultiSyncCollector::builder(env.clone())
            .num_workers(workers)
            .num_envs(2 * envs / workers)
            .frames_per_batch(2 * envs * steps)
            .build()
            .unwrap();
        // The ring has all its slabs, each written once.
        (0..5).for_each(|_| drop(collector.next()));
        collector
    };
    let (mut two, mut one) = (build(2), build(1));
    let next =
        |collector: &mut Collector| black_box(collector.next().unwrap().unwrap()).numel() as u64;
    let faults = || {
        const BATCHES: u64 = 50;
        let before = page_faults();
        (0..BATCHES).for_each(|_| drop(black_box(two.next())));
        (page_faults() - before) as f64 / BATCHES as f64
    };
    timing::at_most(&format!("flat_{name}_page_faults"), 0.0, faults);
    timing::ratio(
        &format!("flat_{name}"),
        target,
        &mut || next(&mut two),
        &mut || next(&mut one),
    );
}

/// Page faults of this process so far that needed no disk; none where the system does not tell.
fn page_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may have spaces.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let minor = fields.split_whitespace().nth(7);
    minor
        .and_then(|minor| minor.parse().ok())
        .unwrap_or_default()
}

/// Four frames of 84 x 84 pixels, of which each step shows others.
struct Pixels {
    spec: EnvSpec,
    frames: Vec<u8>,
    step: usize,
}

impl Pixels {
    const SIZE: usize = 84 * 84 * 4;

    fn new() -> Self {
        let observation = Spec::unbounded(DType::U8, [84, 84, 4]);
        Self {
            spec: EnvSpec::new("Pixels", observation, Spec::discrete(6)),
            frames: (0..4 * Self::SIZE).map(|i| i as u8).collect(),
            step: 0,
        }
    }

    fn show(&self, mut obs: RowMut<'_>) -> Result<(), EnvError> {
        let at = self.step % 4 * Self::SIZE;
        Ok(obs.write(Key::<u8>::new(0), &self.frames[at..][..Self::SIZE])?)
    }
}

impl Env for Pixels {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, _: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.show(obs)
    }

    fn step(&mut self, _: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        self.step += 1;
        self.show(obs)?;
        Ok(Outcome {
            reward: 1.0,
            ..Outcome::default()
        })
    }
}

/// One part from a worker to the consumer and its memory back, while both run.
fn handover() {
    let shares = Shares {
        steps: vec![1],
        envs: 1,
        batched: false,
        order: PartOrder::Sequential,
    };
    let spec = RingSpec {
        order: Order::ByArrival,
        workers: 1,
        ahead: 1,
        max_slabs: 4,
        cut_after: None,
        max_age: None,
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

/// Eight environments, four of 1 ms and four of 5 ms a step: as they come, over threads that only
/// step.
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
            black_box(store.publish(&weights).unwrap());
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
            black_box(store.publish(&weights).unwrap());
        });
        let copied = time(&mut || kept = Arc::new(black_box(plain.clone())));
        published / copied
    });
    drop(kept);
}
