use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey};
use windrow_slab::{Key, SlabError};

use crate::{
    Attach, BoundTransform, EnvError, Observations, Outcomes, Reset, Spec, StateVisitor, Transform,
    VecEnvError, serde_form,
};

/// Observes the initial value of a policy's state: a leaf `f32` that always holds one number.
///
/// A policy that reads the leaf and writes it under `"next"` carries its state on from there. A
/// bare observation becomes the named one it is delivered as.
///
/// ```
/// use windrow_env::{CartPole, Primer, Reset, Serial, VecEnv};
/// use windrow_slab::RowBlock;
///
/// let mut envs = Serial::from_fn(2, CartPole::v1)?.transformed(Primer::new("hidden", [1, 2], 0.5))?;
/// let hidden = envs.spec().observation_key::<f32>("hidden")?;
/// let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 2)?;
/// envs.reset(&[Reset { env: 1, seed: None }], obs.rows_mut())?;
/// assert_eq!(obs.rows().get(hidden)?, [0.0, 0.0, 0.5, 0.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Primer {
    /// Name of the leaf.
    #[serde(with = "serde_form::key")]
    pub key: NestedKey,
    /// Its shape, for one environment.
    pub shape: Vec<usize>,
    /// The number in each of its elements.
    #[serde(with = "serde_form::float")]
    pub value: f32,
}

impl Primer {
    /// `value` in each element of the leaf `key`, of the given shape.
    #[must_use]
    pub fn new(key: impl Into<NestedKey>, shape: impl AsRef<[usize]>, value: f32) -> Self {
        Self {
            key: key.into(),
            shape: shape.as_ref().to_vec(),
            value,
        }
    }
}

impl Transform for Primer {
    type Bound = Primed;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Primed, EnvError> {
        let index = envs.append(&self.key, Spec::unbounded(DType::F32, &self.shape))?;
        envs.spec.states.push(self.key.clone());
        Ok(Primed {
            key: Key::new(index),
            value: self.value,
        })
    }
}

/// Writes the number into the leaf.
#[derive(Debug)]
pub struct Primed {
    key: Key<f32>,
    value: f32,
}

impl BoundTransform for Primed {
    fn reset(&mut self, resets: &[Reset], mut obs: Observations<'_>) -> Result<(), VecEnvError> {
        for &Reset { env, .. } in resets {
            // An environment that does not exist was reported by the inner ones.
            if let Some(mut row) = obs.rows.env_mut(env) {
                let values = row.get_mut(self.key);
                values.map_err(|error| broken(env, error))?.fill(self.value);
            }
        }
        Ok(())
    }

    fn step(&mut self, mut obs: Observations<'_>, _: Outcomes<'_>) -> Result<(), VecEnvError> {
        let values = obs.rows.get_mut(self.key);
        values.map_err(|error| broken(0, error))?.fill(self.value);
        Ok(())
    }

    fn visit_state(&mut self, _: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        Ok(())
    }
}

fn broken(env: usize, error: SlabError) -> VecEnvError {
    EnvError::from(error).of(env)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CountingEnv;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{Serial, StepCounter, VecEnv};

    #[test]
    fn what_a_state_begins_with_stays_as_it_is() {
        let envs = Serial::from_fn(2, || CountingEnv::new(9, 0)).unwrap();
        let counted = envs.transformed(StepCounter::new()).unwrap();
        let primer = Primer::new(("state", "h"), [1, 2], 0.5);
        let primed = counted.transformed(primer).unwrap();
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
        let error = envs
            .transformed(Primer::new("action", [1], 0.0))
            .unwrap_err();
        assert!(
            error.to_string().contains("have \"action\" already"),
            "{error}"
        );
    }
}
