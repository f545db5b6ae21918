//! One row of time seen as columns: what environments and policies read and write.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use tensordict::{Cell, DType, Element, HeapBuffer, LeafSpec, Shape};

use crate::SlabError;
use crate::arena::{Arena, copy_cells};

/// The `n`-th leaf of a spec, known to hold `T`.
///
/// Obtained once, outside the step loop: `Key::new(0)` is the first leaf, which is the only one of
/// most specs. A `Key<[u8]>` names a leaf of values of variable size.
pub struct Key<T: ?Sized> {
    leaf: usize,
    element: PhantomData<fn() -> T>,
}

impl<T: ?Sized> Key<T> {
    /// The leaf at `leaf` in the order of its spec.
    #[must_use]
    pub const fn new(leaf: usize) -> Self {
        Self {
            leaf,
            element: PhantomData,
        }
    }

    /// Index of the leaf in its spec.
    #[must_use]
    pub const fn leaf(self) -> usize {
        self.leaf
    }
}

impl<T: ?Sized> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Key<T> {}

impl<T: ?Sized> std::fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key<{}>({})", std::any::type_name::<T>(), self.leaf)
    }
}

/// Where the rows of one leaf lie: row `t` starts `offset + t * stride` bytes into the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Column {
    pub(crate) offset: usize,
    /// Bytes of one row of time: all environments of the part.
    pub(crate) bytes: usize,
    /// Bytes from one row of time to the next.
    pub(crate) stride: usize,
    /// Elements of one environment's value.
    pub(crate) elements: usize,
    pub(crate) dtype: DType,
}

impl Column {
    /// The same column without its first `rows` rows.
    pub(crate) fn skip_rows(&self, rows: usize) -> Option<Self> {
        let offset = rows.checked_mul(self.stride)?.checked_add(self.offset)?;
        Some(Self { offset, ..*self })
    }

    /// The rows of `part`, where `parts` parts share each row side by side.
    pub(crate) fn share(&self, part: usize, parts: usize) -> Self {
        let bytes = self.bytes / parts;
        let offset = self.offset + part * bytes;
        Self {
            offset,
            bytes,
            ..*self
        }
    }
}

#[cold]
fn wrong_leaf(lane: Option<&Lane>, leaf: usize, leaves: usize, got: DType) -> SlabError {
    match lane {
        None => SlabError::NoSuchLeaf { leaf, leaves },
        Some(lane) => SlabError::DType {
            leaf,
            expected: lane.dtype,
            got,
        },
    }
}

/// Some columns of one part, at a place in memory that does not change.
///
/// Rows are two words, this and a row number, so that they are passed in registers: as larger
/// values they would be written to the stack piece by piece and read back at once in wider pieces,
/// which makes a processor wait for every store before.
#[derive(Debug)]
pub(crate) struct Block {
    envs: usize,
    lanes: Box<[Lane]>,
    /// The values that cells name, where there are such.
    arena: Option<Arc<Arena>>,
}

/// A [`Column`] in a slab: row `t` starts `t * stride` bytes after `start`.
#[derive(Debug)]
struct Lane {
    start: NonNull<u8>,
    bytes: usize,
    stride: usize,
    elements: usize,
    dtype: DType,
}

