//! Proximal policy optimisation on HalfCheetah-v4: windrow steps MuJoCo in two threads, candle
//! learns.
//!
//! ```sh
//! pip install mujoco gymnasium
//! cargo run --release --features mujoco --example ppo_halfcheetah
//! ```
//!
//! Outside of a virtual environment, the variables `WINDROW_MUJOCO` and `WINDROW_MUJOCO_MODELS` say
//! where MuJoCo's library and Gymnasium's models are; `-- --help` for what can be chosen.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use report::{Picture, Report};
use windrow::envs::{DoubleToFloat, EnvRecipe, Statistics, VecNorm};
use windrow::{Head, MultiSyncCollector, NetworkPolicy, nn::Sequential, policy::Scale};

use crate::ppo::Learner;

mod common;
mod ppo {
    mod learner;
    pub(crate) use learner::Learner;
}

const WORKERS: usize = 2;
/// Environments of each worker.
const NUM_ENVS: usize = 4;
const FRAMES_PER_BATCH: usize = 4096;
/// Numbers in an observation, and in an action.
const OBSERVED: usize = 17;
const ACTIONS: usize = 6;
/// The logarithm of the deviation of actions before anything is learned.
const LOG_STD: f32 = -0.7;
/// Episodes that the mean return looks back on.
const WINDOW: usize = 20;
const GOAL: f32 = 1500.0;
const FOLDER: &str = "target/ppo_halfcheetah";

/// Learns HalfCheetah-v4 with PPO.
///
/// Two workers step MuJoCo, each in a thread of its own, and share the statistics that normalise
/// observations. Writes a learning curve and the actor's weights to target/ppo_halfcheetah.
#[derive(Parser)]
struct Args {
    /// Seed of environments, actions, initial weights and minibatches
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Frames to collect, a multiple of 8
    #[arg(long, default_value_t = 499_712, value_parser = clap::value_parser!(u64).range(4096..))]
    frames: u64,

    /// Exit with status 1 unless the last 20 episodes returned 1500 or more on average
    #[arg(long)]
    check: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let (actor, critic) = (network(ACTIONS), network(1));
    let (actor, critic) = (actor.seed(args.seed), critic.seed(!args.seed));
    let deviation = Scale::Parameter {
        name: "log_std".into(),
        initial: LOG_STD,
    };
    let policy = NetworkPolicy::new(actor, Head::Normal(deviation)).return_log_prob(true);
    let mut learner = Learner::new(&policy, &critic, args.seed)?;
    let norm = VecNorm::new(["observation"]).sharing(&Statistics::new());
    let env = EnvRecipe::of("HalfCheetah-v4")
        .with_transform(DoubleToFloat::new())
        .with_transform(norm);
    let mut collector = MultiSyncCollector::builder(env)
        .num_workers(WORKERS)
        .num_envs(NUM_ENVS)
        .policy(policy)
        .frames_per_batch(FRAMES_PER_BATCH)
        .total_frames(args.frames)
        .allow_partial_batch(true)
        .seed(args.seed)
        .build()?;

    let mut report = Report::new(args.frames, WINDOW)?;
    while let Some(batch) = report.time("collecting", || collector.next()) {
        let batch = batch?;
        let remaining = report.remaining();
        report.time("learning", || learner.learn(&batch, remaining))?;
        collector.update_policy_weights(&learner.weights()?)?;
        report.add(&batch, collector.stats())?;
    }
    report.finish();
    let picture = Picture {
        title: &format!("PPO on HalfCheetah-v4, seed {}", args.seed),
        returns: -1000.0..4000.0,
        goal: GOAL,
    };
    report.save(FOLDER, &picture, &learner.weights()?)?;

    let failed = args.check && report.mean_return() < GOAL;
    Ok(ExitCode::from(u8::from(failed)))
}

/// From an observation to `outputs` numbers: means of the actions, or a value.
fn network(outputs: usize) -> Sequential {
    Sequential::new()
        .linear(OBSERVED, 64)
        .tanh()
        .linear(64, 64)
        .tanh()
        .linear(64, outputs)
}
