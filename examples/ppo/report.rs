//! What a run shows: a progress bar while it lasts, a summary at the end.

use std::{
    mem,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use windrow::{Stats, TensorDict};

use super::curve;

/// Episodes that the mean return looks back on.
pub(super) const WINDOW: usize = 100;
/// Batches from line to line where there is no terminal for a bar.
const BATCHES_PER_LINE: u64 = 10;

/// An episode that ended.
pub(super) struct Episode {
    /// Frames collected by then.
    pub(super) frame: u64,
    pub(super) episode_return: f32,
    /// Mean return of this episode and those before, [`WINDOW`] at most.
    pub(super) mean_return: f32,
}

/// Follows episodes over batches, and the time that collecting takes.
pub(crate) struct Report {
    /// Return so far of the episode that each environment is in.
    running: Vec<f32>,
    episodes: Vec<Episode>,
    bar: ProgressBar,
    started: Instant,
    collecting: Duration,
}

impl Report {
    pub(crate) fn new(total_frames: u64, num_envs: usize) -> Result<Self> {
        let style = ProgressStyle::with_template("{bar:32.cyan/dim} {pos}/{len} frames  {msg}")?;
        let target = ProgressDrawTarget::stdout();
        Ok(Self {
            running: vec![0.0; num_envs],
            episodes: Vec::new(),
            bar: ProgressBar::with_draw_target(Some(total_frames), target).with_style(style),
            started: Instant::now(),
            collecting: Duration::ZERO,
        })
    }

    /// Does what `collect` does, and counts the time.
    pub(crate) fn time<T>(&mut self, collect: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let collected = collect();
        self.collecting += started.elapsed();
        collected
    }

    /// Notes the episodes that ended in a batch `[env, time]`, and shows how things stand.
    pub(crate) fn add(&mut self, batch: &TensorDict, stats: Stats) -> Result<()> {
        let reward = batch.get(("next", "reward"))?.to_vec::<f32>()?;
        let done = batch.get(("next", "done"))?.to_vec::<bool>()?;
        let num_envs = self.running.len();
        let steps = reward.len() / num_envs;
        for step in 0..steps {
            for env in 0..num_envs {
                self.running[env] += reward[env * steps + step];
                if done[env * steps + step] {
                    self.end_episode(env, stats.frames - ((steps - 1 - step) * num_envs) as u64);
                }
            }
        }
        self.show(stats);
        Ok(())
    }

    fn end_episode(&mut self, env: usize, frame: u64) {
        let episode_return = mem::take(&mut self.running[env]);
        let before = self.episodes.iter().rev().take(WINDOW - 1);
        let returns = before
            .map(|episode| episode.episode_return)
            .chain([episode_return]);
        let count = (self.episodes.len() + 1).min(WINDOW);
        self.episodes.push(Episode {
            frame,
            episode_return,
            mean_return: returns.sum::<f32>() / count as f32,
        });
    }

    fn show(&self, stats: Stats) {
        let rate = stats.recent_frames_per_second;
        let message = format!("{rate:.0} frames/s  mean return {:.1}", self.mean_return());
        if self.bar.is_hidden() && stats.batches.is_multiple_of(BATCHES_PER_LINE) {
            println!("{:>7} frames  {message}", stats.frames);
        }
        self.bar.set_position(stats.frames);
        self.bar.set_message(message);
    }

    /// The share of all frames that is still to come.
    pub(crate) fn remaining(&self) -> f64 {
        1.0 - self.bar.position() as f64 / self.bar.length().unwrap_or(1) as f64
    }

    /// Mean return of the last 100 episodes.
    pub(crate) fn mean_return(&self) -> f32 {
        self.episodes
            .last()
            .map_or(0.0, |episode| episode.mean_return)
    }

    /// Ends the bar and sums up.
    pub(crate) fn finish(&self) {
        self.bar.finish();
        let (frames, seconds) = (self.bar.position(), self.started.elapsed().as_secs_f64());
        let (rate, collecting) = (frames as f64 / seconds, self.collecting.as_secs_f64());
        let (mean, count) = (self.mean_return(), self.episodes.len());
        println!();
        println!("mean return     {mean:.1} over the last {WINDOW} of {count} episodes");
        println!(
            "frames/s        {rate:.0}: {frames} frames in {seconds:.1} s, {collecting:.2} s of it collecting"
        );
    }

    /// Writes the learning curve as a picture, with a line at the return `goal`.
    pub(crate) fn draw(&self, path: &Path, title: &str, goal: f32) -> Result<()> {
        curve::draw(path, title, &self.episodes, self.bar.position(), goal)
    }
}
