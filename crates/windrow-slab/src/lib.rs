#![doc = include_str!("../README.md")]

mod error;
mod layout;
mod lease;
mod part;
mod ring;
mod row_block;
mod rows;
mod sink;
mod spin;
mod sync;
mod wait_queue;

pub use error::{SlabError, either};
pub use layout::{Layout, RecordSpec, Shares};
pub use lease::Lease;
pub use part::{Part, PartRows, Step};
pub use ring::{Commit, Order, Ring, RingSpec};
pub use row_block::RowBlock;
pub use rows::{Key, Row, RowMut, Rows, RowsMut};
pub use sink::{Sink, SinkError, WriterId};
pub use tensordict::LeafSpec;
