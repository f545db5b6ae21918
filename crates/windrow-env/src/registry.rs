//! Environments and policies by name.
//!
//! [`ByName`] is the registry of either (ADR 0029): the names are one program's, which looks them
//! up in every process that it runs in.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use serde::de::DeserializeOwned;

use crate::arguments::Arguments;
use crate::builtin::ROOMS;
use crate::names::near;
use crate::{Env, EnvError, Serial, VecEnv};

/// Things that are made by name: `M` makes those of one name, given its arguments.
#[derive(Clone)]
pub struct ByName<M> {
    makers: BTreeMap<String, M>,
}

/// An entry of a registry, and the errors of its names.
pub trait Maker {
    /// Errors of what is made.
    type Error;

    /// There is an entry of this `name` already.
    fn taken(name: String) -> Self::Error;

    /// There is no entry of this `name`: those that look like it, best first, and all that there
    /// are.
    fn unknown(name: String, near: Vec<String>, known: Vec<String>) -> Self::Error;
}

impl<M> ByName<M> {
    /// A registry without any entry.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            makers: BTreeMap::new(),
        }
    }

    /// All names in alphabetical order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.makers.keys().map(String::as_str)
    }
}

impl<M: Maker> ByName<M> {
    /// Adds `maker` as `name`.
    ///
    /// # Errors
    /// [`Maker::taken`].
    pub fn add(&mut self, name: impl Into<String>, maker: M) -> Result<(), M::Error> {
        let name = name.into();
        if self.makers.contains_key(&name) {
            return Err(M::taken(name));
        }
        self.makers.insert(name, maker);
        Ok(())
    }

    /// What makes the things of `name`.
    ///
    /// # Errors
    /// [`Maker::unknown`] with the names of the same namespace that look like it.
    pub fn maker(&self, name: &str) -> Result<&M, M::Error> {
        let unknown = || {
            let known = self.names().map(str::to_owned).collect();
            M::unknown(name.to_owned(), near(name, self.names()), known)
        };
        self.makers.get(name).ok_or_else(unknown)
    }
}

impl<M> Default for ByName<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M> fmt::Debug for ByName<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.makers.keys()).finish()
    }
}

/// Environments that can be made from an id such as `"CartPole-v1"`.
///
/// ```
/// use windrow_env::{EnvRegistry, MountainCar, TimeLimit};
///
/// let mut registry = EnvRegistry::builtin();
/// registry.register("LongMountainCar-v0", || TimeLimit::new(MountainCar::new(), 10_000))?;
/// let envs = registry.make_vec("LongMountainCar-v0", 4)?;
/// assert_eq!(envs.spec().max_episode_steps, Some(10_000));
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
///
/// Environments may take [arguments](Self::register_with), which an [`EnvRecipe`](crate::EnvRecipe)
/// carries. A program that [installs](Self::install) a registry can use the ids in it wherever a
/// collector takes an id.
pub type EnvRegistry = ByName<NamedEnv>;

/// Makes the environments of one id: see [`EnvRegistry::register`].
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "it is code")]
pub struct NamedEnv {
    one: Arc<One>,
    many: Arc<Many>,
    /// Entries of `info` that its environments observe where their argument `info` names them, each
    /// with whether resets return it, too.
    info: Vec<(&'static str, bool)>,
}

type One = dyn Fn(&str, &Arguments) -> Result<Box<dyn Env>, EnvError> + Send + Sync;
type Many = dyn Fn(&str, &Arguments, usize) -> Result<Box<dyn VecEnv>, EnvError> + Send + Sync;

impl Maker for NamedEnv {
    type Error = EnvError;

    fn taken(id: String) -> EnvError {
        EnvError::IdTaken { id }
    }

    fn unknown(id: String, near: Vec<String>, known: Vec<String>) -> EnvError {
        EnvError::UnknownId { id, near, known }
    }
}

impl NamedEnv {
    /// Environments that `factory` makes, given what `read` makes of an id and its arguments.
    fn new<A, F, R>(read: fn(&Arguments, &str) -> Result<A, EnvError>, factory: F) -> Self
    where
        A: 'static,
        F: Fn(A) -> R + Clone + Send + Sync + 'static,
        R: IntoEnv,
    {
        let single = factory.clone();
        Self::of(
            move |id, arguments| Ok(Box::new(single(read(arguments, id)?).into_env()?)),
            move |id, arguments, num_envs| {
                let make = || factory(read(arguments, id)?).into_env();
                let envs = crate::factory::many(num_envs, make)?;
                let envs = envs.into_iter().collect::<Result<_, _>>()?;
                Ok(Box::new(Serial::new(envs)?))
            },
            Vec::new(),
        )
    }

