#![doc = include_str!("../README.md")]

#[cfg(target_endian = "big")]
compile_error!("safetensors files are little-endian, and tensors are saved as they lie in memory");

mod buffer;
mod byte_strings;
mod dtype;
mod error;
mod io;
mod key;
mod leaf;
mod serde_form;
mod shape;
mod tensor;
mod tensordict;

pub use buffer::HeapBuffer;
pub use byte_strings::{Cell, Extent};
pub use dtype::{DType, Element, not_numbers};
pub use error::{Result, TensorError};
pub use io::Encoding;
pub use key::{AsKey, NestedKey};
pub use leaf::LeafSpec;
pub use shape::{Shape, Strides, row_major};
pub use tensor::{Iter, Owner, Tensor};
pub use tensordict::{Entry, Group, TensorDict};
