use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey, for_dtype};
use windrow_slab::{Key, Rows, RowsMut};

use super::elementwise::{Real, for_real};
use super::one_hot_actions::choose;
use crate::{
    Attach, BoundTransform, EnvError, EnvRng, Observations, Outcomes, Reset, Spec, SpecError,
    StateVisitor, Transform, VecEnvError, serde_form,
};

/// Which number of its interval a choice stands for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Sampling {
    /// The one in the middle.
    #[default]
    Median,
    /// The lowest.
    Low,
    /// The highest.
    High,
    /// Any, drawn anew with each step by a generator of each environment, which a seeded reset
    /// seeds.
    Random,
}

/// Takes choices of intervals in place of bounded real actions.
///
/// ```
/// use windrow_env::{ActionDiscretizer, Pendulum, Serial, Spec, VecEnv};
///
/// let envs = Serial::from_fn(8, Pendulum::v1)?.transformed(ActionDiscretizer::new([5]))?;
/// assert_eq!(envs.spec().action, Spec::MultiDiscrete { nvec: vec![5] });
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActionDiscretizer {
    /// Number of intervals of each element, or of all.
    pub num_intervals: Vec<usize>,
    /// Name of the action that environments take, a number or a vector; `None` for `action`.
    #[serde(default, with = "serde_form::key::optional")]
    pub action_key: Option<NestedKey>,
    /// Name of the choices; `None` for that of the action.
    #[serde(default, with = "serde_form::key::optional")]
    pub out_action_key: Option<NestedKey>,
    /// Which number a choice stands for.
    #[serde(default)]
    pub sampling: Sampling,
    /// Whether choices are one-hot vectors instead of indices.
    #[serde(default)]
    pub one_hot: bool,
}

impl ActionDiscretizer {
    /// Number of intervals for each element of the action, or one number for all.
    #[must_use]
    pub fn new(num_intervals: impl Into<Vec<usize>>) -> Self {
        Self {
            num_intervals: num_intervals.into(),
            action_key: None,
            out_action_key: None,
            sampling: Sampling::Median,
            one_hot: false,
        }
    }

    /// The number of intervals of each of `elements` elements.
    fn counts(&self, elements: usize, env: &str) -> Result<Vec<usize>, EnvError> {
        let counts = match self.num_intervals.as_slice() {
            [n] => vec![*n; elements],
            each => each.to_vec(),
        };
        if counts.len() == elements && !counts.contains(&0) {
            return Ok(counts);
        }
        Err(SpecError::Argument {
            argument: "num_intervals",
            of: format!("ActionDiscretizer of {env}"),
            expected: format!("1 number or {elements}, each 1 or more"),
            got: format!("{:?}", self.num_intervals),
        }
        .into())
    }

    /// The choices' spec: a vector of them where the action is one.
    fn choices(&self, nvec: &[usize], is_scalar: bool) -> Spec {
        match (self.one_hot, nvec) {
            (true, nvec) => Spec::OneHot {
                nvec: nvec.to_vec(),
            },
            (false, [n]) if is_scalar => Spec::Discrete { n: *n },
            (false, nvec) => Spec::MultiDiscrete {
                nvec: nvec.to_vec(),
            },
        }
    }
}

/// The places of `n` choices in an interval from 0 to 1.
fn places<T: Real>(n: usize, sampling: Sampling) -> Vec<T> {
    let (one, two) = (T::of(1.0), T::of(2.0));
    let low: Vec<_> = (0..n).map(|i| T::of(i as f64) / T::of(n as f64)).collect();
    let high = low.iter().rev().map(|&place| one - place);
    match sampling {
        Sampling::Low | Sampling::Random => low,
        Sampling::High => high.collect(),
        Sampling::Median => low.iter().zip(high).map(|(&l, h)| (l + h) / two).collect(),
    }
}

