//! Values of variable size: the bytes that cells of rows name, in blocks that are used again (ADR
//! 0031).

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

use tensordict::{Cell, Extent, HeapBuffer, TensorError};
use windrow_sync::{Mutex, lock};

use crate::StoreError;
#[cfg(not(loom))]
use crate::mapped::Mapped;

/// The least block: what a cell takes, so that few values have a smaller one.
const LEAST: u64 = 16;

/// The least memory that is taken at a time.
const PIECE: u64 = 1 << 20;

/// Blocks of bytes, each of a power of two, in memory that grows. A value has the smallest block
/// that holds it.
///
/// The protocol of rows guards them: a block is written before a row names it, and freed when
/// nobody reads that row any more.
#[derive(Debug, Default)]
pub(crate) struct Values {
    state: Mutex<Blocks>,
}

#[derive(Debug, Default)]
struct Blocks {
    /// Where pieces of memory lie, in order and without gaps.
    extents: Arc<[Extent]>,
    pieces: Vec<Piece>,
    /// Bytes of all pieces.
    size: u64,
    /// Bytes from the beginning on of which blocks were made.
    made: u64,
    /// Blocks that no row names, by their size.
    free: BTreeMap<u64, Vec<u64>>,
}

/// Memory, held for its bytes alone.
#[derive(Debug)]
#[allow(dead_code, reason = "held for its memory alone")]
enum Piece {
    Heap(HeapBuffer),
    #[cfg(not(loom))]
    File(memmap2::MmapRaw),
}

/// Where memory for values comes from: the end of a file, or the heap.
pub(crate) type Room<'a> = Option<&'a Mapped>;

/// Models have no files.
#[cfg(loom)]
pub(crate) type Mapped = std::convert::Infallible;

impl Values {
    /// Appends a copy of `value` to a free block; returns a cell that names it.
    ///
    /// # Errors
    /// [`StoreError::Tensor`] for a value that is too long, or without memory; [`StoreError::Io`]
    /// without room in the file.
    pub(crate) fn put(&self, value: &[u8], room: Room<'_>) -> Result<Cell, StoreError> {
        let Ok(len) = u32::try_from(value.len()) else {
            let len = value.len();
            return Err(TensorError::LongValue { len }.into());
        };
        if len == 0 {
            return Ok(Cell::default());
        }
        let mut blocks = lock(&self.state);
        let start = blocks.take(block_of(len), room)?;
        let cell = Cell {
            start,
            len,
            arena: 0,
        };
        let place = blocks.place(start);
        // SAFETY: the block has room for the value, and no row names it.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(value).cast(), value.len()) };
        Ok(cell)
    }

    /// Frees the block that `cell` names, which nobody reads any more.
    pub(crate) fn free(&self, cell: Cell) {
        if cell.len > 0 {
            let mut blocks = lock(&self.state);
            let size = block_of(cell.len);
            blocks.free.entry(size).or_default().push(cell.start);
        }
    }

    /// Where values lie at present.
    pub(crate) fn extents(&self) -> Arc<[Extent]> {
        Arc::clone(&lock(&self.state).extents)
    }

    /// Frees all blocks, which nobody reads any more, and gives their memory back.
    pub(crate) fn clear(&self, room: Room<'_>) {
        *lock(&self.state) = Blocks::default();
        match room {
            None => {}
            #[cfg(not(loom))]
            Some(file) => file.forget_values(),
            #[cfg(loom)]
            Some(never) => match *never {},
        }
    }

    /// Takes over the blocks at the end of `file` that `cells` name, all that there are. `None` if
    /// these cannot be blocks of a store.
    #[cfg(not(loom))]
    pub(crate) fn recover(
        &self,
        file: &Mapped,
        cells: impl Iterator<Item = Cell>,
    ) -> Result<Option<()>, StoreError> {
        let mut blocks = Blocks::default();
        let len = file.values_len()?;
        if len > 0 {
            file.reserve_values(len)?;
            let map = file.map_values(0, len)?;
            blocks.add(NonNull::new(map.as_mut_ptr()), len, Piece::File(map));
        }
        let mut used: Vec<(u64, u64)> = cells
            .filter(|cell| cell.len > 0)
            .map(|cell| (cell.start, block_of(cell.len)))
            .collect();
        used.sort_unstable();
        for (start, size) in used {
            let end = start.checked_add(size).filter(|end| *end <= len);
            let (Some(end), true) = (end, start >= blocks.made) else {
                return Ok(None);
            };
            blocks.free_up_to(start);
            blocks.made = end;
        }
        *lock(&self.state) = blocks;
        Ok(Some(()))
    }
}