// SAFETY: only addresses; `Rows::new` and `RowsMut::new` demand shared or exclusive access of their
// callers.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// `columns` for `envs` environments in the memory that begins at `base`.
    ///
    /// # Safety
    /// The columns' offsets lie within that memory.
    pub(crate) unsafe fn new(
        base: NonNull<u8>,
        envs: usize,
        columns: &[Column],
        arena: Option<Arc<Arena>>,
    ) -> Self {
        let lane = |column: &Column| Lane {
            // SAFETY: promised by the caller.
            start: unsafe { base.add(column.offset) },
            bytes: column.bytes,
            stride: column.stride,
            elements: column.elements,
            dtype: column.dtype,
        };
        Self {
            envs,
            lanes: columns.iter().map(lane).collect(),
            arena,
        }
    }

    pub(crate) fn envs(&self) -> usize {
        self.envs
    }

    /// Bytes that values of variable size take, those that were overwritten included.
    #[inline(always)]
    pub(crate) fn used(&self) -> u64 {
        self.arena.as_ref().map_or(0, |arena| arena.used())
    }

    /// Moves the values of a block of one row to an arena without others. Without memory for that,
    /// everything stays as it is.
    ///
    /// # Safety
    /// Nobody else uses the block.
    pub(crate) unsafe fn compact(&mut self) {
        let fresh = Arena::on_heap(0);
        let Some(arena) = &self.arena else {
            return;
        };
        let mut moved: Vec<(NonNull<Cell>, Vec<Cell>)> = Vec::new();
        for lane in self.lanes.iter().filter(|lane| lane.dtype == DType::Bytes) {
            let count = self.envs * lane.elements;
            let mut cells = vec![Cell::default(); count];
            let to = NonNull::from(cells.as_mut_slice()).cast();
            // SAFETY: the lane's row has as many cells; the caller uses the block alone.
            let copied = unsafe { copy_cells((lane.row(0).cast(), arena), (to, &fresh), count) };
            if copied.is_err() {
                return;
            }
            moved.push((lane.start.cast(), cells));
        }
        for (to, cells) in moved {
            // SAFETY: as above.
            unsafe {
                to.as_ptr()
                    .copy_from_nonoverlapping(cells.as_ptr(), cells.len())
            };
        }
        self.arena = Some(Arc::new(fresh));
    }

    /// The lane of values of variable size that `key` names, its row `t`, and the values.
    #[inline]
    fn cells(&self, key: Key<[u8]>, t: usize) -> Result<(&Lane, *mut Cell, &Arena), SlabError> {
        match (self.lanes.get(key.leaf), &self.arena) {
            (Some(lane), Some(arena)) if lane.dtype == DType::Bytes => {
                Ok((lane, lane.row(t).cast(), arena))
            }
            (other, _) => Err(wrong_leaf(other, key.leaf, self.lanes.len(), DType::Bytes)),
        }
    }

    /// Copies `bytes` bytes of a lane's row to one of `to`, of the same dtype, together with what
    /// cells name.
    ///
    /// # Errors
    /// [`SlabError::NoRoom`] and others of an arena, for values of variable size alone.
    ///
    /// # Safety
    /// Both rows are valid for `bytes` bytes and do not overlap; nobody else uses that of `to`.
    #[inline(always)]
    unsafe fn copy_row(
        &self,
        (lane, from): (&Lane, *const u8),
        (to, into): (*mut u8, &Self),
        bytes: usize,
    ) -> Result<(), SlabError> {
        if lane.dtype == DType::Bytes {
            // SAFETY: promised by the caller.
            return unsafe { self.copy_values(from, (to, into), bytes) };
        }
        // SAFETY: promised by the caller.
        unsafe { copy_row(from, to, bytes) };
        Ok(())
    }

    /// As [`copy_row`](Self::copy_row), of cells.
    ///
    /// # Safety
    /// As for `copy_row`.
    #[cold]
    unsafe fn copy_values(
        &self,
        from: *const u8,
        (to, into): (*mut u8, &Self),
        bytes: usize,
    ) -> Result<(), SlabError> {
        let (Some(of), Some(arena), Some(to)) = (&self.arena, &into.arena, NonNull::new(to)) else {
            unreachable!("A block with values of variable size has an arena.");
        };
        let count = bytes / size_of::<Cell>();
        // SAFETY: promised by the caller.
        unsafe { copy_cells((from.cast(), of), (to.cast(), arena), count) }
    }

    /// The first `envs` environments of a block of one row, in the same memory.
    pub(crate) fn limit(&mut self, envs: usize) {
        self.envs = envs;
        for lane in &mut self.lanes {
            lane.bytes = envs * lane.elements * lane.dtype.size();
        }
    }

    fn lane(&self, leaf: usize) -> Result<&Lane, SlabError> {
        let leaves = self.lanes.len();
        let lane = self.lanes.get(leaf);
        lane.ok_or_else(|| SlabError::NoSuchLeaf { leaf, leaves })
    }

    /// The lane of `key` and where its row `t` starts.
    #[inline(always)]
    fn typed<T: Element>(&self, key: Key<T>, t: usize) -> Result<(&Lane, *mut T), SlabError> {
        match self.lanes.get(key.leaf) {
            Some(lane) if lane.dtype == T::DTYPE => Ok((lane, lane.row(t).cast::<T>())),
            other => Err(wrong_leaf(other, key.leaf, self.lanes.len(), T::DTYPE)),
        }
    }
}

