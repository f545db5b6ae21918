//! The memory of one slab, and where the rows of each part lie in it.

use std::ptr::NonNull;
use std::sync::Arc;

use tensordict::{Extent, HeapBuffer};

use crate::SlabError;
use crate::arena::Arena;
use crate::layout::{Layout, PartLayout};
use crate::rows::{Block, Column};

/// One slab: its memory, and where the rows of each part lie in it.
#[derive(Debug)]
pub(crate) struct Slab {
    pub(crate) memory: Memory,
    pub(crate) parts: Box<[PartBlocks]>,
    /// One for each part, where frames have values of variable size.
    pub(crate) arenas: Box<[Arc<Arena>]>,
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
        let arenas = arenas(layout, |part| Some(Arena::on_heap(part)))?;
        // SAFETY: the block has as many bytes as the layout, and was zeroed.
        Some(unsafe { Self::over(memory, layout, arenas) })
    }

    /// A slab in `memory`.
    ///
    /// # Safety
    /// The memory has at least as many bytes as the layout. It was zeroed, and only parts of the
    /// same layout were written since.
    pub(crate) unsafe fn over(memory: Memory, layout: &Layout, arenas: Box<[Arc<Arena>]>) -> Self {
        let base = memory.ptr();
        let part = |(part, PartLayout { columns, .. }): (usize, &PartLayout)| {
            let block = |columns: &[Column]| {
                let arena = arenas.get(part).map(Arc::clone);
                // SAFETY: the offsets of a layout lie within its size.
                unsafe { Block::new(base, layout.shares.envs, columns, arena) }
            };
            PartBlocks {
                obs: block(&columns.obs),
                policy: block(&columns.policy),
                next_obs: block(&columns.next_obs),
            }
        };
        let parts = layout.parts.iter().enumerate().map(part).collect();
        Self {
            memory,
            parts,
            arenas,
            #[cfg(loom)]
            shadow: layout.parts.iter().map(|_| Default::default()).collect(),
        }
    }

    /// Where the values of variable size of all parts lie.
    ///
    /// # Errors
    /// As [`Arena::extents`].
    pub(crate) fn extents(&self) -> Result<Arc<[Extent]>, SlabError> {
        let mut extents = Vec::new();
        for arena in &self.arenas {
            extents.extend(arena.extents()?);
        }
        Ok(extents.into())
    }
}

/// What `make` makes for each part, where frames have values of variable size; none otherwise.
pub(crate) fn arenas(
    layout: &Layout,
    make: impl Fn(usize) -> Option<Arena>,
) -> Option<Box<[Arc<Arena>]>> {
    let parts = match layout.has_bytes() {
        true => 0..layout.parts.len(),
        false => 0..0,
    };
    parts.map(|part| make(part).map(Arc::new)).collect()
}
