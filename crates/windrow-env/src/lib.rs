//! Environments: the contract, specs, transforms, recipes and native classic control.
//!
//! An [`Env`] is one world, a [`VecEnv`] several in lockstep; [`Serial`] makes the one of the other. Both write into
//! rows that they are lent and describe themselves by an [`EnvSpec`]. A collector takes an [`EnvFactory`] of either: a
//! constructor, a closure, an id of the [`EnvRegistry`], or an [`EnvRecipe`], which can be written down.
//!
//! [`CartPole`], [`Pendulum`], [`MountainCar`], [`MountainCarContinuous`] and [`Acrobot`] are those of Gymnasium, bit
//! for bit. A [`Transform`] such as [`StepCounter`] changes what environments observe, accept or earn; [`Transformed`] puts
//! it around them. An [`AsyncEnvPool`] has threads step environments, each when it is told to. [`testing`] explains how to
//! write an environment, and checks it.
//!
//! ```
//! use windrow_env::{CartPole, Outcomes, Reset, Serial, VecEnv};
//! use windrow_slab::{Key, RowBlock};
//!
//! // Rows of memory for two environments; a collector lends rows of its batches instead.
//! let mut envs = Serial::from_fn(2, CartPole::v1)?;
//! let mut obs = RowBlock::new(&envs.spec().observation_leaves(), 2)?;
//! let mut actions = RowBlock::new(&envs.spec().action_leaves(), 2)?;
//! let (mut reward, mut terminated, mut truncated) = ([0.0; 2], [false; 2], [false; 2]);
//!
//! let seeded = [0, 1].map(|env| Reset { env, seed: Some(env as u64) });
//! envs.reset(&seeded, obs.rows_mut())?;
//! for step in 0..5 {
//!     actions.rows_mut().get_mut(Key::<i64>::new(0))?.fill(step % 2);
//!     let outcomes = Outcomes {
//!         reward: &mut reward,
//!         terminated: &mut terminated,
//!         truncated: &mut truncated,
//!     };
//!     envs.step(actions.rows(), obs.rows_mut(), outcomes)?;
//! }
//! assert_eq!(reward, [1.0, 1.0]);
//! assert_eq!(obs.rows().get(Key::<f32>::new(0))?.len(), 2 * 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod arguments;
mod choice;
mod domain;
#[cfg(test)]
mod driver;
mod env;
mod error;
mod factory;
mod joined;
pub mod names;
mod native;
mod number;
mod pool;
mod recipe;
mod registry;
mod rng;
mod spec;
pub mod testing;
mod transform;
mod transformed;
#[cfg(test)]
mod transformed_tests;
mod transforms;
mod vec_env;
mod wrappers;
pub mod written;

pub use arguments::Arguments;
pub use choice::{ChoiceCode, largest};
pub use env::{Env, Outcome};
pub use error::{EnvError, VecEnvError};
pub use factory::{EnvFactory, IntoVecEnv, sole};
pub use joined::Joined;
pub use native::{Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum};
pub use pool::{Answer, AsyncEnvPool, Command, PoolError, Received, Want};
pub use recipe::EnvRecipe;
pub use registry::{EnvRegistry, IntoEnv, make, make_vec};
pub use rng::{EnvRng, NumpyRng};
pub use spec::{EnvSpec, Spec, SpecError};
pub use transform::{Attach, Effect, Observations, Transform};
pub use transformed::Transformed;
pub use transforms::*;
pub use vec_env::{Outcomes, Reset, Serial, VecEnv, not_apart};
pub use windrow_sync::Interrupt;
pub use wrappers::{FrameSkip, TimeLimit};
