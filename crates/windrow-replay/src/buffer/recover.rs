//! Continuing with the frames that a storage on disk held when it was opened.

use std::collections::BTreeSet;

use tensordict::{NestedKey, TensorDict};

use crate::episode_ends::EpisodeMarks;
use crate::state::BufferState;
use crate::{Recovered, ReplayError, RowOrder, RowSpan, RunKeys, Storage, StorageRead};

/// Takes over the rows that are whole. In a ring these are the rows that lead up to the last one written; others are dropped.
pub(super) fn recover(state: &mut BufferState, storage: &dyn Storage) -> Result<(), ReplayError> {
    let Some(recovered) = storage.recovered() else {
        return Ok(());
    };
    let reader = storage.read();
    let capacity = storage.capacity();
    match state.writer.order() {
        RowOrder::Ring => {
            let rows = leading_up(&recovered, capacity);
            let keys = &state.keys;
            let marks = marks_of(&*reader, &rows, &keys.runs, keys.needed)?;
            let apart: BTreeSet<u32> = recovered.breaks.iter().copied().collect();
            let breaks = (0..rows.len()).filter(|&at| apart.contains(&rows[at]));
            let first = (recovered.cursor + capacity - rows.len()) % capacity;
            let span = RowSpan::new(first, rows.len(), capacity);
            let breaks: Vec<usize> = breaks.collect();
            state.contents.recover(span, &marks, &breaks);
        }
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
    state.write_count = recovered.written;
    Ok(())
}

/// The rows that are whole without a gap up to the cursor, in order.
fn leading_up(recovered: &Recovered, capacity: usize) -> Vec<u32> {
    let mut whole = vec![false; capacity];
    for range in &recovered.rows {
        whole[range.start as usize..range.end as usize].fill(true);
    }
    let back = |age: usize| (recovered.cursor + capacity - 1 - age) % capacity;
    let len = (0..capacity)
        .position(|age| !whole[back(age)])
        .unwrap_or(capacity);
    (0..len).rev().map(|age| back(age) as u32).collect()
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
