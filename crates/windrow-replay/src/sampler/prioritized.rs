use tensordict::{NestedKey, Tensor, TensorDict};

use super::sum_tree::SumTree;
use super::{Draw, Frames, NoDraw, Sampler};
use crate::saved::sizes;
use crate::{Reduction, ReplayError, RowSpan, SampleRng, Shortage, StateError, check_room};

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
        Self {
            priorities: Priorities::new(alpha, beta),
            tree: SumTree::new(0),
        }
    }

    /// Sets the number that is added to every priority, so that none is 0.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.priorities.eps = eps;
        self
    }

    /// The entry that holds the priorities of new frames; `reduction` makes one of several values.
    /// Frames without the entry, and by default all, have the highest priority.
    #[must_use]
    pub fn priority_key(mut self, key: impl Into<NestedKey>, reduction: Reduction) -> Self {
        self.priorities.key = Some((key.into(), reduction));
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

    fn priority_key(&self) -> Option<(&NestedKey, Reduction)> {
        self.priorities.key()
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
        self.priorities.max = None;
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
            rows,
            weights: Some(weights),
            slices: None,
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

    fn beta(&self) -> Option<f64> {
        Some(self.priorities.beta)
    }

    fn set_beta(&mut self, beta: f64) -> Result<(), ReplayError> {
        self.priorities.set_beta(beta)
    }

    fn set_alpha(&mut self, alpha: f64) -> Result<(), ReplayError> {
        self.priorities.set_alpha(alpha)
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

/// How priorities become probabilities and weights.
#[derive(Debug, Clone)]
pub(super) struct Priorities {
    alpha: f64,
    pub(super) beta: f64,
    pub(super) eps: f64,
    /// The entry that holds the priorities of new frames.
    pub(super) key: Option<(NestedKey, Reduction)>,
    /// The highest priority given so far.
    pub(super) max: Option<f32>,
}

impl Priorities {
    pub(super) fn new(alpha: f64, beta: f64) -> Self {
        Self {
            alpha,
            beta,
            eps: 1e-8,
            key: None,
            max: None,
        }
    }

    pub(super) fn key(&self) -> Option<(&NestedKey, Reduction)> {
        self.key.as_ref().map(|(key, reduction)| (key, *reduction))
    }

    pub(super) fn check(&self) -> Result<(), ReplayError> {
        for (name, value) in [
            ("alpha", self.alpha),
            ("beta", self.beta),
            ("eps", self.eps),
        ] {
            not_negative(name, value)?;
        }
        Ok(())
    }

    pub(super) fn set_beta(&mut self, beta: f64) -> Result<(), ReplayError> {
        not_negative("beta", beta)?;
        self.beta = beta;
        Ok(())
    }

    pub(super) fn set_alpha(&mut self, alpha: f64) -> Result<(), ReplayError> {
        not_negative("alpha", alpha)?;
        self.alpha = alpha;
        Ok(())
    }

    /// The mass of a frame of this priority: never 0, and never so large that sums overflow.
    fn mass(&self, priority: f32) -> f32 {
        let mass = (f64::from(priority) + self.eps).powf(self.alpha);
        (mass as f32).clamp(f32::MIN_POSITIVE, f32::MAX)
    }

    pub(super) fn of_new(&self) -> f32 {
        self.mass(self.max.unwrap_or(1.0))
    }

    /// Each of `rows` that holds a frame, with the mass of its priority in `priorities`.
    pub(super) fn masses(
        &mut self,
        rows: &[i64],
        priorities: &[f32],
        frames: &Frames<'_>,
    ) -> Vec<(usize, f32)> {
        let mut masses = Vec::with_capacity(rows.len());
        for (&row, &priority) in rows.iter().zip(priorities) {
            let Some(row) = usize::try_from(row)
                .ok()
                .filter(|&row| frames.contains(row))
            else {
                continue;
            };
            self.max = Some(self.max.map_or(priority, |max| max.max(priority)));
            masses.push((row, self.mass(priority)));
        }
        masses
    }

    /// Importance weights of the drawn rows.
    pub(super) fn weights(&self, tree: &SumTree, rows: &[u32]) -> Vec<f32> {
        let (values, least) = (tree.values(), tree.min());
        let beta = -self.beta as f32;
        rows.iter()
            .map(|&row| (values[row as usize] / least).powf(beta))
            .collect()
    }

    pub(super) fn state_dict(&self, masses: &[f32]) -> Result<TensorDict, ReplayError> {
        let mut state = TensorDict::new([]);
        state.set("masses", Tensor::from_slice(masses, [masses.len()])?)?;
        state.set("max_priority", Tensor::scalar(self.max.unwrap_or(f32::NAN)))?;
        state.set("beta", Tensor::scalar(self.beta))?;
        Ok(state)
    }

    pub(super) fn load<'a>(
        &mut self,
        state: &'a TensorDict,
        capacity: usize,
    ) -> Result<&'a [f32], ReplayError> {
        let masses = state.as_slice::<f32>("masses")?;
        if masses.len() != capacity {
            return Err(sizes("priorities", capacity, masses.len()).into());
        }
        // NaN stands for none.
        let max = state.get("max_priority")?.item::<f32>()?;
        let highest = std::iter::once(max).filter(|max| !max.is_nan());
        let wrong = |mass: &f32| !(mass.is_finite() && *mass >= 0.0);
        if let Some(got) = masses.iter().copied().chain(highest).find(wrong) {
            return Err(StateError::Priority { got }.into());
        }
        self.set_beta(state.get("beta")?.item::<f64>()?)?;
        self.max = (!max.is_nan()).then_some(max);
        Ok(masses)
    }
}

fn not_negative(name: &'static str, value: f64) -> Result<(), ReplayError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(ReplayError::Argument {
        name,
        expected: "a finite number of at least 0".to_owned(),
        got: value.to_string(),
    })
}
