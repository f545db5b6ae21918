//! Rows that keep one frame each: written by one, read by many, for as long as a buffer lives.

#[cfg(not(loom))]
use std::fs::File;
use std::ops::Range;
#[cfg(not(loom))]
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use tensordict::{Group, TensorDict};

use crate::LeafSpec;
use crate::memory::Memory;

mod copy;
mod error;
mod frames;
mod gate;
mod layout;
#[cfg(not(loom))]
mod mapped;
mod read;
mod words;

pub use error::StoreError;
pub use read::StoreRead;

use frames::{Source, fit, flat, misfit, sources};
use gate::{Flight, Gate};
use layout::{Field, FrameLayout};
use read::Held;
use words::Words;

/// Rows of frames in memory or in a file, shared by one writer at a time and any number of readers.
///
/// Readers never wait. A write waits for the readers that began before it, not for later ones: these are kept off its
/// rows, which hold no frame until the write is whole. So no reader ever sees half a frame, and what one could read when
/// it was registered stays as it is until it is gone.
///
/// ```
/// use tensordict::{Tensor, TensorDict};
/// use windrow_slab::Store;
///
/// let mut frames = TensorDict::new([3]);
/// frames.set("action", Tensor::arange(5..8)?)?;
/// let store = Store::new(Store::leaves(&frames)?, 4)?;
/// store.write(2, &frames)?;
///
/// let reader = store.read();
/// assert_eq!(reader.filled(), [0..1, 2..4]);
/// let picked = reader.gather(&[0, 2, 0])?;
/// assert_eq!(picked.as_slice::<i64>("action")?, [7, 5, 7]);
/// # Ok::<(), windrow_slab::StoreError>(())
/// ```
#[derive(Debug)]
pub struct Store {
    layout: FrameLayout,
    groups: Vec<Group>,
    words: Words,
    gate: Gate,
    start: NonNull<u8>,
    /// What `start` and `words` point into.
    _backing: Backing,
    /// Stands for each row's memory where loom looks on.
    #[cfg(loom)]
    shadow: Box<[crate::layout::Shadow]>,
}

// SAFETY: the bytes behind `start` are read and written as the gate allows: rows by one writer while nobody reads them,
// words as atomics. All else is `Sync` by itself.
unsafe impl Sync for Store {}
// SAFETY: as above; nothing depends on the thread.
unsafe impl Send for Store {}

#[derive(Debug)]
#[expect(dead_code, reason = "held for its memory alone")]
enum Backing {
    Heap(Memory),
    #[cfg(not(loom))]
    Pages(memmap2::MmapRaw),
    #[cfg(not(loom))]
    File(mapped::Mapped),
}

impl Backing {
    /// Memory of zeros and its start, aligned; `None` when there is not so much.
    fn zeroed(bytes: usize) -> Option<(NonNull<u8>, Self)> {
        #[cfg(not(loom))]
        if bytes >= mapped::HUGE {
            let pages = mapped::pages(bytes).ok()?;
            return Some((NonNull::new(pages.as_mut_ptr())?, Self::Pages(pages)));
        }
        let memory = Memory::zeroed(bytes)?;
        Some((memory.start(), Self::Heap(memory)))
    }
}

impl Store {
    /// An empty store in memory, of `capacity` rows of these leaves.
    ///
    /// # Errors
    /// [`StoreError::Capacity`], [`StoreError::NoEntries`], [`StoreError::TooLarge`] and [`StoreError::NoMemory`].
    pub fn new(leaves: Vec<LeafSpec>, capacity: usize) -> Result<Self, StoreError> {
        let layout = FrameLayout::new(leaves, capacity)?;
        let bytes = layout.bytes;
        let zeroed = Backing::zeroed(bytes);
        let (start, backing) = zeroed.ok_or(StoreError::NoMemory { capacity, bytes })?;
        // SAFETY: the memory has the layout's size, is zeroed and held by the backing.
        Ok(unsafe { Self::over(layout, start, backing) })
    }

    /// A store in the file at `path`, which is made when there is none, or an empty one.
    ///
    /// A file that is there must hold as many rows of the same leaves. It is found as its process left it: whichever way
    /// that died, each row holds a whole frame or none, and a write that was under way has left none. (When the machine
    /// dies, so do the rows that it had not written back yet.)
    ///
    /// The store locks its file against other stores. Systems do not hold others to that lock: when something else
    /// shortens the file while the store is open, the next access to a row that is gone ends the process with `SIGBUS`,
    /// which cannot be turned into an error.
    ///
    /// # Errors
    /// As [`new`](Store::new); [`StoreError::File`] when the file is not a store's, of another one or damaged, which leaves
    /// it as it is; [`StoreError::InUse`] when it is open elsewhere, [`StoreError::Io`].
    #[cfg(not(loom))]
    pub fn open(path: &Path, leaves: Vec<LeafSpec>, capacity: usize) -> Result<Self, StoreError> {
        let layout = FrameLayout::new(leaves, capacity)?;
        let file = mapped::Mapped::open(path, layout.bytes)?;
        Self::mapped(layout, file, path)
    }

