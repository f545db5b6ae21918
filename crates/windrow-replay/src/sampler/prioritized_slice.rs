use tensordict::{NestedKey, TensorDict};

use super::slice::{Piece, SliceRules, SliceSampler};
use super::sum_tree::SumTree;
use super::{Draw, Frames, NoDraw, Priorities, Sampler};
use crate::{Reduction, ReplayError, RowSpan, Run, RunKeys, Runs, SampleRng, Shortage, check_room};

/// Slices that begin at frames drawn in proportion to their priorities, with replacement.
///
/// Slices are as [`SliceSampler`] makes them, priorities and weights as in
/// [`PrioritizedSampler`](crate::PrioritizedSampler). Only frames that have the rest of a slice
/// behind them can be drawn, and every frame of a slice has the weight of its first. With
/// `strict_length(false)`, trajectories shorter than a slice are drawn at their first frame.
#[derive(Debug, Clone)]
pub struct PrioritizedSliceSampler {
    rules: SliceRules,
    priorities: Priorities,
    /// `(p + eps)^alpha` of every row with a frame, 0 of others.
    masses: Vec<f32>,
    /// The same for rows where slices can begin, 0 for others.
    starts: SumTree,
    /// Length of the slices that `starts` is computed for; 0 before the first draw.
    len: usize,
    /// The first run that may still grow, and its first frame where no slice can begin yet.
    next: (u64, u64),
}

impl PrioritizedSliceSampler {
    /// Slices as `slices` would make them; exponents of priorities (`alpha`) and of weights
    /// (`beta`). `eps` is 1e-8.
    #[must_use]
    pub fn new(slices: SliceSampler, alpha: f64, beta: f64) -> Self {
        Self::of(slices, Priorities::new(alpha, beta))
    }

    /// Slices as `slices` would make them, with these arguments of priorities.
    #[must_use]
    pub fn of(slices: SliceSampler, priorities: Priorities) -> Self {
        Self {
            rules: slices.rules,
            priorities,
            masses: Vec::new(),
            starts: SumTree::new(0),
            len: 0,
            next: (0, 0),
        }
    }

    /// Sets the number that is added to every priority, so that none is 0.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.priorities = self.priorities.eps(eps);
        self
    }

    /// The entry of priorities of new frames, as [`Priorities::key`] describes.
    #[must_use]
    pub fn priority_key(mut self, key: impl Into<NestedKey>, reduction: Reduction) -> Self {
        self.priorities = self.priorities.key(key, reduction);
        self
    }

    /// End of the frames of `run` where a slice can begin, if there are any.
    fn starts_end(&self, run: Run) -> Option<u64> {
        if run.len < self.rules.least(self.len) {
            return None;
        }
        let len = self.len.min(run.len);
        let right = self.rules.reach(len)[1];
        Some(run.first + (run.len - len + right + 1) as u64)
    }

    /// Marks the frames where slices can begin since more was written.
    fn catch_up(&mut self, runs: &Runs) {
        let present = runs.numbers();
        self.next.0 = self.next.0.max(present.start);
        while let Some(run) = runs.get(self.next.0) {
            if let Some(end) = self.starts_end(run) {
                let first = self.next.1.max(run.first);
                self.enable(first..end, runs);
                self.next.1 = end.max(first);
            }
            if self.next.0 + 1 == present.end {
                break;
            }
            self.next.0 += 1;
        }
    }

    fn enable(&mut self, frames: std::ops::Range<u64>, runs: &Runs) {
        let masses = &self.masses;
        self.starts.set(frames.map(|frame| {
            let row = runs.row(frame);
            (row, masses[row])
        }));
    }

    /// Recomputes where slices can begin in the oldest run, which has lost frames.
    fn shrink(&mut self, runs: &Runs) {
        let oldest = runs.numbers().start;
        let Some(run) = runs.get(oldest).filter(|run| run.len < self.len) else {
            return;
        };
        let end = run.first + run.len as u64;
        self.starts
            .set((run.first..end).map(|frame| (runs.row(frame), 0.0)));
        let valid = self.starts_end(run);
        if let Some(valid) = valid {
            self.enable(run.first..valid, runs);
        }
        if self.next.0 == oldest {
            self.next.1 = valid.unwrap_or(run.first);
        }
    }

    fn set_len(&mut self, len: usize, runs: Option<&Runs>) {
        self.len = len;
        self.starts.clear();
        self.next = (0, 0);
        if len > 0
            && let Some(runs) = runs
        {
            self.catch_up(runs);
        }
    }
}

