//! The bytes of a part's values of variable size, beside its slab (ADR 0031).

use std::ptr::NonNull;

use tensordict::{Cell, Extent, HeapBuffer};
use windrow_sync::{Mutex, lock};

use crate::SlabError;
use crate::slab::Memory;

#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
pub(crate) use shared::Span;

/// Bytes that values are appended to, which stay where they are until all are dropped at once.
///
/// It has one user at a time, or several that only read: whoever has the part, then whoever has the
/// lease. Rows of one step may lie in two threads though, so a lock guards the bookkeeping, and
/// never what was written before.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Tells it apart from others of its slab.
    number: u32,
    memory: ArenaMemory,
    state: Mutex<ArenaState>,
}

#[derive(Debug)]
enum ArenaMemory {
    /// This process's own memory.
    Heap,
    /// Memory that several processes map.
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    Shared(Span),
}

#[derive(Debug, Default)]
struct ArenaState {
    /// Memory without gaps from the beginning on, where this process has it. No value lies in two
    /// chunks.
    chunks: Vec<Chunk>,
    /// Chunks that were mapped again together with others: somebody may still read there.
    replaced: Vec<Chunk>,
    /// On the heap: the end of the last value, and the memory that is to be had; in shared memory,
    /// words say so.
    counts: Counts,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// End of the last value.
    used: u64,
    /// Bytes from the beginning on that can be written: room that the arena had before it was
    /// emptied is taken again as one chunk.
    reserved: u64,
}

#[derive(Debug)]
struct Chunk {
    start: u64,
    len: usize,
    memory: Memory,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.start + self.len as u64
    }
}

/// The least memory that is taken, and kept.
const LEAST: u64 = 1 << 16;

impl Arena {
    /// An empty one on the heap.
    pub(crate) fn on_heap(number: usize) -> Self {
        Self::new(number, ArenaMemory::Heap)
    }

    /// One in `span`, as other processes have left it.
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    pub(crate) fn shared(number: usize, span: Span) -> Self {
        Self::new(number, ArenaMemory::Shared(span))
    }

    fn new(number: usize, memory: ArenaMemory) -> Self {
        Self {
            // Slabs with more parts than that do not fit the address space.
            number: number as u32,
            memory,
            state: Mutex::new(ArenaState::default()),
        }
    }

    /// Drops all values. Memory is kept for as much as they took, and some more; much more is given
    /// back.
    ///
    /// # Safety
    /// Nothing refers to a value, and no other thread or process uses the arena.
    pub(crate) unsafe fn clear(&self) {
        let mut state = lock(&self.state);
        let Counts { used, mut reserved } = self.counts(&state);
        // An arena that was not used since it was last emptied says nothing about the room that it
        // needs.
        if used > 0 && reserved > LEAST.max(used.saturating_mul(4)) {
            reserved = chunk_size(used.saturating_mul(2)).min(reserved);
            self.shrink(reserved);
        }
        let fits = matches!(state.chunks.as_slice(), [chunk] if chunk.end() == reserved);
        if !fits {
            state.chunks.clear();
        }
        state.replaced.clear();
        self.set_counts(&mut state, Counts { used: 0, reserved });
    }

    /// Bytes up to the end of the last value.
    pub(crate) fn used(&self) -> u64 {
        self.counts(&lock(&self.state)).used
    }

    /// Appends a copy of `value`.
    ///
    /// # Errors
    /// [`SlabError::LongValue`], [`SlabError::NoRoom`], [`SlabError::System`].
    pub(crate) fn put(&self, value: &[u8]) -> Result<Cell, SlabError> {
        let Ok(len) = u32::try_from(value.len()) else {
            return Err(SlabError::LongValue { len: value.len() });
        };
        if value.is_empty() {
            return Ok(Cell::default());
        }
        let (start, arena) = (self.append(value)?, self.number);
        Ok(Cell { start, len, arena })
    }

