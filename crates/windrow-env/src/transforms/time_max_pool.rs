use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey, for_dtype};
use windrow_slab::{Key, LeafSpec, Row, RowBlock, RowMut};

use super::keys::Keys;
use super::relayout::{FillLeaf, ObservationLayout, Relayout};
use crate::number::Number;
use crate::{Attach, EnvError, Spec, SpecError, StateVisitor, Transform};

/// Observes the largest value of each element over the last `steps` observations. Zeros stand for observations before the first one.
///
/// ```
/// use windrow_env::{Keys, Pendulum, Serial, TimeMaxPool, VecEnv};
///
/// let pooled = TimeMaxPool::new(2, Keys::of(["observation"]));
/// let envs = Serial::from_fn(2, Pendulum::v1)?.transformed(pooled)?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeMaxPool {
    /// Number of observations; at least 1.
    #[serde(rename = "T")]
    pub steps: usize,
    /// Observations that are pooled.
    pub keys: Keys,
}

impl TimeMaxPool {
    /// Pools the observations `keys` over `steps` of them.
    #[must_use]
    pub fn new(steps: usize, keys: Keys) -> Self {
        Self { steps, keys }
    }
}

impl Transform for TimeMaxPool {
    type Bound = Relayout<Pooled>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        if self.steps == 0 {
            return Err(SpecError::no_steps("T", envs.inner()));
        }
        let mut layout = ObservationLayout::of(&envs.spec.observation, "observation");
        let mut made = Vec::new();
        for (key, to) in self.keys.iter() {
            let (from, leaf) = envs.observation(key)?;
            if let Some(mut spec) = layout.spec(key).cloned() {
                if let Spec::Bounded { high, .. } = &mut spec {
                    high.iter_mut().for_each(|high| *high = high.max(0.0));
                }
                layout.put(to, spec, None);
            }
            let past = NestedKey::from("past");
            let past = LeafSpec::new(past, leaf.dtype, [self.steps, leaf.elements()]);
            let pooled = Pooled {
                dtype: leaf.dtype,
                from,
                to: 0,
                past: RowBlock::new(&[past], envs.num_envs())?,
                oldest: vec![0; envs.num_envs()],
            };
            made.push((pooled, to));
        }
        layout.lay(envs, made, |pooled, to| pooled.to = to)
    }
}

/// The last observations of each environment.
#[derive(Debug)]
pub struct Pooled {
    dtype: DType,
    from: usize,
    to: usize,
    past: RowBlock,
    /// The place of the oldest one of each environment.
    oldest: Vec<usize>,
}

impl Pooled {
    #[inline(always)]
    fn pool<T: Number>(
        &mut self,
        env: usize,
        seen: &[T],
        to: &mut [T],
        is_first: bool,
    ) -> Result<(), EnvError> {
        let mut rows = self.past.rows_mut();
        let (Some(mut row), Some(oldest)) = (rows.env_mut(env), self.oldest.get_mut(env)) else {
            return Ok(());
        };
        let past = row.get_mut(Key::<T>::new(0))?;
        if is_first {
            past.fill(T::default());
        }
        to.copy_from_slice(seen);
        let slots = past.chunks_exact_mut(seen.len().max(1));
        let steps = slots.len();
        for (slot, frame) in slots.enumerate() {
            if slot == *oldest {
                frame.copy_from_slice(seen);
                continue;
            }
            for (to, &past) in to.iter_mut().zip(&*frame) {
                *to = larger(*to, past);
            }
        }
        *oldest = (*oldest + 1) % steps.max(1);
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
            self.pool(env, seen, to.get_mut(Key::<T>::new(self.to))?, is_first)
        })
    }
}

/// The larger of two values; NaN where one of them is.
#[inline(always)]
#[expect(clippy::eq_op, reason = "NaN is not equal to itself")]
fn larger<T: Number>(a: T, b: T) -> T {
    if b > a || b != b { b } else { a }
}

impl FillLeaf for Pooled {
    fn first(&mut self, env: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        self.show(env, from, to, true)
    }

    fn next(&mut self, env: usize, from: Row<'_>, to: &mut RowMut<'_>) -> Result<(), EnvError> {
        self.show(env, from, to, false)
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.values(&mut self.oldest)?;
        let mut rows = self.past.rows_mut();
        for_dtype!(self.dtype, T => state.values(rows.get_mut(Key::<T>::new(0))?))
    }
}
