#![doc = include_str!("../README.md")]

mod entropy;
mod error_chain;
mod interrupt;
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

pub use entropy::entropy;
pub use error_chain::error_chain;
pub use interrupt::{Interrupt, Interrupted};
pub use panic::catch_panic;
pub use poison::{lock, unpoisoned};
#[cfg(loom)]
pub use shadow::Shadow;
