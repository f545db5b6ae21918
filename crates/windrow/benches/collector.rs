//! `Collector` on native CartPole beside the loop that one would write by hand.
//!
//! Both sides store the same columns; batches hold 2048 frames (1 environment) or 4096 (64).
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "common/hand.rs"]
mod hand;
#[path = "common/mod.rs"]
mod timing;

use std::hint::black_box;

use windrow::Collector;

use hand::{Batch, HandWritten};

fn main() {
    random("random_64_envs", 64, 4096, 0.95);
    random("random_1_env", 1, 2048, 0.80);
}

fn random(name: &str, envs: usize, frames: usize, target: f64) {
    let mut collector = Collector::builder("CartPole-v1")
        .num_envs(envs)
        .frames_per_batch(frames)
        .seed(7)
        .build()
        .unwrap();
    let mut hand = HandWritten::new(envs);
    let mut batch = Batch::new(frames);
    timing::ratio(
        name,
        target,
        &mut || black_box(collector.next().unwrap().unwrap()).numel() as u64,
        &mut || {
            hand.collect(&mut batch, |_, actions, rng| {
                for action in actions {
                    *action = (rng.bits() >> 63) as i64;
                }
            });
            black_box(&batch);
            frames as u64
        },
    );
}
