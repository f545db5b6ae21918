#![doc = include_str!("../README.md")]

mod panic;
mod poison;
#[cfg(loom)]
mod shadow;

#[cfg(loom)]
pub use loom::{
    sync::{Condvar, Mutex, MutexGuard, atomic, mpsc},
    thread,
};
#[cfg(shuttle)]
pub use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, atomic, mpsc},
    thread,
};
#[cfg(not(any(loom, shuttle)))]
pub use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic, mpsc},
    thread,
};

#[cfg(loom)]
pub use loom::sync::atomic as mapped;
#[cfg(not(loom))]
pub use std::sync::atomic as mapped;

pub use panic::catch_panic;
pub use poison::{lock, unpoisoned};
#[cfg(loom)]
pub use shadow::Shadow;

/// Says whether a wait is given up; `None` for a wait that lasts until its end, which needs no clock.
pub type GivenUp<'a> = Option<&'a mut dyn FnMut() -> bool>;

/// How often a wait that can be given up asks whether it is.
pub const SLICE: std::time::Duration = std::time::Duration::from_millis(100);
