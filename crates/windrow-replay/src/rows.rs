//! Rows of a buffer: spans of them, and the set of those that hold frames.

use std::ops::Range;

use crate::ReplayError;

/// Consecutive rows; row 0 follows the last row of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSpan {
    first: usize,
    len: usize,
    capacity: usize,
}

impl RowSpan {
    /// `len` rows from `first` on, in a buffer of `capacity` rows; `first < capacity` and
    /// `len <= capacity`.
    #[must_use]
    pub fn new(first: usize, len: usize, capacity: usize) -> Self {
        debug_assert!(first < capacity && len <= capacity);
        Self {
            first,
            len,
            capacity,
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether the span has no rows.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The rows as ordinary ranges: those up to the end of the buffer, and those from row 0 on.
    #[must_use]
    pub fn ranges(self) -> [Range<usize>; 2] {
        let end = self.first + self.len;
        let seam = end.min(self.capacity);
        [self.first..seam, 0..end - seam]
    }

    /// The rows, one by one.
    pub fn rows(self) -> impl Iterator<Item = usize> {
        self.ranges().into_iter().flatten()
    }

    /// The place of `row`, counted from the first, if it is one of these.
    pub(crate) fn place(self, row: usize) -> Option<usize> {
        let at = (row + self.capacity - self.first) % self.capacity;
        (row < self.capacity && at < self.len).then_some(at)
    }

    /// The row at place `at`, counted from the first.
    #[inline]
    pub(crate) fn row(self, at: usize) -> usize {
        let row = self.first + at;
        if row < self.capacity {
            row
        } else {
            row - self.capacity
        }
    }
}

/// The order in which a [`Writer`](crate::Writer) fills rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowOrder {
    /// One row after another, the first again after the last: new frames replace the oldest. The
    /// buffer then knows which frames follow each other, and slices can be drawn.
    Ring,
    /// Any row. Frames lose their order, so there are no slices.
    Any,
}

/// The rows that hold frames.
///
/// Samplers see it as [`Frames`](crate::Frames). Code that tests a sampler can build one:
///
/// ```
/// use windrow_replay::{Frames, RowSet, RowSpan};
///
/// let mut rows = RowSet::ring(5);
/// rows.add(RowSpan::new(0, 5, 5));
/// // The two oldest are overwritten.
/// rows.remove(RowSpan::new(0, 2, 5));
/// rows.add(RowSpan::new(0, 2, 5));
/// let frames = Frames::new(&rows, None);
/// assert_eq!((frames.len(), frames.row(0), frames.row(4)), (5, 2, 1));
/// ```
#[derive(Debug, Clone)]
pub struct RowSet(Rows);

#[derive(Debug, Clone)]
enum Rows {
    /// They follow each other, the oldest first.
    Ring(RowSpan),
    /// In any order.
    List {
        list: RowList,
        /// End of the rows that were ever filled.
        end: usize,
    },
}

impl RowSet {
    /// No rows of a buffer of `capacity` rows that are filled in a [ring](RowOrder::Ring).
    #[must_use]
    pub fn ring(capacity: usize) -> Self {
        Self::ring_of(RowSpan::new(0, 0, capacity))
    }

    /// The rows of `span`, of a ring.
    pub(crate) fn ring_of(span: RowSpan) -> Self {
        Self(Rows::Ring(span))
    }

    /// No rows of a buffer of `capacity` rows that are filled in [any order](RowOrder::Any).
    #[must_use]
    pub fn list(capacity: usize) -> Self {
        let list = RowList::new(capacity);
        Self(Rows::List { list, end: 0 })
    }

    /// No rows of a buffer of `capacity` rows that are filled in this order.
    pub(crate) fn new(order: RowOrder, capacity: usize) -> Self {
        match order {
            RowOrder::Ring => Self::ring(capacity),
            RowOrder::Any => Self::list(capacity),
        }
    }

