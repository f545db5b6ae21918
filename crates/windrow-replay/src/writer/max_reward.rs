use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use tensordict::{NestedKey, Tensor, TensorDict};

use super::Writer;
use crate::saved::sizes;
use crate::{Reduction, ReplayError, RowOrder, RowSet, check_room};

/// Keeps the frames of the highest values: in a full buffer, a frame replaces only one whose value
/// is lower.
///
/// To keep whole trajectories, write one in each row: a batch of size `[N]` whose entries have time
/// as their next dimension, `[N, T, …]`; their values are then summed. Frames lose their order, so
/// there are no slices.
///
/// NaN is below all numbers, as negative infinity is: such a frame is kept while there is room, is
/// replaced by any finite number, and replaces none.
///
/// ```
/// use tensordict::{Tensor, TensorDict};
/// use windrow_replay::{ListStorage, MaxRewardWriter, ReplayBuffer};
///
/// let buffer = ReplayBuffer::builder()
///     .storage(ListStorage::new(2))
///     .writer(MaxRewardWriter::new("score"))
///     .build()?;
/// let mut frames = TensorDict::new([4]);
/// frames.set("score", Tensor::from_vec(vec![3.0f32, 1.0, 4.0, 2.0], [4])?)?;
/// buffer.extend(&frames)?;
/// let mut kept = buffer.all()?.get("score")?.to_vec::<f32>()?;
/// kept.sort_by(f32::total_cmp);
/// assert_eq!(kept, [3.0, 4.0]);
/// # Ok::<(), windrow_replay::ReplayError>(())
/// ```
#[derive(Debug, Clone)]
pub struct MaxRewardWriter {
    key: NestedKey,
    reduction: Reduction,
    /// The values that are kept, the least first.
    kept: BinaryHeap<Kept>,
    /// Rows that lost their frames when they could not be written.
    free: Vec<u32>,
    /// Rows below this have had frames.
    end: u32,
}

/// A value and its row; ordered so that the least value, and of several the lowest row, is the
/// greatest.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Kept {
    value: f64,
    row: u32,
}

impl Eq for Kept {}

impl Ord for Kept {
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .value
            .total_cmp(&self.value)
            .then(other.row.cmp(&self.row))
    }
}

impl PartialOrd for Kept {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl MaxRewardWriter {
    /// Compares the entry `key`, a number a row or several.
    #[must_use]
    pub fn new(key: impl Into<NestedKey>) -> Self {
        Self {
            key: key.into(),
            reduction: Reduction::default(),
            kept: BinaryHeap::new(),
            free: Vec::new(),
            end: 0,
        }
    }

    /// How several values of one row make one: by default their sum.
    #[must_use]
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// The value of each of `rows`; all rows are kept.
    fn values_of(&self, rows: &[u32]) -> Vec<f64> {
        let mut values = vec![0.0; self.end as usize];
        for kept in &self.kept {
            values[kept.row as usize] = kept.value;
        }
        rows.iter().map(|&row| values[row as usize]).collect()
    }

    /// The value of every frame, NaN below all others.
    ///
    /// # Errors
    /// When the entry is missing.
    fn values(&self, frames: &TensorDict) -> Result<Vec<f64>, ReplayError> {
        let mut values = self.reduction.of_each(frames, &self.key)?;
        values.iter_mut().for_each(|value| *value = rank(*value));
        Ok(values)
    }

    /// Chooses the frames to be kept by their `values`; returns the rows to be written, each with
    /// its frame.
    fn place_values(&mut self, values: &[f64], capacity: usize) -> BTreeMap<u32, usize> {
        let mut placed = BTreeMap::new();
        for (frame, &value) in values.iter().enumerate() {
            let row = if let Some(row) = self.free.pop() {
                row
            } else if (self.end as usize) < capacity {
                self.end += 1;
                self.end - 1
            } else if let Some(least) = self.kept.peek().filter(|least| value > least.value) {
                let row = least.row;
                self.kept.pop();
                row
            } else {
                continue;
            };
            self.kept.push(Kept { value, row });
            placed.insert(row, frame);
        }
        placed
    }

    /// Loads the values of `rows`, which all hold frames.
    fn restore(&mut self, rows: &[u32], values: &[f64]) {
        self.cleared();
        self.end = rows.iter().map(|row| row + 1).max().unwrap_or(0);
        let pairs = rows.iter().zip(values);
        self.kept.extend(pairs.map(|(&row, &value)| Kept {
            value: rank(value),
            row,
        }));
        let mut full = vec![false; self.end as usize];
        rows.iter().for_each(|&row| full[row as usize] = true);
        self.free = (0..self.end).filter(|&row| !full[row as usize]).collect();
    }
}

impl Writer for MaxRewardWriter {
    fn order(&self) -> RowOrder {
        RowOrder::Any
    }

    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        check_room::<u32>("the places by reward", capacity)
    }

