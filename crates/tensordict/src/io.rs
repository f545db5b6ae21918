//! Dicts as safetensors, in memory and in files.
//!
//! Every tensor is one tensor of the file. What the format cannot say, nesting, batch sizes and
//! dimension names, is JSON in the file's metadata (see `layout`), so any safetensors reader can
//! open the file and any safetensors file can be read here.

mod decode;
mod encode;
mod file;
mod layout;

pub use encode::Encoding;

#[cfg(test)]
mod tests;