impl Lane {
    /// `element`, if values have so many elements.
    fn element(&self, key: Key<[u8]>, element: usize) -> Result<usize, SlabError> {
        match element < self.elements {
            true => Ok(element),
            false => Err(SlabError::Length {
                leaf: key.leaf,
                expected: self.elements,
                got: element + 1,
            }),
        }
    }

    /// Where row `t` starts.
    #[inline(always)]
    fn row(&self, t: usize) -> *mut u8 {
        // Wrapping, since the callers of `Rows::new` promise to stay inside, and this function does
        // not.
        self.start.as_ptr().wrapping_add(t * self.stride)
    }
}

/// One row of time of some columns, for all environments of a part: `[envs, *shape]` a leaf,
/// contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    block: &'a Block,
    t: usize,
}

impl<'a> Rows<'a> {
    /// Row `t` of `block`.
    ///
    /// # Safety
    /// For every lane, the `envs * elements` elements from `start + t * stride` on must lie in one
    /// allocation, aligned and holding valid values of its dtype, and no one may write them during
    /// `'a`.
    #[inline(always)]
    pub(crate) unsafe fn new(block: &'a Block, t: usize) -> Self {
        Self { block, t }
    }

    /// Environments in the row.
    #[inline(always)]
    #[must_use]
    pub fn envs(&self) -> usize {
        self.block.envs
    }

    /// Leaves in the row.
    #[must_use]
    pub fn leaves(&self) -> usize {
        self.block.lanes.len()
    }

    /// All environments' values of one leaf: `[envs * elements]`.
    ///
    /// # Errors
    /// [`SlabError::NoSuchLeaf`] or [`SlabError::DType`] when the key is not one of this row's
    /// spec.
    #[inline(always)]
    pub fn get<T: Element>(&self, key: Key<T>) -> Result<&'a [T], SlabError> {
        let (lane, start) = self.block.typed(key, self.t)?;
        // SAFETY: `Rows::new` promises these elements for `'a`; the dtype was compared just now.
        Ok(unsafe { std::slice::from_raw_parts(start, self.block.envs * lane.elements) })
    }

    /// One leaf of values of variable size: those of all environments, `envs * elements`.
    ///
    /// # Errors
    /// [`SlabError::NoSuchLeaf`] or [`SlabError::DType`] when the key is not one of this row's
    /// spec; [`SlabError::Stray`].
    pub fn strings(&self, key: Key<[u8]>) -> Result<Vec<&'a [u8]>, SlabError> {
        let rows = self.iter();
        let each = rows.map(|row| row.strings(key));
        Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// The values of environment `env`; `None` when the row has no such environment.
    #[inline(always)]
    #[must_use]
    pub fn env(&self, env: usize) -> Option<Row<'a>> {
        (env < self.block.envs).then_some(Row { rows: *self, env })
    }

    /// The values of every environment in turn.
    #[inline(always)]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Row<'a>> + use<'a> {
        let rows = *self;
        (0..rows.block.envs).map(move |env| Row { rows, env })
    }
}

/// One environment's values in a row of time.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    rows: Rows<'a>,
    env: usize,
}

