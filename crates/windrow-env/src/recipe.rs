//! Environments as values that can be serialized (ADR 0029).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use crate::arguments::Arguments;
use crate::factory::many;
use crate::recipe_form::{join, split};
use crate::{AnyTransform, EnvError, EnvFactory, EnvRegistry, FrameSkipTransform, Joined, VecEnv};

/// How to make environments: which ones, how many, and the transforms around them.
///
/// A recipe of an id is a value: it can be compared, serialized and sent to other processes. A
/// recipe of a factory can be used in this process only.
///
/// ```
/// use windrow_env::{CartPole, EnvFactory, EnvRecipe, RewardSum, StepCounter};
///
/// let recipe = EnvRecipe::of("CartPole-v1")
///     .with_transform(StepCounter::new().with_max_steps(200))
///     .with_transform(RewardSum::new());
/// assert_eq!(EnvRecipe::from_json(&recipe.to_json()?)?, recipe);
/// let envs = recipe.build(8)?;
/// assert_eq!(envs.spec().max_episode_steps, Some(200));
///
/// assert!(EnvRecipe::opaque(CartPole::v1).to_json().is_err());
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "EnvRecipeRepr")]
pub struct EnvRecipe {
    source: EnvSource,
    num_envs: usize,
    transforms: Vec<AnyTransform>,
}

#[derive(Debug, Clone, PartialEq)]
enum EnvSource {
    Id { id: String, arguments: Arguments },
    Factory(Opaque),
}

/// A factory given as code: it cannot be serialized, and only its type is known.
#[derive(Clone)]
struct Opaque {
    factory: Arc<dyn EnvFactory + Send + Sync>,
    type_name: &'static str,
}

/// The serialized form of a recipe.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvRecipeRepr {
    id: String,
    #[serde(default, skip_serializing_if = "Arguments::is_none")]
    arguments: Arguments,
    /// The first of the transforms, in short.
    #[serde(default = "one", skip_serializing)]
    frame_skip: usize,
    #[serde(default = "one")]
    num_envs: usize,
    #[serde(default)]
    transforms: Vec<AnyTransform>,
}

fn one() -> usize {
    1
}

impl EnvRecipe {
    /// The environment registered as `id`.
    #[must_use]
    pub fn of(id: impl Into<String>) -> Self {
        Self::new(EnvSource::Id {
            id: id.into(),
            arguments: Arguments::default(),
        })
    }

    /// The environment registered as `id`, inside of a [`FrameSkipTransform`] if actions are taken
    /// several times.
    #[must_use]
    pub fn of_skipping(id: impl Into<String>, frame_skip: usize) -> Self {
        match frame_skip {
            1 => Self::of(id),
            _ => Self::of(id).with_transform(FrameSkipTransform::new(frame_skip)),
        }
    }

    /// Passes `arguments` to the environment, which is registered [with
    /// some](EnvRegistry::register_with). A recipe of a factory has none to pass, and stays as it
    /// is.
    ///
    /// # Errors
    /// [`EnvError::Unreadable`] for what JSON cannot hold, such as a map whose keys are no strings.
    pub fn with_arguments(mut self, given: &impl Serialize) -> Result<Self, EnvError> {
        if let EnvSource::Id { id, arguments } = &mut self.source {
            *arguments = Arguments::new(id, given)?;
        }
        Ok(self)
    }

    /// As [`with_arguments`](Self::with_arguments), in a form for [bytes](Self::to_bytes) that only
    /// this build of the program reads.
    ///
    /// # Errors
    /// [`EnvError::Unreadable`] for what this form cannot hold.
    pub fn with_packed(mut self, given: &impl Serialize) -> Result<Self, EnvError> {
        if let EnvSource::Id { id, arguments } = &mut self.source {
            *arguments = Arguments::packed(id, given)?;
        }
        Ok(self)
    }