    fn place(
        &mut self,
        frames: &TensorDict,
        rows: &RowSet,
    ) -> Result<BTreeMap<u32, usize>, ReplayError> {
        let values = self.values(frames)?;
        Ok(self.place_values(&values, rows.capacity()))
    }

    fn lost(&mut self, rows: &[u32]) {
        self.free.extend(rows);
        let free = &self.free;
        self.kept.retain(|kept| !free.contains(&kept.row));
    }

    fn cleared(&mut self) {
        self.kept.clear();
        self.free.clear();
        self.end = 0;
    }

    fn keys(&self) -> Vec<NestedKey> {
        vec![self.key.clone()]
    }

    fn found(&mut self, rows: &[u32], frames: &TensorDict) -> Result<(), ReplayError> {
        let values = self.values(frames)?;
        self.restore(rows, &values);
        Ok(())
    }

    fn state_dict(&self, rows: &[u32]) -> Result<TensorDict, ReplayError> {
        let values = self.values_of(rows);
        let mut state = TensorDict::new([]);
        state.set("values", Tensor::from_slice(&values, [values.len()])?)?;
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &TensorDict, rows: &[u32]) -> Result<(), ReplayError> {
        let values = state.as_slice("values")?;
        if values.len() != rows.len() {
            return Err(sizes("values", rows.len(), values.len()).into());
        }
        self.restore(rows, values);
        Ok(())
    }
}

/// A value as it is compared: NaN is below all numbers.
fn rank(value: f64) -> f64 {
    if value.is_nan() {
        f64::NEG_INFINITY
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Reduction; 5] = [
        Reduction::Sum,
        Reduction::Mean,
        Reduction::Max,
        Reduction::Min,
        Reduction::Median,
    ];

    fn frames(values: &[f64], each: usize) -> TensorDict {
        let rows = values.len() / each;
        let mut frames = TensorDict::new([rows]);
        let values = Tensor::from_slice(values, [rows, each]).unwrap();
        frames.set("score", values).unwrap();
        frames
    }

    /// The values that are kept of those that are offered one after another.
    fn kept(capacity: usize, offered: &[f64]) -> Vec<f64> {
        let mut writer = MaxRewardWriter::new("score");
        for value in offered {
            let values = writer.values(&frames(&[*value], 1)).unwrap();
            writer.place_values(&values, capacity);
        }
        let mut kept: Vec<f64> = writer.kept.iter().map(|kept| kept.value).collect();
        kept.sort_by(f64::total_cmp);
        kept
    }

    #[test]
    fn nan_takes_the_place_of_no_number_and_gives_way_to_any() {
        for nan in [f64::NAN, -f64::NAN] {
            assert_eq!(kept(2, &[-1e300, 5.0, nan, nan]), [-1e300, 5.0]);
            assert_eq!(kept(2, &[nan, nan, -1e300, 5.0]), [-1e300, 5.0]);
            assert_eq!(
                kept(2, &[f64::NEG_INFINITY, 5.0, nan]),
                [f64::NEG_INFINITY, 5.0]
            );
            assert_eq!(kept(2, &[f64::INFINITY, nan, 1.0]), [1.0, f64::INFINITY]);
        }
    }

    #[test]
    fn one_nan_among_several_values_makes_nan_whichever_way_they_are_reduced() {
        for reduction in ALL {
            let writer = MaxRewardWriter::new("score").reduction(reduction);
            let frames = frames(&[1.0, f64::NAN, 9.0, 2.0, 3.0, 4.0], 3);
            let values = writer.values(&frames).unwrap();
            assert_eq!(values[0], f64::NEG_INFINITY, "{reduction:?}");
            assert!(values[1].is_finite());
        }
    }

    #[test]
    fn nan_that_was_saved_gives_way_too() {
        let mut writer = MaxRewardWriter::new("score");
        writer.restore(&[0, 1], &[f64::NAN, 3.0]);
        assert_eq!(
            writer
                .place_values(&[1.0], 2)
                .keys()
                .copied()
                .collect::<Vec<u32>>(),
            [0]
        );
    }

    #[test]
    fn what_is_no_better_than_the_least_is_not_taken_and_the_least_gives_way_first() {
        assert_eq!(kept(3, &[2.0, 1.0, 3.0, 1.0, 2.0, 4.0]), [2.0, 3.0, 4.0]);
        let mut writer = MaxRewardWriter::new("score");
        writer.restore(&[0, 1, 2], &[1.0, 1.0, 2.0]);
        // Of several that are as good, the lowest row.
        let rows = |placed: BTreeMap<u32, usize>| placed.into_keys().collect::<Vec<u32>>();
        assert!(writer.place_values(&[1.0], 3).is_empty());
        assert_eq!(rows(writer.place_values(&[1.5], 3)), [0]);
    }
}
