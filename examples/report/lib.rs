//! What a run of an example shows: a progress bar while it lasts, a summary and a picture at the
//! end.
#![forbid(unsafe_code)]

mod curve;

use std::{
    collections::HashMap,
    fs,
    ops::Range,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use windrow::{Stats, TensorDict, Weights};

use curve::Curve;

/// Batches from line to line where there is no terminal for a bar.
const BATCHES_PER_LINE: u64 = 10;

/// An episode that ended.
#[derive(Debug)]
struct Episode {
    /// Frames collected by then.
    frame: u64,
    episode_return: f32,
    /// Mean return of this episode and those before, as many as the window is wide.
    mean_return: f32,
}

/// What the picture is to show.
#[derive(Debug)]
pub struct Picture<'a> {
    /// Above the picture.
    pub title: &'a str,
    /// Returns that fit in.
    pub returns: Range<f32>,
    /// Where there is a line.
    pub goal: f32,
}

/// Follows episodes over batches, and where the time goes.
#[derive(Debug)]
pub struct Report {
    /// Episodes that the mean return looks back on.
    window: usize,
    frames: u64,
    batches: u64,
    /// Whether there was an evaluation since things were shown.
    news: bool,
    /// Return so far of each episode that has not ended, by trajectory id.
    running: HashMap<i64, f32>,
    episodes: Vec<Episode>,
    /// Frames collected by then, and mean return without exploration.
    evaluations: Vec<(u64, f32)>,
    bar: ProgressBar,
    started: Instant,
    /// How long each of the program's tasks took, in the order of their beginning.
    tasks: Vec<(&'static str, Duration)>,
}

impl Report {
    /// For a run of `total_frames`, with the mean return of the last `window` episodes.
    ///
    /// # Errors
    /// When the progress bar cannot be made.
    pub fn new(total_frames: u64, window: usize) -> Result<Self> {
        let style = ProgressStyle::with_template("{bar:32.cyan/dim} {pos}/{len} frames  {msg}")?;
        let target = ProgressDrawTarget::stdout();
        Ok(Self {
            window,
            frames: 0,
            batches: 0,
            news: false,
            running: HashMap::new(),
            episodes: Vec::new(),
            evaluations: Vec::new(),
            bar: ProgressBar::with_draw_target(Some(total_frames), target).with_style(style),
            started: Instant::now(),
            tasks: Vec::new(),
        })
    }

    /// Calls `work`, and adds the time that it takes to that of `task`.
    pub fn time<T>(&mut self, task: &'static str, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = work();
        let elapsed = started.elapsed();
        match self.tasks.iter_mut().find(|(known, _)| *known == task) {
            Some((_, total)) => *total += elapsed,
            None => self.tasks.push((task, elapsed)),
        }
        result
    }

    /// Notes the mean return of an evaluation after this many `frames`.
    pub fn evaluated(&mut self, frames: u64, mean_return: f32) {
        self.evaluations.push((frames, mean_return));
        self.news = true;
    }

    /// Notes the episodes that ended in a batch, `[time]` or `[env, time]`, and shows how things
    /// stand.
    ///
    /// # Errors
    /// When a column is missing, or of another element type.
    pub fn add(&mut self, batch: &TensorDict, stats: Stats) -> Result<()> {
        let (num_envs, by_time) = match batch.ndim() {
            1 => (1, batch.clone()),
            _ => (batch.batch_size()[0], batch.transpose(0, 1)?.flatten()?),
        };
        let reward = by_time.get(("next", "reward"))?.to_vec::<f32>()?;
        let done = by_time.get(("next", "done"))?.to_vec::<bool>()?;
        let traj_id = by_time.get(("collector", "traj_ids"))?.to_vec::<i64>()?;
        for (i, id) in traj_id.into_iter().enumerate() {
            *self.running.entry(id).or_default() += reward[i];
            if done[i] {
                let step = i / num_envs;
                self.end_episode(id, self.frames + ((step + 1) * num_envs) as u64);
            }
        }
        self.frames += reward.len() as u64;
        self.batches += 1;
        self.show(stats);
        Ok(())
    }

    fn end_episode(&mut self, traj_id: i64, frame: u64) {
        let episode_return = self.running.remove(&traj_id).unwrap_or_default();
        let before = self.episodes.iter().rev().take(self.window - 1);
        let returns = before
            .map(|episode| episode.episode_return)
            .chain([episode_return]);
        let count = (self.episodes.len() + 1).min(self.window);
        self.episodes.push(Episode {
            frame,
            episode_return,
            mean_return: returns.sum::<f32>() / count as f32,
        });
    }

    fn show(&mut self, stats: Stats) {
        let rate = stats.recent_frames_per_second;
        let mut message = format!("{rate:.0} frames/s  mean return {:.1}", self.mean_return());
        if let Some((_, greedy)) = self.evaluations.last() {
            message += &format!("  greedy {greedy:.1}");
        }
        // Only where workers run ahead can there be any.
        if stats.policy_lag.max > 0 {
            message += &format!("  policy lag {:.1}", stats.policy_lag.mean);
        }
        let due = self.batches.is_multiple_of(BATCHES_PER_LINE);
        if self.bar.is_hidden() && (due || std::mem::take(&mut self.news)) {
            println!("{:>7} frames  {message}", self.frames);
        }
        self.bar.set_position(self.frames);
        self.bar.set_message(message);
    }

    /// Frames of the batches so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// The share of all frames that is still to come.
    pub fn remaining(&self) -> f64 {
        1.0 - self.bar.position() as f64 / self.bar.length().unwrap_or(1) as f64
    }

    /// Mean return of the last episodes.
    pub fn mean_return(&self) -> f32 {
        self.episodes
            .last()
            .map_or(0.0, |episode| episode.mean_return)
    }

    /// Ends the bar and sums up.
    pub fn finish(&self) {
        self.bar.abandon();
        let (frames, seconds) = (self.bar.position(), self.started.elapsed().as_secs_f64());
        let (rate, mean, count) = (
            frames as f64 / seconds,
            self.mean_return(),
            self.episodes.len(),
        );
        println!();
        println!(
            "mean return     {mean:.1} over the last {} of {count} episodes",
            count.min(self.window)
        );
        println!("frames/s        {rate:.0}: {frames} frames in {seconds:.2} s");
        for (task, time) in &self.tasks {
            println!("{task:<15} {:.2} s", time.as_secs_f64());
        }
    }

    /// Writes the learning curve and the policy's weights into `folder`.
    ///
    /// # Errors
    /// When one of the files cannot be written.
    pub fn save(
        &self,
        folder: impl AsRef<Path>,
        picture: &Picture<'_>,
        weights: &Weights,
    ) -> Result<()> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder)?;
        let path = folder.join("learning_curve.svg");
        let curve = Curve {
            picture,
            window: self.window,
            episodes: &self.episodes,
            evaluations: &self.evaluations,
            frames: self.frames,
        };
        curve.draw(&path)?;
        println!("learning curve  {}", path.display());
        let path = folder.join("policy.safetensors");
        weights.save(&path)?;
        println!("policy          {}", path.display());
        Ok(())
    }
}
