//! The written rows of a part as bytes, for a worker that shares no memory with its collector.

use std::ptr::copy_nonoverlapping;
use std::sync::Arc;

use tensordict::{Cell, DType, Extent};

use super::Part;
use crate::SlabError;
use crate::arena::Arena;
use crate::layout::Layout;
use crate::rows::Column;
use crate::slab::Slab;

/// A run of bytes of a part's memory: of one step of a column, or of all steps where they lie one
/// behind the other.
pub(super) struct Run {
    pub(super) offset: usize,
    pub(super) len: usize,
    dtype: DType,
}

impl Part {
    /// Appends the rows of the first [`steps`](Self::steps) steps to `bytes`, column by column,
    /// then the [notes](Self::notes) and last the memory of values of variable size: what
    /// [`read_from`](Self::read_from) takes. The order of the bytes of a number is this machine's.
    /// The steps must have been written.
    ///
    /// # Errors
    /// [`SlabError::System`] where values that another process has written cannot be mapped.
    pub fn write_to(&self, bytes: &mut Vec<u8>) -> Result<(), SlabError> {
        // SAFETY: this `Part` has its part of the slab to itself, and is borrowed.
        unsafe {
            write_part(
                &self.slab,
                self.owner.layout(),
                self.ticket.part,
                self.steps,
                bytes,
            )
        }
    }

    /// Writes the rows of the first [`steps`](Self::steps) steps, and the notes, from what
    /// [`write_to`](Self::write_to) has appended for a part of the same record, steps and
    /// environments. Values that the part had before are gone.
    ///
    /// # Errors
    /// [`SlabError::RowBytes`] for another number of bytes, for a flag that is neither 0 nor 1, or
    /// for a cell that names bytes beyond the end. Nothing was written then. [`SlabError::NoRoom`]
    /// and others where values have no room.
    pub fn read_from(&mut self, bytes: &[u8]) -> Result<(), SlabError> {
        let expected = self.byte_len();
        let wrong = |got: String| SlabError::RowBytes { expected, got };
        let (rows, values) = match (bytes.split_at_checked(expected), self.arena()) {
            (Some((rows, values)), Some(_)) => (rows, values),
            (Some((rows, [])), None) => (rows, &[][..]),
            _ => return Err(wrong(format!("{}", bytes.len()))),
        };
        let mut rest = rows;
        for run in self.runs() {
            let (own, others) = rest.split_at(run.len);
            if run.dtype == DType::Bool && own.iter().any(|&flag| flag > 1) {
                return Err(wrong("a flag that is neither 0 nor 1".to_owned()));
            }
            let have = values.len() as u64;
            let lies_within = |cell: &Cell| {
                let end = cell.start.checked_add(u64::from(cell.len));
                cell.len == 0 || end.is_some_and(|end| end <= have)
            };
            if run.dtype == DType::Bytes
                && let Some(Cell { start, len, .. }) = cells(own).find(|cell| !lies_within(cell))
            {
                return Err(wrong(format!(
                    "a value of {len} bytes at {start}, beyond the {have} bytes of values"
                )));
            }
            rest = others;
        }
        self.clear_values();
        let start = match self.arena() {
            Some(arena) if !values.is_empty() => arena.append(values)?,
            _ => 0,
        };
        let mut rest = rows;
        for Run { offset, len, dtype } in self.runs() {
            let (own, others) = rest.split_at(len);
            // SAFETY: the run lies within the slab's memory.
            let to = unsafe { self.slab.memory.ptr().as_ptr().add(offset) };
            rest = others;
            if let (DType::Bytes, Some(arena)) = (dtype, self.arena()) {
                for (i, cell) in cells(own).enumerate() {
                    // SAFETY: the run, which this `Part`, borrowed exclusively, has to itself, has
                    // as many cells as `own`.
                    unsafe { to.cast::<Cell>().add(i).write(arena.moved(cell, start)) };
                }
                continue;
            }
            // SAFETY: as above. The bytes are those of elements of the column's dtype: any are, but
            // for flags, which were looked at.
            unsafe { copy_nonoverlapping(own.as_ptr(), to, len) };
        }
        Ok(())
    }

    /// Whether a value of variable size in `bytes` begins with `first`. Call
    /// [`read_from`](Self::read_from) with the same `bytes` before.
    #[must_use]
    pub fn has_value_of(&self, first: u8, bytes: &[u8]) -> bool {
        let Some((mut rows, values)) = bytes.split_at_checked(self.byte_len()) else {
            return false;
        };
        let begins = |cell: Cell| cell.len > 0 && values.get(cell.start as usize) == Some(&first);
        self.runs().any(|run| {
            let (own, others) = rows.split_at(run.len);
            rows = others;
            run.dtype == DType::Bytes && cells(own).any(begins)
        })
    }