impl Sampler for PrioritizedSliceSampler {
    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        self.rules.check(capacity)?;
        self.priorities.check()?;
        if let Some(got) = self.rules.left_span() {
            return Err(ReplayError::Argument {
                name: "span",
                expected: "0 steps to the left: a priority is that of a first frame".to_owned(),
                got,
            });
        }
        if self.rules.stride() != 1 {
            return Err(ReplayError::Argument {
                name: "stride",
                expected: "1: a priority is that of a first frame".to_owned(),
                got: self.rules.stride().to_string(),
            });
        }
        check_room::<[f32; 3]>("the priorities", capacity)?;
        self.masses = vec![0.0; capacity];
        self.starts = SumTree::new(capacity);
        Ok(())
    }

    fn run_keys(&self) -> Option<&RunKeys> {
        Some(&self.rules.keys)
    }

    fn priorities(&mut self) -> Option<&mut Priorities> {
        Some(&mut self.priorities)
    }

    fn written(&mut self, rows: RowSpan, frames: &Frames<'_>) {
        let mass = self.priorities.of_new();
        for range in rows.ranges() {
            self.masses[range].fill(mass);
        }
        if self.len > 0
            && let Some(runs) = frames.runs()
        {
            self.catch_up(runs);
        }
    }

    fn evicted(&mut self, rows: RowSpan, frames: &Frames<'_>) {
        for range in rows.ranges() {
            self.masses[range.clone()].fill(0.0);
            self.starts.fill(range, 0.0);
        }
        if self.len > 0
            && let Some(runs) = frames.runs()
        {
            self.shrink(runs);
        }
    }

    fn cleared(&mut self) {
        self.masses.fill(0.0);
        self.priorities.cleared();
        self.set_len(self.len, None);
    }

    fn draw(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        rng: &mut SampleRng,
    ) -> Result<Draw, NoDraw> {
        let (num, len) = self.rules.of_batch(batch_size)?;
        let Some(runs) = frames.runs() else {
            return Err(Shortage::Empty.into());
        };
        if self.len != len {
            self.set_len(len, Some(runs));
        }
        if self.starts.total() <= 0.0 {
            return Err(self.rules.shortage(len, runs));
        }
        let starts = self.starts.draw(num, || rng.unit());
        let pieces: Vec<Piece> = starts
            .iter()
            .filter_map(|&row| runs.at_row(row as usize))
            .map(|(run, frame)| {
                let left = run.first + run.len as u64 - frame;
                Piece {
                    first: frame,
                    frames: len.min(left as usize),
                    missing: 0,
                }
            })
            .collect();
        let mut draw = self.rules.draw(len, runs, &pieces);
        let weights = self.priorities.weights(&self.starts, &starts);
        draw.weights = Some(repeat(&weights, &draw));
        Ok(draw)
    }

    fn update_priority(
        &mut self,
        rows: &[i64],
        priorities: &[f32],
        frames: &Frames<'_>,
    ) -> Result<usize, ReplayError> {
        let updated = self.priorities.masses(rows, priorities, frames);
        for &(row, mass) in &updated {
            self.masses[row] = mass;
        }
        let begins: Vec<bool> = updated
            .iter()
            .map(|&(row, _)| self.starts.values()[row] > 0.0)
            .collect();
        let count = updated.len();
        let starts = updated.into_iter().zip(begins);
        self.starts
            .set(starts.filter_map(|(change, begins)| begins.then_some(change)));
        Ok(count)
    }

    fn state_dict(&self) -> Result<TensorDict, ReplayError> {
        self.priorities.state_dict(&self.masses)
    }

    fn load_state_dict(
        &mut self,
        state: &TensorDict,
        frames: &Frames<'_>,
    ) -> Result<(), ReplayError> {
        let masses = self.priorities.load(state, self.masses.len())?;
        for (row, (mine, &mass)) in self.masses.iter_mut().zip(masses).enumerate() {
            *mine = if frames.contains(row) { mass } else { 0.0 };
        }
        self.set_len(self.len, frames.runs());
        Ok(())
    }
}

/// The weight of each slice for each of its frames.
fn repeat(weights: &[f32], draw: &Draw) -> Vec<f32> {
    let mut repeated = Vec::with_capacity(draw.rows.len());
    if let Some(slices) = &draw.slices {
        for (&weight, &len) in weights.iter().zip(&slices.lens) {
            repeated.resize(repeated.len() + slices.padded.unwrap_or(len), weight);
        }
    }
    repeated
}