impl<'a> Row<'a> {
    /// The values of one leaf: `[elements]`.
    ///
    /// # Errors
    /// [`SlabError::NoSuchLeaf`] or [`SlabError::DType`] when the key is not one of this row's
    /// spec.
    #[inline(always)]
    pub fn get<T: Element>(&self, key: Key<T>) -> Result<&'a [T], SlabError> {
        let (lane, start) = self.rows.block.typed(key, self.rows.t)?;
        // SAFETY: a part of the elements that `Rows::new` promises, since `env < envs`.
        Ok(unsafe {
            std::slice::from_raw_parts(start.add(self.env * lane.elements), lane.elements)
        })
    }

    /// The value of variable size at place `element` of a leaf, 0 for a scalar one.
    ///
    /// # Errors
    /// [`SlabError::NoSuchLeaf`] or [`SlabError::DType`] when the key is not one of this row's
    /// spec, [`SlabError::Length`] when it has no such element; [`SlabError::Stray`].
    pub fn string(&self, key: Key<[u8]>, element: usize) -> Result<&'a [u8], SlabError> {
        let (lane, start, arena) = self.rows.block.cells(key, self.rows.t)?;
        let place = lane.element(key, element)?;
        // SAFETY: a cell that `Rows::new` promises, since `env < envs`. Arenas are emptied when
        // there are no rows.
        unsafe { arena.get(start.add(self.env * lane.elements + place).read()) }
    }

    /// All values of variable size of a leaf: `[elements]`.
    ///
    /// # Errors
    /// As [`string`](Self::string).
    pub fn strings(&self, key: Key<[u8]>) -> Result<Vec<&'a [u8]>, SlabError> {
        let (lane, ..) = self.rows.block.cells(key, self.rows.t)?;
        (0..lane.elements)
            .map(|element| self.string(key, element))
            .collect()
    }

    /// The first (of a scalar leaf: the only) element.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`SlabError::Length`] when the leaf has no element.
    #[inline(always)]
    pub fn scalar<T: Element>(&self, key: Key<T>) -> Result<T, SlabError> {
        match self.get(key)? {
            [first, ..] => Ok(*first),
            [] => Err(SlabError::Length {
                leaf: key.leaf,
                expected: 0,
                got: 1,
            }),
        }
    }
}

/// One row of time of some columns, to be written by its one writer: `[envs, *shape]` a leaf,
/// contiguous.
#[derive(Debug)]
pub struct RowsMut<'a> {
    rows: Rows<'a>,
    exclusive: PhantomData<&'a mut [u8]>,
}

impl<'a> RowsMut<'a> {
    /// Row `t` of `block`, exclusively.
    ///
    /// # Safety
    /// As for [`Rows::new`], and no one else may read or write the elements during `'a`.
    #[inline(always)]
    pub(crate) unsafe fn new(block: &'a Block, t: usize) -> Self {
        Self {
            // SAFETY: passed on to the caller.
            rows: unsafe { Rows::new(block, t) },
            exclusive: PhantomData,
        }
    }

    /// Environments in the row.
    #[inline(always)]
    #[must_use]
    pub fn envs(&self) -> usize {
        self.rows.block.envs
    }

    /// Leaves in the row.
    #[must_use]
    pub fn leaves(&self) -> usize {
        self.rows.block.lanes.len()
    }

