//! The places of the fields of every row.

use tensordict::{DType, HeapBuffer, LeafSpec};

use crate::StoreError;
use crate::copy::Copies;
use crate::header::Header;

/// Fields of at least this many bytes lie in a block of their own, so that the small ones stay
/// close to each other.
const LARGE: usize = 4096;

/// Rows as records: the small fields of one frame lie together, so that a frame taken at random
/// costs one or two cache misses instead of one for each field.
#[derive(Debug)]
pub(crate) struct FrameLayout {
    pub(crate) leaves: Vec<LeafSpec>,
    /// One for each leaf, in the same order.
    pub(crate) fields: Vec<Field>,
    pub(crate) capacity: usize,
    pub(crate) bytes: usize,
}

/// Row `r` of a field starts `offset + r * stride` bytes into the memory.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) offset: usize,
    pub(crate) stride: usize,
    /// Bytes of one row.
    pub(crate) bytes: usize,
    pub(crate) copies: Copies,
}

impl FrameLayout {
    pub(crate) fn new(leaves: Vec<LeafSpec>, capacity: usize) -> Result<Self, StoreError> {
        if capacity == 0 || u32::try_from(capacity).is_err() {
            return Err(StoreError::Capacity { capacity });
        }
        if leaves.is_empty() {
            return Err(StoreError::NoEntries);
        }
        let too_large = StoreError::TooLarge { capacity };
        Self::place(leaves, capacity).ok_or(too_large)
    }

    /// Most rows of these leaves that fit into `bytes` bytes; 0 when none does.
    pub(crate) fn rows_within(leaves: &[LeafSpec], bytes: usize) -> usize {
        let fits = |rows: usize| {
            Self::place(leaves.to_vec(), rows).is_some_and(|layout| layout.bytes <= bytes)
        };
        // More rows never take less: `low` fit, `high` do not.
        let (mut low, mut high) = (0, bytes.min(u32::MAX as usize) + 1);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if fits(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    fn place(leaves: Vec<LeafSpec>, capacity: usize) -> Option<Self> {
        let sizes = leaves
            .iter()
            .map(LeafSpec::checked_bytes)
            .collect::<Option<Vec<usize>>>()?;
        // The widest elements first: then each of them is aligned.
        let mut order: Vec<usize> = (0..leaves.len()).collect();
        order.sort_by_key(|&leaf| std::cmp::Reverse(leaves[leaf].dtype.size()));
        let (large, small): (Vec<usize>, Vec<usize>) =
            order.into_iter().partition(|&leaf| sizes[leaf] >= LARGE);
        let mut end = Header::len(capacity)
            .checked_mul(size_of::<u64>())?
            .checked_next_multiple_of(HeapBuffer::ALIGN)?;
        let mut places = vec![(0, 0); leaves.len()];
        let record = small.iter().try_fold(0usize, |at, &leaf| {
            places[leaf].0 = end + at;
            at.checked_add(sizes[leaf])
        })?;
        let record = record.checked_next_multiple_of(8)?;
        small.iter().for_each(|&leaf| places[leaf].1 = record);
        end = end.checked_add(record.checked_mul(capacity)?)?;
        for leaf in large {
            end = end.checked_next_multiple_of(LARGE)?;
            places[leaf] = (end, sizes[leaf]);
            end = end.checked_add(sizes[leaf].checked_mul(capacity)?)?;
        }
        let fields = leaves.iter().zip(places).zip(&sizes);
        let fields = fields.map(|((leaf, (offset, stride)), &bytes)| Field {
            offset,
            stride,
            bytes,
            copies: Copies::of(bytes, leaf.dtype == DType::Bool),
        });
        let fields = fields.collect();
        isize::try_from(end).ok().map(|_| Self {
            leaves,
            fields,
            capacity,
            bytes: end,
        })
    }

    /// Whether frames have values of variable size.
    pub(crate) fn has_values(&self) -> bool {
        self.leaves.iter().any(|leaf| leaf.dtype == DType::Bytes)
    }

    /// Fields of cells, each with the number of cells in a row.
    pub(crate) fn cells(&self) -> impl Iterator<Item = (usize, &Field, usize)> {
        let fields = self.leaves.iter().zip(&self.fields).enumerate();
        let fields = fields.filter(|(_, (leaf, _))| leaf.dtype == DType::Bytes);
        fields.map(|(place, (leaf, field))| (place, field, leaf.elements()))
    }

    /// Bytes from one row to the next, if all fields of a row lie side by side.
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    pub(crate) fn record(&self) -> Option<usize> {
        let stride = self.fields.first()?.stride;
        let whole = self.fields.iter().all(|field| field.stride == stride);
        // Large fields have their own strides, which may be alike.
        (whole && stride < LARGE).then_some(stride)
    }

    /// Where the first row begins, behind the header.
    pub(crate) fn rows_start(&self) -> usize {
        let starts = self.fields.iter().map(|field| field.offset);
        starts.min().unwrap_or(self.bytes)
    }

    /// A hash of names, types and shapes.
    #[cfg(not(loom))]
    pub(crate) fn fingerprint(&self) -> u64 {
        // FNV-1a: files outlive the standard library's hashes, which may change with a release.
        let text = format!("{:?}", self.leaves);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_fields_share_a_record_and_large_ones_have_a_block() {
        let leaves = vec![
            LeafSpec::new("action", DType::I64, []),
            LeafSpec::new("done", DType::Bool, [1]),
            LeafSpec::new("next", DType::F32, [4]),
            LeafSpec::new("observation", DType::F32, [4]),
            LeafSpec::new("pixels", DType::U8, [64, 64]),
            LeafSpec::new("reward", DType::F32, [1]),
        ];
        let layout = FrameLayout::new(leaves, 100).unwrap();
        let strides: Vec<usize> = layout.fields.iter().map(|field| field.stride).collect();
        assert_eq!(strides, [48, 48, 48, 48, 4096, 48]);
        let start = layout.fields[0].offset;
        let small = [0, 2, 3, 5, 1].map(|leaf| layout.fields[leaf].offset - start);
        assert_eq!(small, [0, 8, 24, 40, 44]);
        assert!(layout.fields[4].offset >= start + 4800);
        assert_eq!(layout.bytes, layout.fields[4].offset + 409_600);
    }

    #[test]
    fn as_many_rows_as_fit_take_no_more_than_they_may() {
        let leaves = [
            LeafSpec::new("action", DType::I64, []),
            LeafSpec::new("pixels", DType::U8, [5000]),
        ];
        let bytes = |rows| FrameLayout::new(leaves.to_vec(), rows).unwrap().bytes;
        for rows in [1, 7, 1000] {
            let room = bytes(rows);
            assert_eq!(FrameLayout::rows_within(&leaves, room), rows);
            assert_eq!(FrameLayout::rows_within(&leaves, room - 1), rows - 1);
        }
        assert_eq!(FrameLayout::rows_within(&leaves, 0), 0);
    }

    #[test]
    fn sizes_are_checked() {
        let leaf = |shape: &[usize]| vec![LeafSpec::new("x", DType::F64, shape)];
        for capacity in [0, 1 << 32] {
            assert!(matches!(
                FrameLayout::new(leaf(&[1]), capacity),
                Err(StoreError::Capacity { .. })
            ));
        }
        assert!(matches!(
            FrameLayout::new(leaf(&[usize::MAX / 64, 16]), 4),
            Err(StoreError::TooLarge { capacity: 4 })
        ));
        assert!(matches!(
            FrameLayout::new(Vec::new(), 4),
            Err(StoreError::NoEntries)
        ));
    }
}
