//! Named, nested tensors that share leading batch dimensions, over memory of any owner.
//!
//! A [`Tensor`] is a strided, read-only view: dtype, shape, strides, and a counted reference to
//! the memory's owner. Dropping the last view of a block gives it back to its owner, so a
//! batch can be read where it was written, and [`Tensor::detach`] takes a copy that lasts. A
//! [`TensorDict`] maps names to tensors and further dicts whose shapes all start with the same
//! batch size, and indexes, reshapes, stacks and saves them together.
//!
//! ```
//! use tensordict::{DType, Tensor, TensorDict};
//!
//! # fn main() -> tensordict::Result<()> {
//! // Two environments, three steps: batch size [2, 3], time last.
//! let mut batch = TensorDict::new([2, 3]).with_names(&[None, Some("time")])?;
//! batch.set("observation", Tensor::zeros(DType::F32, [2, 3, 4])?)?;
//! batch.set(("next", "reward"), Tensor::arange(0..6)?.view([2, 3, 1])?.cast(DType::F32)?)?;
//!
//! // The last step of each environment; no element is copied.
//! let last = batch.select_index(1, 2)?;
//! assert_eq!(last.get(("next", "reward"))?.to_vec::<f32>()?, [2.0, 5.0]);
//!
//! let flat = batch.flatten()?;
//! assert_eq!(flat.batch_size(), [6]);
//! assert_eq!(flat.as_slice::<f32>(("next", "reward"))?.len(), 6);
//!
//! let restored = TensorDict::from_bytes(&batch.to_bytes()?)?;
//! assert_eq!(restored, batch);
//! # Ok(())
//! # }
//! ```
//!
//! Operations that only change how memory is seen return views; those that copy say so in their
//! first line. Writing is possible only through [`Tensor::as_mut_slice`], and only while no other
//! tensor shares the memory.

#[cfg(target_endian = "big")]
compile_error!("safetensors files are little-endian, and tensors are saved as they lie in memory");

mod buffer;
mod dtype;
mod error;
mod io;
mod key;
mod leaf;
mod shape;
mod tensor;
mod tensordict;
mod written;

pub use buffer::HeapBuffer;
pub use dtype::{DType, Element};
pub use error::{Result, TensorError};
pub use io::Packing;
pub use key::{AsKey, NestedKey};
pub use leaf::LeafSpec;
pub use shape::{Shape, Strides, row_major};
pub use tensor::{Iter, Owner, Tensor};
pub use tensordict::{Entry, Group, TensorDict};