impl Transform for ActionDiscretizer {
    type Bound = Discretizing;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Discretizing, EnvError> {
        let inner = envs.inner();
        let key = self.action_key.clone().unwrap_or_else(|| "action".into());
        let leaves = inner.action.leaves("action");
        let target = leaves.iter().position(|(action, _)| *action == key);
        let spec = target.map(|target| leaves[target].1);
        let (
            Some(target),
            Some(Spec::Bounded {
                dtype,
                shape,
                low,
                high,
            }),
        ) = (target, spec)
        else {
            let got = spec.map_or("no such action".to_owned(), |spec| format!("{spec:?}"));
            return Err(inner.unfit(&key, "a bounded action", got));
        };
        let is_finite = low.iter().chain(high).all(|bound| bound.is_finite());
        if !is_finite || shape.len() > 1 || !matches!(dtype, DType::F32 | DType::F64) {
            let expected = "a number or a vector of float32 or float64 with finite bounds";
            return Err(inner.unfit(&key, expected, format!("{:?}", leaves[target].1)));
        }
        let nvec = self.counts(low.len(), &inner.id)?;
        let elements = low.iter().zip(high).zip(&nvec);
        let elements = elements.map(|((&low, &high), &n)| {
            for_real!(*dtype, T => {
                let width = T::of(high) - T::of(low);
                let places = places::<T>(n, self.sampling).into_iter();
                Interval {
                    numbers: places.map(|place| (T::of(low) + place * width).double()).collect(),
                    part: (width / T::of(n as f64)).double(),
                }
            })
        });
        let effect = Discretizing {
            leaves: leaves
                .iter()
                .map(|(_, leaf)| leaf.dtype().expect("A leaf has an element type."))
                .collect(),
            target,
            elements: elements.collect(),
            one_hot: self.one_hot,
            random: (self.sampling == Sampling::Random)
                .then(|| vec![EnvRng::new(); envs.num_envs()]),
        };
        let out = self.out_action_key.clone().unwrap_or_else(|| key.clone());
        let choices = self.choices(&nvec, shape.is_empty());
        envs.spec.action = replaced(&inner.action, target, &out, choices).ok_or_else(|| {
            let expected = format!("{key:?}, since another name is for an action without others");
            inner.unfit(&out, expected, "another name")
        })?;
        envs.replace_actions();
        Ok(effect)
    }
}

/// `action` with `leaf` in place of its leaf `target`, called `out`; `None` where only a bare
/// action could be called so.
fn replaced(action: &Spec, target: usize, out: &NestedKey, leaf: Spec) -> Option<Spec> {
    let mut action = action.clone();
    let name = match action.leaves("action").get(target) {
        Some((key, _)) if key == out => None,
        _ if matches!(action, Spec::Composite(_)) => return None,
        _ => Some(out.components()),
    };
    *action.leaf_mut(target)? = leaf;
    match name {
        None => Some(action),
        Some([name]) => Some(Spec::composite([(name.to_string(), action)])),
        Some(_) => None,
    }
}

/// The numbers that the choices of one element stand for.
#[derive(Debug)]
struct Interval {
    numbers: Vec<f64>,
    /// Length of the part that a choice stands for.
    part: f64,
}

/// Turns choices into numbers.
#[derive(Debug)]
pub struct Discretizing {
    /// Element types of the environments' actions.
    leaves: Vec<DType>,
    /// The leaf of choices.
    target: usize,
    elements: Vec<Interval>,
    one_hot: bool,
    /// Generators of the environments, where numbers are drawn.
    random: Option<Vec<EnvRng>>,
}

impl Discretizing {
    /// Writes the numbers that `choices` of all environments stand for.
    fn decode<T: Real>(&mut self, choices: &[i64], to: &mut [T]) -> Result<(), VecEnvError> {
        let width = match self.one_hot {
            true => self.elements.iter().map(|of| of.numbers.len()).sum(),
            false => self.elements.len(),
        };
        let rows = choices.chunks_exact(width.max(1));
        let rows = rows.zip(to.chunks_exact_mut(self.elements.len().max(1)));
        for (env, (mut choices, places)) in rows.enumerate() {
            let mut random = self.random.as_mut().and_then(|all| all.get_mut(env));
            for (interval, place) in self.elements.iter().zip(places) {
                let n = if self.one_hot {
                    interval.numbers.len()
                } else {
                    1
                };
                let (own, others) = choices.split_at(n);
                let choice = match self.one_hot {
                    true => choose(own).map_err(|error| error.of(env))?,
                    false => own[0],
                };
                choices = others;
                let number = usize::try_from(choice).ok();
                let number = number.and_then(|choice| interval.numbers.get(choice));
                let Some(number) = number.copied() else {
                    let expected = format!("a choice from 0 to {}", interval.numbers.len() - 1);
                    let got = choice.to_string();
                    return Err(EnvError::Action { expected, got }.of(env));
                };
                *place = T::of(number);
                if let Some(random) = &mut random {
                    let part = T::of(random.for_reset(None).random()) * T::of(interval.part);
                    *place = *place + part;
                }
            }
        }
        Ok(())
    }
}

