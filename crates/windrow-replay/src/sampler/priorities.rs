use tensordict::{NestedKey, Tensor, TensorDict};

use super::Frames;
use super::sum_tree::SumTree;
use crate::saved::sizes;
use crate::{Reduction, ReplayError, StateError};

/// The arguments of priorities: how they become probabilities and weights, and the entry that new
/// frames have theirs from. See [`PrioritizedSampler`](super::PrioritizedSampler).
#[derive(Debug, Clone)]
pub struct Priorities {
    alpha: f64,
    beta: f64,
    eps: f64,
    key: Option<(NestedKey, Reduction)>,
    /// The highest priority that was set since the buffer was empty.
    max: Option<f32>,
}

impl Priorities {
    /// Exponents of priorities (`alpha`) and of importance weights (`beta`). `eps` is 1e-8.
    #[must_use]
    pub fn new(alpha: f64, beta: f64) -> Self {
        Self {
            alpha,
            beta,
            eps: 1e-8,
            key: None,
            max: None,
        }
    }

    /// Sets the number that is added to every priority, so that none is 0.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// The entry that holds the priorities of new frames; `reduction` makes one of several values.
    /// Frames without the entry, and by default all, have the highest priority.
    #[must_use]
    pub fn key(mut self, key: impl Into<NestedKey>, reduction: Reduction) -> Self {
        self.key = Some((key.into(), reduction));
        self
    }

    /// The entry that holds the priorities of new frames, if there is one.
    pub(crate) fn entry(&self) -> Option<(NestedKey, Reduction)> {
        self.key.clone()
    }

    /// Forgets which priorities were set.
    pub(super) fn cleared(&mut self) {
        self.max = None;
    }

    /// Checks the arguments.
    ///
    /// # Errors
    /// [`ReplayError::Argument`] for one that is negative or not finite.
    pub fn check(&self) -> Result<(), ReplayError> {
        for (name, value) in [
            ("alpha", self.alpha),
            ("beta", self.beta),
            ("eps", self.eps),
        ] {
            not_negative(name, value)?;
        }
        Ok(())
    }

    /// The exponent of importance weights.
    #[must_use]
    pub fn beta(&self) -> f64 {
        self.beta
    }

    pub(crate) fn set_beta(&mut self, beta: f64) -> Result<(), ReplayError> {
        not_negative("beta", beta)?;
        self.beta = beta;
        Ok(())
    }

    pub(crate) fn set_alpha(&mut self, alpha: f64) -> Result<(), ReplayError> {
        not_negative("alpha", alpha)?;
        self.alpha = alpha;
        Ok(())
    }

    /// The mass of a frame of this priority: never 0, and never so large that sums overflow.
    fn mass(&self, priority: f32) -> f32 {
        let mass = (f64::from(priority) + self.eps).powf(self.alpha);
        (mass as f32).clamp(f32::MIN_POSITIVE, f32::MAX)
    }

    /// The mass of a frame whose priority was not set.
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