    /// As [`open`](Store::open), in a file that is open already, for reading and writing: one without a name, such as
    /// systems remove with its last user, and which nobody else can shorten. `path` is what errors call it.
    ///
    /// # Errors
    /// As there.
    #[cfg(not(loom))]
    pub fn in_file(
        file: File,
        path: &Path,
        leaves: Vec<LeafSpec>,
        capacity: usize,
    ) -> Result<Self, StoreError> {
        let layout = FrameLayout::new(leaves, capacity)?;
        let file = mapped::Mapped::over(file, path, layout.bytes)?;
        Self::mapped(layout, file, path)
    }

    #[cfg(not(loom))]
    fn mapped(layout: FrameLayout, file: mapped::Mapped, path: &Path) -> Result<Self, StoreError> {
        let (capacity, fingerprint) = (layout.capacity, layout.fingerprint());
        let start = file.start().ok_or(StoreError::TooLarge { capacity })?;
        // SAFETY: the file has the layout's size and is mapped, to a page, as long as the backing lives; its lock keeps
        // other stores away from it.
        let store = unsafe { Self::over(layout, start, Backing::File(file)) };
        if store.words.is_unmade() {
            store.words.found(fingerprint);
        } else if let Err((expected, got)) = store.words.recover(fingerprint) {
            let path = path.to_path_buf();
            return Err(StoreError::File {
                path,
                expected,
                got,
            });
        }
        Ok(store)
    }

    /// # Safety
    /// `layout.bytes` initialised bytes from `start` on, 64-byte aligned, are kept alive by `backing` and accessed by
    /// nobody else.
    unsafe fn over(layout: FrameLayout, start: NonNull<u8>, backing: Backing) -> Self {
        Self {
            // SAFETY: the layout begins with the words.
            words: unsafe { Words::new(start, layout.capacity) },
            groups: Vec::new(),
            gate: Gate::new(),
            start,
            _backing: backing,
            #[cfg(loom)]
            shadow: (0..layout.capacity).map(|_| Default::default()).collect(),
            layout,
        }
    }

    /// This store, which gives nested dicts of what is read dimensions of their own, as frames had them.
    #[must_use]
    pub fn with_groups(self, groups: Vec<Group>) -> Self {
        Self { groups, ..self }
    }

    /// Names, types and shapes of one frame of `frames`, which are flat: `[n]`.
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

    /// Most rows of these leaves that take no more than `bytes` bytes, up to 2³² - 1; 0 when there is no room for one.
    #[must_use]
    pub fn rows_within(leaves: &[LeafSpec], bytes: usize) -> usize {
        FrameLayout::rows_within(leaves, bytes)
    }

