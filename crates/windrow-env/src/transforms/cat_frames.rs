use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey, for_dtype};
use windrow_slab::{Key, LeafSpec, Row, RowBlock, RowMut};

use super::keys::Keys;
use super::relayout::{FillLeaf, ObservationLayout, Relayout, dimension, rearranged};
use crate::number::Number;
use crate::{Attach, EnvError, Spec, SpecError, StateVisitor, Transform};

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
    #[serde(default)]
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
    type Bound = Relayout<Frames>;

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
            made.push((Frames::new(self, from, &leaf, chunk, envs.num_envs())?, to));
        }
        layout.lay(envs, made, |frames, to| frames.to = to)
    }
}

/// The last observations of each environment.
#[derive(Debug)]
pub struct Frames {
    dtype: DType,
    from: usize,
    to: usize,
    n: usize,
    /// The constant before the first observation; `None` repeats the first one.
    padding: Option<f64>,
    /// Elements that lie side by side in the result.
    chunk: usize,
    /// `n` observations of each environment, one behind the other.
    ring: RowBlock,
    /// The place of the oldest one of each environment.
    oldest: Vec<usize>,
}

impl Frames {
    fn new(
        of: &CatFrames,
        from: usize,
        leaf: &LeafSpec,
        chunk: usize,
        num_envs: usize,
    ) -> Result<Self, EnvError> {
        let key = NestedKey::from("frames");
        let ring = LeafSpec::new(key, leaf.dtype, [of.n, leaf.elements()]);
        Ok(Self {
            dtype: leaf.dtype,
            from,
            to: 0,
            n: of.n,
            padding: (of.padding == Padding::Constant).then_some(of.padding_value),
            chunk: chunk.max(1),
            ring: RowBlock::new(&[ring], num_envs)?,
            oldest: vec![0; num_envs],
        })
    }

    #[inline(always)]
    fn write<T: Number>(
        &mut self,
        env: usize,
        seen: &[T],
        to: &mut [T],
        is_first: bool,
    ) -> Result<(), EnvError> {
        let (n, chunk, len) = (self.n, self.chunk, seen.len().max(1));
        let mut rows = self.ring.rows_mut();
        let (Some(mut row), Some(oldest)) = (rows.env_mut(env), self.oldest.get_mut(env)) else {
            return Ok(());
        };
        let ring = row.get_mut(Key::<T>::new(0))?;
        match self.padding.filter(|_| is_first) {
            // Converted as PyTorch does, towards zero.
            Some(value) if T::DTYPE.is_float() => ring.fill(T::nearest(value)),
            Some(value) => ring.fill(T::nearest(value.trunc())),
            None if is_first => ring
                .chunks_exact_mut(len)
                .for_each(|frame| frame.copy_from_slice(seen)),
            None => {}
        }
        ring[*oldest * len..][..seen.len()].copy_from_slice(seen);
        *oldest = (*oldest + 1) % n;
        for slot in 0..n {
            let frame = &ring[(*oldest + slot) % n * len..][..seen.len()];
            let places = to.chunks_exact_mut(n * chunk);
            for (place, values) in places.zip(frame.chunks_exact(chunk)) {
                place[slot * chunk..][..chunk].copy_from_slice(values);
            }
        }
        Ok(())
    }

    fn show(
        &mut self,
        env: usize,
        from: Row<'_>,
        to: &mut RowMut<'_>,
        is_first: bool,
    ) -> Result<(), EnvError> {
        for_dtype!(self.dtype, T => {
            let seen = from.get(Key::<T>::new(self.from))?;
            self.write(env, seen, to.get_mut(Key::<T>::new(self.to))?, is_first)
        })
    }
}

impl FillLeaf for Frames {
    fn first(&mut self, env: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        self.show(env, from, to, true)
    }

    fn next(&mut self, env: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        self.show(env, from, to, false)
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.values(&mut self.oldest)?;
        let mut rows = self.ring.rows_mut();
        for_dtype!(self.dtype, T => state.values(rows.get_mut(Key::<T>::new(0))?))
    }
}
