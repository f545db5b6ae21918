//! Postprocessing of batches before delivery.

mod gae;
mod multi_step;
mod split;

pub use crate::deliver::assemble::unpadded;
pub use gae::Gae;
pub use multi_step::MultiStep;
pub use split::split_trajectories;
