//! The learning curve as a picture.

use std::path::Path;

use anyhow::Result;
use plotters::{chart::ChartContext, coord::types, prelude::*};

use crate::{Episode, Picture};

const EPISODES: RGBAColor = RGBAColor(91, 143, 199, 0.45);
const MEAN: RGBColor = RGBColor(16, 62, 110);
const EVALUATIONS: RGBColor = RGBColor(46, 139, 87);
const GOAL: RGBColor = RGBColor(190, 70, 40);
const INK: RGBColor = RGBColor(70, 70, 70);

/// What is drawn: the return of every episode, their running mean, what evaluations returned, and a
/// line at the goal.
pub(super) struct Curve<'a> {
    pub(super) picture: &'a Picture<'a>,
    /// Episodes that the mean looks back on.
    pub(super) window: usize,
    pub(super) episodes: &'a [Episode],
    /// Frames and mean return of each.
    pub(super) evaluations: &'a [(u64, f32)],
    /// Where the picture ends.
    pub(super) frames: u64,
}

type Chart<'a> =
    ChartContext<'a, SVGBackend<'a>, Cartesian2d<types::RangedCoordu64, types::RangedCoordf32>>;

impl Curve<'_> {
    /// Writes the picture as SVG.
    pub(super) fn draw(&self, path: &Path) -> Result<()> {
        let root = SVGBackend::new(path, (900, 520)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(self.picture.title, font(24))
            .margin(18)
            .x_label_area_size(52)
            .y_label_area_size(62)
            .build_cartesian_2d(0..self.frames, self.picture.returns.clone())?;
        draw_axes(&mut chart)?;
        self.draw_episodes(&mut chart)?;
        if !self.evaluations.is_empty() {
            let points = self.evaluations.iter().copied();
            draw_line(&mut chart, points, "greedy policy", EVALUATIONS)?;
        }
        self.draw_goal(&mut chart)?;
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

    fn draw_episodes(&self, chart: &mut Chart<'_>) -> Result<()> {
        let returns = self.episodes.iter().map(|episode| {
            let at = (episode.frame, episode.episode_return);
            Circle::new(at, 2, EPISODES.filled())
        });
        chart
            .draw_series(returns)?
            .label("episodes")
            .legend(|(x, y)| Circle::new((x + 10, y), 3, EPISODES.filled()));
        let means = self
            .episodes
            .iter()
            .map(|episode| (episode.frame, episode.mean_return));
        let label = format!("mean of the last {}", self.window);
        draw_line(chart, means, &label, MEAN)
    }

    fn draw_goal(&self, chart: &mut Chart<'_>) -> Result<()> {
        let goal = self.picture.goal;
        let ends = [(0, goal), (self.frames, goal)];
        chart
            .draw_series(DashedLineSeries::new(ends, 8, 6, GOAL.stroke_width(2)))?
            .label(format!("goal: {goal}"))
            .legend(legend(GOAL));
        Ok(())
    }
}

fn draw_axes(chart: &mut Chart<'_>) -> Result<()> {
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
    Ok(())
}

fn draw_line(
    chart: &mut Chart<'_>,
    points: impl Iterator<Item = (u64, f32)>,
    label: &str,
    color: RGBColor,
) -> Result<()> {
    chart
        .draw_series(LineSeries::new(points, color.stroke_width(3)))?
        .label(label)
        .legend(legend(color));
    Ok(())
}

fn legend(color: RGBColor) -> impl Fn((i32, i32)) -> PathElement<(i32, i32)> {
    move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(3))
}

fn font(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}
