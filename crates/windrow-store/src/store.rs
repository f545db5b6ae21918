//! The store: rows of frames in memory or in a mapped file (ADRs 0005 and 0011).

#[cfg(not(loom))]
use std::fs::File;
use std::ops::Range;
#[cfg(not(loom))]
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use tensordict::{Cell, Group, HeapBuffer, LeafSpec, TensorDict};

use crate::StoreError;
use crate::epoch::{EpochLock, PendingWrite};
use crate::header::Header;
use crate::layout::{Field, FrameLayout};
#[cfg(not(loom))]
use crate::mapped;
use crate::schema::{RowPointer, fit, flat, misfit, sources};
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
use crate::stage::{self, STAGE, Stage, Stream};
use crate::values::{Room, Values};

mod read;

pub use read::StoreRead;
use read::StoreRef;

/// Rows of frames in memory or in a file, shared by one writer at a time and any number of readers.
///
/// Readers never wait. A write waits for the readers that registered before it, not for later ones;
/// to these its rows hold no frame until the write is whole. So no reader ever sees half a frame,
/// and rows that a reader could read when it registered do not change until it is dropped.
#[derive(Debug)]
pub struct Store {
    layout: FrameLayout,
    groups: Vec<Group>,
    header: Header,
    lock: EpochLock,
    values: Values,
    start: NonNull<u8>,
    /// The memory that `start` and `header` point into.
    backing: Backing,
    /// The name of the growing file in errors, if the store has one.
    #[cfg(not(loom))]
    path: PathBuf,
    /// One for each row.
    #[cfg(loom)]
    shadow: Box<[windrow_sync::Shadow]>,
}

// SAFETY: the bytes behind `start` are read and written as the epoch lock allows: rows by one
// writer while no one reads them, words of the header as atomics. All else is `Sync` by itself.
unsafe impl Sync for Store {}
// SAFETY: as above; nothing depends on the thread.
unsafe impl Send for Store {}

#[derive(Debug)]
#[allow(dead_code, reason = "most are held for their memory alone")]
enum Backing {
    Heap(HeapBuffer),
    #[cfg(not(loom))]
    Pages(memmap2::MmapRaw),
    #[cfg(not(loom))]
    File(mapped::Mapped),
}

impl Backing {
    /// Zeroed, aligned memory and its start; `None` when the system does not give so much.
    fn zeroed(bytes: usize) -> Option<(NonNull<u8>, Self)> {
        #[cfg(not(loom))]
        if bytes >= mapped::HUGE {
            let pages = mapped::pages(bytes).ok()?;
            return Some((NonNull::new(pages.as_mut_ptr())?, Self::Pages(pages)));
        }
        let memory = HeapBuffer::zeroed(bytes)?;
        Some((memory.ptr(), Self::Heap(memory)))
    }
}

impl Store {
    /// An empty store in memory, of `capacity` rows of these leaves.
    ///
    /// # Errors
    /// [`StoreError::Capacity`], [`StoreError::NoEntries`], [`StoreError::TooLarge`] and
    /// [`StoreError::NoMemory`].
    pub fn new(leaves: Vec<LeafSpec>, capacity: usize) -> Result<Self, StoreError> {
        let layout = FrameLayout::new(leaves, capacity)?;
        let bytes = layout.bytes;
        let zeroed = Backing::zeroed(bytes);
        let (start, backing) = zeroed.ok_or(StoreError::NoMemory { capacity, bytes })?;
        // SAFETY: the memory has the layout's size, is zeroed and held by the backing.
        Ok(unsafe { Self::over(layout, start, backing) })
    }