    /// Appends a copy of `bytes`, of one value or of many, in one piece; returns where they begin.
    ///
    /// # Errors
    /// [`SlabError::NoRoom`], [`SlabError::System`].
    pub(crate) fn append(&self, bytes: &[u8]) -> Result<u64, SlabError> {
        let len = bytes.len() as u64;
        let mut state = lock(&self.state);
        let mut counts = self.counts(&state);
        // Another process may have given memory back.
        while let Some(chunk) = state.chunks.pop_if(|chunk| chunk.end() > counts.reserved) {
            state.replaced.push(chunk);
        }
        let used = counts.used;
        let room = |chunk: &&Chunk| chunk.start.max(used) + len <= chunk.end();
        if !state.chunks.iter().any(|chunk| room(&chunk)) {
            let chunk = self.grow(&state, counts, len)?;
            counts.reserved = counts.reserved.max(chunk.end());
            state.chunks.push(chunk);
        }
        let Some(chunk) = state.chunks.iter().find(room) else {
            unreachable!("A chunk that was made for a value has room for it.");
        };
        let start = chunk.start.max(used);
        // SAFETY: the chunk has `len` bytes from there on. No value lies there, since all are
        // before `used`.
        unsafe {
            let to = chunk.memory.ptr().add((start - chunk.start) as usize);
            to.as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        counts.used = start + len;
        self.set_counts(&mut state, counts);
        Ok(start)
    }

    /// The cell here of a value that was `cell` in bytes that were appended at `start`.
    pub(crate) fn moved(&self, cell: Cell, start: u64) -> Cell {
        match cell.len {
            0 => Cell::default(),
            len => Cell {
                start: start + cell.start,
                len,
                arena: self.number,
            },
        }
    }

    /// The bytes of a value of this arena.
    ///
    /// # Errors
    /// [`SlabError::Stray`] for a cell that names other bytes, [`SlabError::System`] where memory
    /// that another process has written cannot be mapped.
    ///
    /// # Safety
    /// The arena is not emptied during `'a`.
    pub(crate) unsafe fn get<'a>(&self, cell: Cell) -> Result<&'a [u8], SlabError> {
        let mut state = lock(&self.state);
        let counts = self.counts(&state);
        let used = counts.used;
        self.map_up_to(counts, &mut state)?;
        let holds = |chunk: &&Chunk| chunk.start <= cell.start;
        let extent = state
            .chunks
            .iter()
            .rfind(holds)
            .map(|chunk| self.extent(chunk, used));
        let cell = Cell {
            arena: self.number,
            ..cell
        };
        // SAFETY: values before `used` are not written any more, and the caller keeps them.
        let found = unsafe { Extent::find(extent.as_slice(), cell) };
        found.ok_or(SlabError::Stray {
            start: cell.start,
            len: cell.len as usize,
        })
    }

    /// Where its values lie in this process's memory. Another process may have written them before.
    ///
    /// # Errors
    /// Errors of the system, where memory that another process has written cannot be mapped.
    pub(crate) fn extents(&self) -> Result<Vec<Extent>, SlabError> {
        let mut state = lock(&self.state);
        let counts = self.counts(&state);
        let used = counts.used;
        self.map_up_to(counts, &mut state)?;
        let chunks = state.chunks.iter().filter(|chunk| chunk.start < used);
        Ok(chunks.map(|chunk| self.extent(chunk, used)).collect())
    }

    fn extent(&self, chunk: &Chunk, used: u64) -> Extent {
        let len = used.saturating_sub(chunk.start).min(chunk.len as u64);
        Extent {
            arena: self.number,
            start: chunk.start,
            ptr: chunk.memory.ptr(),
            len: len as usize,
        }
    }

    /// Another chunk, with room for `len` bytes at least; as large as all before, so that there are
    /// few.
    #[cfg_attr(
        any(loom, shuttle, not(target_os = "linux")),
        allow(unused_variables, unreachable_code)
    )]
    fn grow(&self, state: &ArenaState, counts: Counts, len: u64) -> Result<Chunk, SlabError> {
        let start = state.chunks.last().map_or(0, Chunk::end);
        let size = chunk_size(len.max(start).max(counts.reserved.saturating_sub(start)));
        let no_room = SlabError::NoRoom { bytes: size };
        let Ok(len) = usize::try_from(size) else {
            return Err(no_room);
        };
        let memory = match &self.memory {
            ArenaMemory::Heap => Memory::Heap(HeapBuffer::zeroed(len).ok_or(no_room)?),
            #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
            ArenaMemory::Shared(span) => {
                Memory::Mapped(span.reserve(start, len, counts.reserved)?)
            }
        };
        Ok(Chunk { start, len, memory })
    }

    /// Maps all that can be written, where another process has written more than this one has
    /// mapped.
    #[cfg_attr(
        any(loom, shuttle, not(target_os = "linux")),
        allow(unused_variables, unreachable_code)
    )]
    fn map_up_to(&self, counts: Counts, state: &mut ArenaState) -> Result<(), SlabError> {
        if state.chunks.last().map_or(0, Chunk::end) >= counts.used {
            return Ok(());
        }
        let (start, len) = (0, counts.reserved as usize);
        let memory = match &self.memory {
            ArenaMemory::Heap => unreachable!("Chunks on the heap hold all values."),
            #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
            ArenaMemory::Shared(span) => Memory::Mapped(span.map(start, len)?),
        };
        let ArenaState {
            chunks, replaced, ..
        } = state;
        replaced.append(chunks);
        chunks.push(Chunk { start, len, memory });
        Ok(())
    }

    /// Gives back what lies behind the first `kept` bytes.
    #[cfg_attr(
        any(loom, shuttle, not(target_os = "linux")),
        allow(unused_variables, unreachable_code)
    )]
    fn shrink(&self, kept: u64) {
        match &self.memory {
            // Chunks of another size are dropped.
            ArenaMemory::Heap => {}
            #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
            ArenaMemory::Shared(span) => span.release_from(kept),
        }
    }

    fn counts(&self, state: &ArenaState) -> Counts {
        match &self.memory {
            ArenaMemory::Heap => state.counts,
            #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
            ArenaMemory::Shared(span) => span.counts(),
        }
    }

    fn set_counts(&self, state: &mut ArenaState, counts: Counts) {
        match &self.memory {
            ArenaMemory::Heap => state.counts = counts,
            #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
            ArenaMemory::Shared(span) => span.set_counts(counts),
        }
    }
}