    /// The environments that `factory` makes. Such a recipe cannot be serialized.
    #[must_use]
    pub fn opaque<F: EnvFactory + Send + Sync + 'static>(factory: F) -> Self {
        Self::new(EnvSource::Factory(Opaque {
            factory: Arc::new(factory),
            type_name: std::any::type_name::<F>(),
        }))
    }

    fn new(source: EnvSource) -> Self {
        Self {
            source,
            num_envs: 1,
            transforms: Vec::new(),
        }
    }

    /// Makes `num_envs` environments in lockstep instead of one.
    #[must_use]
    pub fn with_num_envs(mut self, num_envs: usize) -> Self {
        self.num_envs = num_envs;
        self
    }

    /// Puts `transform` around the environments and the transforms so far.
    #[must_use]
    pub fn with_transform(mut self, transform: impl Into<AnyTransform>) -> Self {
        self.transforms.push(transform.into());
        self
    }

    /// The transforms, the first nearest to the environments.
    #[must_use]
    pub fn transforms(&self) -> &[AnyTransform] {
        &self.transforms
    }

    /// As [`build`](EnvFactory::build), with ids of `registry` instead of the
    /// [installed](EnvRegistry::installed) one.
    ///
    /// # Errors
    /// As [`build`](EnvFactory::build), and [`EnvError::UnknownId`].
    pub fn build_from(
        &self,
        registry: &EnvRegistry,
        num_envs: usize,
    ) -> Result<Box<dyn VecEnv>, EnvError> {
        let num_envs = match (self.num_envs, num_envs) {
            (own, 1) => own,
            (1, asked) => asked,
            (envs, asked) => return Err(EnvError::AlreadyVector { envs, asked }),
        };
        let around = |envs, transforms: &[AnyTransform]| {
            let mut transforms = transforms.iter();
            transforms.try_fold(envs, |envs, transform| transform.around(envs))
        };
        let (alone, outside) = AnyTransform::split(&self.transforms);
        if alone.is_empty() || num_envs == 1 {
            return around(self.source.build(registry, num_envs)?, &self.transforms);
        }
        // Where only the innermost transform steps some without others, one vector may do, whose
        // rows nobody copies.
        if let [AnyTransform::FrameSkipTransform(_)] = alone {
            let envs = self.source.build(registry, num_envs)?;
            if envs.step_apart() {
                return around(envs, &self.transforms);
            }
        }
        let single = || around(self.source.build(registry, 1)?, alone);
        let members = many(num_envs, single)?.into_iter();
        around(
            Box::new(Joined::new(members.collect::<Result<_, _>>()?)?),
            outside,
        )
    }

    /// The recipe as an object of JSON.
    ///
    /// # Errors
    /// [`EnvError::Unwritable`] for environments that a factory makes.
    pub fn to_json(&self) -> Result<String, EnvError> {
        let written = self.written()?;
        serde_json::to_string(&written).map_err(EnvError::failed)
    }

    /// The recipe that [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    /// [`EnvError::Unreadable`] for anything else.
    pub fn from_json(json: &str) -> Result<Self, EnvError> {
        serde_json::from_slice(json.as_bytes()).map_err(|error| unreadable(&error))
    }

    /// The recipe as bytes: the length of an array of JSON (`u64`, little-endian), the array, and
    /// the arguments where they are [packed](Self::with_packed). The array is of the recipe's
    /// [JSON](Self::to_json), and of whether they are.
    ///
    /// # Errors
    /// [`EnvError::Unwritable`] for environments that a factory makes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EnvError> {
        let mut written = self.written()?;
        let packed = written.arguments.take_packed();
        join(&(&written, packed.is_some()), &packed.unwrap_or_default()).map_err(EnvError::failed)
    }

    /// The recipe that [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// [`EnvError::Unreadable`] for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EnvError> {
        let (json, packed) = split(bytes).ok_or_else(|| unreadable(&"it is cut short"))?;
        let read = serde_json::from_slice(json);
        let (mut recipe, is_packed): (Self, bool) = read.map_err(|error| unreadable(&error))?;
        match &mut recipe.source {
            EnvSource::Id { arguments, .. } if is_packed => {
                *arguments = Arguments::of_packed(packed.to_vec());
            }
            _ if packed.is_empty() => {}
            _ => return Err(unreadable(&"bytes follow it")),
        }
        Ok(recipe)
    }

    fn written(&self) -> Result<EnvRecipeRepr, EnvError> {
        match &self.source {
            EnvSource::Id { id, arguments } => Ok(EnvRecipeRepr {
                id: id.clone(),
                arguments: arguments.clone(),
                frame_skip: 1,
                num_envs: self.num_envs,
                transforms: self.transforms.clone(),
            }),
            EnvSource::Factory(opaque) => Err(EnvError::Unwritable {
                factory: opaque.type_name,
            }),
        }
    }
}

#[cold]
fn unreadable(reason: &dyn fmt::Display) -> EnvError {
    EnvError::Unreadable {
        what: "the recipe of environments".to_owned(),
        reason: reason.to_string(),
    }
}

