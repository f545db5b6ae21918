//! Threads that only step: what collectors are compared with.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windrow::envs::{Outcomes, Reset, VecEnv};
use windrow::{Key, RowBlock};

/// Frames a second of `threads` threads, each with the environments that `make` gives for its
/// number, which step for `run`.
pub fn rate<V: VecEnv>(threads: usize, run: Duration, make: impl Fn(usize) -> V + Sync) -> f64 {
    let frames = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (frames, make) = (&frames, &make);
            scope.spawn(move || step_until(&mut make(thread), start + run, frames));
        }
    });
    frames.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

fn step_until(envs: &mut impl VecEnv, end: Instant, frames: &AtomicU64) {
    let rows = envs.num_envs();
    let mut obs = RowBlock::new(&envs.spec().observation_leaves(), rows).unwrap();
    let mut actions = RowBlock::new(&envs.spec().action_leaves(), rows).unwrap();
    actions
        .rows_mut()
        .get_mut::<i64>(Key::new(0))
        .unwrap()
        .fill(1);
    let all: Vec<_> = (0..rows).map(|env| Reset { env, seed: None }).collect();
    envs.reset(&all, obs.rows_mut()).unwrap();
    let (mut reward, mut terminated) = (vec![0.0; rows], vec![false; rows]);
    let mut truncated = terminated.clone();
    while Instant::now() < end {
        let outcomes = Outcomes {
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
        };
        envs.step(actions.rows(), obs.rows_mut(), outcomes).unwrap();
        frames.fetch_add(rows as u64, Ordering::Relaxed);
        let over = all
            .iter()
            .filter(|reset| terminated[reset.env] | truncated[reset.env]);
        let over: Vec<_> = over.copied().collect();
        if !over.is_empty() {
            envs.reset(&over, obs.rows_mut()).unwrap();
        }
    }
}
