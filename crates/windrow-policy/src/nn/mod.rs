//! Small networks, evaluated natively.

mod activation;
mod aligned;
mod apply;
mod elementwise;
mod graph;
mod graph_runs;
mod infer;
mod kernel;
mod layer;
mod math;
mod norm;
mod plan;
mod sequential;
mod step;

pub use activation::Activation;
pub use elementwise::{Function, Reduction, Zip};
pub use graph::{Draw, Graph, Op, Run, Value};
pub use layer::{Layer, Linear};
pub(crate) use math::exp;
pub use norm::LayerNorm;
pub(crate) use plan::Plan;
pub use sequential::Sequential;
pub(crate) use sequential::put;
