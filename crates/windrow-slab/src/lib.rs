#![doc = include_str!("../README.md")]

mod error;
mod layout;
mod lease;
mod memory;
mod part;
mod ring;
mod rows;
mod sync;

pub use error::SlabError;
pub use layout::{Layout, RecordSpec, Shares};
pub use lease::Lease;
pub use part::{Part, PartRows, Step};
pub use ring::{Order, Ring, RingSpec};
pub use rows::{Key, LeafSpec, Row, RowBlock, RowMut, Rows, RowsMut};
