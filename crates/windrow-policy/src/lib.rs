//! Policies: the contract, random actions, and small networks evaluated natively.
//!
//! A [`Policy`] writes an action for every row of a block of observations. [`RandomPolicy`] draws from the action
//! space; [`NetworkPolicy`] evaluates a [`Sequential`](nn::Sequential) network with PyTorch's names and numbers,
//! without a framework, and [`GraphPolicy`] a [`Graph`](nn::Graph) of any form; [`policy_fn`] makes one out of a closure. A [`PolicyRecipe`] makes the policy of each worker, and
//! can be written down unless code of the program makes it. Randomness comes from [`Noise`], keyed by seed,
//! environment and frame, so that actions do not depend on how environments are spread over workers. An
//! [`InferenceServer`] evaluates one policy for many threads, in batches.
//!
//! ```
//! use tensordict::DType;
//! use windrow_env::{EnvSpec, Spec};
//! use windrow_policy::{Binding, EnvRows, ExplorationType, Head, NetworkPolicy, Policy, PolicyIn, nn::Sequential};
//! use windrow_slab::{Key, RowBlock};
//!
//! let env = EnvSpec::new("CartPole-v1", Spec::unbounded(DType::F32, [4]), Spec::discrete(2));
//! let net = Sequential::new().linear(4, 64).tanh().linear(64, 64).tanh().linear(64, 2);
//! let mut policy = NetworkPolicy::new(net, Head::Categorical);
//! let spec = policy.bind(&Binding::new(&env, 3))?;
//!
//! // Three environments, by hand; a collector does this.
//! let obs = RowBlock::new(&env.observation_leaves(), 3)?;
//! let mut actions = RowBlock::new(&spec.columns, 3)?;
//! let input = PolicyIn {
//!     obs: obs.rows(),
//!     envs: &EnvRows::new(7, vec![0, 1, 2]),
//!     exploration: ExplorationType::Random,
//! };
//! policy.act(&input, actions.rows_mut())?;
//! assert!(actions.rows().get::<i64>(Key::new(0))?.iter().all(|a| (0..2).contains(a)));
//! # Ok::<(), windrow_policy::PolicyError>(())
//! ```
#![forbid(unsafe_code)]

mod binding;
mod categorical;
mod env_rows;
mod error;
mod exploration;
mod fit;
mod function;
mod gaussian;
mod graph_policy;
mod heads;
mod known_rows;
mod network_policy;
pub mod nn;
mod noise;
mod observe;
mod policy;
mod random;
mod recipe;
mod registry;
mod server;
mod store;
mod weights;

pub use binding::Binding;
pub use env_rows::EnvRows;
pub use error::PolicyError;
pub use exploration::ExplorationType;
pub use function::{FnPolicy, policy_fn};
pub use graph_policy::GraphPolicy;
pub use heads::{Head, Scale, ScaleMapping};
pub use known_rows::KnownRows;
pub use network_policy::NetworkPolicy;
pub use noise::Noise;
pub use policy::{Backend, Policy, PolicyIn, PolicySpec, States, Weights};
pub use random::RandomPolicy;
pub use recipe::PolicyRecipe;
pub use registry::{IntoPolicy, PolicyRegistry, Registry};
pub use server::{InferenceServer, Served, ServerConfig, ServerStats};
pub use store::{Published, VanillaWeightUpdater, WeightRelay, WeightStore, WeightUpdater};
pub use weights::{Misfit, WeightsError};
