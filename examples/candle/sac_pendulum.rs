//! Soft actor-critic on Pendulum-v1: windrow collects into a replay buffer in the background while
//! candle learns.
//!
//! `cargo run --release --example sac_pendulum`; `-- --help` for what can be chosen.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use report::{Picture, Report};
use windrow::{
    BuildError, Collector, EvaluateError, Evaluator, Head, LazyTensorStorage, MultiAsyncCollector,
    NetworkPolicy, RandomSampler, RateLimiter, ReplayBuffer, ReplayError, TensorDict,
    nn::Sequential, policy::Scale,
};

use crate::sac::learner::Learner;

mod common;
mod sac {
    mod actor;
    pub(crate) mod learner;
}

const WORKERS: usize = 2;
/// Of one worker: few, since the next ones shall be collected with what was learned from these.
const FRAMES_PER_BATCH: usize = 32;
/// Frames with random actions, before learning begins.
const WARM_UP: u64 = 1000;
/// Frames that are remembered.
const CAPACITY: usize = 100_000;
const MINIBATCH: usize = 256;
/// Frames to be collected for each update. Collecting takes next to no time: without this bound
/// there would be a million of them.
const FRAMES_PER_UPDATE: u64 = 2;
/// Frames by which collecting may be ahead of that or behind.
const SLACK: usize = 64;
const UPDATES_PER_PUBLICATION: u64 = 16;

const UPDATES_PER_EVALUATION: u64 = 500;
/// Episodes of an evaluation.
const EPISODES: usize = 20;
/// Mean return that shows that the rod is swung up at once and kept there.
const GOAL: f64 = -200.0;
/// Episodes that the mean return of training looks back on.
const WINDOW: usize = 10;
const FOLDER: &str = "target/sac_pendulum";

/// Learns Pendulum-v1 with SAC: windrow collects into a replay buffer in the background while
/// candle learns.
///
/// Two workers write to the buffer, which makes them wait when they are too far ahead of the
/// learner, and the learner when there is too little to learn from. Every 500 updates and at the
/// end, an evaluator plays 20 episodes without exploration.
///
/// Writes a learning curve and the actor's weights to target/sac_pendulum. Which worker is first is
/// up to them, so the same seed does not give the same curve.
#[derive(Parser)]
struct Args {
    /// Seed of environments, actions, initial weights and minibatches
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Frames to collect
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(2000..))]
    frames: u64,

    /// Exit with status 1 unless the last evaluation returns -200 or more on average
    #[arg(long)]
    check: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let actor = network(3, 2).seed(args.seed);
    let critics = [1, 2].map(|n| {
        let seed = args.seed.wrapping_add(n << 32);
        network(4, 1).seed(seed)
    });
    let mut learner = Learner::new(&actor, &critics, args.seed)?;
    let policy = NetworkPolicy::new(actor, Head::TanhNormal(Scale::softplus()));
    let evaluator = evaluator(policy.clone(), !args.seed)?;
    let buffer = buffer(args.seed)?;
    let mut collector = collector(&args, policy, buffer.clone())?;
    collector.start()?;

    let mut report = Report::new(args.frames, WINDOW)?;
    let updates = (args.frames - WARM_UP) / FRAMES_PER_UPDATE;
    for update in 0..updates {
        if update > 0 && update.is_multiple_of(UPDATES_PER_EVALUATION) {
            note_evaluations(&evaluator, &mut report)?;
            evaluator.trigger_eval(Some(&learner.weights()?), Some(buffer.write_count()))?;
            report.add(&newest(&buffer, report.frames())?, collector.stats())?;
        }
        let frames = report.time("waiting", || buffer.sample(MINIBATCH))?;
        let remaining = 1.0 - update as f64 / updates as f64;
        report.time("learning", || learner.learn(&frames, remaining))?;
        if update.is_multiple_of(UPDATES_PER_PUBLICATION) {
            collector.update_policy_weights(&learner.weights()?)?;
        }
    }
    collector.async_shutdown()?;
    note_evaluations(&evaluator, &mut report)?;
    let evaluation = evaluator.evaluate(Some(&learner.weights()?), None)?;
    report.evaluated(buffer.write_count(), evaluation.reward as f32);
    report.add(&newest(&buffer, report.frames())?, collector.stats())?;
    report.finish();
    let lag = collector.stats().policy_lag;
    println!(
        "policy lag      {:.1} versions on average, {} at most",
        lag.mean, lag.max
    );
    println!(
        "greedy policy   {:.1} over {EPISODES} episodes",
        evaluation.reward
    );

    let picture = Picture {
        title: &format!("SAC on Pendulum-v1, seed {}", args.seed),
        returns: -2000.0..50.0,
        goal: GOAL as f32,
    };
    report.save(FOLDER, &picture, &learner.weights()?)?;
    let failed = args.check && evaluation.reward < GOAL;
    Ok(ExitCode::from(u8::from(failed)))
}

/// Two hidden layers.
fn network(inputs: usize, outputs: usize) -> Sequential {
    Sequential::new()
        .linear(inputs, 64)
        .relu()
        .linear(64, 64)
        .relu()
        .linear(64, outputs)
}

/// Acts with `policy` and writes to `buffer`.
fn collector(
    args: &Args,
    policy: NetworkPolicy,
    buffer: ReplayBuffer,
) -> Result<Collector, BuildError> {
    MultiAsyncCollector::builder("Pendulum-v1")
        .num_workers(WORKERS)
        .policy(policy)
        .frames_per_batch(FRAMES_PER_BATCH)
        .init_random_frames(WARM_UP)
        .total_frames(args.frames)
        .allow_partial_batch(true)
        .seed(args.seed)
        .replay_buffer(buffer)
        .build()
}

/// Plays without exploration, in a thread of its own, one episode in each environment.
fn evaluator(policy: NetworkPolicy, seed: u64) -> Result<Evaluator, BuildError> {
    Evaluator::builder("Pendulum-v1")
        .policy(policy)
        .num_trajectories(EPISODES)
        .num_envs(EPISODES)
        .seed(seed)
        .build()
}

/// Notes what was asked for and not noted yet; the evaluator was done with it long ago, beside
/// learning.
fn note_evaluations(evaluator: &Evaluator, report: &mut Report) -> Result<(), EvaluateError> {
    while let Some(evaluation) = evaluator.wait(None).transpose()? {
        report.evaluated(evaluation.step, evaluation.reward as f32);
    }
    Ok(())
}

/// A buffer that keeps collecting and learning in step.
fn buffer(seed: u64) -> Result<ReplayBuffer, ReplayError> {
    let samples_per_insert = MINIBATCH as f64 / FRAMES_PER_UPDATE as f64;
    let limiter = RateLimiter::sample_to_insert_ratio(
        samples_per_insert,
        WARM_UP as usize,
        samples_per_insert * SLACK as f64,
    )?;
    ReplayBuffer::builder()
        .storage(LazyTensorStorage::new(CAPACITY))
        .sampler(RandomSampler::new())
        .limiter(limiter)
        .seed(seed)
        .build()
}

/// Frames written after the first so many, in their order.
fn newest(buffer: &ReplayBuffer, seen: u64) -> Result<TensorDict, ReplayError> {
    let rows = (seen..buffer.write_count()).map(|frame| (frame % CAPACITY as u64) as i64);
    buffer.get(&rows.collect::<Vec<_>>())
}