    /// A store in the file at `path`; creates the file where it is missing or empty.
    ///
    /// An existing file must hold as many rows of the same leaves. However its process ended, each
    /// row holds a whole frame or none, and an unfinished write has left none. (When the machine
    /// dies, rows that it had not yet written back to disk are lost.)
    ///
    /// The store locks its file against other stores. Other programs can ignore that lock: when one
    /// shortens the file while the store is open, the next access to a missing row ends the process
    /// with `SIGBUS`, which no library can turn into an error.
    ///
    /// # Errors
    /// As [`new`](Store::new); [`StoreError::File`], without a change to the file, when it does not
    /// belong to a store, belongs to a different one or is damaged; [`StoreError::InUse`] when it
    /// is open elsewhere, [`StoreError::Io`].
    #[cfg(not(loom))]
    pub fn open(path: &Path, leaves: Vec<LeafSpec>, capacity: usize) -> Result<Self, StoreError> {
        let layout = FrameLayout::new(leaves, capacity)?;
        let file = mapped::Mapped::open(path, layout.bytes, layout.has_values())?;
        Self::mapped(layout, file, path)
    }

    /// An empty store in `file`, which is open for reading and writing, new, and gone with the
    /// store, such as one without a name. It takes room on the disk as rows are written, some at a
    /// time; a write that finds too little is an error. Errors call it `path`.
    ///
    /// # Errors
    /// As [`new`](Store::new); [`StoreError::Io`].
    #[cfg(not(loom))]
    pub fn in_file(
        file: File,
        path: &Path,
        leaves: Vec<LeafSpec>,
        capacity: usize,
    ) -> Result<Self, StoreError> {
        let layout = FrameLayout::new(leaves, capacity)?;
        let file = mapped::Mapped::sparse(file, path, layout.bytes)?;
        let room = file.make_room(0..layout.rows_start());
        room.map_err(mapped::failed("make room for", path))?;
        let mut store = Self::mapped(layout, file, path)?;
        store.path = path.to_path_buf();
        Ok(store)
    }

    #[cfg(not(loom))]
    fn mapped(layout: FrameLayout, file: mapped::Mapped, path: &Path) -> Result<Self, StoreError> {
        let (capacity, fingerprint) = (layout.capacity, layout.fingerprint());
        let start = file.start().ok_or(StoreError::TooLarge { capacity })?;
        // SAFETY: the file has the layout's size and is mapped, to a page, as long as the backing
        // lives; its lock keeps other stores away from it.
        let store = unsafe { Self::over(layout, start, Backing::File(file)) };
        if store.header.is_unmade() {
            store.header.create(fingerprint);
        } else if let Err((expected, got)) = store.header.recover(fingerprint) {
            let path = path.to_path_buf();
            return Err(StoreError::File {
                path,
                expected,
                got,
            });
        } else {
            store.recover_values(path)?;
        }
        Ok(store)
    }

    /// Takes over the values of rows that are whole; others have none.
    #[cfg(not(loom))]
    fn recover_values(&self, path: &Path) -> Result<(), StoreError> {
        let Backing::File(file) = &self.backing else {
            return Ok(());
        };
        if !self.layout.has_values() {
            return Ok(());
        }
        let mut named = Vec::new();
        for row in 0..self.layout.capacity {
            let is_whole = self.header.is_filled(row as u32);
            // SAFETY: nobody else knows the store yet.
            unsafe {
                self.each_cell(row, |cell| match is_whole {
                    true => named.push(*cell),
                    false => *cell = Cell::default(),
                });
            }
        }
        let recovered = self.values.recover(file, named.into_iter())?;
        recovered.ok_or_else(|| StoreError::File {
            path: path.to_path_buf(),
            expected: "rows whose values lie behind them, apart from each other".to_owned(),
            got: "others".to_owned(),
        })
    }

    /// Calls `each` with the cells of `row`.
    ///
    /// # Safety
    /// No other thread accesses the row.
    unsafe fn each_cell(&self, row: usize, mut each: impl FnMut(&mut Cell)) {
        for (_, field, count) in self.layout.cells() {
            // SAFETY: the row's cells lie within the memory; fields of the widest elements come
            // first in a record, whose size is a multiple of 8, so they are aligned. The caller has
            // them alone.
            let cells = unsafe {
                let first = self.field(field).add(row * field.stride).cast::<Cell>();
                std::slice::from_raw_parts_mut(first, count)
            };
            cells.iter_mut().for_each(&mut each);
        }
    }

