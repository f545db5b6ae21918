//! A served policy against threads that only step, and against a pipeline of policy and
//! environments that loses nothing.
//!
//! The policy of 2 ms sleeps, as a thread does whose accelerator is at work. The ideal pipeline of
//! it is the slower one of two: the policy alone, with all rows in each call, and the environments
//! alone, stepped by as many threads on the same cores.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "common/free.rs"]
mod free;
#[path = "common/mod.rs"]
mod timing;

use std::hint::black_box;
use std::thread::sleep;
use std::time::{Duration, Instant};

use windrow::envs::testing::LedgerEnv;
use windrow::envs::{CartPole, Env, EnvError, EnvSpec, Outcome, Serial, TimeLimit};
use windrow::policy::RandomPolicy;
use windrow::{
    AsyncBatchedCollector, Collector, DType, Key, LeafSpec, Policy, Row, RowMut, policy_fn,
};

const RUN: Duration = Duration::from_secs(1);
const PAIRS: usize = 5;
const WORKERS: usize = 8;

/// Environments of a worker that step together.
const ENVS: usize = 8;

const FORWARD: Duration = Duration::from_millis(2);

fn main() {
    unequal_steps();
    pipeline("cartpole_of_ideal", 0.93, 0);
    if timing::is_chosen("busy_1ms_of_ideal") {
        // Per worker and step, over all of its environments.
        pipeline(
            "busy_1ms_of_ideal",
            0.80,
            rounds(Duration::from_millis(1)) / ENVS as u64,
        );
    }
}

/// Frames a second of `collector`, after its first batches; over whole rounds of its workers, whose
/// batches are complete at the same time where they act together.
fn rate(mut collector: Collector) -> f64 {
    let mut round = || -> usize {
        let batches = collector.by_ref().take(WORKERS);
        batches.map(|batch| batch.unwrap().numel()).sum()
    };
    let _warm = [round(), round()];
    let (start, mut frames) = (Instant::now(), 0);
    while start.elapsed() < RUN {
        frames += round();
    }
    let rate = frames as f64 / start.elapsed().as_secs_f64();
    if let Some(stats) = collector.server_stats() {
        eprintln!(
            "    fill {:.2}, queue {:?} and {:?}, forward {:?} and {:?} (p50, p95)",
            stats.batch_fill,
            stats.queue_p50,
            stats.queue_p95,
            stats.forward_p50,
            stats.forward_p95
        );
    }
    rate
}

/// Eight environments, four of 1 ms and four of 5 ms a step: served, over threads that only step.
fn unequal_steps() {
    let name = "unequal_steps_of_free";
    if !timing::is_chosen(name) {
        return;
    }
    let millis = |worker: usize| Duration::from_millis(if worker < 4 { 1 } else { 5 });
    let env = move |worker| LedgerEnv::new(worker as i64).with_step_time(millis(worker));
    let served = || {
        let envs = (0..WORKERS).map(|worker| move || env(worker));
        let builder = AsyncBatchedCollector::builder(|| LedgerEnv::new(0)).worker_envs(envs);
        rate(
            builder
                .policy(RandomPolicy::new())
                .frames_per_batch(10)
                .build()
                .unwrap(),
        )
    };
    let free = || {
        free::rate(WORKERS, RUN, |worker| {
            Serial::new(vec![env(worker)]).unwrap()
        })
    };
    timing::report(name, 0.95, (0..PAIRS).map(|_| (served(), free())).collect());
}

/// Eight workers of eight CartPoles, each of which works for `rounds` rounds a step, with a policy
/// of 2 ms: over the ideal.
fn pipeline(name: &str, target: f64, rounds: u64) {
    if !timing::is_chosen(name) {
        return;
    }
    let served = || {
        let builder = AsyncBatchedCollector::builder(move || Busy::new(rounds)).policy(slow());
        let builder = builder.num_workers(WORKERS).num_envs(ENVS);
        rate(builder.frames_per_batch(25 * ENVS).build().unwrap())
    };
    let ideal = || {
        let envs = |_| Serial::new((0..ENVS).map(|_| Busy::new(rounds)).collect()).unwrap();
        let stepping = free::rate(WORKERS, RUN / 2, envs);
        let (start, mut calls) = (Instant::now(), 0);
        while start.elapsed() < RUN / 2 {
            sleep(FORWARD);
            calls += 1;
        }
        let acting = (calls * WORKERS * ENVS) as f64 / start.elapsed().as_secs_f64();
        stepping.min(acting)
    };
    timing::report(
        name,
        target,
        (0..PAIRS).map(|_| (served(), ideal())).collect(),
    );
}

/// Pushes to the right, after 2 ms.
fn slow() -> impl Policy + Clone + 'static {
    policy_fn([LeafSpec::new("action", DType::I64, [])], |_, mut out| {
        sleep(FORWARD);
        out.get_mut::<i64>(Key::new(0))?.fill(1);
        Ok(())
    })
}

/// Keeps a core busy; work, not time, so that threads that take turns do not each count the others'
/// turns.
fn work(rounds: u64) -> u64 {
    (0..rounds).fold(1, |x: u64, round| {
        black_box(x.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round)
    })
}

/// Rounds of work that take so long on a core of their own.
fn rounds(time: Duration) -> u64 {
    const TRIAL: u64 = 1_000_000;
    let trial = || {
        let start = Instant::now();
        black_box(work(TRIAL));
        start.elapsed()
    };
    let best = (0..20).map(|_| trial()).min().unwrap_or(time);
    (TRIAL as f64 * time.as_secs_f64() / best.as_secs_f64()) as u64
}

/// A CartPole that keeps a core busy in each step.
struct Busy {
    env: TimeLimit<CartPole>,
    rounds: u64,
}

impl Busy {
    fn new(rounds: u64) -> Self {
        Self {
            env: CartPole::v1(),
            rounds,
        }
    }
}

impl Env for Busy {
    fn spec(&self) -> &EnvSpec {
        self.env.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.env.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        black_box(work(self.rounds));
        self.env.step(action, obs)
    }
}