    /// The same rows, read-only.
    #[inline(always)]
    #[must_use]
    pub fn as_rows(&self) -> Rows<'_> {
        self.rows
    }

    /// The same rows for a shorter time, so that they can be handed on and used again.
    #[inline(always)]
    #[must_use]
    pub fn reborrow(&mut self) -> RowsMut<'_> {
        RowsMut {
            rows: self.rows,
            exclusive: PhantomData,
        }
    }

    /// All environments' values of one leaf: `[envs * elements]`.
    ///
    /// # Errors
    /// [`SlabError::NoSuchLeaf`] or [`SlabError::DType`] when the key is not one of this row's
    /// spec.
    #[inline(always)]
    pub fn get_mut<T: Element>(&mut self, key: Key<T>) -> Result<&mut [T], SlabError> {
        let Rows { block, t } = self.rows;
        let (lane, start) = block.typed(key, t)?;
        // SAFETY: `RowsMut::new` promises these elements exclusively; the borrow of `self` keeps a
        // second slice of the same row from being made meanwhile.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, block.envs * lane.elements) })
    }

    /// The row of environment `env`; `None` when there is no such environment.
    #[inline(always)]
    #[must_use]
    pub fn env_mut(&mut self, env: usize) -> Option<RowMut<'_>> {
        (env < self.rows.block.envs).then_some(RowMut {
            row: Row {
                rows: self.rows,
                env,
            },
            exclusive: PhantomData,
        })
    }

    /// Fills one leaf with zeros, whatever it holds.
    ///
    /// # Errors
    /// [`SlabError::NoSuchLeaf`].
    pub fn zero(&mut self, leaf: usize) -> Result<(), SlabError> {
        let Rows { block, t } = self.rows;
        let lane = block.lane(leaf)?;
        // SAFETY: the row is exclusive, as `RowsMut::new` promises, and zero is valid for every
        // dtype.
        unsafe { lane.row(t).write_bytes(0, lane.bytes) };
        Ok(())
    }

    /// Copies every leaf of the environments `envs` of `from` to those from `at` on.
    ///
    /// # Errors
    /// [`SlabError::Envs`] when one side has fewer environments, [`SlabError::Mismatch`] at the
    /// first leaf of another dtype or shape, [`SlabError::NoSuchLeaf`] when `from` has fewer
    /// leaves: nothing is written then. [`SlabError::NoRoom`] and others of values of variable
    /// size, of which some may be written then.
    pub fn copy_envs(
        &mut self,
        at: usize,
        from: Rows<'_>,
        envs: Range<usize>,
    ) -> Result<(), SlabError> {
        let Rows { block, t } = self.rows;
        let count = envs.len();
        let sides = [(at, block.envs), (envs.start, from.envs())];
        for (start, most) in sides {
            let got = start.saturating_add(count);
            if got > most {
                return Err(SlabError::Envs { most, got });
            }
        }
        if from.leaves() < block.lanes.len() {
            return Err(SlabError::NoSuchLeaf {
                leaf: from.leaves(),
                leaves: from.leaves(),
            });
        }
        let lanes = || block.lanes.iter().zip(&from.block.lanes);
        for (leaf, (to, source)) in lanes().enumerate() {
            if source.dtype != to.dtype || source.elements != to.elements {
                return Err(mismatch(leaf, (to, block.envs), (source, from.envs())));
            }
        }
        for (to, source) in lanes() {
            let bytes = to.elements * to.dtype.size();
            // SAFETY: both sides have the environments, as compared above, of `bytes` bytes each in
            // this lane; the receiving side is exclusive, so they cannot overlap.
            unsafe {
                let row = source.row(from.t).add(envs.start * bytes);
                let own = (to.row(t).add(at * bytes), block);
                from.block.copy_row((source, row), own, count * bytes)?;
            }
        }
        Ok(())
    }

    /// Copies every leaf of `from`, which must be laid out alike.
    ///
    /// # Errors
    /// [`SlabError::Mismatch`] at the first leaf that differs in dtype or size,
    /// [`SlabError::NoSuchLeaf`] when `from` has fewer leaves, [`SlabError::NoRoom`] and others of
    /// values of variable size; leaves before it are written then.
    #[inline(always)]
    pub fn copy_from(&mut self, from: Rows<'_>) -> Result<(), SlabError> {
        let block = self.rows.block;
        // Of a single leaf, the compiler leaves out the loop.
        if let ([to], Some(source)) = (&*block.lanes, from.block.lanes.first()) {
            // SAFETY: these are lanes of the two.
            return unsafe { self.copy_lane(0, to, from, source) };
        }
        if from.leaves() < block.lanes.len() {
            return Err(SlabError::NoSuchLeaf {
                leaf: from.leaves(),
                leaves: from.leaves(),
            });
        }
        for (leaf, (to, source)) in block.lanes.iter().zip(&from.block.lanes).enumerate() {
            // SAFETY: as above.
            unsafe { self.copy_lane(leaf, to, from, source)? };
        }
        Ok(())
    }

    /// Copies the values of `source` to `to`, which is leaf `leaf`.
    ///
    /// # Safety
    /// `to` is a lane of this row, and `source` one of `from`.
    #[inline(always)]
    unsafe fn copy_lane(
        &mut self,
        leaf: usize,
        to: &Lane,
        from: Rows<'_>,
        source: &Lane,
    ) -> Result<(), SlabError> {
        let Rows { block, t } = self.rows;
        // Equally many bytes of one dtype are equally many elements over all environments.
        if source.dtype != to.dtype || source.bytes != to.bytes {
            return Err(mismatch(leaf, (to, block.envs), (source, from.envs())));
        }
        // SAFETY: both sides hold `bytes` bytes of the same dtype, as compared above; the receiving
        // side is exclusive, so they cannot overlap.
        unsafe {
            let row = (source, source.row(from.t).cast_const());
            from.block.copy_row(row, (to.row(t), block), to.bytes)
        }
    }

    /// Copies leaf `leaf` of `from` to leaf `place`, of the same element type and as many elements.
    ///
    /// # Errors
    /// [`SlabError::NoSuchLeaf`], [`SlabError::Mismatch`]; of values of variable size also
    /// [`SlabError::NoRoom`] and [`SlabError::Stray`].
    pub fn copy_leaf(
        &mut self,
        place: usize,
        from: Rows<'_>,
        leaf: usize,
    ) -> Result<(), SlabError> {
        let (to, source) = (self.rows.block.lane(place)?, from.block.lane(leaf)?);
        // SAFETY: these are lanes of the two.
        unsafe { self.copy_lane(place, to, from, source) }
    }
}

