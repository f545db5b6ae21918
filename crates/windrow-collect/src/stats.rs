use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What a collector has done so far.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Frames delivered.
    pub frames: u64,
    /// Batches delivered.
    pub batches: u64,
    /// Frames to be delivered in all; `None` when endless.
    pub total_frames: Option<u64>,
    /// Whether all frames were delivered.
    pub completed: bool,
    /// Frames asked for in a batch.
    pub requested_frames_per_batch: usize,
    /// Environments over all workers.
    pub num_envs: usize,
    /// Frames delivered a second since the first batch was asked for.
    pub frames_per_second: f64,
    /// Frames delivered a second over the last ten seconds.
    pub recent_frames_per_second: f64,
    /// Version of the weights: how often they were updated.
    pub policy_version: i64,
    /// Seed that environments and policy noise derive from.
    pub seed: u64,
    /// Memory of all slabs in bytes.
    pub slab_bytes: usize,
}

const RECENT: Duration = Duration::from_secs(10);
/// Keeps the window short where batches are small and quick.
const TICK: Duration = Duration::from_millis(100);

/// Measures how fast frames arrive.
#[derive(Debug, Default)]
pub(crate) struct Throughput {
    began: Option<Instant>,
    frames: u64,
    last: Option<Instant>,
    /// When, and how many frames had arrived by then; the oldest entry is about ten seconds old.
    window: VecDeque<(Instant, u64)>,
}

impl Throughput {
    /// A batch is being asked for.
    pub(crate) fn begin(&mut self) {
        if self.began.is_none() {
            let now = Instant::now();
            self.began = Some(now);
            self.window.push_back((now, 0));
        }
    }

    /// `frames` more have arrived.
    pub(crate) fn add(&mut self, frames: u64) {
        let now = Instant::now();
        self.frames += frames;
        self.last = Some(now);
        if let Some(&(newest, _)) = self.window.back()
            && now - newest >= TICK
        {
            self.window.push_back((now, self.frames));
        }
        while self.window.len() > 1 && now - self.window[1].0 >= RECENT {
            self.window.pop_front();
        }
    }

    /// Frames a second since the start, and over the last ten seconds.
    pub(crate) fn rates(&self) -> (f64, f64) {
        let rate = |since: Option<(Instant, u64)>| match (since, self.last) {
            (Some((start, before)), Some(last)) if last > start => {
                (self.frames - before) as f64 / (last - start).as_secs_f64()
            }
            _ => 0.0,
        };
        (
            rate(self.began.map(|began| (began, 0))),
            rate(self.window.front().copied()),
        )
    }
}
