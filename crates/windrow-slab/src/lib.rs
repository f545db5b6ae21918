#![doc = include_str!("../README.md")]

mod batch_thread;
mod control;
mod error;
mod layout;
mod lease;
mod part;
mod ring;
mod row_block;
mod rows;
#[cfg(target_os = "linux")]
mod shared;
mod sink;
mod slab;
mod spin;
mod wait_queue;

pub use batch_thread::become_batch_thread;
pub use error::{SlabError, either};
pub use layout::{Layout, PartOrder, RecordSpec, Shares};
pub use lease::Lease;
pub use part::{Part, PartRows, Step};
#[cfg(target_os = "linux")]
pub use ring::Pump;
pub use ring::{Commit, Order, Ring, RingSpec};
pub use row_block::RowBlock;
pub use rows::{Key, Row, RowMut, Rows, RowsMut};
#[cfg(target_os = "linux")]
pub use shared::{Bell, Mapping, RemoteRing, SharedFile};
pub use sink::{Sink, SinkError, WriterId};
pub use tensordict::LeafSpec;
pub use wait_queue::WaitQueue;
