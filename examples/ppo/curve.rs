//! The learning curve as a picture.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

use super::report::{Episode, WINDOW};

/// Longest return that CartPole-v1 allows, and a little air.
const TOP: f32 = 520.0;

const EPISODES: RGBAColor = RGBAColor(91, 143, 199, 0.45);
const MEAN: RGBColor = RGBColor(16, 62, 110);
const GOAL: RGBColor = RGBColor(190, 70, 40);
const INK: RGBColor = RGBColor(70, 70, 70);

/// Draws the return of every episode, their running mean and a line at `goal`, over `frames` frames, as SVG.
pub(super) fn draw(
    path: &Path,
    title: &str,
    episodes: &[Episode],
    frames: u64,
    goal: f32,
) -> Result<()> {
    let font = |size| ("sans-serif", size).into_font().color(&INK);
    let root = SVGBackend::new(path, (900, 520)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, font(24))
        .margin(18)
        .x_label_area_size(52)
        .y_label_area_size(62)
        .build_cartesian_2d(0..frames, 0f32..TOP)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.15))
        .axis_style(INK.mix(0.5))
        .label_style(font(15))
        .axis_desc_style(font(17))
        .x_desc("frames")
        .y_desc("return of an episode")
        .x_label_formatter(&|frames| format!("{} k", frames / 1000))
        .y_labels(6)
        .y_label_formatter(&|value| format!("{value:.0}"))
        .draw()?;

    let dot = |at| Circle::new(at, 2, EPISODES.filled());
    chart
        .draw_series(
            episodes
                .iter()
                .map(|episode| dot((episode.frame, episode.episode_return))),
        )?
        .label("episodes")
        .legend(|(x, y)| Circle::new((x + 10, y), 3, EPISODES.filled()));
    let line = |color: RGBColor| {
        move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(3))
    };
    let mean = episodes
        .iter()
        .map(|episode| (episode.frame, episode.mean_return));
    chart
        .draw_series(LineSeries::new(mean, MEAN.stroke_width(3)))?
        .label(format!("mean of the last {WINDOW}"))
        .legend(line(MEAN));
    let ends = [(0, goal), (frames, goal)];
    chart
        .draw_series(DashedLineSeries::new(ends, 8, 6, GOAL.stroke_width(2)))?
        .label(format!("solved: {goal}"))
        .legend(line(GOAL));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .label_font(font(15))
        .background_style(WHITE)
        .border_style(INK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
