//! Proximal policy optimisation on CartPole-v1: windrow collects, and what learns stands in `ppo`,
//! in plain Rust.
//!
//! `cargo run --release --example ppo_cartpole`; `-- --help` for what can be chosen.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use report::{Picture, Report};
use windrow::{Collector, Head, NetworkPolicy, nn::Sequential};

use crate::ppo::learner::Learner;

mod ppo {
    pub(crate) mod learner;
    mod matrix;
    mod network;
}

const NUM_ENVS: usize = 8;
const FRAMES_PER_BATCH: usize = 1024;
/// Episodes that the mean return looks back on.
const WINDOW: usize = 100;
/// CartPole-v1 ends every episode after so many steps, with a reward of 1 each.
const LONGEST_EPISODE: f32 = 500.0;
/// Mean return at which CartPole-v1 counts as solved.
const SOLVED: f32 = 475.0;
const FOLDER: &str = "target/ppo_cartpole";

/// Learns CartPole-v1 with PPO, in about a second.
///
/// Writes a learning curve and the policy's weights to target/ppo_cartpole. The same seed gives the
/// same curve.
#[derive(Parser)]
struct Args {
    /// Seed of environments, actions, initial weights and minibatches
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Frames to collect, a multiple of 8
    #[arg(long, default_value_t = 102_400, value_parser = clap::value_parser!(u64).range(1024..))]
    frames: u64,

    /// Exit with status 1 unless the last 100 episodes returned 475 or more on average
    #[arg(long)]
    check: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let actor = network(2).seed(args.seed);
    let critic = network(1).seed(!args.seed);
    let mut learner = Learner::new(&actor.weights(), &critic.weights(), args.seed)?;
    let mut collector = Collector::builder("CartPole-v1")
        .num_envs(NUM_ENVS)
        .policy(NetworkPolicy::new(actor, Head::Categorical).return_log_prob(true))
        .frames_per_batch(FRAMES_PER_BATCH)
        .total_frames(args.frames)
        .allow_partial_batch(true)
        .seed(args.seed)
        .build()?;

    let mut report = Report::new(args.frames, WINDOW)?;
    while let Some(batch) = report.time("collecting", || collector.next()) {
        let mut batch = batch?;
        let remaining = report.remaining();
        report.time("learning", || learner.learn(&mut batch, remaining))?;
        collector.update_policy_weights(&learner.weights()?)?;
        report.add(&batch, collector.stats())?;
    }
    report.finish();
    let picture = Picture {
        title: &format!("PPO on CartPole-v1, seed {}", args.seed),
        returns: 0.0..LONGEST_EPISODE + 20.0,
        goal: SOLVED,
    };
    report.save(FOLDER, &picture, &learner.weights()?)?;

    let failed = args.check && report.mean_return() < SOLVED;
    Ok(ExitCode::from(u8::from(failed)))
}

/// From an observation of CartPole to `outputs` numbers: logits of the actions, or a value.
fn network(outputs: usize) -> Sequential {
    Sequential::new()
        .linear(4, 32)
        .relu()
        .linear(32, 32)
        .relu()
        .linear(32, outputs)
}