    /// Where more values find room.
    fn room(&self) -> Room<'_> {
        match &self.backing {
            #[cfg(not(loom))]
            Backing::File(file) => Some(file),
            _ => None,
        }
    }

    /// Copies the values of `frames` to where no row names them; their cells, in place of those of
    /// the frames.
    ///
    /// # Errors
    /// As [`Values::put`]; nothing is kept then.
    fn put_values(&self, frames: &TensorDict, n: usize) -> Result<Vec<Vec<Cell>>, StoreError> {
        let mut all = Vec::new();
        for (place, _, count) in self.layout.cells() {
            let tensor = frames.get(&self.layout.leaves[place].key)?;
            let mut cells = Vec::with_capacity(n * count);
            let failed = tensor.strings().find_map(|value| {
                let put = self.values.put(value, self.room());
                put.map(|cell| cells.push(cell)).err()
            });
            all.push(cells);
            if let Some(error) = failed {
                self.free_values(&all);
                return Err(error);
            }
        }
        Ok(all)
    }

    fn free_values(&self, cells: &[Vec<Cell>]) {
        cells
            .iter()
            .flatten()
            .for_each(|&cell| self.values.free(cell));
    }

    /// # Safety
    /// `backing` keeps `layout.bytes` initialised bytes from `start` on alive, 64-byte aligned, and
    /// no one else accesses them.
    unsafe fn over(layout: FrameLayout, start: NonNull<u8>, backing: Backing) -> Self {
        Self {
            // SAFETY: the layout begins with the header.
            header: unsafe { Header::new(start, layout.capacity) },
            groups: Vec::new(),
            lock: EpochLock::new(),
            values: Values::default(),
            start,
            backing,
            #[cfg(not(loom))]
            path: PathBuf::new(),
            #[cfg(loom)]
            shadow: (0..layout.capacity).map(|_| Default::default()).collect(),
            layout,
        }
    }

    /// This store, whose readers give nested dicts the dimensions of their own that `groups` names.
    #[must_use]
    pub fn with_groups(self, groups: Vec<Group>) -> Self {
        Self { groups, ..self }
    }

    /// Names, types and shapes of one frame of `frames`, `[n]`.
    ///
    /// # Errors
    /// [`StoreError::NotFlat`].
    pub fn leaves(frames: &TensorDict) -> Result<Vec<LeafSpec>, StoreError> {
        flat(frames)?;
        let leaves = frames.leaves();
        Ok(leaves
            .map(|(key, tensor)| LeafSpec::new(key, tensor.dtype(), &tensor.shape()[1..]))
            .collect())
    }

    /// Most rows of these leaves that fit into `bytes` bytes, up to 2³² - 1; 0 when none does. What
    /// values of variable size take comes on top.
    #[must_use]
    pub fn rows_within(leaves: &[LeafSpec], bytes: usize) -> usize {
        FrameLayout::rows_within(leaves, bytes)
    }

    /// Number of rows, filled or not.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.layout.capacity
    }

    /// Size of the store in memory, or on disk, without values of variable size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layout.bytes
    }

    /// A random number that the file of the store keeps, and that no other file has. Files that
    /// belong to the store can repeat it. 0 for files of versions without identities.
    #[cfg(not(loom))]
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.header.identity()
    }

    /// The row after the last one written; 0 in an empty store.
    #[must_use]
    pub fn cursor(&self) -> usize {
        let last = self.header.last();
        // Another program can change a mapped file.
        last.first.wrapping_add(last.len) % self.layout.capacity
    }

    /// Rows written over the life of the store.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.header.last().after
    }

    /// Checks that `frames` have one batch dimension and the entries, types and shapes of this
    /// store.
    ///
    /// # Errors
    /// [`StoreError::NotFlat`], [`StoreError::Missing`], [`StoreError::Extra`],
    /// [`StoreError::Entry`].
    pub fn check(&self, frames: &TensorDict) -> Result<(), StoreError> {
        let n = flat(frames)?;
        if fit(&self.layout.leaves, frames, n, &mut |_| ()) {
            return Ok(());
        }
        Err(misfit(&self.layout.leaves, frames, n))
    }

    /// Writes frames `[n]` into rows `first, first + 1, …`, wrapping to row 0 after the last.
    ///
    /// Readers that register after this returns see all of them. Waits for another write and for
    /// the readers that registered before: a thread that holds such a reader itself would wait
    /// forever.
    ///
    /// # Errors
    /// As [`check`](Store::check); [`StoreError::NoSuchRow`] and [`StoreError::TooMany`];
    /// [`StoreError::Tensor`] when there is no memory for a copy of rows that are not contiguous,
    /// or for values of variable size; [`StoreError::Io`] when their file has no room. Nothing is
    /// written then.
    pub fn write(&self, first: usize, frames: &TensorDict) -> Result<(), StoreError> {
        let (n, capacity) = (flat(frames)?, self.layout.capacity);
        if first >= capacity {
            let row = first;
            return Err(StoreError::NoSuchRow { row, capacity });
        }
        if n > capacity {
            let frames = n;
            return Err(StoreError::TooMany { frames, capacity });
        }
        let mut copies = Vec::new();
        let mut sources = sources(&self.layout.leaves, frames, n, &mut copies)?;
        if n == 0 {
            return Ok(());
        }
        let rows = PendingWrite { first, len: n };
        let [before_seam, after_seam] = rows.pieces(capacity);
        #[cfg(not(loom))]
        [&before_seam, &after_seam]
            .into_iter()
            .try_for_each(|rows| self.make_room(rows))?;
        let guard = self.lock.begin(rows);
        // Behind the lock: to clear the store is to free the blocks of all values.
        let values = self.put_values(frames, n)?;
        for ((place, field, _), cells) in self.layout.cells().zip(&values) {
            sources[place] = (cells.as_ptr().cast(), field.bytes as isize);
        }
        self.header
            .begin(rows, self.written().wrapping_add(n as u64));
        // SAFETY: the guard is ours and readers of these rows are gone; `sources` has compared
        // shapes, the number of rows included, and types, so every source has `n` rows of its
        // field's width, which `frames`, `copies` and `values` keep alive.
        unsafe {
            if !values.is_empty() {
                for row in before_seam.clone().chain(after_seam.clone()) {
                    self.each_cell(row, |cell| self.values.free(*cell));
                }
            }
            let skip = before_seam.len();
            self.fill(&sources, 0, before_seam);
            self.fill(&sources, skip, after_seam);
        }
        self.header.commit(rows);
        drop(guard);
        Ok(())
    }

    /// Makes room on the disk for `rows`, if the store is in a growing file.
    #[cfg(not(loom))]
    fn make_room(&self, rows: &Range<usize>) -> Result<(), StoreError> {
        let Backing::File(file) = &self.backing else {
            return Ok(());
        };
        let each = |field: &Field| {
            let row = |row: usize| field.offset + row * field.stride;
            file.make_room(row(rows.start)..row(rows.end))
        };
        let made = self.layout.fields.iter().try_for_each(each);
        made.map_err(mapped::failed("make room for", &self.path))
    }

    /// Copies rows `from, from + 1, …` of the sources into `rows`.
    ///
    /// # Safety
    /// There is one source for each field, in order, with the field's width and `rows.len()` rows;
    /// no other thread accesses `rows`.
    unsafe fn fill(&self, sources: &[RowPointer], from: usize, rows: Range<usize>) {
        #[cfg(loom)]
        self.shadow[rows.clone()].iter().for_each(|row| row.write());
        #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
        if let Some(record) = self.layout.record()
            && self.layout.bytes >= LEAVES_CACHES
            && rows.len() * record >= STAGE
            && record <= RECORD
            && let Some(stream) = stage::stream()
        {
            // SAFETY: promised by the caller.
            unsafe { self.fill_past_caches(stream, sources, from, rows, record) };
            return;
        }
        // Some rows at a time, so that a record is still in the cache when its last field is
        // written.
        for start in rows.clone().step_by(CHUNK) {
            let n = CHUNK.min(rows.end - start);
            self.prefetch(start + n..rows.end.min(start + n + CHUNK));
            let skip = from + start - rows.start;
            // SAFETY: promised by the caller; a field's rows lie within the memory.
            unsafe {
                self.scatter(sources, skip..skip + n, |field| {
                    self.field(field).add(start * field.stride)
                });
            }
        }
    }

    /// As [`fill`](Self::fill), of records of `record` bytes: whole cache lines go to memory
    /// without being fetched first.
    ///
    /// # Safety
    /// As [`fill`](Self::fill), where all fields lie in records; [`stream`](stage::stream) has
    /// returned `stream`.
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    unsafe fn fill_past_caches(
        &self,
        stream: Stream,
        sources: &[RowPointer],
        from: usize,
        rows: Range<usize>,
        record: usize,
    ) {
        let base = self.layout.rows_start();
        // SAFETY: promised by the caller.
        let mut stage = unsafe { Stage::new(stream) };
        // Eight records, of a multiple of 8 bytes each, are a number of whole lines.
        let most = STAGE / record / 8 * 8;
        for start in rows.clone().step_by(most) {
            let n = most.min(rows.end - start);
            let skip = from + start - rows.start;
            // SAFETY: promised by the caller; records lie within the memory, and `n` of them within
            // the stage.
            unsafe {
                let to = self.start.as_ptr().add(base + start * record);
                stage.copy(to, n * record, |staged| {
                    self.scatter(sources, skip..skip + n, |field| {
                        staged.add(field.offset - base)
                    });
                });
            }
        }
        stage.end();
    }

    /// Copies rows `rows` of the sources, field by field, to where `to` says that the first one
    /// goes.
    ///
    /// # Safety
    /// The sources have these rows, and each field has room for as many.
    #[inline(always)]
    unsafe fn scatter(
        &self,
        sources: &[RowPointer],
        rows: Range<usize>,
        to: impl Fn(&Field) -> *mut u8,
    ) {
        for (field, &(source, step)) in self.layout.fields.iter().zip(sources) {
            // SAFETY: promised by the caller.
            unsafe {
                let source = source.offset(rows.start as isize * step);
                let to = (to(field), field.stride);
                (field.copies.scatter)((source, step), to, rows.len(), field.bytes);
            }
        }
    }

    /// Prefetches `rows` while earlier rows are written: writing goes from field to field, which no
    /// processor predicts.
    fn prefetch(&self, rows: Range<usize>) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Some(field) = self.layout.fields.last()
            && field.stride <= RECORD
        {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            let lines = (rows.start * field.stride..rows.end * field.stride).step_by(64);
            for at in lines {
                // A prefetched address need not be one of the block.
                let line = self.field(field).wrapping_add(at);
                // SAFETY: a hint, which reads and writes nothing.
                unsafe { _mm_prefetch::<_MM_HINT_ET0>(line.cast()) };
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = rows;
    }

    /// Drops all frames. Waits as [`write`](Store::write) does.
    pub fn clear(&self) {
        let len = self.layout.capacity;
        let all = PendingWrite { first: 0, len };
        let guard = self.lock.begin(all);
        self.header.begin(all, self.written());
        self.poison();
        if self.layout.has_values() {
            for row in 0..len {
                // SAFETY: the guard is ours and no reader is left.
                unsafe { self.each_cell(row, |cell| *cell = Cell::default()) };
            }
            self.values.clear(self.room());
        }
        self.header.finish();
        drop(guard);
    }

    /// Fills all rows, which no reader may read, with conspicuous bytes, so that late reads are
    /// easy to see.
    fn poison(&self) {
        if cfg!(debug_assertions) {
            let start = self.layout.rows_start();
            let bytes: Vec<Range<usize>> = match &self.backing {
                #[cfg(not(loom))]
                Backing::File(file) => file.roomy(start),
                _ => std::iter::once(start..self.layout.bytes).collect(),
            };
            for bytes in bytes {
                // SAFETY: the caller holds the write guard and no reader is left; behind the header
                // there are rows only.
                unsafe {
                    let rows = self.start.as_ptr().add(bytes.start);
                    rows.write_bytes(0xA5, bytes.len());
                }
            }
        }
    }

    /// Registers a reader.
    #[must_use]
    pub fn read(&self) -> StoreRead<'_> {
        StoreRead {
            token: self.lock.enter(),
            store: StoreRef::Lent(self),
        }
    }

    /// Registers a reader that keeps the store alive.
    #[must_use]
    pub fn read_shared(self: Arc<Self>) -> StoreRead<'static> {
        StoreRead {
            token: self.lock.enter(),
            store: StoreRef::Shared(self),
        }
    }

    /// Where row 0 of a field starts.
    #[inline(always)]
    fn field(&self, field: &Field) -> *mut u8 {
        // SAFETY: the layout's offsets lie within the memory.
        unsafe { self.start.as_ptr().add(field.offset) }
    }
}

