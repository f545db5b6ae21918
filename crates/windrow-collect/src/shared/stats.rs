use std::collections::VecDeque;
use std::time::{Duration, Instant};

use windrow_slab::{Commit, Lease};

/// What a collector has done so far.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Frames delivered; where whole trajectories are, or a replay buffer is filled, frames
    /// collected.
    pub frames: u64,
    /// Batches delivered; where a replay buffer is filled with whole trajectories, batches
    /// collected.
    pub batches: u64,
    /// Frames that were collected and belong to no trajectory that was or will be delivered.
    pub dropped_frames: u64,
    /// Frames to be delivered in all; `None` when endless.
    pub total_frames: Option<u64>,
    /// Whether all frames were delivered.
    pub completed: bool,
    /// Whether an error has ended the collector, also in the background.
    /// [`Collector::check`](crate::Collector::check) returns it, unless a call has returned it
    /// before.
    pub failed: bool,
    /// Frames asked for in a batch.
    pub requested_frames_per_batch: usize,
    /// Workers.
    pub workers: usize,
    /// Workers that still collect.
    pub workers_alive: usize,
    /// How often a failed worker was replaced.
    pub restarts: u64,
    /// Environments over all workers.
    pub num_envs: usize,
    /// Frames delivered a second since the first batch was asked for.
    pub frames_per_second: f64,
    /// Frames delivered a second over the last ten seconds.
    pub recent_frames_per_second: f64,
    /// How long workers in threads have waited for a part, over all of them.
    pub workers_waited: Duration,
    /// Version of the weights: how often they were updated.
    pub policy_version: i64,
    /// How many versions behind the newest one the parts of batches were when they were delivered.
    pub policy_lag: PolicyLag,
    /// The greatest age of a part that was delivered: how many of the batches before its own were
    /// delivered, with new weights published between them, since its worker began it.
    /// [`max_lag`](crate::CollectorBuilder::max_lag) bounds it.
    pub policy_age: u64,
    /// The age of the oldest part that workers fill, or that waits to be delivered.
    pub oldest_part: u64,
    /// How long whole parts and new weights have waited for older parts, so that these were
    /// delivered in time.
    pub max_lag_waited: Duration,
    /// Seed that environments and policy noise derive from.
    pub seed: u64,
    /// Slabs allocated so far: one for each batch that was held at once, and those that workers
    /// fill.
    pub slabs: usize,
    /// Memory of all slabs in bytes.
    pub slab_bytes: usize,
}

/// What one worker of a collector has done so far; see
/// [`Collector::worker_stats`](crate::Collector::worker_stats).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Number of the worker.
    pub worker: usize,
    /// Frames that it has collected, also those that were not delivered.
    pub frames: u64,
    /// Parts of batches that it has filled with them.
    pub parts: u64,
    /// How often it was replaced after a fault.
    pub restarts: u64,
    /// Whether it still collects: false where it was lost and the others go on without it.
    pub alive: bool,
    /// How long it has waited for a part, if it runs in a thread or a process of its own.
    pub waited: Duration,
    /// Number of its process, where it runs in one of its own; `None` elsewhere, and where that
    /// process has ended.
    pub pid: Option<u32>,
    /// Version of the weights that have acted in its last part; 0 before the first.
    pub policy_version: i64,
    /// How many versions the newest weights are ahead of these.
    pub policy_lag: i64,
}

/// How many versions behind the newest one parts were collected.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct PolicyLag {
    /// The freshest part's.
    pub min: i64,
    /// Over all parts.
    pub mean: f64,
    /// The stalest part's.
    pub max: i64,
}

/// What was delivered so far.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) frames: u64,
    pub(crate) batches: u64,
    pub(crate) dropped: u64,
    pub(crate) throughput: Throughput,
    pub(crate) lag: Lag,
    /// The greatest age of a part.
    pub(crate) age: u64,
}

impl Counters {
    pub(crate) fn go_on_from(&mut self, frames: u64, batches: u64) {
        (self.frames, self.batches) = (frames, batches);
    }

    /// `frames` frames of `slab` have come while `newest` was the newest version.
    pub(crate) fn collected(&mut self, frames: u64, newest: i64, slab: &Lease) {
        self.lag.add(newest, slab.commits());
        self.age = slab.ages().iter().copied().fold(self.age, u64::max);
        self.throughput.add(frames);
    }
}

/// Collects the lag of each part.
#[derive(Debug, Default)]
pub(crate) struct Lag {
    seen: Option<(i64, i64)>,
    sum: i64,
    parts: u64,
}

impl Lag {
    /// A batch of these parts was delivered while `newest` was the newest version.
    pub(crate) fn add(&mut self, newest: i64, parts: &[Commit]) {
        for lag in parts.iter().map(|part| newest - part.version) {
            let (min, max) = self.seen.unwrap_or((lag, lag));
            self.seen = Some((min.min(lag), max.max(lag)));
            self.sum += lag;
            self.parts += 1;
        }
    }

    pub(crate) fn of_all(&self) -> PolicyLag {
        let (min, max) = self.seen.unwrap_or_default();
        PolicyLag {
            min,
            mean: self.sum as f64 / self.parts.max(1) as f64,
            max,
        }
    }
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

    pub(crate) fn has_begun(&self) -> bool {
        self.began.is_some()
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
