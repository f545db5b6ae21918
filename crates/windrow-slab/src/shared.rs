//! Slabs in memory that several processes map: workers fill parts where the consumer reads them.

mod bell;
mod file;
mod free;
mod remote;
mod segment;

pub use bell::Bell;
pub use file::{Mapping, SharedFile};
pub use remote::RemoteRing;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use segment::MappedWords;
pub(crate) use segment::Segment;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use segment::refused;
