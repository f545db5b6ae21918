//! Policies by name, and everything that a program has registered.

use std::sync::{Arc, OnceLock};

use serde::de::DeserializeOwned;
use windrow_env::{Arguments, ByName, EnvError, EnvRegistry, IntoEnv, Maker};

use crate::{Policy, PolicyError};

/// Policies by name, for workers that cannot get the code: [`Registry::policy`] adds to them.
pub type PolicyRegistry = ByName<NamedPolicy>;

/// Makes the policies of one name, see [`Registry::policy`].
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "it is code")]
pub struct NamedPolicy(Arc<Make>);

type Make = dyn Fn(&str, &Arguments, usize) -> Result<Box<dyn Policy>, PolicyError> + Send + Sync;

impl Maker for NamedPolicy {
    type Error = PolicyError;

    fn taken(name: String) -> PolicyError {
        PolicyError::NameTaken { name }
    }

    fn unknown(name: String, near: Vec<String>, known: Vec<String>) -> PolicyError {
        PolicyError::UnknownPolicy { name, near, known }
    }
}

impl NamedPolicy {
    /// Policies that `factory` makes, given what `read` makes of a name and its arguments, and the
    /// number of the worker.
    fn new<A, F, R>(read: fn(&Arguments, &str) -> Result<A, EnvError>, factory: F) -> Self
    where
        A: 'static,
        F: Fn(A, usize) -> R + Send + Sync + 'static,
        R: IntoPolicy,
    {
        Self(Arc::new(move |name, arguments, worker| {
            let arguments = read(arguments, name).map_err(PolicyError::failed)?;
            Ok(Box::new(factory(arguments, worker).into_policy()?))
        }))
    }

    /// The policy of worker `worker`, not yet bound.
    pub(crate) fn make(
        &self,
        name: &str,
        arguments: &Arguments,
        worker: usize,
    ) -> Result<Box<dyn Policy>, PolicyError> {
        (self.0)(name, arguments, worker)
    }
}

/// The policies that the program has installed.
static INSTALLED: OnceLock<PolicyRegistry> = OnceLock::new();

/// The policies that the program has [installed](Registry::install); none without a registry.
pub(crate) fn installed() -> &'static PolicyRegistry {
    static NONE: PolicyRegistry = PolicyRegistry::new();
    INSTALLED.get().unwrap_or(&NONE)
}

/// Return types of registered factories: a policy, or a [`Result`] of one.
pub trait IntoPolicy {
    /// The policy.
    type Policy: Policy + 'static;

    /// The policy, or the error of the factory.
    ///
    /// # Errors
    /// The error of the factory.
    fn into_policy(self) -> Result<Self::Policy, PolicyError>;
}

impl<P: Policy + 'static> IntoPolicy for P {
    type Policy = P;

    fn into_policy(self) -> Result<P, PolicyError> {
        Ok(self)
    }
}

impl<P: Policy + 'static> IntoPolicy for Result<P, PolicyError> {
    type Policy = P;

    fn into_policy(self) -> Result<P, PolicyError> {
        self
    }
}

/// The environments and policies that a program has registered.
///
/// Names can be sent to workers anywhere; code cannot. A program that has registered its
/// environments and policies, and [installed](Self::install) the registry at the start of `main`,
/// may use their names wherever a collector takes one.
///
/// ```
/// use windrow_env::{EnvFactory, MountainCar, TimeLimit};
/// use windrow_policy::{PolicyRecipe, RandomPolicy, Registry};
///
/// let mut registry = Registry::builtin();
/// registry.env("LongMountainCar-v0", || TimeLimit::new(MountainCar::new(), 10_000))?;
/// registry.policy("mine", |_worker| RandomPolicy::new())?;
/// registry.install()?;
///
/// let envs = "LongMountainCar-v0".build(4)?;
/// assert_eq!(envs.spec().max_episode_steps, Some(10_000));
/// let _policy = PolicyRecipe::named("mine").build(0)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Registry {
    /// The environments.
    pub envs: EnvRegistry,
    /// The policies.
    pub policies: PolicyRegistry,
}

impl Registry {
    /// The environments that come with windrow, and no policy.
    #[must_use]
    pub fn builtin() -> Self {
        Self {
            envs: EnvRegistry::builtin(),
            policies: PolicyRegistry::new(),
        }
    }

    /// Registers environments, as [`EnvRegistry::register`].
    ///
    /// # Errors
    /// [`EnvError::IdTaken`].
    pub fn env<F, R>(&mut self, id: impl Into<String>, factory: F) -> Result<(), EnvError>
    where
        F: Fn() -> R + Clone + Send + Sync + 'static,
        R: IntoEnv,
    {
        self.envs.register(id, factory)
    }

