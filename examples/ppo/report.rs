//! What a run tells: a progress bar while it lasts, a learning curve at the end.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use plotters::prelude::*;
use windrow::{Stats, tensordict::TensorDict};

/// Episodes that the mean return looks back on.
const WINDOW: usize = 100;
/// Batches between two lines where there is no terminal for a bar.
const BATCHES_PER_LINE: u64 = 10;
/// Longest return that CartPole-v1 allows.
const MAX_RETURN: f32 = 500.0;

const EPISODES: RGBColor = RGBColor(91, 143, 199);
const MEAN: RGBColor = RGBColor(16, 62, 110);
const GOAL: RGBColor = RGBColor(190, 70, 40);
const INK: RGBColor = RGBColor(70, 70, 70);

/// Follows episodes over batches.
pub(crate) struct Report {
    /// Return so far of the episode that each environment is in.
    running: Vec<f32>,
    episodes: Vec<Episode>,
    bar: ProgressBar,
    started: Instant,
    collecting: Duration,
}

/// An episode that ended.
struct Episode {
    /// Frames collected by then.
    frame: u64,
    episode_return: f32,
    /// Mean return of this episode and the ones before, [`WINDOW`] at most.
    mean: f32,
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

    /// Does what `collect` does, and remembers how long it took.
    pub(crate) fn time<T>(&mut self, collect: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let collected = collect();
        self.collecting += started.elapsed();
        collected
    }

    /// Notes the episodes that ended in a batch `[env, time]`, and shows how far things are.
    pub(crate) fn add(&mut self, batch: &TensorDict, stats: Stats) -> Result<()> {
        let reward = batch.get(("next", "reward"))?.to_vec::<f32>()?;
        let done = batch.get(("next", "done"))?.to_vec::<bool>()?;
        let num_envs = self.running.len();
        let steps = reward.len() / num_envs;
        let mut frame = stats.frames - reward.len() as u64;
        for step in 0..steps {
            frame += num_envs as u64;
            for env in 0..num_envs {
                let at = env * steps + step;
                self.running[env] += reward[at];
                if done[at] {
                    self.end_episode(env, frame);
                }
            }
        }
        self.show(stats);
        Ok(())
    }

    fn end_episode(&mut self, env: usize, frame: u64) {
        let episode_return = std::mem::take(&mut self.running[env]);
        let before = self.episodes.iter().rev().take(WINDOW - 1);
        let (sum, count) = before.fold((episode_return, 1.0), |(sum, count), episode| {
            (sum + episode.episode_return, count + 1.0)
        });
        self.episodes.push(Episode {
            frame,
            episode_return,
            mean: sum / count,
        });
    }

    fn show(&self, stats: Stats) {
        let message = format!(
            "{:.0} frames/s  mean return {:.1}",
            stats.recent_frames_per_second,
            self.mean_return()
        );
        if self.bar.is_hidden() && stats.batches.is_multiple_of(BATCHES_PER_LINE) {
            println!("{:>7} frames  {message}", stats.frames);
        }
        self.bar.set_position(stats.frames);
        self.bar.set_message(message);
    }

    /// The share of all frames that is still to come.
    pub(crate) fn remaining(&self) -> f64 {
        let total = self.bar.length().unwrap_or(1);
        1.0 - self.bar.position() as f64 / total as f64
    }

    /// Mean return of the last 100 episodes.
    pub(crate) fn mean_return(&self) -> f32 {
        self.episodes.last().map_or(0.0, |episode| episode.mean)
    }

    /// Ends the bar and says what came out.
    pub(crate) fn finish(&self) {
        self.bar.finish();
        let seconds = self.started.elapsed().as_secs_f64();
        let frames = self.bar.position();
        println!();
        println!(
            "mean return     {:.1} over the last {WINDOW} of {} episodes",
            self.mean_return(),
            self.episodes.len()
        );
        println!(
            "frames/s        {:.0}: {frames} in {seconds:.1} s, {:.1} s of which collecting and the rest learning",
            frames as f64 / seconds,
            self.collecting.as_secs_f64()
        );
    }

    /// Draws the learning curve, with a line at the return `goal`.
    pub(crate) fn draw(&self, path: &Path, title: &str, goal: f32) -> Result<()> {
        let end = self.bar.position();
        let root = SVGBackend::new(path, (900, 520)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 24).into_font().color(&INK))
            .margin(18)
            .x_label_area_size(52)
            .y_label_area_size(62)
            .build_cartesian_2d(0..end, 0f32..MAX_RETURN * 1.04)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(INK.mix(0.15))
            .axis_style(INK.mix(0.5))
            .label_style(("sans-serif", 15).into_font().color(&INK))
            .axis_desc_style(("sans-serif", 17).into_font().color(&INK))
            .x_desc("frames")
            .y_desc("return of an episode")
            .x_label_formatter(&|frames| format!("{} k", frames / 1000))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .draw()?;

        let episodes = self.episodes.iter().map(|episode| {
            Circle::new(
                (episode.frame, episode.episode_return),
                2,
                EPISODES.mix(0.4).filled(),
            )
        });
        chart
            .draw_series(episodes)?
            .label("episodes")
            .legend(|(x, y)| Circle::new((x + 10, y), 3, EPISODES.mix(0.6).filled()));
        let mean = self
            .episodes
            .iter()
            .map(|episode| (episode.frame, episode.mean));
        chart
            .draw_series(LineSeries::new(mean, MEAN.stroke_width(3)))?
            .label(format!("mean of the last {WINDOW}"))
            .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], MEAN.stroke_width(3)));
        chart
            .draw_series(DashedLineSeries::new(
                [(0, goal), (end, goal)],
                8,
                6,
                GOAL.stroke_width(2),
            ))?
            .label(format!("solved: {goal}"))
            .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], GOAL.stroke_width(2)));
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .label_font(("sans-serif", 15).into_font().color(&INK))
            .background_style(WHITE.mix(0.85))
            .border_style(INK.mix(0.3))
            .draw()?;
        root.present()?;
        Ok(())
    }
}
