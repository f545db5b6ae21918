#![doc = include_str!("../README.md")]

mod copy;
mod epoch;
mod error;
mod header;
mod layout;
#[cfg(not(loom))]
mod mapped;
mod schema;
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
mod stage;
mod store;
mod values;

pub use error::StoreError;
pub use store::{Store, StoreRead};
