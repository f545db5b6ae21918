//! Policies as values that can be serialized (ADR 0029).

use std::fmt;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use tensordict::{Tensor, TensorDict};
use windrow_env::Arguments;
use windrow_env::recipe_form::{join, split};
use windrow_sync::unpoisoned;

use crate::explore::Exploration;
use crate::network_policy::NetworkRepr;
use crate::registry::installed;
use crate::{
    Explore, GraphPolicy, NetworkPolicy, Policy, PolicyError, PolicyRegistry, RandomPolicy,
    Weights, WeightsError,
};

/// How to make the policy of each worker.
///
/// A recipe of [random actions](RandomPolicy), of a [network](NetworkPolicy), of a
/// [graph](GraphPolicy) or of a [name](PolicyRegistry) is a value: it can be written down, sent to
/// another process and read there. One of a factory, or of a policy of the program's, can be used
/// in this process only.
///
/// ```
/// use windrow_policy::{Head, NetworkPolicy, Policy, PolicyRecipe, RandomPolicy, nn::Sequential, policy_fn};
///
/// let net = Sequential::new().linear(4, 64).tanh().linear(64, 2).seed(7);
/// let recipe = PolicyRecipe::of(NetworkPolicy::new(net, Head::Categorical));
/// let read = PolicyRecipe::from_bytes(&recipe.to_bytes()?)?;
/// assert_eq!(read.build(0)?.weights().len(), 4);
///
/// let still = PolicyRecipe::of(policy_fn([], |_, _| Ok(())));
/// assert!(still.to_bytes().is_err());
/// # Ok::<(), windrow_policy::PolicyError>(())
/// ```
#[derive(Debug, Clone)]
pub struct PolicyRecipe(PolicySource);

#[derive(Debug, Clone)]
enum PolicySource {
    Random,
    Network(Arc<NetworkPolicy>),
    Graph(Arc<GraphPolicy>),
    Named(Named),
    Explore(Exploration, Box<PolicyRecipe>),
    Factory(Opaque),
}

/// A policy of a registry.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Named {
    name: String,
    #[serde(default, skip_serializing_if = "Arguments::is_none")]
    arguments: Arguments,
}

/// A factory given as code: it cannot be written down, and only its type is known.
#[derive(Clone)]
struct Opaque {
    factory: Arc<dyn Fn(usize) -> Box<dyn Policy> + Send + Sync>,
    type_name: &'static str,
    /// The recipe that makes such policies in other processes.
    written: Option<Arc<PolicyRecipe>>,
    /// Whether a server in another process joins their requests into batches.
    is_served: bool,
    /// Whether they are clones of one policy.
    is_cloned: bool,
}

/// A recipe as it is written down, without parameters.
#[derive(Serialize, Deserialize)]
enum PolicyRecipeRepr {
    Random,
    Network(NetworkRepr),
    Graph(Box<GraphPolicy>),
    Named(Named),
    /// A name whose arguments follow.
    Packed {
        name: String,
    },
    /// Noise around the policy of a recipe that follows.
    Explore(Exploration),
}

impl PolicyRecipe {
    /// Actions drawn uniformly from the action space.
    #[must_use]
    pub fn random() -> Self {
        Self(PolicySource::Random)
    }

    /// `net` with the parameters that it has now.
    #[must_use]
    pub fn network(net: NetworkPolicy) -> Self {
        Self(PolicySource::Network(Arc::new(net)))
    }

    /// `policy` with the parameters that it has now.
    #[must_use]
    pub fn graph(policy: GraphPolicy) -> Self {
        Self(PolicySource::Graph(Arc::new(policy)))
    }

    /// The policies of `recipe`, with noise.
    pub(crate) fn exploring(recipe: Self, how: Exploration) -> Self {
        Self(PolicySource::Explore(how, Box::new(recipe)))
    }

