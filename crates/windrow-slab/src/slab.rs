//! The memory of one slab, and where the rows of each part lie in it.

use std::ptr::NonNull;

use tensordict::HeapBuffer;

use crate::layout::{Layout, PartLayout};
use crate::rows::{Block, Column};

/// One slab: its memory, and where the rows of each part lie in it.
#[derive(Debug)]
pub(crate) struct Slab {
    pub(crate) memory: Memory,
    pub(crate) parts: Box<[PartBlocks]>,
    /// One for each part.
    #[cfg(loom)]
    pub(crate) shadow: Box<[windrow_sync::Shadow]>,
}

/// The memory of a slab: at least as many bytes as its layout has, zeroed at first.
#[derive(Debug)]
pub(crate) enum Memory {
    /// This process's own.
    Heap(HeapBuffer),
    /// Shared memory, which workers in other processes write.
    #[cfg(target_os = "linux")]
    Mapped(crate::shared::Mapping),
}

impl Memory {
    /// First byte, at the start of a cache line.
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        match self {
            Self::Heap(memory) => memory.ptr(),
            #[cfg(target_os = "linux")]
            Self::Mapped(memory) => memory.ptr(),
        }
    }
}

/// The columns of one part of one slab that are handed out as rows.
#[derive(Debug)]
pub(crate) struct PartBlocks {
    pub(crate) obs: Block,
    pub(crate) policy: Block,
    pub(crate) next_obs: Block,
}

impl Slab {
    /// A zeroed slab on the heap; `None` when the system does not give the memory.
    pub(crate) fn on_heap(layout: &Layout) -> Option<Self> {
        let memory = Memory::Heap(HeapBuffer::zeroed(layout.bytes)?);
        // SAFETY: the block has as many bytes as the layout, and was zeroed.
        Some(unsafe { Self::over(memory, layout) })
    }

    /// A slab in `memory`.
    ///
    /// # Safety
    /// The memory has at least as many bytes as the layout. It was zeroed, and only parts of the same layout were written
    /// since.
    pub(crate) unsafe fn over(memory: Memory, layout: &Layout) -> Self {
        let base = memory.ptr();
        // SAFETY: the offsets of a layout lie within its size.
        let block = |columns: &[Column]| unsafe { Block::new(base, layout.shares.envs, columns) };
        let parts = layout
            .parts
            .iter()
            .map(|PartLayout { columns, .. }| PartBlocks {
                obs: block(&columns.obs),
                policy: block(&columns.policy),
                next_obs: block(&columns.next_obs),
            })
            .collect();
        Self {
            memory,
            parts,
            #[cfg(loom)]
            shadow: layout.parts.iter().map(|_| Default::default()).collect(),
        }
    }
}