/// Two lanes, each with its environments, that are not alike.
#[cold]
fn mismatch(leaf: usize, to: (&Lane, usize), from: (&Lane, usize)) -> SlabError {
    SlabError::Mismatch {
        leaf,
        expected_dtype: to.0.dtype,
        expected: Shape::from_slice(&[to.1, to.0.elements]),
        got_dtype: from.0.dtype,
        got: Shape::from_slice(&[from.1, from.0.elements]),
    }
}

/// Copies `bytes` bytes; 16 at a time when there are few, since a call to `memcpy` costs more than
/// a small row.
///
/// # Safety
/// Both ranges are valid for `bytes` bytes and do not overlap.
#[inline(always)]
unsafe fn copy_row(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: promised by the caller; each branch copies exactly `bytes` bytes.
    unsafe {
        match bytes {
            4 => to.cast::<[u8; 4]>().write(from.cast::<[u8; 4]>().read()),
            8 => to.cast::<[u8; 8]>().write(from.cast::<[u8; 8]>().read()),
            12 => to.cast::<[u8; 12]>().write(from.cast::<[u8; 12]>().read()),
            16 => to.cast::<[u8; 16]>().write(from.cast::<[u8; 16]>().read()),
            24 => to.cast::<[u8; 24]>().write(from.cast::<[u8; 24]>().read()),
            _ => std::ptr::copy_nonoverlapping(from, to, bytes),
        }
    }
}

/// One environment's row, to be written.
#[derive(Debug)]
pub struct RowMut<'a> {
    row: Row<'a>,
    exclusive: PhantomData<&'a mut [u8]>,
}