    /// The policies registered as `name`, each with the parameters that the registered factory
    /// gives it.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self(PolicySource::Named(Named {
            name: name.into(),
            arguments: Arguments::default(),
        }))
    }

    /// The policies registered as `name` [with arguments](crate::Registry::policy_with), made with
    /// `arguments`.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] for what JSON cannot hold, such as a map whose keys are no strings.
    pub fn named_with(
        name: impl Into<String>,
        arguments: &impl Serialize,
    ) -> Result<Self, PolicyError> {
        let name = name.into();
        let arguments = Arguments::new(&name, arguments).map_err(PolicyError::failed)?;
        Ok(Self(PolicySource::Named(Named { name, arguments })))
    }

    /// As [`named_with`](Self::named_with), with arguments in a form that only this build of the
    /// program reads, which holds bytes as they are.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] for what this form cannot hold.
    pub fn named_with_packed(
        name: impl Into<String>,
        arguments: &impl Serialize,
    ) -> Result<Self, PolicyError> {
        let name = name.into();
        let arguments = Arguments::packed(&name, arguments).map_err(PolicyError::failed)?;
        Ok(Self(PolicySource::Named(Named { name, arguments })))
    }

    /// A clone of `policy` for each worker. The recipe can be written down if the policy has
    /// [one](Policy::recipe).
    #[must_use]
    pub fn of<P: Policy + Clone + 'static>(policy: P) -> Self {
        policy.recipe().unwrap_or_else(|| Self::clones(policy))
    }

    /// A clone of `policy` for each worker; each clone asks a server elsewhere. That gathers the
    /// requests of all, and so a collector with an [inference server](crate::InferenceServer) of
    /// its own does without.
    #[must_use]
    pub fn served_elsewhere<P: Policy + Clone + 'static>(policy: P) -> Self {
        let mut recipe = Self::clones(policy);
        if let PolicySource::Factory(opaque) = &mut recipe.0 {
            opaque.is_served = true;
        }
        recipe
    }

    /// Whether what is loaded into one policy of this recipe acts in the others too, as where
    /// clones have their weights behind one pointer. Clones of one policy are tried out: other
    /// weights are loaded into one of them, and then its own again.
    #[must_use]
    pub fn shares_weights(&self) -> bool {
        let PolicySource::Factory(opaque) = &self.0 else {
            return false;
        };
        if opaque.is_served || !opaque.is_cloned {
            return false;
        }
        let (one, mut other) = ((opaque.factory)(0), (opaque.factory)(0));
        let own = one.weights().detach();
        // Where they cannot be loaded into one, they are loaded into none.
        let is_shared = others(&own)
            .and_then(|others| other.load(&others).ok())
            .is_some_and(|()| !one.weights().same_bits(&own));
        if is_shared {
            // They were these a moment ago.
            let _ = other.load(&own);
        }
        is_shared
    }

    /// Whether a server elsewhere gathers the requests of these policies.
    #[must_use]
    pub fn is_served_elsewhere(&self) -> bool {
        matches!(&self.0, PolicySource::Factory(opaque) if opaque.is_served)
    }

    fn clones<P: Policy + Clone + 'static>(policy: P) -> Self {
        // Threads clone it one at a time, so that policies need not be `Sync`.
        let policy = Mutex::new(policy);
        let clone = move |_| -> Box<dyn Policy> {
            let policy = unpoisoned(policy.lock());
            Box::new(policy.clone())
        };
        Self(PolicySource::Factory(Opaque {
            factory: Arc::new(clone),
            type_name: std::any::type_name::<P>(),
            written: None,
            is_served: false,
            is_cloned: true,
        }))
    }

    /// The policies that `factory` makes, given the number of the worker. Such a recipe cannot be
    /// written down.
    #[must_use]
    pub fn opaque<P, F>(factory: F) -> Self
    where
        P: Policy + 'static,
        F: Fn(usize) -> P + Send + Sync + 'static,
    {
        Self(PolicySource::Factory(Opaque {
            factory: Arc::new(move |worker| Box::new(factory(worker))),
            type_name: std::any::type_name::<F>(),
            written: None,
            is_served: false,
            is_cloned: false,
        }))
    }

    /// Writes `recipe` down in place of a factory, such as a name under which worker processes make
    /// the same policies. Any other recipe stays as it is.
    #[must_use]
    pub fn written_as(mut self, recipe: PolicyRecipe) -> Self {
        if let PolicySource::Factory(opaque) = &mut self.0 {
            opaque.written = Some(Arc::new(recipe));
        }
        self
    }

    /// The policy of worker `worker`, not yet bound; a name is looked up in the
    /// [installed](crate::Registry::install) registry.
    ///
    /// # Errors
    /// As [`build_from`](Self::build_from).
    pub fn build(&self, worker: usize) -> Result<Box<dyn Policy>, PolicyError> {
        self.build_from(installed(), worker)
    }

    /// As [`build`](Self::build), with names of `registry`.
    ///
    /// # Errors
    /// [`PolicyError::UnknownPolicy`], and the error of a registered factory; none for other
    /// recipes.
    pub fn build_from(
        &self,
        registry: &PolicyRegistry,
        worker: usize,
    ) -> Result<Box<dyn Policy>, PolicyError> {
        Ok(match &self.0 {
            PolicySource::Random => Box::new(RandomPolicy::new()),
            PolicySource::Network(net) => Box::new(NetworkPolicy::clone(net)),
            PolicySource::Graph(policy) => Box::new(GraphPolicy::clone(policy)),
            PolicySource::Named(named) => {
                let maker = registry.maker(&named.name)?;
                maker.make(&named.name, &named.arguments, worker)?
            }
            PolicySource::Explore(how, recipe) => {
                Box::new(Explore::by(recipe.build_from(registry, worker)?, *how))
            }
            PolicySource::Factory(opaque) => (opaque.factory)(worker),
        })
    }

    /// The recipe as bytes: the length of an object of JSON (`u64`, little-endian), the object, and
    /// the parameters as safetensors, or the arguments of a name where they are
    /// [packed](Self::named_with_packed).
    ///
    /// # Errors
    /// [`PolicyError::Unwritable`] for policies that a factory makes; [`PolicyError::Weights`] when
    /// parameters cannot be written.
    pub fn to_bytes(&self) -> Result<Vec<u8>, PolicyError> {
        let mut packed = None;
        let (written, weights) = match &self.0 {
            PolicySource::Random => (PolicyRecipeRepr::Random, None),
            PolicySource::Network(net) => (
                PolicyRecipeRepr::Network((&**net).into()),
                Some(net.weights()),
            ),
            PolicySource::Graph(policy) => (
                PolicyRecipeRepr::Graph(Box::new((**policy).clone())),
                Some(policy.weights()),
            ),
            PolicySource::Named(named) => {
                let Named {
                    name,
                    mut arguments,
                } = named.clone();
                packed = arguments.take_packed();
                let written = match packed {
                    Some(_) => PolicyRecipeRepr::Packed { name },
                    None => PolicyRecipeRepr::Named(Named { name, arguments }),
                };
                (written, None)
            }
            PolicySource::Explore(how, recipe) => {
                packed = Some(recipe.to_bytes()?);
                (PolicyRecipeRepr::Explore(*how), None)
            }
            PolicySource::Factory(opaque) => {
                let unwritable = PolicyError::Unwritable {
                    factory: opaque.type_name,
                };
                return opaque.written.as_ref().ok_or(unwritable)?.to_bytes();
            }
        };
        let weights = weights.map(|weights| weights.to_bytes());
        let more = weights.transpose().map_err(WeightsError::from)?.or(packed);
        join(&written, &more.unwrap_or_default()).map_err(PolicyError::failed)
    }

    /// The recipe that [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// [`PolicyError::Unreadable`] for anything else; [`PolicyError::Weights`] and the errors of
    /// [`Sequential::check`](crate::nn::Sequential::check) when parameters and layers do not go
    /// together.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PolicyError> {
        let (json, weights) = split(bytes).ok_or_else(|| unreadable("it is cut short"))?;
        let written = serde_json::from_slice(json);
        let source = match written.map_err(|error| unreadable(error.to_string()))? {
            PolicyRecipeRepr::Random if weights.is_empty() => PolicySource::Random,
            PolicyRecipeRepr::Random => {
                return Err(unreadable("random actions have no parameters"));
            }
            PolicyRecipeRepr::Named(named) if weights.is_empty() => PolicySource::Named(named),
            PolicyRecipeRepr::Named(_) => return Err(unreadable("a name has no parameters")),
            PolicyRecipeRepr::Packed { name } => PolicySource::Named(Named {
                name,
                arguments: Arguments::of_packed(weights.to_vec()),
            }),
            PolicyRecipeRepr::Explore(how) => {
                PolicySource::Explore(how, Box::new(Self::from_bytes(weights)?))
            }
            PolicyRecipeRepr::Network(written) => {
                let mut net = NetworkPolicy::from(written);
                net.network().check()?;
                net.load(&TensorDict::from_bytes(weights).map_err(WeightsError::from)?)?;
                PolicySource::Network(Arc::new(net))
            }
            PolicyRecipeRepr::Graph(mut policy) => {
                policy.prepare()?;
                policy.load(&TensorDict::from_bytes(weights).map_err(WeightsError::from)?)?;
                PolicySource::Graph(Arc::new(*policy))
            }
        };
        Ok(Self(source))
    }
}

/// Weights of the same names, types and shapes with other numbers: zeros, or ones in place of
/// zeros; `None` without weights.
fn others(weights: &Weights) -> Option<Weights> {
    if weights.leaves().all(|(_, tensor)| tensor.numel() == 0) {
        return None;
    }
    let mut others = weights.clone();
    for (key, tensor) in weights.leaves() {
        let zeros = Tensor::zeros(tensor.dtype(), tensor.shape()).ok()?;
        let other = match tensor.same_bits(&zeros) {
            true => Tensor::full(tensor.shape(), true)
                .and_then(|ones| ones.cast(tensor.dtype()))
                .ok()?,
            false => zeros,
        };
        others.set(&key, other).ok()?;
    }
    Some(others)
}

fn unreadable(reason: impl Into<String>) -> PolicyError {
    PolicyError::Unreadable {
        reason: reason.into(),
    }
}

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name)
    }
}

#[cfg(test)]
#[path = "recipe_tests.rs"]
mod tests;
