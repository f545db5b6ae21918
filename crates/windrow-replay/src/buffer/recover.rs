//! Continuing with the frames that a storage on disk held when it was opened.

use std::ops::Range;

use tensordict::{NestedKey, TensorDict};

use crate::episode_ends::EpisodeMarks;
use crate::state::BufferState;
use crate::{Recovered, ReplayError, RowOrder, RowSpan, RunKeys, Storage, StorageRead};

/// Takes over the rows that are whole. In a ring these are the rows that lead up to the last one
/// written; others are dropped.
pub(super) fn recover(state: &mut BufferState, storage: &dyn Storage) -> Result<(), ReplayError> {
    let Some(recovered) = storage.recovered() else {
        return Ok(());
    };
    let reader = storage.read();
    let capacity = storage.capacity();
    match state.writer.order() {
        RowOrder::Ring => recover_ring(state, storage, &recovered)?,
        RowOrder::Any => {
            let rows: Vec<u32> = recovered.rows.iter().cloned().flatten().collect();
            if !rows.is_empty() {
                let frames = reader.gather_keys(&rows, &state.writer.keys())?;
                state.writer.found(&rows, &frames)?;
            }
            for &row in &rows {
                state
                    .contents
                    .rows
                    .add(RowSpan::new(row as usize, 1, capacity));
            }
        }
    }
    state.contents.announce(&mut *state.sampler);
    state.renumber();
    state.write_count = recovered.written;
    Ok(())
}

fn recover_ring(
    state: &mut BufferState,
    storage: &dyn Storage,
    recovered: &Recovered,
) -> Result<(), ReplayError> {
    let capacity = storage.capacity();
    // Rows that were set in place after the last ones of the ring are no end of it.
    let kept = recovered.runs.as_ref();
    let next = |next: u64| (next % capacity as u64) as usize;
    let cursor = kept.map_or(recovered.cursor, |kept| next(kept.next));
    let len = leading_up(&recovered.rows, cursor, capacity);
    if len == 0 {
        let span = RowSpan::new(recovered.cursor, 0, capacity);
        let none = marks_of(&*storage.read(), &[], &state.keys.runs, false)?;
        state.contents.recover(span, &none, &[]);
        return Ok(());
    }
    let span = RowSpan::new((cursor + capacity - len) % capacity, len, capacity);
    let covers = |base: u64, next: u64| next.checked_sub(base) >= Some(len as u64);
    let covered = kept.filter(|kept| covers(kept.base, kept.next));
    if let Some(kept) = covered.filter(|kept| kept.keys == state.keys.fingerprint) {
        state.contents.take_over(span, kept);
        return Ok(());
    }
    // They are not known, or found by other keys.
    let rows: Vec<u32> = span.rows().map(|row| row as u32).collect();
    let keys = &state.keys;
    let marks = marks_of(&*storage.read(), &rows, &keys.runs, keys.needed)?;
    let breaks = kept.map_or_else(Vec::new, |kept| kept.breaks(len));
    state.contents.recover(span, &marks, &breaks);
    let found = state.contents.to_keep(state.keys.fingerprint);
    found.map_or(Ok(()), |found| storage.keep_runs(&found))
}

/// How many rows are whole without a gap up to the cursor.
fn leading_up(rows: &[Range<u32>], cursor: usize, capacity: usize) -> usize {
    let up_to = |end: usize, floor: usize| {
        let ends_in = |rows: &&Range<u32>| (rows.start as usize) < end && end <= rows.end as usize;
        let rows = rows.iter().find(ends_in);
        rows.map_or(0, |rows| end - floor.max(rows.start as usize))
    };
    let low = up_to(cursor, 0);
    if low < cursor {
        return low;
    }
    low + up_to(capacity, cursor)
}

/// The episode marks of the frames in `rows`, which follow each other.
pub(super) fn marks_of(
    reader: &dyn StorageRead,
    rows: &[u32],
    keys: &RunKeys,
    needed: bool,
) -> Result<EpisodeMarks, ReplayError> {
    let frames = reader.gather_keys(rows, &keys.present(&first_of(reader, rows)?))?;
    EpisodeMarks::read(&frames, rows.len(), keys, needed)
}

/// One frame, to see which keys there are.
fn first_of(reader: &dyn StorageRead, rows: &[u32]) -> Result<TensorDict, ReplayError> {
    match rows.first() {
        Some(&row) => reader.gather(&[row]),
        None => Ok(TensorDict::new([0])),
    }
}

impl RunKeys {
    /// The keys among these, or their usual stand-ins, that `frames` have.
    pub(super) fn present(&self, frames: &TensorDict) -> Vec<NestedKey> {
        let mut keys = self.candidates();
        keys.retain(|key| frames.contains_key(key));
        keys
    }
}
