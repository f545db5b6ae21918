//! `Collector` on native CartPole beside the loop that one would write by hand, and beside C.
//!
//! All sides store the same columns; batches hold 2048 frames (1 environment) or 4096 (64), which
//! stay in the cache of a core, or 131,072, which do not. The lines `c_*`, on Linux, compare
//! processor time, which other programs hardly change; the C compiler is `cc` or what `CC` names.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "common/hand.rs"]
mod hand;
#[cfg(target_os = "linux")]
#[path = "common/limit.rs"]
mod limit;
#[path = "common/net.rs"]
mod net;
#[path = "common/mod.rs"]
mod timing;

use std::hint::black_box;

use windrow::envs::EnvRecipe;
use windrow::{Collector, Head, NetworkPolicy, Policy};

use hand::{Batch, HandWritten, Rng};
use net::PlainNet;

fn main() {
    random("random_64_envs", 64, 4096, 0.95);
    random("random_1_env", 1, 2048, 0.80);
    network("network_64_envs", 64, 4096, 0.80);
    network("network_1_env", 1, 2048, 0.80);
    #[cfg(target_os = "linux")]
    beside_c();
}

/// A collector over `envs` environments; without a policy, actions are random.
fn collector(envs: usize, frames: usize, policy: Option<NetworkPolicy>) -> Collector {
    let builder = Collector::builder(EnvRecipe::of("CartPole-v1"))
        .num_envs(envs)
        .frames_per_batch(frames)
        .seed(7);
    match policy {
        Some(policy) => builder.policy(policy),
        None => builder,
    }
    .build()
    .unwrap()
}

/// Times `collector` against the hand-written loop with actions chosen by `act`.
fn compare(
    name: &str,
    target: f64,
    (envs, frames): (usize, usize),
    mut collector: Collector,
    act: impl Fn(&[[f32; 4]], &mut [i64], &mut Rng),
) {
    let mut hand = HandWritten::new(envs);
    let mut batch = Batch::new(frames);
    timing::ratio(
        name,
        target,
        &mut || black_box(collector.next().unwrap().unwrap()).numel() as u64,
        &mut || {
            hand.collect(&mut batch, &act);
            black_box(&batch);
            frames as u64
        },
    );
}

fn random(name: &str, envs: usize, frames: usize, target: f64) {
    let ours = collector(envs, frames, None);
    compare(name, target, (envs, frames), ours, |_, actions, rng| {
        for action in actions {
            *action = (rng.bits() >> 63) as i64;
        }
    });
}

/// Beside C that steps columns of environments, and evaluates the network, by vector instructions.
#[cfg(target_os = "linux")]
fn beside_c() {
    use limit::Program::{Network, Random};

    let lines = [
        ("c_64_envs", (64, 4096), Random, 0.50),
        ("c_64_envs_large_batches", (64, 131_072), Random, 0.50),
        ("c_1_env", (1, 2048), Random, 0.80),
        ("c_network_64_envs", (64, 4096), Network, 1.0),
        ("c_network_1_env", (1, 2048), Network, 0.60),
    ];
    for (name, (envs, frames), program, target) in lines {
        if timing::is_chosen(name) {
            let acts = matches!(program, Network);
            let policy = acts.then(|| NetworkPolicy::new(net::network(), Head::Categorical));
            let mut ours = collector(envs, frames, policy);
            let collect = &mut || black_box(ours.next().unwrap().unwrap()).numel() as u64;
            limit::ratio(name, target, collect, (envs, frames), program);
        }
    }
}

/// With the 4-64-64-2 tanh network, beside a hand-written forward inside the hand-written loop.
fn network(name: &str, envs: usize, frames: usize, target: f64) {
    let policy = NetworkPolicy::new(net::network(), Head::Categorical);
    let plain = PlainNet::new(&policy.weights());
    let ours = collector(envs, frames, Some(policy));
    compare(
        name,
        target,
        (envs, frames),
        ours,
        |observations, actions, rng| {
            for (observation, action) in observations.iter().zip(actions) {
                let [left, right] = plain.logits(observation);
                let chance = 1.0 / (1.0 + (left - right).exp());
                *action = i64::from(rng.f32() < chance);
            }
        },
    );
}
