use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tensordict::{Tensor, TensorDict};

use super::Writer;
use crate::saved::sizes;
use crate::{ReplayError, RowOrder, RowSet, check_room};

/// Writes rows whose frames a sampler has used up, then rows that were never written, then those
/// with the oldest frames.
#[derive(Debug, Clone, Default)]
pub struct ReuseWriter {
    /// Rows in the order in which they were written; some may have been dropped since.
    written: VecDeque<u32>,
    free: VecDeque<u32>,
    /// End of the rows that were ever written.
    end: u32,
}

impl ReuseWriter {
    /// The writer, which has no arguments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes over rows that hold frames, from the oldest on.
    fn restore(&mut self, rows: &[u32]) {
        self.written = rows.iter().copied().collect();
        self.end = rows.iter().map(|row| row + 1).max().unwrap_or(0);
        let full: BTreeSet<u32> = rows.iter().copied().collect();
        self.free = (0..self.end).filter(|row| !full.contains(row)).collect();
    }
}

impl Writer for ReuseWriter {
    fn order(&self) -> RowOrder {
        RowOrder::Any
    }

    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        check_room::<u32>("the order of rows", capacity)
    }

    fn place(
        &mut self,
        frames: &TensorDict,
        rows: &RowSet,
    ) -> Result<BTreeMap<u32, usize>, ReplayError> {
        if rows.len() < self.written.len() {
            let is_full = |row: &u32| rows.contains(*row as usize);
            let (full, free): (_, VecDeque<u32>) =
                self.written.iter().partition(|row| is_full(row));
            self.written = full;
            self.free.extend(free);
        }
        let mut placed = BTreeMap::new();
        for frame in 0..frames.numel() {
            let row = if let Some(row) = self.free.pop_front() {
                row
            } else if (self.end as usize) < rows.capacity() {
                self.end += 1;
                self.end - 1
            } else {
                let oldest = self.written.pop_front();
                oldest.expect("Every row is unused, free or written, and a buffer has a row.")
            };
            self.written.push_back(row);
            placed.insert(row, frame);
        }
        Ok(placed)
    }

    fn lost(&mut self, rows: &[u32]) {
        self.written.retain(|row| !rows.contains(row));
        self.free.extend(rows);
    }

    fn cleared(&mut self) {
        *self = Self::default();
    }

    fn found(&mut self, rows: &[u32], _: &TensorDict) -> Result<(), ReplayError> {
        self.restore(rows);
        Ok(())
    }

    fn state_dict(&self, rows: &[u32]) -> Result<TensorDict, ReplayError> {
        let full: BTreeSet<u32> = rows.iter().copied().collect();
        let kept = self.written.iter().filter(|row| full.contains(row));
        let order: Vec<i64> = kept.map(|&row| i64::from(row)).collect();
        let mut state = TensorDict::new([]);
        let len = order.len();
        state.set("order", Tensor::from_vec(order, [len])?)?;
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &TensorDict, rows: &[u32]) -> Result<(), ReplayError> {
        let order = state.as_slice::<i64>("order")?;
        let order: Vec<u32> = order
            .iter()
            .filter_map(|&row| u32::try_from(row).ok())
            .collect();
        let (given, full): (BTreeSet<u32>, BTreeSet<u32>) = (
            order.iter().copied().collect(),
            rows.iter().copied().collect(),
        );
        if given != full || order.len() != rows.len() {
            return Err(sizes("rows in their order", rows.len(), order.len()).into());
        }
        self.restore(&order);
        Ok(())
    }
}
