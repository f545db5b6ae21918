#![doc = include_str!("../README.md")]

mod arena;
mod control;
mod error;
mod layout;
mod lease;
mod part;
mod ring;
mod row_block;
mod rows;
mod scheduling;
#[cfg(target_os = "linux")]
mod shared;
mod sink;
mod slab;
mod spin;
mod wait_queue;

pub use error::{SlabError, either};
pub use layout::{Layout, PartOrder, RecordSpec, Shares};
pub use lease::Lease;
pub use part::{Part, PartRows, Step};
#[cfg(target_os = "linux")]
pub use ring::Pump;
pub use ring::{Commit, MaxAge, Order, Publication, Ring, RingSpec};
pub use row_block::RowBlock;
pub use rows::{Key, Row, RowMut, Rows, RowsMut};
pub use scheduling::become_batch_thread;
#[cfg(target_os = "linux")]
pub use shared::{Bell, Mapping, RemoteRing, SharedFile};
pub use sink::{Sink, SinkError, WriterId};
pub use tensordict::LeafSpec;
pub use wait_queue::WaitQueue;
