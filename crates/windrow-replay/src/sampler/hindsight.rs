use super::{Draw, Frames, NoDraw, RandomSampler, Sampler};
use crate::{ReplayError, RunKeys, Runs, SampleRng, Shortage};

/// The frame of a trajectory that a goal is taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GoalStrategy {
    /// One that does not come before the drawn frame, all with the same probability.
    #[default]
    Future,
    /// The last one that is there.
    Final,
    /// Any one of the trajectory.
    Episode,
    /// Any one of the buffer.
    Random,
}

/// Draws every frame with the same probability, with replacement, and for some of them a frame
/// whose achieved goal the learner puts in the place of the desired one: hindsight experience
/// replay.
///
/// A batch of `n` frames has [`relabelled`](Self::relabelled)`(n)` frames more behind it: the goals
/// of as many frames at its start. Both come from one draw, so that no writer can overwrite a goal
/// meanwhile.
///
/// ```
/// use windrow_replay::{GoalStrategy, HindsightSampler};
///
/// let sampler = HindsightSampler::new(0.8).strategy(GoalStrategy::Final);
/// assert_eq!(sampler.relabelled(10), 8);
/// ```
#[derive(Debug, Clone)]
pub struct HindsightSampler {
    ratio: f64,
    strategy: GoalStrategy,
    keys: RunKeys,
}

impl HindsightSampler {
    /// A sampler that draws goals for this share of a batch.
    #[must_use]
    pub fn new(ratio: f64) -> Self {
        Self {
            ratio,
            strategy: GoalStrategy::default(),
            keys: RunKeys::default(),
        }
    }

    /// Where goals are taken from. When not set: [`GoalStrategy::Future`].
    #[must_use]
    pub fn strategy(mut self, strategy: GoalStrategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// The keys that separate trajectories.
    #[must_use]
    pub fn keys(mut self, keys: RunKeys) -> Self {
        self.keys = keys;
        self
    }

    /// How many frames of a batch of `batch_size` have a goal of their own.
    #[must_use]
    pub fn relabelled(&self, batch_size: usize) -> usize {
        (batch_size as f64 * self.ratio).round() as usize
    }

    fn goal(&self, row: usize, runs: &Runs, frames: &Frames<'_>, rng: &mut SampleRng) -> u32 {
        let Some((run, frame)) = runs.at_row(row) else {
            return row as u32;
        };
        let end = run.first + run.len as u64;
        let goal = match self.strategy {
            GoalStrategy::Future => frame + rng.below((end - frame) as usize) as u64,
            GoalStrategy::Final => end - 1,
            GoalStrategy::Episode => run.first + rng.below(run.len) as u64,
            GoalStrategy::Random => return frames.row(rng.below(frames.len())) as u32,
        };
        runs.row(goal) as u32
    }
}

impl Sampler for HindsightSampler {
    fn begin(&mut self, _: usize) -> Result<(), ReplayError> {
        if (0.0..=1.0).contains(&self.ratio) {
            return Ok(());
        }
        Err(ReplayError::Argument {
            name: "her_ratio",
            expected: "a share from 0 to 1".to_owned(),
            got: self.ratio.to_string(),
        })
    }

    fn run_keys(&self) -> Option<&RunKeys> {
        Some(&self.keys)
    }

    fn most_rows(&self, batch_size: usize) -> usize {
        batch_size + self.relabelled(batch_size)
    }

    fn draw(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        rng: &mut SampleRng,
    ) -> Result<Draw, NoDraw> {
        let Some(runs) = frames.runs().filter(|_| !frames.is_empty()) else {
            return Err(Shortage::Empty.into());
        };
        let mut draw = RandomSampler.draw(batch_size, frames, rng)?;
        for at in 0..self.relabelled(batch_size) {
            let goal = self.goal(draw.rows[at] as usize, runs, frames, rng);
            draw.rows.push(goal);
        }
        Ok(draw)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{GoalStrategy, HindsightSampler};
    use crate::episode_ends::EpisodeMarks;
    use crate::runs::Runs;
    use crate::sampler::{Frames, Sampler};
    use crate::{RowSet, RowSpan, SampleRng};

    /// The pairs of frames and goals that are drawn of trajectories of three and two frames.
    fn pairs(strategy: GoalStrategy) -> BTreeSet<(u32, u32)> {
        let mut runs = Runs::new(5);
        runs.push_marked(&EpisodeMarks::of(None, Some(&[1, 1, 1, 2, 2])));
        let mut rows = RowSet::ring(5);
        rows.add(RowSpan::new(0, 5, 5));
        let frames = Frames::new(&rows, Some(&runs));
        let mut sampler = HindsightSampler::new(0.5).strategy(strategy);
        let drawn = sampler.draw(400, &frames, &mut SampleRng::new(0));
        let rows = drawn.expect("there are frames").rows;
        assert_eq!(rows.len(), 600);
        rows[..200]
            .iter()
            .copied()
            .zip(rows[400..].iter().copied())
            .collect()
    }

    #[test]
    fn goals_are_of_the_frames_that_the_strategy_names() {
        let future = [
            (0, 0),
            (0, 1),
            (0, 2),
            (1, 1),
            (1, 2),
            (2, 2),
            (3, 3),
            (3, 4),
            (4, 4),
        ];
        assert_eq!(pairs(GoalStrategy::Future), future.into());
        let last = [(0, 2), (1, 2), (2, 2), (3, 4), (4, 4)];
        assert_eq!(pairs(GoalStrategy::Final), last.into());
        let same = |&(frame, goal): &(u32, u32)| (frame < 3) == (goal < 3);
        let episode = pairs(GoalStrategy::Episode);
        assert!(episode.len() == 13 && episode.iter().all(same));
        assert_eq!(pairs(GoalStrategy::Random).len(), 25);
    }
}
