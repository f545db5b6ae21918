use serde::{Deserialize, Serialize};
use windrow_slab::LeafSpec;

use super::keys::Keys;
use super::past::{Merge, Past};
use super::relayout::{ObservationLayout, Relayout, dimension, rearranged};
use crate::number::Number;
use crate::{Attach, EnvError, Spec, SpecError, Transform, serde_form};

/// Observes the last `n` observations as one, the newest behind the others.
///
/// ```
/// use windrow_env::{CatFrames, Keys, Pendulum, Serial, VecEnv};
///
/// let stacked = CatFrames::new(4, -1, Keys::of(["observation"]));
/// let envs = Serial::from_fn(2, Pendulum::v1)?.transformed(stacked)?;
/// assert_eq!(envs.spec().observation.shape().as_slice(), [12]);
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatFrames {
    /// Number of observations; at least 1.
    #[serde(rename = "N")]
    pub n: usize,
    /// The dimension along which they are concatenated, counted from the end: negative.
    pub dim: i64,
    /// Observations that are concatenated.
    #[serde(default = "Keys::pixels")]
    pub keys: Keys,
    /// The padding before the first observation.
    #[serde(default)]
    pub padding: Padding,
    /// The number of [`Padding::Constant`].
    #[serde(default, with = "serde_form::float")]
    pub padding_value: f64,
}

/// The padding before the first observation of an episode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Padding {
    /// The first observation.
    #[default]
    Same,
    /// A number.
    Constant,
}

impl CatFrames {
    /// Concatenates `n` observations along `dim`; the first one stands for those before it.
    #[must_use]
    pub fn new(n: usize, dim: i64, keys: Keys) -> Self {
        Self {
            n,
            dim,
            keys,
            padding: Padding::Same,
            padding_value: 0.0,
        }
    }

    /// `value` stands for observations before the first one.
    #[must_use]
    pub fn padded_with(mut self, value: f64) -> Self {
        (self.padding, self.padding_value) = (Padding::Constant, value);
        self
    }

    /// The spec of `n` observations of `spec`, of which each has `chunk` elements side by side.
    fn spec(&self, spec: &Spec, leaf: &LeafSpec, dim: usize, chunk: usize) -> Spec {
        let mut shape = leaf.shape.clone();
        shape[dim] *= self.n;
        let blocks = (0..leaf.elements() / chunk.max(1)).flat_map(|block| vec![block; self.n]);
        let sources = blocks.flat_map(|block| block * chunk..(block + 1) * chunk);
        let mut spec = rearranged(spec, shape, sources);
        if let (Spec::Bounded { low, high, .. }, Padding::Constant) = (&mut spec, self.padding) {
            low.iter_mut()
                .for_each(|low| *low = low.min(self.padding_value));
            high.iter_mut()
                .for_each(|high| *high = high.max(self.padding_value));
        }
        spec
    }
}

impl Transform for CatFrames {
    type Bound = Relayout<Past<Concatenation>>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        if self.n == 0 {
            return Err(SpecError::no_steps("N", envs.inner()));
        }
        let mut layout = ObservationLayout::of(&envs.spec.observation, "observation");
        let mut made = Vec::new();
        for (key, to) in self.keys.iter() {
            let (from, leaf) = envs.observation(key)?;
            let dim = dimension(self.dim, leaf.shape.len()).filter(|_| self.dim < 0);
            let Some(dim) = dim else {
                let expected = format!("a dimension {}, counted from the end", self.dim);
                return Err(envs.inner().unfit(
                    key,
                    expected,
                    format!("the shape {:?}", leaf.shape),
                ));
            };
            let chunk = leaf.shape[dim..].iter().product();
            if let Some(spec) = layout.spec(key) {
                let spec = self.spec(spec, &leaf, dim, chunk);
                layout.put(to, spec, None);
            }
            let merge = Concatenation {
                n: self.n,
                padding: (self.padding == Padding::Constant).then_some(self.padding_value),
                chunk: chunk.max(1),
            };
            let past = Past::new(self.n, (from, &leaf), envs.num_envs(), merge)?;
            made.push((past, to));
        }
        layout.lay(envs, made, |past, to| past.to = to)
    }
}

/// Concatenates observations.
#[derive(Debug)]
pub struct Concatenation {
    n: usize,
    /// The constant before the first observation; `None` repeats the first one.
    padding: Option<f64>,
    /// Elements that lie side by side in the result.
    chunk: usize,
}

impl Merge for Concatenation {
    fn begin<T: Number>(&self, ring: &mut [T], first: &[T]) {
        match self.padding {
            // Converted as PyTorch does, towards zero.
            Some(value) if T::DTYPE.is_float() => ring.fill(T::nearest(value)),
            Some(value) => ring.fill(T::nearest(value.trunc())),
            None => ring
                .chunks_exact_mut(first.len().max(1))
                .for_each(|frame| frame.copy_from_slice(first)),
        }
    }

    fn merge<T: Number>(&self, ring: &[T], newest: usize, to: &mut [T]) {
        let (n, chunk, len) = (self.n, self.chunk, ring.len() / self.n);
        for slot in 0..n {
            let frame = &ring[(newest + 1 + slot) % n * len..][..len];
            let places = to.chunks_exact_mut(n * chunk);
            for (place, values) in places.zip(frame.chunks_exact(chunk)) {
                place[slot * chunk..][..chunk].copy_from_slice(values);
            }
        }
    }
}
