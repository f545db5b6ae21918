//! The shared words of a ring, which all its workers read, in this process or in others.

use std::ops::Deref;

use crossbeam_utils::CachePadded;
use windrow_sync::atomic::AtomicU64;

/// The words themselves.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Words {
    /// Parts of slabs before this number are to be cut short at their next step; written under the
    /// ring's lock. A hint: nothing else is ordered by it.
    pub(crate) cut: CachePadded<AtomicU64>,
    /// Rung when the consumer should look again.
    #[cfg(target_os = "linux")]
    pub(crate) bell: CachePadded<crate::shared::Bell>,
}

impl Words {
    fn new() -> Self {
        Self {
            cut: CachePadded::new(AtomicU64::new(0)),
            #[cfg(target_os = "linux")]
            bell: CachePadded::new(crate::shared::Bell::new()),
        }
    }
}

/// Where the words lie.
#[derive(Debug)]
pub(crate) enum Control {
    /// In this process alone.
    Own(Box<Words>),
    /// In the first page of the memory that processes share.
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    Mapped(crate::shared::MappedWords),
}

impl Control {
    pub(crate) fn own() -> Self {
        Self::Own(Box::new(Words::new()))
    }
}

impl Deref for Control {
    type Target = Words;

    fn deref(&self) -> &Words {
        match self {
            Self::Own(words) => words,
            #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
            Self::Mapped(words) => words.get(),
        }
    }
}