    /// The order in which rows are filled.
    #[must_use]
    pub fn order(&self) -> RowOrder {
        match self.0 {
            Rows::Ring(_) => RowOrder::Ring,
            Rows::List { .. } => RowOrder::Any,
        }
    }

    /// Number of rows that hold a frame.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Rows::Ring(span) => span.len,
            Rows::List { list, .. } => list.len(),
        }
    }

    /// Whether no row holds a frame.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of rows of the buffer, with frames and without.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match &self.0 {
            Rows::Ring(span) => span.capacity,
            Rows::List { list, .. } => list.capacity(),
        }
    }

    /// The row at place `at` of `len()`: in a ring, counted from the oldest frame.
    ///
    /// # Panics
    /// May panic when `at` is not below `len()`.
    #[inline]
    #[must_use]
    pub fn row(&self, at: usize) -> usize {
        match &self.0 {
            Rows::Ring(span) => span.row(at),
            Rows::List { list, .. } => list.rows()[at] as usize,
        }
    }

    /// Whether `row` holds a frame.
    #[must_use]
    pub fn contains(&self, row: usize) -> bool {
        match &self.0 {
            Rows::Ring(span) => span.place(row).is_some(),
            Rows::List { list, .. } => list.contains(row),
        }
    }

    /// End of the rows that hold a frame, or held one.
    #[must_use]
    pub fn end(&self) -> usize {
        match &self.0 {
            Rows::Ring(span) => (span.first + span.len).min(span.capacity),
            Rows::List { end, .. } => *end,
        }
    }

    /// The row that the next frame of a ring goes to; 0 where rows are filled in any order.
    pub(crate) fn next(&self) -> usize {
        match &self.0 {
            Rows::Ring(span) => span.row(span.len) % span.capacity,
            Rows::List { .. } => 0,
        }
    }

    /// The rows to drop so that `frames` more frames fit: in a ring, the oldest.
    pub(crate) fn oldest_for(&self, frames: usize) -> RowSpan {
        let capacity = self.capacity();
        let room = capacity - self.len();
        let first = if self.is_empty() { 0 } else { self.row(0) };
        RowSpan::new(first, frames.min(capacity).saturating_sub(room), capacity)
    }

    /// Rows by their numbers.
    ///
    /// # Errors
    /// [`ReplayError::NoFrame`] for one that holds no frame.
    pub(crate) fn checked(&self, rows: &[i64]) -> Result<Vec<u32>, ReplayError> {
        rows.iter()
            .map(|&row| match u32::try_from(row) {
                Ok(at) if self.contains(at as usize) => Ok(at),
                _ => Err(ReplayError::NoFrame { row }),
            })
            .collect()
    }

    /// The rows in the order of [`row`](Self::row).
    pub(crate) fn in_order(&self) -> Vec<u32> {
        (0..self.len()).map(|at| self.row(at) as u32).collect()
    }

    /// The rows in ascending order.
    pub(crate) fn sorted(&self) -> Vec<u32> {
        let mut rows = self.in_order();
        match &self.0 {
            Rows::Ring(span) => rows.rotate_left(span.ranges()[0].len()),
            Rows::List { .. } => rows.sort_unstable(),
        }
        rows
    }

    /// The rows in the fewest spans that announce all of them.
    pub(crate) fn spans(&self) -> Vec<RowSpan> {
        match &self.0 {
            Rows::Ring(span) => vec![*span],
            Rows::List { list, .. } => {
                let one = |row: u32| RowSpan::new(row as usize, 1, list.capacity());
                self.sorted().into_iter().map(one).collect()
            }
        }
    }

    /// Adds rows that hold no frame: in a ring, those behind the newest.
    pub fn add(&mut self, added: RowSpan) {
        match &mut self.0 {
            Rows::Ring(span) if span.is_empty() => *span = added,
            Rows::Ring(span) => {
                debug_assert_eq!((span.first + span.len) % span.capacity, added.first);
                span.len += added.len;
            }
            Rows::List { list, end } => {
                for row in added.rows() {
                    list.add(row);
                    *end = (*end).max(row + 1);
                }
            }
        }
    }

    /// Removes rows that hold a frame: in a ring, the oldest.
    pub fn remove(&mut self, removed: RowSpan) {
        match &mut self.0 {
            Rows::Ring(span) => {
                debug_assert!(removed.is_empty() || removed.first == span.first);
                span.first = span.row(removed.len) % span.capacity;
                span.len -= removed.len;
            }
            Rows::List { list, .. } => removed.rows().for_each(|row| list.remove(row)),
        }
    }
}