/// `bytes` as a chunk has them.
fn chunk_size(bytes: u64) -> u64 {
    bytes
        .max(1)
        .checked_next_multiple_of(LEAST)
        .unwrap_or(bytes)
}

/// Places `count` values at `to`, which are those at `from` of another arena, or of the same.
///
/// # Errors
/// As [`Arena::put`] and [`Arena::get`].
///
/// # Safety
/// There are `count` cells of `of` at `from`, and room for as many at `to`, which nobody else uses.
pub(crate) unsafe fn copy_cells(
    (from, of): (*const Cell, &Arena),
    (to, into): (NonNull<Cell>, &Arena),
    count: usize,
) -> Result<(), SlabError> {
    let is_same = std::ptr::eq(of, into);
    for i in 0..count {
        // SAFETY: promised by the caller; the value is read before anything is emptied.
        unsafe {
            let cell = from.add(i).read();
            let copy = match is_same || cell.len == 0 {
                true => cell,
                false => into.put(of.get(cell)?)?,
            };
            to.add(i).write(copy);
        }
    }
    Ok(())
}

#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
mod shared {
    use std::io;
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Counts;
    use crate::SlabError;
    use crate::shared::{Mapping, SharedFile, refused};

    /// The bytes of a file that one arena may use, and the words about them in its slab.
    #[derive(Debug)]
    pub(crate) struct Span {
        file: Arc<SharedFile>,
        /// Where it begins in the file.
        offset: u64,
        words: NonNull<[AtomicU64; 2]>,
    }

    // SAFETY: the words are atomics, which stay mapped as long as the slab, which has the arena.
    unsafe impl Send for Span {}
    // SAFETY: as above.
    unsafe impl Sync for Span {}

    impl Span {
        /// Bytes of a file for each arena: more than any machine has, since what is not reserved
        /// takes no memory.
        pub(crate) const SIZE: u64 = 1 << 36;

        /// # Safety
        /// The words stay mapped as long as the span, and are changed as atomics only.
        pub(crate) unsafe fn new(file: Arc<SharedFile>, offset: u64, words: NonNull<u8>) -> Self {
            let words = words.cast();
            Self {
                file,
                offset,
                words,
            }
        }

        fn words(&self) -> &[AtomicU64; 2] {
            // SAFETY: promised to `new`.
            unsafe { self.words.as_ref() }
        }

        /// A part is handed on with a message, which orders the words as it does the part's rows.
        pub(super) fn counts(&self) -> Counts {
            let [used, reserved] = self.words();
            Counts {
                used: used.load(Ordering::Relaxed),
                reserved: reserved.load(Ordering::Relaxed),
            }
        }

