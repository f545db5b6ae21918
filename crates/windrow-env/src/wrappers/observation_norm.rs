use tensordict::{DType, NestedKey, for_dtype};
use windrow_slab::{Key, LeafSpec, Rows, RowsMut};

use crate::number::Number;
use crate::{EnvError, EnvSpec, Outcomes, Reset, Spec, VecEnv, VecEnvError};

/// Environments with an observation that is scaled and shifted, element by element: `x * scale + loc`.
///
/// ```
/// use windrow_env::{ObservationNorm, Pendulum, Serial};
///
/// let envs = Serial::from_fn(4, Pendulum::v1)?;
/// let (mean, deviation) = ([0.0; 3], [1.0, 1.0, 8.0]);
/// let normed = ObservationNorm::standardize(envs, "observation", &mean, &deviation)?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ObservationNorm<V> {
    envs: V,
    spec: EnvSpec,
    dtype: DType,
    /// Leaf that is read.
    from: usize,
    /// Leaf that is written, the same unless the result has a name of its own.
    to: usize,
    loc: Vec<f64>,
    scale: Vec<f64>,
}

impl<V: VecEnv> ObservationNorm<V> {
    /// `envs`, whose observation `key` becomes `key * scale + loc`. Numbers for each element, or one for all.
    ///
    /// # Errors
    /// [`EnvError::Spec`] when there is no such observation, it does not hold real numbers, or `loc` or `scale` has another
    /// length or holds something else than finite numbers.
    pub fn new(
        envs: V,
        key: impl Into<NestedKey>,
        loc: &[f64],
        scale: &[f64],
    ) -> Result<Self, EnvError> {
        let (key, mut spec) = (key.into(), envs.spec().clone());
        let leaves = spec.observation_leaves();
        let Some(from) = leaves.iter().position(|leaf| leaf.key == key) else {
            let names: Vec<_> = leaves.iter().map(|leaf| leaf.key.to_string()).collect();
            return Err(EnvError::Spec(format!(
                "{} has no observation {key} to normalise; it has {}",
                spec.id,
                names.join(", ")
            )));
        };
        let leaf = &leaves[from];
        if !leaf.dtype.is_float() {
            return Err(EnvError::Spec(format!(
                "only real numbers can be normalised: expected float32 or float64 in observation {key} of {}, got {}",
                spec.id, leaf.dtype
            )));
        }
        let numbers = |name: &str, given: &[f64]| each(name, given, leaf.elements(), &key);
        let (loc, scale) = (numbers("loc", loc)?, numbers("scale", scale)?);
        if let Some(free) = find(&mut spec.observation, &mut from.clone()) {
            *free = Spec::unbounded(leaf.dtype, &leaf.shape);
        }
        Ok(Self {
            dtype: leaf.dtype,
            to: from,
            from,
            loc,
            scale,
            envs,
            spec,
        })
    }

    /// `envs`, whose observation `key` becomes `(key - mean) / deviation`.
    ///
    /// # Errors
    /// As [`new`](Self::new), with the deviations inverted: they must not be 0.
    pub fn standardize(
        envs: V,
        key: impl Into<NestedKey>,
        mean: &[f64],
        deviation: &[f64],
    ) -> Result<Self, EnvError> {
        let scale: Vec<f64> = deviation.iter().map(|x| x.recip()).collect();
        let longer = mean.len().max(scale.len());
        let at = |values: &[f64], i: usize| *values.get(i).or(values.first()).unwrap_or(&f64::NAN);
        let loc: Vec<f64> = (0..longer).map(|i| -at(mean, i) * at(&scale, i)).collect();
        Self::new(envs, key, &loc, &scale)
    }

    /// Leaves the observation as it is, and adds the result as observation `name`.
    ///
    /// # Errors
    /// [`EnvError::Spec`] when there is an observation `name` already.
    pub fn named(mut self, name: &str) -> Result<Self, EnvError> {
        let mut spec = self.envs.spec().clone();
        let leaves = spec.observation_leaves();
        let mut entries = match spec.observation {
            Spec::Composite(entries) => entries,
            bare => vec![("observation".to_owned(), bare)],
        };
        if entries.iter().any(|(entry, _)| entry == name) {
            return Err(EnvError::Spec(format!(
                "{} observes {name:?} already: a normalised observation needs another name",
                spec.id
            )));
        }
        entries.push((
            name.to_owned(),
            Spec::unbounded(self.dtype, &leaves[self.from].shape),
        ));
        spec.observation = Spec::Composite(entries);
        self.to = leaves.len();
        self.spec = spec;
        Ok(self)
    }

    /// The environments with the observation as it was.
    pub fn into_inner(self) -> V {
        self.envs
    }

    /// Normalises the rows of `envs`.
    fn apply(
        &self,
        envs: impl Iterator<Item = usize>,
        obs: &mut RowsMut<'_>,
    ) -> Result<(), VecEnvError> {
        let broken = |env| move |source: EnvError| VecEnvError { env, source };
        for env in envs {
            for_dtype!(self.dtype, T => self.apply_to::<T>(env, obs)).map_err(broken(env))?;
        }
        Ok(())
    }

