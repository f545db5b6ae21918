#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod arguments;
mod builtin;
mod choice;
mod domain;
#[cfg(test)]
mod driver;
mod env;
mod error;
mod factory;
#[cfg(feature = "gym")]
mod gym;
#[cfg(any(feature = "gym", feature = "mujoco"))]
mod info;
mod joined;
#[cfg(feature = "mujoco")]
mod mujoco;
pub mod names;
mod next_step;
mod number;
#[cfg(any(feature = "gym", feature = "mujoco"))]
mod numpy_pow;
mod pool;
mod recipe;
pub mod recipe_form;
mod registry;
mod rng;
pub mod serde_form;
mod spec;
mod state;
#[cfg(test)]
mod state_tests;
pub mod testing;
mod transform;
mod transformed;
#[cfg(test)]
mod transformed_tests;
mod transforms;
mod vec_env;
mod wrappers;

pub use arguments::Arguments;
pub use choice::{ChoiceCode, largest};
pub use env::{EXACT_REWARD, Env, Outcome};
pub use error::{EnvError, VecEnvError};
pub use factory::{EnvFactory, IntoVecEnv, sole};
#[cfg(feature = "gym")]
pub use gym::{
    Acrobot, Blackjack, CartPole, CliffWalking, FrozenLake, MountainCar, MountainCarContinuous,
    Pendulum, Taxi,
};
pub use joined::Joined;
#[cfg(feature = "mujoco")]
pub use mujoco::{
    Field, MUJOCO_IDS, MujocoEnv, MujocoEnvs, MujocoModel, MujocoTask, Setting, Settings,
    Simulation, mujoco_arguments, mujoco_version,
};
pub use next_step::NextStep;
pub use pool::{Answer, AsyncEnvPool, Command, PoolError, PoolOutput, RecvOptions};
pub use recipe::EnvRecipe;
pub use registry::{ByName, EnvRegistry, IntoEnv, Maker, NamedEnv, make, make_vec};
pub use rng::{EnvRng, NumpyRng};
pub use spec::{EnvSpec, Spec, SpecError, SpecOutline};
pub use state::StateVisitor;
pub use transform::{Attach, BoundTransform, Observations, Transform};
pub use transformed::Transformed;
pub use transforms::*;
pub use vec_env::{AtOnce, Outcomes, Reset, Serial, VecEnv, not_apart};
pub use windrow_sync::Interrupt;
pub use wrappers::TimeLimit;
