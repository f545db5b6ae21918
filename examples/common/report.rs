//! What a run shows: a progress bar while it lasts, a summary and a picture at the end.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use windrow::{Stats, TensorDict, Weights};

use super::curve::Curve;

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
    /// Return so far of each episode that has not ended, by trajectory id.
    running: HashMap<i64, f32>,
    episodes: Vec<Episode>,
    /// Frames collected by then, and mean return without exploration.
    evaluations: Vec<(u64, f32)>,
    bar: ProgressBar,
    started: Instant,
    collecting: Duration,
}

impl Report {
    pub(crate) fn new(total_frames: u64) -> Result<Self> {
        let style = ProgressStyle::with_template("{bar:32.cyan/dim} {pos}/{len} frames  {msg}")?;
        let target = ProgressDrawTarget::stdout();
        Ok(Self {
            running: HashMap::new(),
            episodes: Vec::new(),
            evaluations: Vec::new(),
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

    /// Notes the episodes that ended in a batch `[env, time]` and the mean return of an evaluation after it, if there was
    /// one, and shows how things stand.
    pub(crate) fn add(
        &mut self,
        batch: &TensorDict,
        stats: Stats,
        evaluation: Option<f32>,
    ) -> Result<()> {
        self.evaluations
            .extend(evaluation.map(|mean| (stats.frames, mean)));
        let by_time = batch.transpose(0, 1)?.flatten()?;
        let reward = by_time.get(("next", "reward"))?.to_vec::<f32>()?;
        let done = by_time.get(("next", "done"))?.to_vec::<bool>()?;
        let traj_id = by_time.get(("collector", "traj_ids"))?.to_vec::<i64>()?;
        let (num_envs, before) = (batch.batch_size()[0], stats.frames - reward.len() as u64);
        for (i, id) in traj_id.into_iter().enumerate() {
            *self.running.entry(id).or_default() += reward[i];
            if done[i] {
                let step = i / num_envs;
                self.end_episode(id, before + ((step + 1) * num_envs) as u64);
            }
        }
        self.show(stats);
        Ok(())
    }

    fn end_episode(&mut self, traj_id: i64, frame: u64) {
        let episode_return = self.running.remove(&traj_id).unwrap_or_default();
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
        let mut message = format!("{rate:.0} frames/s  mean return {:.1}", self.mean_return());
        if let Some((_, greedy)) = self.evaluations.last() {
            message += &format!("  greedy {greedy:.1}");
        }
        // Only where workers run ahead can there be any.
        if stats.policy_lag.max > 0 {
            message += &format!("  policy lag {:.1}", stats.policy_lag.mean);
        }
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

    /// Ends the bar and sums up; `timed` says what was [timed](Self::time).
    pub(crate) fn finish(&self, timed: &str) {
        self.bar.abandon();
        let (frames, seconds) = (self.bar.position(), self.started.elapsed().as_secs_f64());
        let (rate, collecting) = (frames as f64 / seconds, self.collecting.as_secs_f64());
        let (mean, count) = (self.mean_return(), self.episodes.len());
        println!();
        println!("mean return     {mean:.1} over the last {WINDOW} of {count} episodes");
        println!(
            "frames/s        {rate:.0}: {frames} frames in {seconds:.1} s, {collecting:.2} s of it {timed}"
        );
    }

    /// Writes the learning curve as a picture, with a line at the return `goal`, and the policy's weights into `folder`.
    pub(crate) fn save(
        &self,
        folder: impl AsRef<Path>,
        title: &str,
        goal: f32,
        weights: &Weights,
    ) -> Result<()> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder)?;
        let path = folder.join("learning_curve.svg");
        let curve = Curve {
            episodes: &self.episodes,
            evaluations: &self.evaluations,
            frames: self.bar.position(),
            goal,
        };
        curve.draw(&path, title)?;
        println!("learning curve  {}", path.display());
        let path = folder.join("policy.safetensors");
        weights.save(&path)?;
        println!("policy          {}", path.display());
        Ok(())
    }
}