    /// Environments that `one` makes one of, and `many` several, each given an id and arguments.
    /// They observe these entries of `info` where their argument `info` names them, each with
    /// whether resets return it, too.
    pub(crate) fn of(
        one: impl Fn(&str, &Arguments) -> Result<Box<dyn Env>, EnvError> + Send + Sync + 'static,
        many: impl Fn(&str, &Arguments, usize) -> Result<Box<dyn VecEnv>, EnvError>
        + Send
        + Sync
        + 'static,
        info: Vec<(&'static str, bool)>,
    ) -> Self {
        Self {
            one: Arc::new(one),
            many: Arc::new(many),
            info,
        }
    }

    /// Environments without arguments.
    fn plain<F, R>(factory: F) -> Self
    where
        F: Fn() -> R + Clone + Send + Sync + 'static,
        R: IntoEnv,
    {
        Self::new(Arguments::check_none, move |()| factory())
    }
}

/// The registry that the program has installed.
static INSTALLED: OnceLock<EnvRegistry> = OnceLock::new();

impl EnvRegistry {
    /// The environments that come with windrow.
    #[must_use]
    pub fn builtin() -> Self {
        let entries = ROOMS.iter().flat_map(|room| room());
        Self {
            makers: entries.map(|(id, maker)| (id.to_owned(), maker)).collect(),
        }
    }

    /// The entries of Gymnasium's `info` that environments of `id` observe where their argument
    /// `info`, a list, names them. Each comes with whether resets return it, too; otherwise it is 0
    /// there.
    ///
    /// # Errors
    /// [`EnvError::UnknownId`].
    pub fn info(&self, id: &str) -> Result<&[(&'static str, bool)], EnvError> {
        Ok(&self.maker(id)?.info)
    }

    /// Makes this the registry of the program: ids are then looked up in it wherever no other
    /// registry is given. `main` does so, once, before it builds a collector. Start from
    /// [`builtin`](Self::builtin) to keep the environments that come with windrow. A program that
    /// has policies of its own too installs a `Registry` of `windrow-policy` instead.
    ///
    /// # Errors
    /// [`EnvError::Installed`] when the program has installed one already.
    pub fn install(self) -> Result<(), EnvError> {
        INSTALLED.set(self).map_err(|_| EnvError::Installed)
    }

    /// The registry that the program has [installed](Self::install); without one, the environments
    /// that come with windrow.
    #[must_use]
    pub fn installed() -> &'static Self {
        static BUILTIN: LazyLock<EnvRegistry> = LazyLock::new(EnvRegistry::builtin);
        INSTALLED.get().unwrap_or_else(|| &BUILTIN)
    }

    /// Registers the environments of `factory` as `id`; it returns an environment, or a `Result` of
    /// one.
    ///
    /// # Errors
    /// [`EnvError::IdTaken`].
    pub fn register<F, R>(&mut self, id: impl Into<String>, factory: F) -> Result<(), EnvError>
    where
        F: Fn() -> R + Clone + Send + Sync + 'static,
        R: IntoEnv,
    {
        self.add(id, NamedEnv::plain(factory))
    }

    /// As [`register`](Self::register), for environments with arguments, which the recipe of an
    /// environment [carries](crate::EnvRecipe::with_arguments). Without arguments, they are read
    /// from an empty object: each needs a default then.
    ///
    /// ```
    /// use serde::{Deserialize, Serialize};
    /// use windrow_env::{EnvRecipe, EnvRegistry, MountainCar, TimeLimit};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Limit {
    ///     steps: usize,
    /// }
    ///
    /// let mut registry = EnvRegistry::new();
    /// registry.register_with("Car", |limit: Limit| TimeLimit::new(MountainCar::new(), limit.steps))?;
    /// let recipe = EnvRecipe::of("Car").with_arguments(&Limit { steps: 9 })?;
    /// let envs = recipe.build_from(&registry, 2)?;
    /// assert_eq!(envs.spec().max_episode_steps, Some(9));
    /// # Ok::<(), windrow_env::EnvError>(())
    /// ```
    ///
    /// # Errors
    /// [`EnvError::IdTaken`].
    pub fn register_with<A, F, R>(
        &mut self,
        id: impl Into<String>,
        factory: F,
    ) -> Result<(), EnvError>
    where
        A: DeserializeOwned + 'static,
        F: Fn(A) -> R + Clone + Send + Sync + 'static,
        R: IntoEnv,
    {
        self.add(id, NamedEnv::new(Arguments::read, factory))
    }

