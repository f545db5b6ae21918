#![doc = include_str!("../README.md")]

mod copy;
mod epoch;
mod error;
mod frames;
mod header;
mod layout;
#[cfg(not(loom))]
mod mapped;
mod store;

pub use error::StoreError;
pub use store::{Store, StoreRead};