impl Blocks {
    /// A block of `size` bytes that no row names.
    fn take(&mut self, size: u64, room: Room<'_>) -> Result<u64, StoreError> {
        if let Some(start) = self.free.get_mut(&size).and_then(Vec::pop) {
            return Ok(start);
        }
        if self.size - self.made < size {
            self.grow(size, room)?;
        }
        let start = self.made;
        self.made += size;
        Ok(start)
    }

    /// Adds a piece of memory with room for a block of `size` bytes. Blocks lie in one piece each.
    #[cold]
    fn grow(&mut self, size: u64, room: Room<'_>) -> Result<(), StoreError> {
        let len = size.max(self.size / 4).max(PIECE).next_multiple_of(PIECE);
        let no_memory = || TensorError::NoMemory {
            shape: vec![len as usize],
            dtype: tensordict::DType::U8,
            bytes: len as usize,
        };
        let (start, piece) = match room {
            None => {
                let bytes = usize::try_from(len).unwrap_or(usize::MAX);
                let memory = HeapBuffer::zeroed(bytes).ok_or_else(no_memory)?;
                (Some(memory.ptr()), Piece::Heap(memory))
            }
            #[cfg(not(loom))]
            Some(file) => {
                let map = file.grow_values(self.size, len)?;
                (NonNull::new(map.as_mut_ptr()), Piece::File(map))
            }
            #[cfg(loom)]
            Some(never) => match *never {},
        };
        // What is left of the piece before becomes blocks of their own.
        self.free_up_to(self.size);
        self.made = self.size;
        self.add(start, len, piece);
        Ok(())
    }

    fn add(&mut self, start: Option<NonNull<u8>>, len: u64, piece: Piece) {
        let extent = start.map(|ptr| Extent {
            arena: 0,
            start: self.size,
            ptr,
            len: len as usize,
        });
        let extents = self.extents.iter().copied().chain(extent);
        self.extents = extents.collect();
        self.pieces.push(piece);
        self.size += len;
    }

    /// Makes free blocks of the bytes between those that are made and `end`.
    fn free_up_to(&mut self, end: u64) {
        while end.saturating_sub(self.made) >= LEAST {
            let size = 1 << (end - self.made).ilog2();
            self.free.entry(size).or_default().push(self.made);
            self.made += size;
        }
    }

    /// Where a block that was taken begins.
    fn place(&self, start: u64) -> NonNull<u8> {
        let extent = self.extents.iter().rfind(|extent| extent.start <= start);
        let Some(extent) = extent else {
            unreachable!("A block lies in a piece, and the first begins with 0.");
        };
        // SAFETY: the block lies within the piece.
        unsafe { extent.ptr.add((start - extent.start) as usize) }
    }
}

/// Size of the block for a value of `len` bytes.
fn block_of(len: u32) -> u64 {
    u64::from(len).next_power_of_two().max(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(values: &Values, cell: Cell) -> Vec<u8> {
        // SAFETY: the values are not freed meanwhile.
        unsafe { Extent::find(&values.extents(), cell) }
            .unwrap()
            .to_vec()
    }

    fn size(values: &Values) -> u64 {
        lock(&values.state).size
    }

    #[test]
    fn blocks_that_are_freed_are_used_again() {
        let values = Values::default();
        let put = |len: usize| values.put(&vec![7; len], None).unwrap();
        let mut held: Vec<Cell> = (0..1000).map(|i| put(i % 300)).collect();
        let before = size(&values);
        for i in 0..20_000 {
            let place = i % held.len();
            values.free(held[place]);
            held[place] = put((i * 7) % 300);
        }
        assert!(size(&values) <= 2 * before, "{before} {}", size(&values));
        let mut used: Vec<_> = held.iter().filter(|cell| cell.len > 0).collect();
        used.sort_by_key(|cell| cell.start);
        for pair in used.windows(2) {
            assert!(pair[0].start + block_of(pair[0].len) <= pair[1].start);
        }
        assert!(
            held.iter()
                .all(|&cell| text(&values, cell) == vec![7; cell.len as usize])
        );
        values.clear(None);
        assert_eq!(size(&values), 0);
    }

    #[test]
    fn a_value_larger_than_a_piece_has_a_piece_of_its_own() {
        let values = Values::default();
        let small = values.put(b"small", None).unwrap();
        let large = vec![1; 3 << 20];
        let cell = values.put(&large, None).unwrap();
        assert_eq!(text(&values, cell), large);
        assert_eq!(text(&values, small), b"small");
        // What was left of the first piece is used.
        let before = size(&values);
        let half = values.put(&vec![2; 1 << 19], None).unwrap();
        assert_eq!(text(&values, half), vec![2; 1 << 19]);
        assert_eq!(size(&values), before);
    }
}