impl EnvFactory for EnvRecipe {
    fn build(&self, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
        self.build_from(EnvRegistry::installed(), num_envs)
    }

    fn recipe(&self) -> Option<EnvRecipe> {
        Some(self.clone())
    }
}

impl EnvSource {
    fn build(&self, registry: &EnvRegistry, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
        match self {
            Self::Id { id, arguments } => registry.make_vec_with(id, arguments, num_envs),
            Self::Factory(opaque) => opaque.factory.build(num_envs),
        }
    }
}

impl Serialize for EnvRecipe {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let written = self.written().map_err(serde::ser::Error::custom)?;
        written.serialize(to)
    }
}

impl From<EnvRecipeRepr> for EnvRecipe {
    fn from(written: EnvRecipeRepr) -> Self {
        let mut recipe = Self::of_skipping(written.id, written.frame_skip);
        if let EnvSource::Id { arguments, .. } = &mut recipe.source {
            *arguments = written.arguments;
        }
        recipe.num_envs = written.num_envs;
        recipe.transforms.extend(written.transforms);
        recipe
    }
}

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name)
    }
}

/// Whether both are the same factory.
impl PartialEq for Opaque {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.factory, &other.factory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CountingEnv;
    use crate::transforms::examples;
    use crate::transforms::vec_driver::VecDriver;
    use crate::{CartPole, CatFrames, DoubleToFloat, Keys, LimitFlag, RewardSum, StepCounter};

    /// A recipe with every transform, and arguments that are easily lost.
    fn full() -> EnvRecipe {
        let recipe = EnvRecipe::of_skipping("Pendulum-v1", 4).with_num_envs(3);
        examples::all()
            .into_iter()
            .fold(recipe, EnvRecipe::with_transform)
            .with_transform(
                CatFrames::new(2, -1, Keys::of(["observation"])).padded_with(f64::NEG_INFINITY),
            )
            .with_transform(StepCounter::new().or_named(("own", "steps")))
    }

    #[test]
    fn what_was_written_is_read_again() {
        for recipe in [EnvRecipe::of("CartPole-v1"), full()] {
            let json = recipe.to_json().unwrap();
            assert_eq!(EnvRecipe::from_json(&json).unwrap(), recipe, "{json}");
            let bytes = recipe.to_bytes().unwrap();
            assert_eq!(EnvRecipe::from_bytes(&bytes).unwrap(), recipe);
        }
    }