/// Rows that are copied field by field at a time: as many as stay in the first-level cache.
const CHUNK: usize = 32;

/// Bytes of the smallest store whose rows have left the caches when they are sampled: what is
/// written need not go through them.
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
const LEAVES_CACHES: usize = 32 << 20;

/// Bytes of the longest record that is prefetched, or copied past the caches.
const RECORD: usize = 512;

#[cfg(test)]
mod tests {
    use tensordict::Tensor;

    use super::*;

    fn frames(numbers: std::ops::Range<i64>) -> TensorDict {
        let n = (numbers.end - numbers.start) as usize;
        let mut dict = TensorDict::new([n]);
        dict.set("number", Tensor::arange(numbers).unwrap())
            .unwrap();
        dict
    }

    #[test]
    fn a_write_that_its_process_did_not_survive_leaves_no_row() {
        for (first, len, torn) in [(0, 3, 0), (4, 4, 2), (6, 7, 7), (0, 7, 5)] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("rows");
            let open = || Store::open(&path, Store::leaves(&frames(0..1)).unwrap(), 7).unwrap();
            let store = open();
            store.write(0, &frames(0..7)).unwrap();
            // As `write` does it, up to some place.
            let rows = PendingWrite { first, len };
            store.header.begin(rows, 7 + len as u64);
            let rows = store.field(&store.layout.fields[0]);
            for row in (first..first + torn).map(|row| row % 7) {
                // SAFETY: a row of the store, which no one else uses.
                unsafe { rows.add(row * 8).cast::<i64>().write(-1) };
            }
            drop(store);

            let store = open();
            assert_eq!((store.cursor(), store.written()), (first, 7));
            let kept: Vec<u32> = (0..7)
                .filter(|row| (row + 7 - first) % 7 >= len)
                .map(|row| row as u32)
                .collect();
            let found: Vec<u32> = store.read().filled().into_iter().flatten().collect();
            assert_eq!(found, kept);
            let read = store.read().gather(&kept).unwrap();
            let numbers: Vec<i64> = kept.iter().map(|&row| i64::from(row)).collect();
            assert_eq!(read.as_slice::<i64>("number").unwrap(), numbers);
            // And it goes on from there.
            store.write(first, &frames(10..11)).unwrap();
            drop(store);
            let store = open();
            assert_eq!((store.cursor(), store.written()), ((first + 1) % 7, 8));
        }
    }
}
