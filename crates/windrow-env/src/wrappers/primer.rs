use tensordict::{DType, NestedKey};
use windrow_slab::{Key, LeafSpec, Rows, RowsMut, SlabError};

use super::appended::with_leaf;
use crate::{EnvError, EnvSpec, Outcomes, Reset, Spec, VecEnv, VecEnvError};

/// Environments that also observe what a policy's state begins with: a leaf `f32` that holds one number, always.
///
/// A policy that reads the leaf and writes it under `"next"` carries its state on from there. A bare observation becomes the
/// named one it is delivered as.
///
/// ```
/// use windrow_env::{CartPole, Primer, Reset, Serial, VecEnv};
/// use windrow_slab::RowBlock;
///
/// let mut envs = Primer::new(Serial::from_fn(2, CartPole::v1)?, "hidden", [1, 2], 0.5)?;
/// let hidden = envs.spec().observation_key::<f32>("hidden")?;
/// let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 2)?;
/// envs.reset(&[Reset { env: 1, seed: None }], obs.rows_mut())?;
/// assert_eq!(obs.rows().get(hidden)?, [0.0, 0.0, 0.5, 0.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Primer<V> {
    envs: V,
    spec: EnvSpec,
    key: Key<f32>,
    value: f32,
}

impl<V: VecEnv> Primer<V> {
    /// `envs` that observe `value` in each element of the leaf `key`, of the given shape.
    ///
    /// # Errors
    /// [`EnvError::Spec`] when something else has that name.
    pub fn new(
        envs: V,
        key: impl Into<NestedKey>,
        shape: impl AsRef<[usize]>,
        value: f32,
    ) -> Result<Self, EnvError> {
        let key = key.into();
        let (mut spec, index) = with_leaf(envs.spec(), &key, Spec::unbounded(DType::F32, shape))?;
        spec.states.push(key);
        Ok(Self {
            spec,
            key: Key::new(index),
            value,
            envs,
        })
    }

    /// The environments without the leaf.
    pub fn into_inner(self) -> V {
        self.envs
    }
}

impl<V: VecEnv> VecEnv for Primer<V> {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.envs.num_envs()
    }

    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        self.envs.bind(columns)
    }

    fn panicked_at(&self) -> Option<usize> {
        self.envs.panicked_at()
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        self.envs.reset(resets, obs.reborrow())?;
        for &Reset { env, .. } in resets {
            // An environment that does not exist was reported by the inner ones.
            if let Some(mut row) = obs.env_mut(env) {
                let values = row.get_mut(self.key);
                values.map_err(|error| broken(env, error))?.fill(self.value);
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.envs.step(actions, obs.reborrow(), outcomes)?;
        let values = obs.get_mut(self.key);
        values.map_err(|error| broken(0, error))?.fill(self.value);
        Ok(())
    }
}

fn broken(env: usize, error: SlabError) -> VecEnvError {
    VecEnvError {
        env,
        source: error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CountingEnv;
    use crate::wrappers::vec_driver::VecDriver;
    use crate::{Serial, StepCounter};

    #[test]
    fn what_a_state_begins_with_stays_as_it_is() {
        let envs = Serial::from_fn(2, || CountingEnv::new(9, 0)).unwrap();
        let counted = StepCounter::new(envs).unwrap();
        let primed = Primer::new(counted, ("state", "h"), [1, 2], 0.5).unwrap();
        assert_eq!(primed.spec().states, [NestedKey::from(("state", "h"))]);
        let mut envs = VecDriver::new(primed);
        envs.reset(&[1]).unwrap();
        assert_eq!(envs.seen_at::<f32>(2), [0.0, 0.0, 0.5, 0.5]);
        envs.reset(&[0]).unwrap();
        envs.step(1i8).unwrap();
        assert_eq!(envs.seen_at::<f32>(2), [0.5; 4]);
        assert_eq!(envs.seen_at::<i64>(1), [1, 1]);
    }

    #[test]
    fn a_name_that_is_taken_is_refused() {
        let envs = Serial::from_fn(1, CountingEnv::default).unwrap();
        let error = Primer::new(envs, "action", [1], 0.0).unwrap_err();
        assert!(
            error.to_string().contains("have \"action\" already"),
            "{error}"
        );
    }
}