    #[test]
    fn arguments_with_a_default_need_not_be_written() {
        let json =
            r#"{"id": "CartPole-v1", "transforms": [{"StepCounter": {}}, {"DoubleToFloat": {}}]}"#;
        let expected = EnvRecipe::of("CartPole-v1")
            .with_transform(StepCounter::new())
            .with_transform(DoubleToFloat::new());
        assert_eq!(EnvRecipe::from_json(json).unwrap(), expected);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let error = |json: &str| EnvRecipe::from_json(json).unwrap_err().to_string();
        for (json, named) in [
            (r#"{"num_envs": 2}"#, "missing field `id`"),
            (r#"{"id": "x", "steps": 2}"#, "unknown field `steps`"),
            (
                r#"{"id": "x", "transforms": [{"Blur": {}}]}"#,
                "unknown variant `Blur`",
            ),
            (
                r#"{"id": "x", "transforms": [{"LimitFlag": {"key": "late"}}]}"#,
                "missing field `max_steps`",
            ),
            (
                r#"{"id": "x", "transforms": [{"StepCounter": {"limit": 2}}]}"#,
                "unknown field `limit`",
            ),
        ] {
            let error = error(json);
            assert!(
                error.starts_with("the recipe of environments cannot be read: "),
                "{error}"
            );
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn packed_arguments_are_written_as_they_are_and_in_bytes_alone() {
        let sent = [0, 255, b'"', 7].repeat(50);
        let recipe = EnvRecipe::of("Sent").with_packed(&sent).unwrap();
        let bytes = recipe.to_bytes().unwrap();
        assert!(bytes.ends_with(&sent));
        assert_eq!(EnvRecipe::from_bytes(&bytes).unwrap(), recipe);
        assert!(recipe.to_json().is_err());
        // Packed, which nothing is too.
        let empty = EnvRecipe::of("Sent").with_packed(&()).unwrap();
        let bytes = empty.to_bytes().unwrap();
        assert_eq!(EnvRecipe::from_bytes(&bytes).unwrap(), empty);
    }

    #[test]
    fn bytes_that_are_no_recipe_are_refused() {
        let plain = EnvRecipe::of("Sent").to_bytes().unwrap();
        for (bytes, reason) in [
            (&plain[..plain.len() - 1], "it is cut short"),
            (&[&plain[..], &[0]].concat(), "bytes follow it"),
            (
                &[&[2, 0, 0, 0, 0, 0, 0, 0], &b"{}"[..]].concat(),
                "invalid type",
            ),
        ] {
            let error = EnvRecipe::from_bytes(bytes).unwrap_err().to_string();
            let expected = format!("the recipe of environments cannot be read: {reason}");
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn a_factory_cannot_be_written_and_is_named() {
        let recipe = EnvRecipe::opaque(CountingEnv::default).with_transform(StepCounter::new());
        let error = recipe.to_json().unwrap_err().to_string();
        assert!(
            error.starts_with("environments made by ") && error.contains("CountingEnv"),
            "{error}"
        );
        assert_eq!(recipe.to_bytes().unwrap_err().to_string(), error);
        assert_eq!(
            serde_json::to_string(&recipe).unwrap_err().to_string(),
            error
        );
    }

    #[test]
    fn transforms_go_around_in_order() {
        let recipe = EnvRecipe::opaque(|| CountingEnv::new(9, 0))
            .with_transform(StepCounter::new())
            .with_transform(LimitFlag::new("late", 2));
        let mut envs = VecDriver::new(recipe.build(2).unwrap());
        envs.reset(&[0, 1]).unwrap();
        envs.step(1i8).unwrap();
        envs.step(1i8).unwrap();
        assert_eq!(envs.seen_at::<i64>(1), [2, 2]);
        assert_eq!(envs.seen_at::<bool>(2), [true, true]);
    }

    #[test]
    fn ids_are_those_of_the_registry() {
        let mut registry = EnvRegistry::new();
        registry.register("Count", CountingEnv::default).unwrap();
        let recipe = EnvRecipe::of("Count");
        let envs = recipe.build_from(&registry, 2).unwrap();
        assert_eq!((envs.num_envs(), envs.spec().id.as_str()), (2, "Counting"));
        assert!(matches!(
            recipe.build(2).err(),
            Some(EnvError::UnknownId { .. })
        ));
    }

    #[test]
    fn actions_are_repeated_where_the_recipe_says_so() {
        let mut registry = EnvRegistry::new();
        let counting = || CountingEnv::new(9, 0);
        registry.register("Count", counting).unwrap();
        let envs = EnvRecipe::of_skipping("Count", 3).build_from(&registry, 2);
        let mut envs = VecDriver::new(envs.unwrap());
        envs.reset(&[0, 1]).unwrap();
        envs.step(1i8).unwrap();
        assert_eq!(envs.seen::<i32>("observation"), [3, 3]);
    }

    #[test]
    fn a_skip_is_the_first_of_the_transforms() {
        let recipe = EnvRecipe::of_skipping("Pendulum-v1", 4).with_transform(RewardSum::new());
        let short = r#"{"id": "Pendulum-v1", "frame_skip": 4, "transforms": [{"RewardSum": {}}]}"#;
        assert_eq!(EnvRecipe::from_json(short).unwrap(), recipe);
        assert_eq!(recipe.transforms().len(), 2);
        assert_eq!(
            EnvRecipe::of_skipping("Pendulum-v1", 1).transforms().len(),
            0
        );
    }

    #[test]
    fn a_recipe_of_several_is_not_multiplied() {
        let pair = EnvRecipe::of("CartPole-v1").with_num_envs(2);
        assert_eq!(pair.build(1).unwrap().num_envs(), 2);
        assert_eq!(
            pair.build(3).err().unwrap().to_string(),
            "already a vector of 2 environments, asked for 3 of them; leave num_envs out"
        );
        let none = EnvRecipe::of("CartPole-v1").build(0);
        assert!(matches!(none.err(), Some(EnvError::Empty)));
    }

    #[test]
    fn factories_that_are_values_give_their_recipe() {
        let recipe = Some(EnvRecipe::of("CartPole-v1"));
        assert_eq!("CartPole-v1".recipe(), recipe);
        assert_eq!(String::from("CartPole-v1").recipe(), recipe);
        assert_eq!(EnvRecipe::of("CartPole-v1").recipe(), recipe);
        assert_eq!(CartPole::v1.recipe(), None);
    }
}