impl<'a> RowMut<'a> {
    /// The same rows, read-only.
    #[inline(always)]
    #[must_use]
    pub fn as_row(&self) -> Row<'_> {
        self.row
    }

    /// The same row for a shorter time.
    #[inline(always)]
    #[must_use]
    pub fn reborrow(&mut self) -> RowMut<'_> {
        RowMut {
            row: self.row,
            exclusive: PhantomData,
        }
    }

    /// The values of one leaf: `[elements]`.
    ///
    /// # Errors
    /// [`SlabError::NoSuchLeaf`] or [`SlabError::DType`] when the key is not one of this row's
    /// spec.
    #[inline(always)]
    pub fn get_mut<T: Element>(&mut self, key: Key<T>) -> Result<&mut [T], SlabError> {
        let Row { rows, env } = self.row;
        let (lane, start) = rows.block.typed(key, rows.t)?;
        // SAFETY: a part of the elements that `RowsMut::new` promises, since `env < envs`; borrowed
        // from `self`.
        Ok(
            unsafe {
                std::slice::from_raw_parts_mut(start.add(env * lane.elements), lane.elements)
            },
        )
    }

    /// Writes a copy of `value` at place `element` of a leaf of values of variable size, 0 for a
    /// scalar one.
    ///
    /// # Errors
    /// [`SlabError::NoSuchLeaf`] or [`SlabError::DType`] when the key is not one of this row's
    /// spec, [`SlabError::Length`] when it has no such element; [`SlabError::NoRoom`] and
    /// [`SlabError::LongValue`] when there is no room for the value.
    pub fn write_string(
        &mut self,
        key: Key<[u8]>,
        element: usize,
        value: &[u8],
    ) -> Result<(), SlabError> {
        let Row { rows, env } = self.row;
        let (lane, start, arena) = rows.block.cells(key, rows.t)?;
        let place = env * lane.elements + lane.element(key, element)?;
        let cell = arena.put(value)?;
        // SAFETY: a cell that `RowsMut::new` promises, since `env < envs`.
        unsafe { start.add(place).write(cell) };
        Ok(())
    }

    /// Copies leaf `leaf` of `from` to leaf `place`, of the same element type and as many elements.
    ///
    /// # Errors
    /// As [`RowsMut::copy_leaf`].
    #[inline]
    pub fn copy_leaf(&mut self, place: usize, from: Row<'_>, leaf: usize) -> Result<(), SlabError> {
        let Row { rows, env } = self.row;
        let (to, source) = (rows.block.lane(place)?, from.rows.block.lane(leaf)?);
        if source.dtype != to.dtype || source.elements != to.elements {
            return Err(mismatch(place, (to, 1), (source, 1)));
        }
        let bytes = to.elements * to.dtype.size();
        // SAFETY: both lanes have the environments of their rows, of `bytes` bytes each; the
        // receiving side is exclusive.
        unsafe {
            let row = source.row(from.rows.t).add(from.env * bytes);
            let own = (to.row(rows.t).add(env * bytes), rows.block);
            from.rows.block.copy_row((source, row), own, bytes)
        }
    }

    /// Writes one leaf.
    ///
    /// # Errors
    /// As [`get_mut`](Self::get_mut), and [`SlabError::Length`] when `values` has another length
    /// than the leaf.
    #[inline(always)]
    pub fn write<T: Element>(&mut self, key: Key<T>, values: &[T]) -> Result<(), SlabError> {
        let to = self.get_mut(key)?;
        if to.len() != values.len() {
            return Err(SlabError::Length {
                leaf: key.leaf,
                expected: to.len(),
                got: values.len(),
            });
        }
        to.copy_from_slice(values);
        Ok(())
    }
}

/// Places `steps * envs` values of a leaf at `end`, and moves `end` to the next aligned byte after
/// them.
pub(crate) fn place(leaf: &LeafSpec, end: &mut usize, steps: usize, envs: usize) -> Option<Column> {
    let elements = leaf
        .shape
        .iter()
        .try_fold(1usize, |product, &dim| product.checked_mul(dim))?;
    let stride = envs.checked_mul(elements)?.checked_mul(leaf.dtype.size())?;
    let offset = *end;
    *end = stride
        .checked_mul(steps)?
        .checked_add(offset)?
        .checked_next_multiple_of(HeapBuffer::ALIGN)?;
    Some(Column {
        offset,
        bytes: stride,
        stride,
        elements,
        dtype: leaf.dtype,
    })
}