    /// Registers the policies of `factory` as `name`; it gets the number of the worker, and returns
    /// a policy or a `Result` of one.
    ///
    /// # Errors
    /// [`PolicyError::NameTaken`].
    pub fn policy<F, R>(&mut self, name: impl Into<String>, factory: F) -> Result<(), PolicyError>
    where
        F: Fn(usize) -> R + Send + Sync + 'static,
        R: IntoPolicy,
    {
        let factory = move |(), worker| factory(worker);
        self.policies
            .add(name, NamedPolicy::new(Arguments::check_none, factory))
    }

    /// Registers environments with arguments, as [`EnvRegistry::register_with`].
    ///
    /// # Errors
    /// [`EnvError::IdTaken`].
    pub fn env_with<A, F, R>(&mut self, id: impl Into<String>, factory: F) -> Result<(), EnvError>
    where
        A: DeserializeOwned + 'static,
        F: Fn(A) -> R + Clone + Send + Sync + 'static,
        R: IntoEnv,
    {
        self.envs.register_with(id, factory)
    }

    /// As [`policy`](Self::policy), for policies with arguments, which a [recipe of a
    /// name](crate::PolicyRecipe::named_with) carries. `factory` gets these and the number of the
    /// worker. Without arguments, they are read from an empty object: each needs a default then.
    ///
    /// # Errors
    /// [`PolicyError::NameTaken`].
    pub fn policy_with<A, F, R>(
        &mut self,
        name: impl Into<String>,
        factory: F,
    ) -> Result<(), PolicyError>
    where
        A: DeserializeOwned + 'static,
        F: Fn(A, usize) -> R + Send + Sync + 'static,
        R: IntoPolicy,
    {
        self.policies
            .add(name, NamedPolicy::new(Arguments::read, factory))
    }

    /// Makes this the registry of the program: names are then looked up in it wherever no other
    /// registry is given. `main` does so, once, before it builds a collector.
    ///
    /// # Errors
    /// [`EnvError::Installed`] when the program has installed one already, which stays.
    pub fn install(self) -> Result<(), EnvError> {
        self.envs.install()?;
        // Nothing else sets it, and environments are installed once.
        INSTALLED
            .set(self.policies)
            .map_err(|_| EnvError::Installed)
    }

    /// A copy of what the program has installed; without that, as [`builtin`](Self::builtin).
    #[must_use]
    pub fn installed() -> Self {
        Self {
            envs: EnvRegistry::installed().clone(),
            policies: installed().clone(),
        }
    }
}