    /// Rows that there are.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.layout.capacity
    }

    /// Size of the store in memory, or on disk.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layout.bytes
    }

    /// Row behind the last that was written; 0 in an empty store.
    #[must_use]
    pub fn cursor(&self) -> usize {
        let last = self.words.last();
        // A mapped file can be changed behind our back.
        last.first.wrapping_add(last.len) % self.layout.capacity
    }

    /// Rows written over the life of the store.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.words.last().after
    }

    /// Checks that `frames` are flat and have the entries, types and shapes of this store.
    ///
    /// # Errors
    /// [`StoreError::NotFlat`], [`StoreError::Missing`], [`StoreError::Extra`], [`StoreError::Entry`].
    pub fn check(&self, frames: &TensorDict) -> Result<(), StoreError> {
        let n = flat(frames)?;
        if fit(&self.layout.leaves, frames, n, &mut |_| ()) {
            return Ok(());
        }
        Err(misfit(&self.layout.leaves, frames, n))
    }

    /// Writes frames `[n]` into rows `first, first + 1, …`, which go on at row 0 behind the last.
    ///
    /// All of them can be read at once when this returns, by readers that are registered from then on. Waits for another
    /// write and for the readers that began before: a thread that holds one itself would wait for ever.
    ///
    /// # Errors
    /// As [`check`](Store::check); [`StoreError::NoSuchRow`] and [`StoreError::TooMany`]; [`StoreError::Tensor`] when there
    /// is no memory for a copy of rows that are not in one piece. Nothing is written then.
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
        let sources = sources(&self.layout.leaves, frames, n, &mut copies)?;
        if n == 0 {
            return Ok(());
        }
        let turn = self.gate.begin(Flight { first, len: n });
        self.words
            .begin(first, n, self.written().wrapping_add(n as u64));
        let before_seam = n.min(capacity - first);
        // SAFETY: the turn is ours and readers of these rows are gone; `sources` has compared shapes, the number of rows
        // included, and types, so every source has `n` rows of its field's width, which `frames` and `copies` keep alive.
        unsafe {
            self.fill(&sources, 0, first..first + before_seam);
            self.fill(&sources, before_seam, 0..n - before_seam);
        }
        self.words.commit(first, n);
        drop(turn);
        Ok(())
    }

    /// Copies rows `from, from + 1, …` of the sources into `rows`.
    ///
    /// # Safety
    /// The sources have so many rows, in the order of the fields and as wide as they; nobody else accesses `rows`.
    unsafe fn fill(&self, sources: &[Source], from: usize, rows: Range<usize>) {
        #[cfg(loom)]
        self.shadow[rows.clone()].iter().for_each(|row| row.write());
        // Some rows at a time, so that a record is still in the cache when its last field is written.
        for start in rows.clone().step_by(CHUNK) {
            let n = CHUNK.min(rows.end - start);
            self.expect(start + n..rows.end.min(start + n + CHUNK));
            for (field, &(source, step)) in self.layout.fields.iter().zip(sources) {
                let skip = (from + start - rows.start) as isize;
                // SAFETY: promised by the caller; a field's rows lie within the memory.
                unsafe {
                    let to = self.field(field).add(start * field.stride);
                    let source = source.offset(skip * step);
                    (field.copies.spread)((source, step), (to, field.stride), n, field.bytes);
                }
            }
        }
    }

    /// Has the memory of `rows` on its way while others are still being filled: writing goes from field to field, which no
    /// processor foresees.
    fn expect(&self, rows: Range<usize>) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Some(field) = self.layout.fields.last()
            && field.stride <= RECORD
        {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            let lines = (rows.start * field.stride..rows.end * field.stride).step_by(64);
            for at in lines {
                // An address that is only foreseen may be any.
                let line = self.field(field).wrapping_add(at);
                // SAFETY: a hint, which reads and writes nothing.
                unsafe { _mm_prefetch::<_MM_HINT_ET0>(line.cast()) };
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = rows;
    }

    /// Forgets all frames. Waits as [`write`](Store::write) does.
    pub fn clear(&self) {
        let len = self.layout.capacity;
        let turn = self.gate.begin(Flight { first: 0, len });
        self.words.begin(0, len, self.written());
        self.poison();
        self.words.finish();
        drop(turn);
    }

    /// Fills rows that nobody can read with bytes that catch the eye, so that a row read too late shows.
    fn poison(&self) {
        if cfg!(debug_assertions) {
            let start = self.layout.fields.iter().map(|field| field.offset).min();
            let start = start.unwrap_or(self.layout.bytes);
            // SAFETY: the turn is the caller's and no reader is left; behind the words there are rows only.
            unsafe {
                let rows = self.start.as_ptr().add(start);
                rows.write_bytes(0xA5, self.layout.bytes - start);
            }
        }
    }

    /// Registers a reader.
    #[must_use]
    pub fn read(&self) -> StoreRead<'_> {
        StoreRead {
            pass: self.gate.enter(),
            store: Held::Lent(self),
        }
    }

    /// Registers a reader that keeps the store alive.
    #[must_use]
    pub fn read_shared(self: Arc<Self>) -> StoreRead<'static> {
        StoreRead {
            pass: self.gate.enter(),
            store: Held::Shared(self),
        }
    }

    /// Where row 0 of a field starts.
    #[inline(always)]
    fn field(&self, field: &Field) -> *mut u8 {
        // SAFETY: the layout's offsets lie within the memory.
        unsafe { self.start.as_ptr().add(field.offset) }
    }
}

/// Rows that are copied field by field: as many as stay in the first-level cache.
const CHUNK: usize = 32;

/// Bytes of the longest record whose memory is called for ahead of time.
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
            store.words.begin(first, len, 7 + len as u64);
            let rows = store.field(&store.layout.fields[0]);
            for row in (first..first + torn).map(|row| row % 7) {
                // SAFETY: a row of the store, which nobody else uses.
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
