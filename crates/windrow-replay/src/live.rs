use std::ops::Range;

use crate::ReplayError;

/// Rows that follow each other and go on at row 0 behind the last row of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSpan {
    first: usize,
    len: usize,
    capacity: usize,
}

impl RowSpan {
    /// `len` rows from `first` on, in a buffer of `capacity` rows; `first < capacity` and `len <= capacity`.
    pub(crate) fn new(first: usize, len: usize, capacity: usize) -> Self {
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

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The rows as ordinary ranges: those up to the end of the buffer, and those that go on at 0.
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

/// The rows whose frames may be read.
#[derive(Debug)]
pub(crate) enum Live {
    /// A ring's: they follow each other, the oldest first.
    Ring(RowSpan),
    /// Anyhow: the rows, and where in that list each row of the buffer is, if it is there.
    List {
        rows: Vec<u32>,
        place: Vec<u32>,
        /// Behind the last row that ever was in.
        end: usize,
    },
}

const NOWHERE: u32 = u32::MAX;

impl Live {
    pub(crate) fn ring(first: usize, len: usize, capacity: usize) -> Self {
        Self::Ring(RowSpan::new(first, len, capacity))
    }

    pub(crate) fn list(capacity: usize) -> Self {
        Self::List {
            rows: Vec::new(),
            place: vec![NOWHERE; capacity],
            end: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Ring(span) => span.len,
            Self::List { rows, .. } => rows.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows that there are, with frames and without.
    pub(crate) fn capacity(&self) -> usize {
        match self {
            Self::Ring(span) => span.capacity,
            Self::List { place, .. } => place.len(),
        }
    }

    /// The row at place `at` of `len()`.
    #[inline]
    pub(crate) fn row(&self, at: usize) -> usize {
        match self {
            Self::Ring(span) => span.row(at),
            Self::List { rows, .. } => rows[at] as usize,
        }
    }

    pub(crate) fn contains(&self, row: usize) -> bool {
        match self {
            Self::Ring(span) => {
                row < span.capacity && (row + span.capacity - span.first) % span.capacity < span.len
            }
            Self::List { place, .. } => place.get(row).is_some_and(|&place| place != NOWHERE),
        }
    }

    /// Rows by their numbers.
    ///
    /// # Errors
    /// [`ReplayError::NoFrame`] for one that is not in.
    pub(crate) fn checked(&self, rows: &[i64]) -> Result<Vec<u32>, ReplayError> {
        rows.iter()
            .map(|&row| match u32::try_from(row) {
                Ok(at) if self.contains(at as usize) => Ok(at),
                _ => Err(ReplayError::NoFrame { row }),
            })
            .collect()
    }

    /// Behind the last row that is in, or was.
    pub(crate) fn end(&self) -> usize {
        match self {
            Self::Ring(span) => (span.first + span.len).min(span.capacity),
            Self::List { end, .. } => *end,
        }
    }

    /// The rows in ascending order.
    pub(crate) fn sorted(&self) -> Vec<u32> {
        match self {
            Self::Ring(span) => {
                let [head, wrapped] = span.ranges();
                wrapped.chain(head).map(|row| row as u32).collect()
            }
            Self::List { rows, .. } => {
                let mut rows = rows.clone();
                rows.sort_unstable();
                rows
            }
        }
    }

    /// Takes in rows that are not in: in a ring, those behind the newest.
    pub(crate) fn add(&mut self, added: RowSpan) {
        match self {
            Self::Ring(span) if span.is_empty() => *span = added,
            Self::Ring(span) => {
                debug_assert_eq!((span.first + span.len) % span.capacity, added.first);
                span.len += added.len;
            }
            Self::List { rows, place, end } => {
                for row in added.rows() {
                    place[row] = rows.len() as u32;
                    rows.push(row as u32);
                    *end = (*end).max(row + 1);
                }
            }
        }
    }

    /// Gives up rows that are in: in a ring, the oldest.
    pub(crate) fn remove(&mut self, removed: RowSpan) {
        match self {
            Self::Ring(span) => {
                debug_assert!(removed.is_empty() || removed.first == span.first);
                span.first = span.row(removed.len) % span.capacity;
                span.len -= removed.len;
            }
            Self::List { rows, place, .. } => {
                for row in removed.rows() {
                    let at = std::mem::replace(&mut place[row], NOWHERE) as usize;
                    rows.swap_remove(at);
                    if let Some(&moved) = rows.get(at) {
                        place[moved as usize] = at as u32;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Live, RowSpan};

    fn rows(live: &Live) -> Vec<usize> {
        (0..live.len()).map(|at| live.row(at)).collect()
    }

    #[test]
    fn a_ring_gives_up_the_oldest_and_wraps() {
        let mut live = Live::ring(0, 0, 5);
        live.add(RowSpan::new(0, 5, 5));
        live.remove(RowSpan::new(0, 3, 5));
        live.add(RowSpan::new(0, 2, 5));
        assert_eq!(rows(&live), [3, 4, 0, 1]);
        assert_eq!(live.sorted(), [0, 1, 3, 4]);
        assert!(!live.contains(2) && live.contains(1) && !live.contains(5));
        live.remove(RowSpan::new(3, 4, 5));
        assert_eq!(live.len(), 0);
        assert!((0..5).all(|row| !live.contains(row)));
    }

    #[test]
    fn a_list_gives_up_any() {
        let mut live = Live::list(5);
        live.add(RowSpan::new(3, 4, 5));
        live.remove(RowSpan::new(4, 1, 5));
        assert_eq!(live.sorted(), [0, 1, 3]);
        live.remove(RowSpan::new(1, 1, 5));
        live.add(RowSpan::new(4, 1, 5));
        assert_eq!(live.sorted(), [0, 3, 4]);
        assert!(live.contains(4) && !live.contains(1) && !live.contains(9));
    }
}
