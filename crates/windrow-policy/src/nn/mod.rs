//! Small networks, evaluated natively.

mod activation;
mod aligned;
mod infer;
mod kernel;
mod layer;
mod math;
mod norm;
mod plan;
mod sequential;

pub use activation::Activation;
pub use layer::{Layer, Linear};
pub(crate) use math::exp;
pub use norm::LayerNorm;
pub use sequential::Sequential;
pub(crate) use sequential::put;