    fn apply_to<T: Number>(&self, env: usize, obs: &mut RowsMut<'_>) -> Result<(), EnvError> {
        let Some(mut row) = obs.env_mut(env) else {
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

/// `given` for each of `elements` elements.
fn each(name: &str, given: &[f64], elements: usize, key: &NestedKey) -> Result<Vec<f64>, EnvError> {
    if let Some(bad) = given.iter().find(|x| !x.is_finite()) {
        return Err(EnvError::Spec(format!(
            "{name} of observation {key}: expected finite numbers, got {bad}"
        )));
    }
    match given {
        [x] => Ok(vec![*x; elements]),
        given if given.len() == elements => Ok(given.to_vec()),
        given => Err(EnvError::Spec(format!(
            "{name} of observation {key}: expected 1 number or {elements}, got {}",
            given.len()
        ))),
    }
}

/// The leaf before which `before` others come, depth first.
fn find<'a>(spec: &'a mut Spec, before: &mut usize) -> Option<&'a mut Spec> {
    match spec {
        Spec::Composite(entries) => entries
            .iter_mut()
            .find_map(|(_, entry)| find(entry, before)),
        leaf if *before == 0 => Some(leaf),
        _ => {
            *before -= 1;
            None
        }
    }
}

impl<V: VecEnv> VecEnv for ObservationNorm<V> {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn num_envs(&self) -> usize {
        self.envs.num_envs()
    }

    fn bind(&mut self, columns: &[LeafSpec]) -> Result<(), EnvError> {
        self.envs.bind(columns)
    }

    fn reset(&mut self, resets: &[Reset], mut obs: RowsMut<'_>) -> Result<(), VecEnvError> {
        self.envs.reset(resets, obs.reborrow())?;
        self.apply(resets.iter().map(|reset| reset.env), &mut obs)
    }

    fn step(
        &mut self,
        actions: Rows<'_>,
        mut obs: RowsMut<'_>,
        outcomes: Outcomes<'_>,
    ) -> Result<(), VecEnvError> {
        self.envs.step(actions, obs.reborrow(), outcomes)?;
        self.apply(0..self.envs.num_envs(), &mut obs)
    }

    fn panicked_at(&self) -> Option<usize> {
        self.envs.panicked_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CountingEnv;
    use crate::wrappers::vec_driver::VecDriver;
    use crate::{Pendulum, RewardSum, Serial};

    fn pendulums() -> Serial<Pendulum> {
        Serial::from_fn(2, Pendulum::new).unwrap()
    }

    #[test]
    fn observations_are_scaled_and_shifted() {
        let (loc, scale) = ([0.0, 1.0, 2.0], [1.0, 0.5, -2.0]);
        let mut plain = VecDriver::new(pendulums());
        let normed = ObservationNorm::new(pendulums(), "observation", &loc, &scale).unwrap();
        let mut normed = VecDriver::new(normed);
        let expect = |plain: &VecDriver<_>, normed: &VecDriver<_>| {
            let seen: Vec<f32> = VecDriver::<Serial<Pendulum>>::seen(plain, "observation");
            let expected: Vec<f32> = (0..6)
                .map(|i| (f64::from(seen[i]) * scale[i % 3] + loc[i % 3]) as f32)
                .collect();
            let got: Vec<f32> =
                VecDriver::<ObservationNorm<Serial<Pendulum>>>::seen(normed, "observation");
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
        let normed = ObservationNorm::standardize(pendulums(), "observation", &[1.0], &[2.0]);
        let mut envs = VecDriver::new(normed.unwrap().named("normed").unwrap());
        envs.reset_seeded(&[0, 1], 0).unwrap();
        envs.step(0f32).unwrap();
        let (seen, normed) = (envs.seen::<f32>("observation"), envs.seen::<f32>("normed"));
        for (seen, normed) in seen.iter().zip(normed) {
            assert!(((seen - 1.0) / 2.0 - normed).abs() < 1e-6);
        }
    }

    #[test]
    fn later_leaves_are_found_too() {
        let summed = RewardSum::new(pendulums()).unwrap();
        let normed = ObservationNorm::new(summed, "episode_reward", &[7.0], &[0.0]).unwrap();
        let mut envs = VecDriver::new(normed);
        envs.reset(&[0, 1]).unwrap();
        assert_eq!(envs.seen::<f32>("episode_reward"), [7.0, 7.0]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let error = |key: &str, loc: &[f64], scale: &[f64]| {
            let made = ObservationNorm::new(pendulums(), key, loc, scale);
            made.unwrap_err().to_string()
        };
        assert_eq!(
            error("pixels", &[0.0], &[1.0]),
            "Pendulum-v1 has no observation \"pixels\" to normalise; it has \"observation\""
        );
        assert_eq!(
            error("observation", &[0.0; 2], &[1.0]),
            "loc of observation \"observation\": expected 1 number or 3, got 2"
        );
        let none = ObservationNorm::standardize(pendulums(), "observation", &[0.0], &[0.0]);
        assert!(
            none.unwrap_err()
                .to_string()
                .contains("expected finite numbers")
        );
        let counting = Serial::from_fn(1, CountingEnv::default).unwrap();
        let whole = ObservationNorm::new(counting, "observation", &[0.0], &[1.0]);
        assert!(whole.unwrap_err().to_string().ends_with("got int32"));
        let normed = ObservationNorm::new(pendulums(), "observation", &[0.0], &[1.0]).unwrap();
        assert!(normed.named("observation").is_err());
    }
}
