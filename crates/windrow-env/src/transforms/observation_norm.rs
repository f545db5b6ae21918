use serde::{Deserialize, Serialize};
use tensordict::{DType, NestedKey, for_dtype};
use windrow_slab::Key;

use crate::number::Number;
use crate::{
    Attach, BoundTransform, EnvError, Observations, Outcomes, Reset, Spec, SpecError, StateVisitor,
    Transform, VecEnvError, serde_form,
};

/// Scales and shifts an observation, element by element: `x * scale + loc`.
///
/// ```
/// use windrow_env::{ObservationNorm, Pendulum, Serial, VecEnv};
///
/// let (mean, deviation) = ([0.0; 3], [1.0, 1.0, 8.0]);
/// let norm = ObservationNorm::standardize("observation", &mean, &deviation);
/// let envs = Serial::from_fn(4, Pendulum::v1)?.transformed(norm)?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservationNorm {
    /// Name of the observation, of real numbers.
    #[serde(with = "serde_form::key")]
    pub in_key: NestedKey,
    /// Name of the result, which is then observed in addition; `None` replaces the observation.
    #[serde(default)]
    pub out_key: Option<String>,
    /// The summand for each element, or for all; finite.
    pub loc: Vec<f64>,
    /// The factor of each element, or of all; finite.
    pub scale: Vec<f64>,
}

impl ObservationNorm {
    /// The observation `key` becomes `key * scale + loc`. Numbers for each element, or one for all.
    #[must_use]
    pub fn new(key: impl Into<NestedKey>, loc: &[f64], scale: &[f64]) -> Self {
        Self {
            in_key: key.into(),
            out_key: None,
            loc: loc.to_vec(),
            scale: scale.to_vec(),
        }
    }

    /// The observation `key` becomes `(key - mean) / deviation`; no deviation may be 0, whose
    /// `scale` is infinite.
    #[must_use]
    pub fn standardize(key: impl Into<NestedKey>, mean: &[f64], deviation: &[f64]) -> Self {
        let scale: Vec<f64> = deviation.iter().map(|x| x.recip()).collect();
        let longer = mean.len().max(scale.len());
        let at = |values: &[f64], i: usize| *values.get(i).or(values.first()).unwrap_or(&f64::NAN);
        let loc: Vec<f64> = (0..longer).map(|i| -at(mean, i) * at(&scale, i)).collect();
        Self::new(key, &loc, &scale)
    }

    /// Leaves the observation as it is, and adds the result as observation `name`.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.out_key = Some(name.into());
        self
    }
}

impl Transform for ObservationNorm {
    type Bound = Normalising;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Normalising, EnvError> {
        let (from, leaf) = envs.observation(&self.in_key)?;
        if !leaf.dtype.is_float() {
            let (expected, got) = ("float32 or float64 to be normalised", leaf.dtype.name());
            return Err(envs.inner().unfit(&leaf.key, expected, got));
        }
        let numbers = |name, given: &[f64]| each(name, given, leaf.elements(), &self.in_key);
        // A deviation of 0 makes both infinite or NaN, and is easier to recognise by the scale.
        let (scale, loc) = (numbers("scale", &self.scale)?, numbers("loc", &self.loc)?);
        let normed = Spec::unbounded(leaf.dtype, &leaf.shape);
        let to = match &self.out_key {
            Some(name) => envs.append(&name.into(), normed)?,
            None => {
                if let Some(spec) = envs.spec.observation.leaf_mut(from) {
                    *spec = normed;
                }
                from
            }
        };
        Ok(Normalising {
            dtype: leaf.dtype,
            from,
            to,
            loc,
            scale,
        })
    }
}

/// Scales and shifts one leaf.
#[derive(Debug)]
pub struct Normalising {
    dtype: DType,
    /// Leaf that is read.
    from: usize,
    /// Leaf that is written, the same unless the result has a name of its own.
    to: usize,
    loc: Vec<f64>,
    scale: Vec<f64>,
}

impl Normalising {
    /// Normalises the rows of `envs`.
    fn apply(
        &self,
        envs: impl Iterator<Item = usize>,
        mut obs: Observations<'_>,
    ) -> Result<(), VecEnvError> {
        for env in envs {
            for_dtype!(self.dtype, T => self.apply_to::<T>(env, &mut obs))
                .map_err(|error| error.of(env))?;
        }
        Ok(())
    }

    fn apply_to<T: Number>(&self, env: usize, obs: &mut Observations<'_>) -> Result<(), EnvError> {
        let Some(mut row) = obs.rows.env_mut(env) else {
            return Ok(());
        };
        let norm = |i: usize, x: T| T::nearest(x.number() * self.scale[i] + self.loc[i]);
        if self.from == self.to {
            let values = row.get_mut(Key::<T>::new(self.to))?;
            for (i, x) in values.iter_mut().enumerate() {
                *x = norm(i, *x);
            }
            return Ok(());
        }
        for i in 0..self.loc.len() {
            let x = row.as_row().get(Key::<T>::new(self.from))?[i];
            row.get_mut(Key::<T>::new(self.to))?[i] = norm(i, x);
        }
        Ok(())
    }
}