    fn arena(&self) -> Option<&Arena> {
        self.slab.arenas.get(self.ticket.part).map(Arc::as_ref)
    }

    /// How many bytes [`write_to`](Self::write_to) appends before those of values of variable size.
    fn byte_len(&self) -> usize {
        self.runs().map(|run| run.len).sum()
    }

    fn runs(&self) -> impl Iterator<Item = Run> {
        runs(self.owner.layout(), self.ticket.part, self.steps)
    }
}

/// Appends what [`Part::write_to`] does, for part `part` of `slab`, of which `steps` steps were
/// written.
///
/// # Safety
/// Nobody writes the part meanwhile, and `layout` is that of the slab.
pub(crate) unsafe fn write_part(
    slab: &Slab,
    layout: &Layout,
    part: usize,
    steps: usize,
    bytes: &mut Vec<u8>,
) -> Result<(), SlabError> {
    let extents = match slab.arenas.get(part) {
        Some(arena) => arena.extents()?,
        None => Vec::new(),
    };
    let values: usize = extents.iter().map(|extent| extent.len).sum();
    let rows: usize = runs(layout, part, steps).map(|run| run.len).sum();
    bytes.reserve(rows + values);
    for Run { offset, len, .. } in runs(layout, part, steps) {
        // SAFETY: the run lies within the slab's memory, which nobody writes, as the caller
        // promises. Memory starts zeroed, so all of it is initialised.
        let run = unsafe {
            let start = slab.memory.ptr().as_ptr().add(offset);
            std::slice::from_raw_parts(start, len)
        };
        bytes.extend_from_slice(run);
    }
    for Extent { ptr, len, .. } in extents {
        // SAFETY: an arena has its extents for as long as it is not emptied, which takes the right
        // to write the part; their memory starts zeroed.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(ptr.as_ptr(), len) });
    }
    Ok(())
}

/// The memory of the first `steps` rows of a part, in the order of the columns, and of its notes.
fn runs(layout: &Layout, part: usize, steps: usize) -> impl Iterator<Item = Run> {
    let columns = layout.parts[part].columns.written();
    let (offset, notes) = layout.notes(part);
    let notes = Run {
        offset,
        len: notes * size_of::<f64>(),
        dtype: DType::F64,
    };
    columns
        .flat_map(move |column| runs_of(column, steps))
        .chain([notes])
}

/// The cells of a run, whose bytes may begin anywhere.
fn cells(run: &[u8]) -> impl Iterator<Item = Cell> {
    let (cells, _) = run.as_chunks::<{ size_of::<Cell>() }>();
    // SAFETY: there are as many bytes as a cell has, and any are one.
    let read = |cell: &[u8; _]| unsafe { cell.as_ptr().cast::<Cell>().read_unaligned() };
    cells.iter().map(read)
}