impl BoundTransform for Discretizing {
    fn act(&mut self, actions: Rows<'_>, mut inner: RowsMut<'_>) -> Result<(), VecEnvError> {
        let broken = |error: windrow_slab::SlabError| EnvError::from(error).of(0);
        for i in 0..self.leaves.len() {
            if i == self.target {
                let choices = actions.get(Key::<i64>::new(i)).map_err(broken)?;
                for_real!(self.leaves[i], T => {
                    self.decode::<T>(choices, inner.get_mut(Key::new(i)).map_err(broken)?)?;
                });
            } else {
                for_dtype!(self.leaves[i], T => {
                    let from = actions.get(Key::<T>::new(i)).map_err(broken)?;
                    inner.get_mut(Key::<T>::new(i)).map_err(broken)?.copy_from_slice(from);
                });
            }
        }
        Ok(())
    }

    fn reset(&mut self, resets: &[Reset], _: Observations<'_>) -> Result<(), VecEnvError> {
        let Some(random) = &mut self.random else {
            return Ok(());
        };
        for &Reset { env, seed } in resets {
            if let (Some(random), Some(seed)) = (random.get_mut(env), seed) {
                // Other numbers than those that the environment draws.
                random.for_reset(Some(seed ^ 0x6469_7363_7265_7465));
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn step(&mut self, _: Observations<'_>, _: Outcomes<'_>) -> Result<(), VecEnvError> {
        Ok(())
    }

    fn visit_state(&mut self, state: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        state.values(self.random.as_deref_mut().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{CartPole, Pendulum, Serial, VecEnv};

    fn pendulums() -> Serial<Pendulum> {
        Serial::from_fn(2, Pendulum::new).unwrap()
    }

    /// What two pendulums observe after a step.
    fn seen<T: tensordict::Element>(envs: impl VecEnv, action: T) -> Vec<f32> {
        let mut envs = VecDriver::new(envs);
        envs.reset_seeded(&[0, 1], 5).unwrap();
        envs.step(action).unwrap();
        envs.seen("observation")
    }

    #[test]
    fn choices_stand_for_numbers_of_their_intervals() {
        for (sampling, choice, torque) in [
            (Sampling::Median, 1, -0.5f32),
            (Sampling::Low, 1, -1.0),
            (Sampling::High, 1, 0.0),
        ] {
            let discretizer = ActionDiscretizer {
                sampling,
                ..ActionDiscretizer::new([4])
            };
            let got = seen(pendulums().transformed(discretizer).unwrap(), choice as i64);
            assert_eq!(got, seen(pendulums(), torque), "{sampling:?}");
        }
    }

    #[test]
    fn drawn_numbers_follow_from_the_seed() {
        let discretizer = ActionDiscretizer {
            sampling: Sampling::Random,
            ..ActionDiscretizer::new([2])
        };
        let drawn = || seen(pendulums().transformed(discretizer.clone()).unwrap(), 0i64);
        assert_eq!(drawn(), drawn());
        assert_ne!(drawn(), seen(pendulums(), -2.0f32));
    }

    #[test]
    fn the_spec_has_the_choices_under_their_name() {
        let named = ActionDiscretizer {
            out_action_key: Some("choice".into()),
            one_hot: true,
            ..ActionDiscretizer::new([3])
        };
        let envs = pendulums().transformed(named).unwrap();
        let choice = Spec::OneHot { nvec: vec![3] };
        assert_eq!(envs.spec().action, Spec::composite([("choice", choice)]));
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let discrete = Serial::from_fn(1, CartPole::v1).unwrap();
        let error = discrete
            .transformed(ActionDiscretizer::new([3]))
            .unwrap_err();
        assert!(
            error.to_string().contains("expected a bounded action"),
            "{error}"
        );
        let error = pendulums()
            .transformed(ActionDiscretizer::new([3, 4]))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "num_intervals of ActionDiscretizer of Pendulum-v1: expected 1 number or 1, each 1 or more, got [3, 4]"
        );
        let mut envs = VecDriver::new(
            pendulums()
                .transformed(ActionDiscretizer::new([3]))
                .unwrap(),
        );
        envs.reset(&[0, 1]).unwrap();
        assert_eq!(
            envs.step(3i64).unwrap_err().to_string(),
            "environment 0: action out of range: expected a choice from 0 to 2, got 3"
        );
    }
}
