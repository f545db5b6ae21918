//! Simulations of MuJoCo: Gymnasium's environments, and tasks of one's own over any model.
//!
//! One [`MujocoEnvs`] steps all environments of a vector by one call of MuJoCo's batches. What is
//! observed and rewarded is a [`MujocoTask`]. Those of Gymnasium are one task, whose terms
//! `table.rs` lists; seeds and actions give Gymnasium's episodes bit by bit (ADR 0039).

mod envs;
mod gymnasium;
mod info;
mod model;
mod numpy;
mod settings;
mod table;

pub use envs::{MujocoEnv, MujocoEnvs, MujocoTask, Simulation};
pub use model::{Field, MujocoModel};
pub use settings::{Setting, Settings};

pub use gymnasium::{IDS as MUJOCO_IDS, mujoco_arguments, mujoco_version};

pub(crate) use gymnasium::entries;
