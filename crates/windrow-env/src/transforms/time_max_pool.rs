use serde::{Deserialize, Serialize};

use super::keys::Keys;
use super::past::{Merge, Past};
use super::relayout::{ObservationLayout, Relayout};
use crate::number::Number;
use crate::{Attach, EnvError, Spec, SpecError, Transform};

/// Observes the largest value of each element over the last `steps` observations. Zeros stand for
/// observations before the first one.
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
    type Bound = Relayout<Past<Largest>>;

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
            let past = Past::new(self.steps, (from, &leaf), envs.num_envs(), Largest)?;
            made.push((past, to));
        }
        layout.lay(envs, made, |past, to| past.to = to)
    }
}

/// Finds the largest value of each element.
#[derive(Debug)]
pub struct Largest;

impl Merge for Largest {
    fn begin<T: Number>(&self, ring: &mut [T], _: &[T]) {
        ring.fill(T::default());
    }

    fn merge<T: Number>(&self, ring: &[T], newest: usize, to: &mut [T]) {
        let len = to.len();
        to.copy_from_slice(&ring[newest * len..][..len]);
        for (slot, frame) in ring.chunks_exact(len.max(1)).enumerate() {
            if slot == newest {
                continue;
            }
            for (to, &past) in to.iter_mut().zip(frame) {
                *to = larger(*to, past);
            }
        }
    }
}

/// The larger of two values; NaN where one of them is.
#[inline(always)]
#[expect(clippy::eq_op, reason = "NaN is not equal to itself")]
fn larger<T: Number>(a: T, b: T) -> T {
    if b > a || b != b { b } else { a }
}