        pub(super) fn set_counts(&self, counts: Counts) {
            let [used, reserved] = self.words();
            used.store(counts.used, Ordering::Relaxed);
            reserved.store(counts.reserved, Ordering::Relaxed);
        }

        /// Maps `len` bytes, of which the first ones up to `reserved` can be written already.
        pub(super) fn reserve(
            &self,
            start: u64,
            len: usize,
            reserved: u64,
        ) -> Result<Mapping, SlabError> {
            let (bytes, end) = (len as u64, start.saturating_add(len as u64));
            if end > Self::SIZE {
                return Err(SlabError::NoRoom { bytes });
            }
            let first = start.max(reserved);
            if first < end {
                let taken = self.file.reserve(self.offset + first, end - first);
                taken.map_err(|error| match error.kind() {
                    io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull => {
                        SlabError::NoRoom { bytes }
                    }
                    _ => refused("fallocate")(error),
                })?;
            }
            self.map(start, len)
        }

        pub(super) fn map(&self, start: u64, len: usize) -> Result<Mapping, SlabError> {
            let mapped = self.file.map(self.offset + start, len);
            mapped.map_err(refused("mmap"))
        }

        /// Gives the memory behind the first `kept` bytes back.
        pub(super) fn release_from(&self, kept: u64) {
            let reserved = self.counts().reserved;
            self.file.release(self.offset + kept, reserved - kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(arena: &Arena, cell: Cell) -> &[u8] {
        // SAFETY: the tests empty arenas after the last use only.
        unsafe { arena.get(cell) }.unwrap()
    }

    fn clear(arena: &Arena) {
        // SAFETY: nothing refers to a value.
        unsafe { arena.clear() };
    }

    fn fill(arena: &Arena, values: usize, len: usize) {
        for i in 0..values {
            arena.put(&vec![i as u8; len]).unwrap();
        }
    }

    #[test]
    fn values_stay_where_they_are_as_more_are_added() {
        let arena = Arena::on_heap(3);
        let value = |i: usize| vec![i as u8; i * 37];
        let cells: Vec<_> = (0..300).map(|i| arena.put(&value(i)).unwrap()).collect();
        let first = text(&arena, cells[1]).as_ptr();
        for (i, &cell) in cells.iter().enumerate() {
            assert_eq!(text(&arena, cell), value(i));
        }
        fill(&arena, 3, 1 << 20);
        assert_eq!(text(&arena, cells[1]).as_ptr(), first);
        let extents = arena.extents().unwrap();
        assert!(extents.len() > 2 && extents.iter().all(|extent| extent.arena == 3));
        // SAFETY: the arena is not emptied.
        let found = cells
            .iter()
            .map(|&cell| unsafe { Extent::find(&extents, cell) });
        assert!(found.enumerate().all(|(i, found)| found == Some(&value(i))));
    }

    #[test]
    fn what_is_no_value_is_refused() {
        let arena = Arena::on_heap(0);
        fill(&arena, 1, 10);
        for (start, len) in [(0, 11), (5, 6), (10, 1), (u64::MAX, 1)] {
            let cell = Cell {
                start,
                len,
                arena: 0,
            };
            // SAFETY: the arena is not emptied.
            let got = unsafe { arena.get(cell) };
            assert!(matches!(got, Err(SlabError::Stray { .. })), "{start} {len}");
        }
    }

    #[test]
    fn memory_is_used_again_in_one_piece_and_goes_back_after_a_burst() {
        let arena = Arena::on_heap(0);
        let chunks = || lock(&arena.state).chunks.len();
        let reserved = || lock(&arena.state).counts.reserved;
        fill(&arena, 1000, 1000);
        assert!(chunks() > 1);
        let most = reserved();
        clear(&arena);
        fill(&arena, 1000, 1000);
        assert_eq!((chunks(), reserved()), (1, most));
        clear(&arena);
        // An empty part takes nothing away.
        clear(&arena);
        assert_eq!((chunks(), reserved()), (1, most));
        fill(&arena, 1, 10);
        clear(&arena);
        assert_eq!((chunks(), reserved()), (0, LEAST));
        fill(&arena, 1, 10);
        assert_eq!((chunks(), reserved()), (1, LEAST));
    }
}
