//! Deep Q-learning on CartPole-v1: windrow's workers collect in threads while candle learns.
//!
//! `cargo run --release --example dqn_cartpole`; `-- --help` for what can be chosen.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use report::{Picture, Report};
use windrow::{
    BuildError, Collector, ExplorationType, MultiAsyncCollector, Weights, nn::Sequential,
};

use crate::dqn::{learner::Learner, policy::EpsilonGreedy};

mod common;
mod dqn {
    pub(crate) mod learner;
    pub(crate) mod policy;
}

const WORKERS: usize = 2;
/// Of one worker: few, since collecting is far quicker than learning, and what is collected ahead
/// is soon stale.
const FRAMES_PER_BATCH: usize = 256;
/// Probability of a random action, at first and at last.
const EPSILON: (f64, f64) = (1.0, 0.05);
/// Share of all frames after which it is at its last value.
const EXPLORATION: f64 = 0.1;

/// Batches from one evaluation to the next.
const BATCHES_PER_EVALUATION: u64 = 10;
/// Episodes of an evaluation.
const EPISODES: usize = 100;
/// CartPole-v1 ends every episode after so many steps.
const LONGEST_EPISODE: usize = 500;
/// Episodes that the mean return looks back on.
const WINDOW: usize = 100;
/// Mean return at which CartPole-v1 counts as solved.
const SOLVED: f32 = 475.0;
const FOLDER: &str = "target/dqn_cartpole";

/// Learns CartPole-v1 with double DQN: windrow's workers collect in threads while candle learns.
///
/// After every tenth batch and the last, 100 episodes are played without exploration. When they
/// return 475 or more on average, and 100 others do so too, CartPole-v1 is solved and training
/// ends.
///
/// Writes a learning curve and the network's weights to target/dqn_cartpole. Which worker is first
/// is up to them, so the same seed does not give the same curve.
#[derive(Parser)]
struct Args {
    /// Seed of environments, actions, initial weights and minibatches
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Frames to collect at most
    #[arg(long, default_value_t = 102_400, value_parser = clap::value_parser!(u64).range(1024..))]
    frames: u64,

    /// Exit with status 1 unless solved
    #[arg(long)]
    check: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let network = network().seed(args.seed);
    let mut learner = Learner::new(&network, args.seed)?;
    let policy = EpsilonGreedy::new(network);
    let mut examiner = examiner(policy.clone(), !args.seed)?;
    let mut collector = MultiAsyncCollector::builder("CartPole-v1")
        .num_workers(WORKERS)
        .num_envs(1)
        .policy(policy)
        .frames_per_batch(FRAMES_PER_BATCH)
        .total_frames(args.frames)
        .allow_partial_batch(true)
        .seed(args.seed)
        .build()?;

    let mut report = Report::new(args.frames, WINDOW)?;
    let mut greedy_return = 0.0;
    while greedy_return < SOLVED
        && let Some(batch) = report.time("waiting", || collector.next())
    {
        let batch = batch?;
        report.time("learning", || learner.learn(&batch))?;
        let epsilon = epsilon(report.remaining());
        let weights = EpsilonGreedy::pack(learner.weights()?, epsilon)?;
        collector.update_policy_weights(&weights)?;

        let stats = collector.stats();
        let due = stats.completed || stats.batches.is_multiple_of(BATCHES_PER_EVALUATION);
        if due {
            greedy_return = report.time("evaluating", || examine(&mut examiner, &weights))?;
            report.evaluated(stats.frames, greedy_return);
        }
        report.add(&batch, stats)?;
    }
    report.finish();
    let lag = collector.stats().policy_lag;
    println!(
        "policy lag      {:.1} versions on average, {} at most",
        lag.mean, lag.max
    );
    println!("greedy policy   {greedy_return:.1} over {EPISODES} episodes");
    collector.shutdown()?;

    let picture = Picture {
        title: &format!("DQN on CartPole-v1, seed {}", args.seed),
        returns: 0.0..LONGEST_EPISODE as f32 + 20.0,
        goal: SOLVED,
    };
    report.save(FOLDER, &picture, &learner.weights()?)?;
    let failed = args.check && greedy_return < SOLVED;
    Ok(ExitCode::from(u8::from(failed)))
}

/// From an observation of CartPole to the values of both actions.
fn network() -> Sequential {
    Sequential::new()
        .linear(4, 64)
        .relu()
        .linear(64, 64)
        .relu()
        .linear(64, 2)
}

/// Probability of a random action while the share `remaining` of all frames is still to come.
fn epsilon(remaining: f64) -> f32 {
    let (first, last) = EPSILON;
    let progress = ((1.0 - remaining) / EXPLORATION).min(1.0);
    (first + (last - first) * progress) as f32
}

/// Plays without exploration, in this thread, one episode or more in each environment.
fn examiner(policy: EpsilonGreedy, seed: u64) -> Result<Collector, BuildError> {
    Collector::builder("CartPole-v1")
        .num_envs(EPISODES)
        .policy(policy)
        .exploration_type(ExplorationType::Mode)
        .frames_per_batch(EPISODES * LONGEST_EPISODE)
        .reset_at_each_iter(true)
        .seed(seed)
        .build()
}

/// Mean return without exploration.
fn examine(examiner: &mut Collector, weights: &Weights) -> anyhow::Result<f32> {
    examiner.update_policy_weights(weights)?;
    let mean = mean_return(examiner)?;
    if mean < SOLVED {
        return Ok(mean);
    }
    // Picked for being good, it was lucky more often than not: only other episodes can confirm it.
    mean_return(examiner)
}

/// Mean return of a new episode in each of the examiner's environments.
fn mean_return(examiner: &mut Collector) -> anyhow::Result<f32> {
    let batch = examiner.rollout()?;
    let reward = batch.get(("next", "reward"))?.to_vec::<f32>()?;
    let done = batch.get(("next", "done"))?.to_vec::<bool>()?;
    let envs = reward
        .chunks(LONGEST_EPISODE)
        .zip(done.chunks(LONGEST_EPISODE));
    let returns = envs.map(|(reward, done)| {
        let steps = 1 + done.iter().take_while(|done| !**done).count();
        reward.iter().take(steps).sum::<f32>()
    });
    Ok(returns.sum::<f32>() / EPISODES as f32)
}