    /// As [`register_with`](Self::register_with), for a `factory` that makes several environments
    /// in lockstep, given their number.
    ///
    /// # Errors
    /// [`EnvError::IdTaken`].
    pub fn register_vec_with<A, F>(
        &mut self,
        id: impl Into<String>,
        factory: F,
    ) -> Result<(), EnvError>
    where
        A: DeserializeOwned + 'static,
        F: Fn(A, usize) -> Result<Box<dyn VecEnv>, EnvError> + Send + Sync + 'static,
    {
        let vectors = NamedEnv::of(
            |id, _| Err(EnvError::OnlyVectors { id: id.to_owned() }),
            move |id, arguments, num_envs| factory(arguments.read(id)?, num_envs),
            Vec::new(),
        );
        self.add(id, vectors)
    }

    /// One environment.
    ///
    /// # Errors
    /// [`EnvError::UnknownId`] with the ids of the same namespace that look like it; the error of
    /// the factory.
    pub fn make(&self, id: &str) -> Result<Box<dyn Env>, EnvError> {
        (self.maker(id)?.one)(id, &Arguments::default())
    }

    /// `num_envs` environments in lockstep, stepped one after the other.
    ///
    /// # Errors
    /// As [`make`](Self::make), and [`EnvError::Empty`] when `num_envs` is 0.
    pub fn make_vec(&self, id: &str, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
        self.make_vec_with(id, &Arguments::default(), num_envs)
    }

    /// As [`make_vec`](Self::make_vec), with `arguments`.
    pub(crate) fn make_vec_with(
        &self,
        id: &str,
        arguments: &Arguments,
        num_envs: usize,
    ) -> Result<Box<dyn VecEnv>, EnvError> {
        (self.maker(id)?.many)(id, arguments, num_envs)
    }
}

/// Return types of registered factories: an environment, or a [`Result`] of one.
pub trait IntoEnv {
    /// The environment.
    type Env: Env + 'static;

    /// The environment, or the error of the factory.
    ///
    /// # Errors
    /// The error of the factory.
    fn into_env(self) -> Result<Self::Env, EnvError>;
}

impl<E: Env + 'static> IntoEnv for E {
    type Env = E;

    fn into_env(self) -> Result<E, EnvError> {
        Ok(self)
    }
}

impl<E: Env + 'static> IntoEnv for Result<E, EnvError> {
    type Env = E;

    fn into_env(self) -> Result<E, EnvError> {
        self
    }
}

/// An environment of the [installed](EnvRegistry::installed) registry, as [`EnvRegistry::make`].
///
/// # Errors
/// [`EnvError::UnknownId`]; the error of the factory.
pub fn make(id: &str) -> Result<Box<dyn Env>, EnvError> {
    EnvRegistry::installed().make(id)
}