/// Rows in any order, each at most once. Adding and removing one costs O(1).
#[derive(Debug, Clone, Default)]
pub(crate) struct RowList {
    rows: Vec<u32>,
    /// By row of the buffer: its index in `rows`, or [`NOWHERE`].
    place: Vec<u32>,
}

/// Marks a row that is not in a [`RowList`].
const NOWHERE: u32 = u32::MAX;

impl RowList {
    /// No rows of a buffer of `capacity` rows.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            rows: Vec::new(),
            place: vec![NOWHERE; capacity],
        }
    }

    pub(crate) fn rows(&self) -> &[u32] {
        &self.rows
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.place.len()
    }

    pub(crate) fn contains(&self, row: usize) -> bool {
        self.place.get(row).is_some_and(|&place| place != NOWHERE)
    }

    /// Adds `row` at the end, unless it is in the list.
    pub(crate) fn add(&mut self, row: usize) {
        if self.place[row] == NOWHERE {
            self.place[row] = self.rows.len() as u32;
            self.rows.push(row as u32);
        }
    }

    /// Removes `row`, if it is in the list.
    pub(crate) fn remove(&mut self, row: usize) {
        if self.place[row] != NOWHERE {
            self.take(self.place[row] as usize);
        }
    }

    /// Removes the row at index `at`. The last row moves to its place.
    pub(crate) fn take(&mut self, at: usize) -> u32 {
        let row = self.rows.swap_remove(at);
        self.place[row as usize] = NOWHERE;
        if let Some(&moved) = self.rows.get(at) {
            self.place[moved as usize] = at as u32;
        }
        row
    }

    pub(crate) fn clear(&mut self) {
        for row in self.rows.drain(..) {
            self.place[row as usize] = NOWHERE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RowSet, RowSpan};

    #[test]
    fn a_ring_gives_up_the_oldest_and_wraps() {
        let mut rows = RowSet::ring(5);
        rows.add(RowSpan::new(0, 5, 5));
        rows.remove(RowSpan::new(0, 3, 5));
        rows.add(RowSpan::new(0, 2, 5));
        assert_eq!(rows.in_order(), [3, 4, 0, 1]);
        assert_eq!(rows.sorted(), [0, 1, 3, 4]);
        assert!(!rows.contains(2) && rows.contains(1) && !rows.contains(5));
        rows.remove(RowSpan::new(3, 4, 5));
        assert_eq!(rows.len(), 0);
        assert!((0..5).all(|row| !rows.contains(row)));
    }

    #[test]
    fn the_next_row_of_a_ring_follows_the_newest_also_when_all_are_given_up() {
        let mut rows = RowSet::ring(5);
        assert_eq!(rows.next(), 0);
        rows.add(RowSpan::new(3, 4, 5));
        assert_eq!(rows.next(), 2);
        rows.remove(RowSpan::new(3, 4, 5));
        assert_eq!(rows.next(), 2);
    }

    #[test]
    fn a_list_gives_up_any() {
        let mut rows = RowSet::list(5);
        rows.add(RowSpan::new(3, 4, 5));
        rows.remove(RowSpan::new(4, 1, 5));
        assert_eq!(rows.sorted(), [0, 1, 3]);
        rows.remove(RowSpan::new(1, 1, 5));
        rows.add(RowSpan::new(4, 1, 5));
        assert_eq!(rows.sorted(), [0, 3, 4]);
        assert!(rows.contains(4) && !rows.contains(1) && !rows.contains(9));
    }
}