/// As [`Registry::builtin`].
impl Default for Registry {
    fn default() -> Self {
        Self::builtin()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::nn::Sequential;
    use crate::{Head, NetworkPolicy, PolicyRecipe, RandomPolicy, policy_fn};

    /// A policy that the shape of its parameters identifies.
    fn wide(outputs: usize) -> NetworkPolicy {
        let net = Sequential::new().linear(3, outputs);
        NetworkPolicy::new(net, Head::Deterministic)
    }

    fn outputs(policy: &dyn Policy) -> Vec<usize> {
        policy.weights().get("0.bias").unwrap().shape().to_vec()
    }

    fn made(
        registry: &Registry,
        name: &str,
        worker: usize,
    ) -> Result<Box<dyn Policy>, PolicyError> {
        PolicyRecipe::named(name).build_from(&registry.policies, worker)
    }

    #[test]
    fn policies_of_ones_own_are_registered_once() {
        let mut registry = Registry::builtin();
        registry.policy("mine", |worker| wide(worker + 5)).unwrap();
        let error = registry.policy("mine", |_| RandomPolicy::new());
        assert_eq!(
            error.unwrap_err().to_string(),
            "a policy is registered as \"mine\" already; choose another name"
        );
        assert_eq!(outputs(&made(&registry, "mine", 2).unwrap()), [7]);
        registry.policy("also", |_| wide(1)).unwrap();
        let registry = registry.policies;
        assert_eq!(registry.names().collect::<Vec<_>>(), ["also", "mine"]);
        assert_eq!(format!("{registry:?}"), "{\"also\", \"mine\"}");
    }

    #[test]
    fn unknown_names_come_with_near_ones() {
        let mut registry = Registry::builtin();
        let message =
            |registry: &Registry, name| made(registry, name, 0).err().unwrap().to_string();
        assert_eq!(
            message(&registry, "mine"),
            "no policy is called \"mine\"; register it with windrow::worker_main at the start of main"
        );
        registry.policy("my-actor", |_| wide(1)).unwrap();
        registry.policy("expert", |_| wide(1)).unwrap();
        assert_eq!(
            message(&registry, "my_actor"),
            "no policy is called \"my_actor\"; did you mean my-actor?"
        );
        assert_eq!(
            message(&registry, "nobody"),
            "no policy is called \"nobody\"; there are expert, my-actor"
        );
    }

    #[test]
    fn a_factory_may_fail_or_box_its_policies() {
        let mut registry = Registry::builtin();
        let failing = |worker| match worker {
            0 => Err(PolicyError::failed("no such file")),
            _ => Ok(policy_fn([], |_, _| Ok(()))),
        };
        registry.policy("failing", failing).unwrap();
        let boxed = |_| -> Box<dyn Policy> { Box::new(wide(2)) };
        registry.policy("boxed", boxed).unwrap();
        let error = made(&registry, "failing", 0).err().unwrap();
        assert_eq!(error.to_string(), "no such file");
        assert!(made(&registry, "failing", 1).is_ok());
        assert_eq!(outputs(&made(&registry, "boxed", 1).unwrap()), [2]);
    }

    #[test]
    fn arguments_reach_the_factory() {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Size {
            #[serde(default)]
            outputs: usize,
        }
        let mut registry = Registry::builtin();
        let sized = |size: Size, worker| wide(size.outputs + worker);
        registry.policy_with("sized", sized).unwrap();
        registry.policy("plain", wide).unwrap();
        let made = |recipe: PolicyRecipe| {
            let read = PolicyRecipe::from_bytes(&recipe.to_bytes().unwrap()).unwrap();
            let policy = read.build_from(&registry.policies, 2);
            policy.map(|policy| outputs(&policy))
        };
        let with = |name: &str, outputs: i64| {
            PolicyRecipe::named_with(name, &BTreeMap::from([("outputs", outputs)])).unwrap()
        };
        assert_eq!(made(PolicyRecipe::named("sized")).unwrap(), [2]);
        assert_eq!(made(with("sized", 5)).unwrap(), [7]);
        let packed =
            |name: &str| PolicyRecipe::named_with_packed(name, &Size { outputs: 300 }).unwrap();
        assert_eq!(made(packed("sized")).unwrap(), [302]);
        let error = |recipe| made(recipe).unwrap_err().to_string();
        assert_eq!(
            error(with("plain", 5)),
            r#"plain takes no arguments, got {"outputs":5}"#
        );
        assert_eq!(
            error(packed("plain")),
            "plain takes no arguments, got 2 bytes"
        );
        let nothing = PolicyRecipe::named_with_packed("sized", &()).unwrap();
        assert!(error(nothing).starts_with("the arguments of sized cannot be read: "));
        assert!(
            error(with("sized", -1))
                .starts_with(r#"the arguments {"outputs":-1} of sized cannot be read: "#)
        );
    }

    #[test]
    fn named_recipes_are_written_and_made_from_a_registry() {
        let recipe = PolicyRecipe::named("mine");
        let read = PolicyRecipe::from_bytes(&recipe.to_bytes().unwrap()).unwrap();
        let mut registry = Registry::builtin();
        registry.policy("mine", wide).unwrap();
        for recipe in [&recipe, &read] {
            assert_eq!(
                outputs(&recipe.build_from(&registry.policies, 4).unwrap()),
                [4]
            );
            let error = recipe.build(4).err().unwrap();
            assert!(
                matches!(&error, PolicyError::UnknownPolicy { name, .. } if name == "mine"),
                "{error}"
            );
        }
    }

    #[test]
    fn other_recipes_need_no_registry() {
        let none = PolicyRegistry::new();
        let read = PolicyRecipe::of(wide(2)).build_from(&none, 0).unwrap();
        assert_eq!(outputs(&read), [2]);
        let made = PolicyRecipe::opaque(wide).build_from(&none, 3).unwrap();
        assert_eq!(outputs(&made), [3]);
        assert!(PolicyRecipe::random().build_from(&none, 0).is_ok());
    }

    #[test]
    fn nothing_is_installed_without_a_call() {
        assert_eq!(installed().names().len(), 0);
        let installed = Registry::installed();
        assert_eq!(
            format!("{installed:?}"),
            format!("{:?}", Registry::default())
        );
        assert!(installed.envs.names().any(|id| id == "CartPole-v1"));
    }
}