impl BoundTransform for Normalising {
    fn reset(&mut self, resets: &[Reset], obs: Observations<'_>) -> Result<(), VecEnvError> {
        self.apply(resets.iter().map(|reset| reset.env), obs)
    }

    fn step(&mut self, obs: Observations<'_>, _: Outcomes<'_>) -> Result<(), VecEnvError> {
        self.apply(0..obs.rows.envs(), obs)
    }

    fn visit_state(&mut self, _: &mut StateVisitor<'_>) -> Result<(), EnvError> {
        Ok(())
    }
}

/// `given` for each of `elements` elements.
fn each(
    argument: &'static str,
    given: &[f64],
    elements: usize,
    key: &NestedKey,
) -> Result<Vec<f64>, EnvError> {
    let unfit = |expected: String, got: String| {
        let error = SpecError::Argument {
            argument,
            of: format!("observation {key:?}"),
            expected,
            got,
        };
        error.into()
    };
    if let Some(bad) = given.iter().find(|x| !x.is_finite()) {
        return Err(unfit("finite numbers".to_owned(), bad.to_string()));
    }
    match given {
        [x] => Ok(vec![*x; elements]),
        given if given.len() == elements => Ok(given.to_vec()),
        given => Err(unfit(
            format!("1 number or {elements}"),
            given.len().to_string(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CountingEnv;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{Pendulum, RewardSum, Serial, Transformed, VecEnv};

    fn pendulums() -> Serial<Pendulum> {
        Serial::from_fn(2, Pendulum::new).unwrap()
    }

    #[test]
    fn observations_are_scaled_and_shifted() {
        let (loc, scale) = ([0.0, 1.0, 2.0], [1.0, 0.5, -2.0]);
        let mut plain = VecDriver::new(pendulums());
        let normed = ObservationNorm::new("observation", &loc, &scale);
        let normed = pendulums().transformed(normed).unwrap();
        let mut normed = VecDriver::new(normed);
        let expect = |plain: &VecDriver<_>, normed: &VecDriver<_>| {
            let seen: Vec<f32> = VecDriver::<Serial<Pendulum>>::seen(plain, "observation");
            let expected: Vec<f32> = (0..6)
                .map(|i| (f64::from(seen[i]) * scale[i % 3] + loc[i % 3]) as f32)
                .collect();
            let got: Vec<f32> = VecDriver::<Transformed<Serial<Pendulum>, ObservationNorm>>::seen(
                normed,
                "observation",
            );
            assert_eq!(got, expected);
        };
        plain.reset_seeded(&[0, 1], 3).unwrap();
        normed.reset_seeded(&[0, 1], 3).unwrap();
        expect(&plain, &normed);
        plain.step(0.5f32).unwrap();
        normed.step(0.5f32).unwrap();
        expect(&plain, &normed);
        // The row of the other environment is not normalised twice.
        plain.reset_seeded(&[1], 8).unwrap();
        normed.reset_seeded(&[1], 8).unwrap();
        expect(&plain, &normed);
    }

    #[test]
    fn the_result_may_have_a_name_of_its_own() {
        let norm = ObservationNorm::standardize("observation", &[1.0], &[2.0]).named("normed");
        let mut envs = VecDriver::new(pendulums().transformed(norm).unwrap());
        envs.reset_seeded(&[0, 1], 0).unwrap();
        envs.step(0f32).unwrap();
        let (seen, normed) = (envs.seen::<f32>("observation"), envs.seen::<f32>("normed"));
        for (seen, normed) in seen.iter().zip(normed) {
            assert!(((seen - 1.0) / 2.0 - normed).abs() < 1e-6);
        }
    }

    #[test]
    fn later_leaves_are_found_too() {
        let summed = pendulums().transformed(RewardSum::new()).unwrap();
        let norm = ObservationNorm::new("episode_reward", &[7.0], &[0.0]);
        let mut envs = VecDriver::new(summed.transformed(norm).unwrap());
        envs.reset(&[0, 1]).unwrap();
        assert_eq!(envs.seen::<f32>("episode_reward"), [7.0, 7.0]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let error = |key: &str, loc: &[f64], scale: &[f64]| {
            let made = pendulums().transformed(ObservationNorm::new(key, loc, scale));
            made.unwrap_err().to_string()
        };
        assert_eq!(
            error("pixels", &[0.0], &[1.0]),
            "Pendulum-v1 has no observation \"pixels\"; it has \"observation\""
        );
        assert_eq!(
            error("observation", &[0.0; 2], &[1.0]),
            "loc of observation \"observation\": expected 1 number or 3, got 2"
        );
        let none = ObservationNorm::standardize("observation", &[0.0], &[0.0]);
        assert_eq!(
            pendulums().transformed(none).unwrap_err().to_string(),
            "scale of observation \"observation\": expected finite numbers, got inf"
        );
        let counting = Serial::from_fn(1, CountingEnv::default).unwrap();
        let norm = ObservationNorm::new("observation", &[0.0], &[1.0]);
        let whole = counting.transformed(norm.clone());
        assert!(whole.unwrap_err().to_string().ends_with("got int32"));
        assert!(pendulums().transformed(norm.named("observation")).is_err());
    }
}