/// Several environments of the [installed](EnvRegistry::installed) registry, as
/// [`EnvRegistry::make_vec`].
///
/// # Errors
/// As [`make`], and [`EnvError::Empty`] when `num_envs` is 0.
pub fn make_vec(id: &str, num_envs: usize) -> Result<Box<dyn VecEnv>, EnvError> {
    EnvRegistry::installed().make_vec(id, num_envs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CountingEnv;
    use crate::{EnvFactory, EnvRecipe, TimeLimit};

    #[test]
    fn unknown_ids_come_with_near_ones() {
        let all = EnvRegistry::builtin();
        let all: Vec<_> = all.names().collect();
        let message = |id| make(id).err().unwrap().to_string();
        assert_eq!(
            message("cartpole-v0"),
            "no environment is called \"cartpole-v0\"; did you mean CartPole-v1?"
        );
        assert_eq!(
            message("MountainCar-v1"),
            "no environment is called \"MountainCar-v1\"; did you mean MountainCar-v0?"
        );
        for far in ["Tetris", "ALE/CartPole-v1", "PandaReach-v3"] {
            assert_eq!(
                message(far),
                format!(
                    "no environment is called \"{far}\"; there are {}",
                    all.join(", ")
                )
            );
        }
        assert!(matches!(
            make_vec("Tetris", 2),
            Err(EnvError::UnknownId { .. })
        ));
    }

    #[test]
    fn environments_of_ones_own_are_registered_once() {
        let mut registry = EnvRegistry::new();
        registry.register("Count", CountingEnv::default).unwrap();
        let error = registry
            .register("Count", CountingEnv::default)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "an environment is registered as \"Count\" already; choose another id"
        );
        assert_eq!(registry.make("Count").unwrap().spec().id, "Counting");
        assert!(matches!(
            registry.make("CartPole-v1"),
            Err(EnvError::UnknownId { .. })
        ));
        assert!(registry.make_vec("Count", 0).is_err());
        assert_eq!(format!("{registry:?}"), "{\"Count\"}");
    }

    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Limit {
        #[serde(default = "nine")]
        steps: usize,
    }

    fn nine() -> usize {
        9
    }

    fn with_limits() -> EnvRegistry {
        let mut registry = EnvRegistry::new();
        registry.register("Count", CountingEnv::default).unwrap();
        let limited = |limit: Limit| TimeLimit::new(CountingEnv::default(), limit.steps);
        registry.register_with("Limited", limited).unwrap();
        let vector = |limit: Limit, num_envs| {
            let make = || TimeLimit::new(CountingEnv::default(), limit.steps);
            make.build(num_envs)
        };
        registry.register_vec_with("Vector", vector).unwrap();
        registry
    }

    #[test]
    fn arguments_reach_the_factory() {
        let registry = with_limits();
        for (id, frame_skip) in [("Limited", 1), ("Limited", 2), ("Vector", 1), ("Vector", 2)] {
            let recipe = EnvRecipe::of_skipping(id, frame_skip);
            let limit = |recipe: &EnvRecipe| {
                let recipe = EnvRecipe::from_bytes(&recipe.to_bytes().unwrap()).unwrap();
                let envs = recipe.build_from(&registry, 3).unwrap();
                assert_eq!(envs.num_envs(), 3);
                envs.spec().max_episode_steps
            };
            assert_eq!(limit(&recipe), Some(9), "{id}");
            let recipe = recipe.with_arguments(&Limit { steps: 5 }).unwrap();
            assert_eq!(limit(&recipe), Some(5), "{id}");
            let recipe = recipe.with_packed(&Limit { steps: 7 }).unwrap();
            assert_eq!(limit(&recipe), Some(7), "{id}");
        }
    }

    #[test]
    fn arguments_that_do_not_fit_are_named() {
        let registry = with_limits();
        let error = |recipe: EnvRecipe| {
            let error = recipe.build_from(&registry, 2).err().unwrap();
            error.to_string()
        };
        let with = |id: &str, arguments: &[(&str, i64)]| {
            let arguments: BTreeMap<_, _> = arguments.iter().copied().collect();
            EnvRecipe::of(id).with_arguments(&arguments).unwrap()
        };
        assert_eq!(
            error(with("Count", &[("steps", 2)])),
            r#"Count takes no arguments, got {"steps":2}"#
        );
        for (id, arguments, expected) in [
            ("Limited", ("step", 2), "unknown field `step`"),
            ("Vector", ("steps", -2), "invalid value: integer `-2`"),
        ] {
            let error = error(with(id, &[arguments]));
            let begins = format!(
                "the arguments {{\"{}\":{}}} of {id} cannot be read: {expected}",
                arguments.0, arguments.1
            );
            assert!(error.starts_with(&begins), "{error}");
        }
        assert_eq!(
            registry.make("Vector").err().unwrap().to_string(),
            "Vector is registered as vectors of environments: make_vec makes them"
        );
        let unwritable = EnvRecipe::of("Limited").with_arguments(&BTreeMap::from([((1, 2), 3)]));
        assert!(matches!(unwritable, Err(EnvError::Unreadable { .. })));
    }

    #[test]
    fn a_factory_may_fail() {
        let mut registry = EnvRegistry::new();
        registry
            .register("Broken", || TimeLimit::new(CountingEnv::default(), 0))
            .unwrap();
        let expected = "max_episode_steps of Counting: expected 1 step or more, got 0";
        assert_eq!(registry.make("Broken").err().unwrap().to_string(), expected);
        assert_eq!(
            registry.make_vec("Broken", 2).err().unwrap().to_string(),
            expected
        );
    }
}
