#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod binding;
mod categorical;
mod env_rows;
mod error;
mod exploration;
mod explore;
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
pub use explore::{Explore, OrnsteinUhlenbeck, Schedule};
pub use function::{FnPolicy, policy_fn};
pub use graph_policy::GraphPolicy;
pub use heads::{Head, Scale, ScaleMapping};
pub use known_rows::KnownRows;
pub use network_policy::NetworkPolicy;
pub use noise::Noise;
pub use policy::{Backend, Policy, PolicyIn, PolicySpec, States, Weights};
pub use random::RandomPolicy;
pub use recipe::PolicyRecipe;
pub use registry::{IntoPolicy, NamedPolicy, PolicyRegistry, Registry};
pub use server::{InferenceServer, Served, ServerConfig, ServerStats};
pub use store::{Published, Pushed, VanillaWeightUpdater, WeightStore, WeightUpdater};
pub use weights::{Misfit, WeightsError};