/// The runs of the first `steps` rows of `column`.
pub(super) fn runs_of(column: &Column, steps: usize) -> impl Iterator<Item = Run> {
    let (runs, len) = match column.stride == column.bytes {
        true => (1, steps * column.bytes),
        false => (steps, column.bytes),
    };
    let (offset, stride, dtype) = (column.offset, column.stride, column.dtype);
    (0..runs).map(move |run| Run {
        offset: offset + run * stride,
        len,
        dtype,
    })
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use std::sync::Arc;

    use tensordict::{DType, LeafSpec, Tensor};

    use crate::{Key, Layout, Order, PartOrder, RecordSpec, Ring, RingSpec, Shares, SlabError};

    fn ring(steps: Vec<usize>, order: PartOrder) -> Arc<Ring> {
        let record = RecordSpec {
            observation: vec![
                LeafSpec::new("observation", DType::F32, [3]),
                LeafSpec::new("mask", DType::Bool, [2]),
                LeafSpec::new("text", DType::Bytes, []),
            ],
            policy: vec![LeafSpec::new("action", DType::I64, [])],
            traj_ids: true,
            notes: 2,
            ..RecordSpec::default()
        };
        let workers = steps.len();
        let shares = Shares {
            steps,
            envs: 2,
            batched: true,
            order,
        };
        let spec = RingSpec {
            order: Order::ByWorker,
            workers,
            ahead: 1,
            max_slabs: 2,
            cut_after: None,
            max_age: None,
        };
        Ring::new(Layout::new(&record, shares).unwrap(), spec).unwrap()
    }

    fn text(value: f32) -> Vec<u8> {
        format!("value {value}").into_bytes()
    }

    /// Writes other numbers to each row of `part`, and a text to those of its first environment.
    fn fill(part: &mut crate::Part, from: f32) {
        part.notes()[1] = f64::from(from);
        let mut rows = part.rows();
        let mut value = from;
        while let Some(mut step) = rows.next_step() {
            value += 1.0;
            let next = step.next_obs.get_mut(Key::<f32>::new(0)).unwrap();
            next.fill(value);
            let action = step.policy.get_mut(Key::<i64>::new(0)).unwrap();
            action.copy_from_slice(&[value as i64, -7]);
            step.next_obs.get_mut(Key::<bool>::new(1)).unwrap()[1] = true;
            for (env, text) in [vec![7; 70_000], vec![], text(value)]
                .into_iter()
                .enumerate()
            {
                let mut row = step.next_obs.env_mut(env % 2).unwrap();
                row.write_string(Key::new(2), 0, &text).unwrap();
            }
            if let Some(mut following) = step.following {
                following.copy_from(step.next_obs.as_rows()).unwrap();
            }
            step.reward.copy_from_slice(&[value, 0.5]);
            step.truncated[1] = true;
            step.traj_ids.copy_from_slice(&[3, i64::MAX]);
        }
    }

    #[test]
    fn rows_are_read_as_they_were_written_into_a_part_of_any_order() {
        let here = ring(vec![5], PartOrder::Sequential);
        for order in [PartOrder::Sequential, PartOrder::Interleaved] {
            let there = ring(vec![4, 4], order);
            for steps in [4, 3] {
                for part in 0..2 {
                    let mut mine = here.claim(0).unwrap();
                    mine.shorten(steps);
                    fill(&mut mine, 10.0 * (part as f32 + 1.0));
                    let mut bytes = vec![9];
                    mine.write_to(&mut bytes).unwrap();
                    let mut theirs = there.claim(part).unwrap();
                    theirs.shorten(steps);
                    theirs.read_from(&bytes[1..]).unwrap();
                    assert_eq!(theirs.notes()[1], 10.0 * (part as f64 + 1.0));
                    theirs.commit();
                }
                let lease = there.next().unwrap();
                for part in 0..2 {
                    let batch = lease.part(part).unwrap();
                    let first = 10.0 * (part as f32 + 1.0) + 1.0;
                    let reward = batch.get(["next", "reward"]).unwrap();
                    let values: Vec<f32> = (0..steps).map(|t| first + t as f32).collect();
                    let expected = Tensor::from_vec(values, [steps, 1]).unwrap();
                    assert_eq!(reward.select(0, 0).unwrap(), expected);
                    for (t, value) in (0..steps).map(|t| (t, first + t as f32)) {
                        let at = |key: &[&str], env| {
                            let texts = batch.get(key).unwrap();
                            texts.string_at(&[env, t]).unwrap().to_vec()
                        };
                        let before = if t > 0 { text(value - 1.0) } else { Vec::new() };
                        assert_eq!(at(&["text"], 0), before);
                        assert_eq!(at(&["next", "text"], 0), text(value));
                        assert_eq!(at(&["next", "text"], 1), b"");
                    }
                    let ids = batch.get(["collector", "traj_ids"]).unwrap();
                    let ids = ids.select(0, 1).unwrap();
                    assert_eq!(ids, Tensor::full([steps], i64::MAX).unwrap());
                }
            }
        }
    }

    #[test]
    fn values_are_found_by_their_first_byte() {
        let ring = ring(vec![2], PartOrder::Sequential);
        let mut part = ring.claim(0).unwrap();
        fill(&mut part, 1.0);
        let mut bytes = Vec::new();
        part.write_to(&mut bytes).unwrap();
        part.read_from(&bytes).unwrap();
        // That of the texts, of the longest values, which were overwritten, and of none.
        let found = [b'v', 7, b'o'].map(|first| part.has_value_of(first, &bytes));
        assert_eq!(found, [true, false, false]);
    }

    #[test]
    fn other_bytes_are_refused_and_change_nothing() {
        let ring = ring(vec![2], PartOrder::Sequential);
        let mut part = ring.claim(0).unwrap();
        fill(&mut part, 1.0);
        let mut bytes = Vec::new();
        part.write_to(&mut bytes).unwrap();
        let before = bytes.clone();
        let rows = part.byte_len();
        for wrong in [&bytes[..rows - 1], &bytes[..rows]] {
            let error = part.read_from(wrong).unwrap_err();
            assert!(matches!(error, SlabError::RowBytes { .. }), "{error}");
        }
        let error = part.read_from(&bytes[..rows + 9]).unwrap_err().to_string();
        assert!(error.contains("beyond the 9 bytes of values"), "{error}");
        // All of them flags that are neither true nor false.
        bytes.fill(2);
        let error = part.read_from(&bytes).unwrap_err().to_string();
        assert!(error.contains("neither 0 nor 1"), "{error}");
        let mut after = Vec::new();
        part.write_to(&mut after).unwrap();
        assert_eq!(after, before);
    }
}
