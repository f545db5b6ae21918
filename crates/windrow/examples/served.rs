//! Environments that step at speeds of their own, and one policy for all of them, evaluated in
//! batches by a server: how full its batches are, and how long requests wait and forwards take,
//! with both ways of making batches of frames.
//!
//! `cargo run --release --example served` (`-- --check` for a short run that judges itself)

use std::error::Error;
use std::time::{Duration, Instant};

use windrow::envs::{CartPole, Env, EnvError, EnvSpec, Outcome, TimeLimit};
use windrow::nn::Sequential;
use windrow::policy::{Binding, PolicyIn, PolicySpec};
use windrow::{
    AsyncBatchedCollector, CollectorBuilder, Delivery, Head, NetworkPolicy, Policy, PolicyError,
    Row, RowMut, RowsMut, Weights,
};

const WORKERS: usize = 8;
const FRAMES_PER_BATCH: usize = 160;

fn main() -> Result<(), Box<dyn Error>> {
    let check = std::env::args().any(|argument| argument == "--check");
    let total = FRAMES_PER_BATCH as u64 * if check { 10 } else { 100 };
    for (name, delivery) in [
        (
            "each batch one worker's, whichever is ready first",
            Delivery::FirstCome {
                workers_per_batch: 1,
            },
        ),
        ("each batch a share of every worker", Delivery::Synchronous),
    ] {
        println!("{WORKERS} workers, half of them five times slower; {name}:");
        run(builder().delivery(delivery).total_frames(total), total)?;
    }
    println!("All collectors have ended, and their servers with them.");
    Ok(())
}

/// Workers whose environments take 1 or 5 ms for a step, and a network that is evaluated for all of
/// them.
fn builder() -> CollectorBuilder {
    let millis = |worker: usize| if worker < WORKERS / 2 { 1 } else { 5 };
    let envs = (0..WORKERS).map(|worker| {
        let step_time = Duration::from_millis(millis(worker));
        move || Slow {
            env: CartPole::v1(),
            step_time,
        }
    });
    let net = Sequential::new()
        .linear(4, 64)
        .tanh()
        .linear(64, 64)
        .tanh()
        .linear(64, 2)
        .seed(1);
    AsyncBatchedCollector::builder("CartPole-v1")
        .worker_envs(envs)
        .policy(Distant(NetworkPolicy::new(net, Head::Categorical)))
        .frames_per_batch(FRAMES_PER_BATCH)
        .seed(0)
}

/// Collects everything, with weights that change meanwhile, and tells how the server fares.
fn run(builder: CollectorBuilder, total: u64) -> Result<(), Box<dyn Error>> {
    let mut collector = builder.build()?;
    let weights = collector.policy_weights();
    let (begun, mut told) = (Instant::now(), Instant::now());
    let mut frames = 0;
    while let Some(batch) = collector.next() {
        frames += batch?.numel() as u64;
        collector.update_policy_weights(&weights)?;
        let over = frames == total;
        if !over && told.elapsed() < Duration::from_millis(500) {
            continue;
        }
        told = Instant::now();
        let server = collector.server_stats().ok_or("a server")?;
        println!(
            "  {frames:>6} frames, {:>6.0} a second | batch fill {:>3.0} % | queue {:>5} and {:>5} us | forward {:>4} and {:>4} us (p50, p95)",
            frames as f64 / begun.elapsed().as_secs_f64(),
            100.0 * server.batch_fill,
            server.queue_p50.as_micros(),
            server.queue_p95.as_micros(),
            server.forward_p50.as_micros(),
            server.forward_p95.as_micros(),
        );
    }
    collector.shutdown()?;
    let server = collector.server_stats().ok_or("a server")?;
    let expected = (total, 0, 0);
    let got = (frames, server.failed_batches, server.clients);
    if got != expected || server.rows < total {
        return Err(format!(
            "expected {expected:?} frames, failed batches and clients, got {got:?}"
        )
        .into());
    }
    Ok(())
}

/// A network that takes 2 ms for any number of rows, as a large one on an accelerator does.
#[derive(Clone)]
struct Distant(NetworkPolicy);

impl Policy for Distant {
    fn bind(&mut self, binding: &Binding<'_>) -> Result<PolicySpec, PolicyError> {
        self.0.bind(binding)
    }

    fn act(&mut self, input: &PolicyIn<'_>, out: RowsMut<'_>) -> Result<(), PolicyError> {
        std::thread::sleep(Duration::from_millis(2));
        self.0.act(input, out)
    }

    fn load(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.0.load(weights)
    }

    fn weights(&self) -> Weights {
        self.0.weights()
    }
}

/// A CartPole that takes its time.
struct Slow {
    env: TimeLimit<CartPole>,
    step_time: Duration,
}

impl Env for Slow {
    fn spec(&self) -> &EnvSpec {
        self.env.spec()
    }

    fn reset(&mut self, seed: Option<u64>, obs: RowMut<'_>) -> Result<(), EnvError> {
        self.env.reset(seed, obs)
    }

    fn step(&mut self, action: Row<'_>, obs: RowMut<'_>) -> Result<Outcome, EnvError> {
        std::thread::sleep(self.step_time);
        self.env.step(action, obs)
    }
}
