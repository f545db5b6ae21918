//! The classic control tasks of Gymnasium and its toy texts, in Rust.
//!
//! Each follows Gymnasium operation by operation, roundings included: the same seed and the same
//! actions give the same observations, rewards and ends, bit for bit, wherever both use the same
//! `libm` (`cargo xtask certify` compares them).

mod acrobot;
mod blackjack;
mod cartpole;
mod cliff_walking;
mod columns;
mod entries;
mod frozen_lake;
mod mountain_car;
mod mountain_car_continuous;
mod pendulum;
mod sines;
mod space;
mod tabular;
mod taxi;

pub use acrobot::Acrobot;
pub use blackjack::Blackjack;
pub use cartpole::CartPole;
pub use cliff_walking::CliffWalking;
pub use frozen_lake::FrozenLake;
pub use mountain_car::MountainCar;
pub use mountain_car_continuous::MountainCarContinuous;
pub use pendulum::Pendulum;
pub use taxi::Taxi;

pub(crate) use entries::entries;
#[cfg(test)]
pub(crate) use entries::ids;
