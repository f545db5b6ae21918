//! Values of variable size: cells of one width in the tensor, and the bytes that they name beside
//! it (ADR 0031).

use std::ptr::NonNull;
use std::sync::Arc;

use crate::buffer::HeapBuffer;
use crate::tensor::Owner;
use crate::{Result, TensorError};

/// The element of a column of [`Bytes`](crate::DType::Bytes): where one value lies. Zero is the
/// empty value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cell {
    /// First byte, counted in its arena.
    pub start: u64,
    /// Bytes of the value.
    pub len: u32,
    /// Number of the arena.
    pub arena: u32,
}

/// Bytes of an arena that follow each other in memory. An arena has one or more of them; no value
/// lies in two.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Number of the arena.
    pub arena: u32,
    /// Place of the first byte in the arena.
    pub start: u64,
    /// The first byte.
    pub ptr: NonNull<u8>,
    /// Number of bytes.
    pub len: usize,
}

// SAFETY: an address and numbers. `Tensor::from_cells` and `Extent::find` demand that the bytes are
// alive and not written.
unsafe impl Send for Extent {}
// SAFETY: as above.
unsafe impl Sync for Extent {}

impl Extent {
    /// The bytes that `cell` names in `extents`, which are sorted by arena and place; `None` where
    /// it names others.
    ///
    /// # Safety
    /// The bytes of `extents` are initialised, and those of the cell stay alive and unwritten
    /// during `'a`.
    #[must_use]
    pub unsafe fn find<'a>(extents: &[Self], cell: Cell) -> Option<&'a [u8]> {
        if cell.len == 0 {
            return Some(&[]);
        }
        let place = (cell.arena, cell.start);
        let after = extents.partition_point(|extent| (extent.arena, extent.start) <= place);
        let extent = extents.get(after.checked_sub(1)?)?;
        let at = usize::try_from(cell.start - extent.start).ok()?;
        let len = cell.len as usize;
        if extent.arena != cell.arena || at.checked_add(len)? > extent.len {
            return None;
        }
        // SAFETY: the bytes lie in the extent, as compared above; the caller vouches for the rest.
        Some(unsafe { std::slice::from_raw_parts(extent.ptr.as_ptr().add(at), len) })
    }
}

/// Owns the memory of a tensor of cells, and what the cells name.
#[derive(Debug)]
pub(crate) struct Strings {
    pub(crate) extents: Arc<[Extent]>,
    /// Keeps cells and bytes alive.
    _owner: Owner,
}

impl Strings {
    pub(crate) fn new(extents: Arc<[Extent]>, owner: Owner) -> Self {
        Self {
            extents,
            _owner: owner,
        }
    }

    /// The owner of cells in `cells` that name bytes of `heap`, their only arena.
    pub(crate) fn of_heap(cells: HeapBuffer, heap: Vec<u8>) -> Self {
        let extent = Extent {
            arena: 0,
            start: 0,
            ptr: NonNull::from(heap.as_slice()).cast(),
            len: heap.len(),
        };
        Self::new(Arc::new([extent]), Arc::new((cells, heap)))
    }
}

/// Appends `value` to `heap`; returns its cell.
///
/// # Errors
/// [`TensorError::LongValue`].
pub(crate) fn append(heap: &mut Vec<u8>, value: &[u8]) -> Result<Cell> {
    let len =
        u32::try_from(value.len()).map_err(|_| TensorError::LongValue { len: value.len() })?;
    let start = heap.len() as u64;
    heap.extend_from_slice(value);
    Ok(Cell {
        start,
        len,
        arena: 0,
    })
}
