//! Every class of collector on CartPole-v1: what its batches look like, how quick it is, how far
//! its policy lags behind. Then what comes of a worker whose environment fails.
//!
//! `cargo run --release --example collectors`

use std::error::Error;

use windrow::envs::testing::{FailAt, FailingEnv, Failure};
use windrow::nn::Sequential;
use windrow::{
    AsyncCollector, CartPole, Collector, CollectorBuilder, Delivery, Head, MultiAsyncCollector,
    MultiCollector, MultiSyncCollector, NetworkPolicy, NextError,
};

const ENV: &str = "CartPole-v1";
const WORKERS: usize = 4;
/// Environments of each worker.
const NUM_ENVS: usize = 4;
const FRAMES_PER_BATCH: usize = 4096;
const TOTAL_FRAMES: u64 = 1 << 21;

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:<28}{:>10}{:>10}{:>12}{:>20}{:>10}",
        "class", "batch", "batches", "frames/s", "lag min/mean/max", "workers"
    );
    for (name, builder) in classes() {
        run(name, builder)?;
    }

    println!();
    println!("An environment that fails, on purpose, in its 300th step:");
    fail(Failure::Error)?;
    println!();
    println!("One that panics there, on purpose too; Rust's own message goes to stderr:");
    fail(Failure::Panic)
}

/// What the table shows, in the order of what they add to each other.
fn classes() -> Vec<(&'static str, CollectorBuilder)> {
    let first_two = Delivery::FirstCome {
        workers_per_batch: 2,
    };
    let several = |builder: CollectorBuilder| builder.num_workers(WORKERS);
    vec![
        ("Collector", Collector::builder(ENV)),
        ("AsyncCollector", AsyncCollector::builder(ENV)),
        (
            "MultiSyncCollector",
            several(MultiSyncCollector::builder(ENV)),
        ),
        (
            "MultiAsyncCollector",
            several(MultiAsyncCollector::builder(ENV)),
        ),
        (
            "MultiCollector(sync=true)",
            several(MultiCollector::builder(ENV, true)),
        ),
        (
            "MultiCollector(sync=false)",
            several(MultiCollector::builder(ENV, false)),
        ),
        (
            "first 2 of 4",
            several(MultiAsyncCollector::builder(ENV)).delivery(first_two),
        ),
    ]
}

/// Collects all frames, publishes weights after each batch as a learner would, and prints a line of
/// the table.
fn run(name: &str, builder: CollectorBuilder) -> Result<(), Box<dyn Error>> {
    let network = network();
    let weights = network.weights();
    let mut collector = builder
        .num_envs(NUM_ENVS)
        .policy(NetworkPolicy::new(network, Head::Categorical))
        .frames_per_batch(FRAMES_PER_BATCH)
        .total_frames(TOTAL_FRAMES)
        .seed(0)
        .build()?;
    let mut shape = Vec::new();
    while let Some(batch) = collector.next() {
        shape = batch?.batch_size().to_vec();
        collector.update_policy_weights(&weights)?;
    }
    collector.shutdown()?;

    let stats = collector.stats();
    let lag = stats.policy_lag;
    println!(
        "{name:<28}{:>10}{:>10}{:>12}{:>20}{:>10}",
        format!("{shape:?}"),
        stats.batches,
        format!("{:.2} M", stats.frames_per_second / 1e6),
        format!("{}/{:.1}/{}", lag.min, lag.mean, lag.max),
        stats.workers
    );
    Ok(())
}

/// Runs two workers, of which the second one has an environment that fails in its 300th step, and
/// prints what is heard of it. The program goes on.
fn fail(failure: Failure) -> Result<(), Box<dyn Error>> {
    let envs = [u64::MAX, 300]
        .map(|step| move || FailingEnv::new(CartPole::v1(), FailAt::Step(step), failure));
    let mut collector = MultiSyncCollector::builder(ENV)
        .worker_envs(envs)
        .frames_per_batch(128)
        .seed(0)
        .build()?;
    for batch in &mut collector {
        match batch {
            Ok(_) => {}
            Err(NextError::Worker(error)) => println!("  {error}"),
            Err(other) => return Err(other.into()),
        }
    }
    collector.shutdown()?;
    println!(
        "  after {} whole batches; shut down without error, the program goes on",
        collector.stats().batches
    );
    Ok(())
}

/// From an observation of CartPole to logits of its two actions.
fn network() -> Sequential {
    Sequential::new()
        .linear(4, 64)
        .tanh()
        .linear(64, 64)
        .tanh()
        .linear(64, 2)
}
