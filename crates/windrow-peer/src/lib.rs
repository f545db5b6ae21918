#![doc = include_str!("../README.md")]

mod error;
#[cfg(all(unix, feature = "net"))]
#[forbid(unsafe_code)]
pub mod net;

#[cfg(target_os = "linux")]
mod clock;
#[cfg(any(target_os = "linux", all(unix, feature = "net")))]
mod codec;
#[cfg(target_os = "linux")]
mod control;
#[cfg(target_os = "linux")]
mod exchange;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
mod refused;
#[cfg(all(target_os = "linux", not(loom)))]
mod roster;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(target_os = "linux")]
mod supervise;
#[cfg(target_os = "linux")]
mod wire;

#[cfg(target_os = "linux")]
pub use clock::shared_clock;
#[cfg(target_os = "linux")]
pub use codec::LANE_BYTES;
#[cfg(any(target_os = "linux", all(unix, feature = "net")))]
pub use codec::{decode, encode, json};
#[cfg(all(loom, target_os = "linux"))]
pub use control::Dies;
#[cfg(target_os = "linux")]
pub use control::{ControlBlock, ControlSpec, Episode, Lane, LiveWriter, Place, WorkerLane};
pub use error::ProcessError;
#[cfg(target_os = "linux")]
pub use exchange::{Exchange, ExchangeReader, Pinned, Snapshot, Target};
#[cfg(target_os = "linux")]
pub use launch::{
    Child, ChildEnd, Exit, FromNursery, Nursery, Process, Program, Relay, RelayEnd, WorkerProgram,
    adopt, end_at_once, kill_group,
};
#[cfg(all(target_os = "linux", not(loom)))]
pub use roster::{EventQueue, Roster};
#[cfg(target_os = "linux")]
pub use supervise::{Death, Event, Supervisor};
#[cfg(target_os = "linux")]
pub use wire::{Frame, FrameReader, FrameWriter, Incoming, MAX_BODY, MAX_FDS, send};
