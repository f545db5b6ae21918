use std::convert::Infallible;

use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey};

use super::relayout::Relayout;
use crate::{Attach, EnvError, SpecError, Transform, serde_form};

/// Declares which actions are legal for random policies: those whose element of an observation is
/// set.
///
/// ```no_run
/// use windrow_env::{ActionMask, VecEnv, make_vec};
///
/// let envs = make_vec("Masked-v0", 8)?.transformed(ActionMask::default())?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActionMask {
    /// Name of the action, of choices.
    #[serde(with = "serde_form::key")]
    pub action_key: NestedKey,
    /// Name of the observation, an element of `bool`, `int8` or `uint8` for each choice.
    #[serde(with = "serde_form::key")]
    pub mask_key: NestedKey,
}

impl Default for ActionMask {
    fn default() -> Self {
        Self {
            action_key: "action".into(),
            mask_key: "action_mask".into(),
        }
    }
}

impl Transform for ActionMask {
    type Bound = Relayout<Infallible>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let inner = envs.inner();
        let actions = inner.action.leaves("action");
        let action = actions.iter().find(|(key, _)| *key == self.action_key);
        let Some(choices) = action.and_then(|(_, action)| action.choices()) else {
            let got = action.map_or("no such action".to_owned(), |(_, spec)| format!("{spec:?}"));
            return Err(inner.unfit(&self.action_key, "a discrete action", got));
        };
        let (_, mask) = envs.observation(&self.mask_key)?;
        let elements: usize = choices.iter().sum();
        if !matches!(mask.dtype, DType::Bool | DType::I8 | DType::U8) || mask.elements() != elements
        {
            let expected = format!("{elements} elements of bool, int8 or uint8");
            let got = format!("{} of {}", mask.elements(), mask.dtype);
            return Err(inner.unfit(&self.mask_key, expected, got));
        }
        let pair = (self.action_key.clone(), self.mask_key.clone());
        match inner.masks.iter().find(|(action, _)| *action == pair.0) {
            None => envs.spec.masks.push(pair),
            Some(other) if *other == pair => {}
            Some((_, other)) => {
                return Err(SpecError::Argument {
                    argument: "mask_key",
                    of: format!("ActionMask of {}", inner.id),
                    expected: format!("{other:?}, which says already what is legal"),
                    got: format!("{:?}", self.mask_key),
                }
                .into());
            }
        }
        // Policies read the spec.
        Ok(Relayout::nothing())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CartPole, Env, EnvSpec, Outcome, Pendulum, Serial, Spec, VecEnv};
    use windrow_slab::{Row, RowMut};

    /// An environment that is nothing but its spec.
    #[derive(Debug)]
    struct Masked(EnvSpec);

    impl Env for Masked {
        fn spec(&self) -> &EnvSpec {
            &self.0
        }

        fn reset(&mut self, _: Option<u64>, _: RowMut<'_>) -> Result<(), EnvError> {
            Ok(())
        }

        fn step(&mut self, _: Row<'_>, _: RowMut<'_>) -> Result<Outcome, EnvError> {
            Ok(Outcome::default())
        }
    }

    fn masked(elements: usize) -> Serial<Masked> {
        let observation = Spec::composite([
            ("seen", Spec::unbounded(DType::F32, [2])),
            ("action_mask", Spec::unbounded(DType::Bool, [elements])),
        ]);
        let spec = EnvSpec::new("Masked", observation, Spec::discrete(3));
        Serial::new(vec![Masked(spec)]).unwrap()
    }

    #[test]
    fn the_spec_says_which_observation_is_the_mask() {
        let once = masked(3).transformed(ActionMask::default()).unwrap();
        assert_eq!(once.spec().masks, [("action".into(), "action_mask".into())]);
        let twice = once.transformed(ActionMask::default()).unwrap();
        assert_eq!(twice.spec().masks.len(), 1);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let error = masked(2).transformed(ActionMask::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"action_mask\" of Masked: expected 3 elements of bool, int8 or uint8, got 2 of bool"
        );
        let pendulum = Serial::from_fn(1, Pendulum::v1).unwrap();
        let error = pendulum.transformed(ActionMask::default()).unwrap_err();
        assert!(
            error.to_string().contains("expected a discrete action"),
            "{error}"
        );
        let cart_pole = Serial::from_fn(1, CartPole::v1).unwrap();
        let error = cart_pole.transformed(ActionMask::default()).unwrap_err();
        assert!(error.to_string().contains("has no observation"), "{error}");
    }
}
