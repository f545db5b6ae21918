//! The five classic control tasks of Gymnasium, in Rust.
//!
//! Each follows Gymnasium operation by operation, roundings included: the same seed and the same actions give the
//! same observations, rewards and ends, bit for bit, wherever both use the same `libm`
//! (`tests/gymnasium.rs` compares them).

mod acrobot;
mod cartpole;
mod mountain_car;
mod mountain_car_continuous;
mod numpy_pow;
mod pendulum;
mod space;

#[cfg(feature = "mujoco")]
pub(crate) use numpy_pow::square;

pub use acrobot::Acrobot;
pub use cartpole::CartPole;
pub use mountain_car::MountainCar;
pub use mountain_car_continuous::MountainCarContinuous;
pub use pendulum::Pendulum;
