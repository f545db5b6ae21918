use tensordict::{NestedKey, TensorDict};

use super::sum_tree::SumTree;
use super::{Draw, Frames, NoDraw, Priorities, Sampler};
use crate::{Reduction, ReplayError, RowSpan, SampleRng, Shortage, check_room};

/// Draws frames in proportion to their priorities, with replacement.
///
/// A frame of priority `p` is drawn with a probability proportional to `(p + eps)^alpha`, and comes
/// with the weight `(P / P_min)^-beta` that makes up for it, where `P` is its probability and
/// `P_min` the least of all: the weight of the rarest frame is 1. A new frame has the highest
/// priority ever given, 1 at first, so that each can be drawn soon.
///
/// Source: T. Schaul, J. Quan, I. Antonoglou, D. Silver, *Prioritized Experience Replay*, 2016.
#[derive(Debug, Clone)]
pub struct PrioritizedSampler {
    priorities: Priorities,
    /// `(p + eps)^alpha` of every row with a frame, 0 of others.
    tree: SumTree,
}

impl PrioritizedSampler {
    /// Exponents of priorities (`alpha`; at 0 all frames are alike) and of weights (`beta`; at 1
    /// they make up for all of it). `eps` is 1e-8.
    #[must_use]
    pub fn new(alpha: f64, beta: f64) -> Self {
        Self::of(Priorities::new(alpha, beta))
    }

    /// The sampler with these arguments.
    #[must_use]
    pub fn of(priorities: Priorities) -> Self {
        Self {
            priorities,
            tree: SumTree::new(0),
        }
    }

    /// Sets the number that is added to every priority, so that none is 0.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.priorities = self.priorities.eps(eps);
        self
    }

    /// The entry that holds the priorities of new frames; `reduction` makes one of several values.
    /// Frames without the entry, and by default all, have the highest priority.
    #[must_use]
    pub fn priority_key(mut self, key: impl Into<NestedKey>, reduction: Reduction) -> Self {
        self.priorities = self.priorities.key(key, reduction);
        self
    }
}

impl Sampler for PrioritizedSampler {
    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        self.priorities.check()?;
        check_room::<[f32; 2]>("the priorities", capacity)?;
        self.tree = SumTree::new(capacity);
        Ok(())
    }

    fn priorities(&mut self) -> Option<&mut Priorities> {
        Some(&mut self.priorities)
    }

    fn written(&mut self, rows: RowSpan, _: &Frames<'_>) {
        let mass = self.priorities.of_new();
        for range in rows.ranges() {
            self.tree.fill(range, mass);
        }
    }

    fn evicted(&mut self, rows: RowSpan, _: &Frames<'_>) {
        for range in rows.ranges() {
            self.tree.fill(range, 0.0);
        }
    }

    fn cleared(&mut self) {
        self.tree.clear();
        self.priorities.cleared();
    }

    fn draw(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        rng: &mut SampleRng,
    ) -> Result<Draw, NoDraw> {
        if frames.is_empty() {
            return Err(Shortage::Empty.into());
        }
        let rows = self.tree.draw(batch_size, || rng.unit());
        let weights = self.priorities.weights(&self.tree, &rows);
        Ok(Draw {
            weights: Some(weights),
            ..Draw::of(rows)
        })
    }

    fn update_priority(
        &mut self,
        rows: &[i64],
        priorities: &[f32],
        frames: &Frames<'_>,
    ) -> Result<usize, ReplayError> {
        let masses = self.priorities.masses(rows, priorities, frames);
        let updated = masses.len();
        self.tree.set(masses);
        Ok(updated)
    }

    fn state_dict(&self) -> Result<TensorDict, ReplayError> {
        self.priorities.state_dict(self.tree.values())
    }

    fn load_state_dict(
        &mut self,
        state: &TensorDict,
        frames: &Frames<'_>,
    ) -> Result<(), ReplayError> {
        let masses = self.priorities.load(state, self.tree.values().len())?;
        let live = |(row, &mass): (usize, &f32)| frames.contains(row).then_some((row, mass));
        self.tree.set(masses.iter().enumerate().filter_map(live));
        Ok(())
    }
}
