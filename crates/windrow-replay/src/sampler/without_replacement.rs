use tensordict::{Tensor, TensorDict};

use super::{Draw, Frames, NoDraw, Sampler, check_batch};
use crate::rows::RowList;
use crate::{ReplayError, RowSpan, SampleRng, Shortage, StateError, check_room};

/// Draws every frame once in each pass over the buffer.
///
/// Frames that are written meanwhile take part in the pass, and those that are overwritten leave
/// it. The draw that leaves no frame ends the pass. No batch has a frame twice.
#[derive(Debug, Clone)]
pub struct SamplerWithoutReplacement {
    drop_last: bool,
    shuffle: bool,
    /// With `shuffle`: rows that this pass has still to draw.
    pending: RowList,
    /// Without `shuffle`: this pass has drawn the rows below this one.
    cursor: usize,
}

impl Default for SamplerWithoutReplacement {
    fn default() -> Self {
        Self::new()
    }
}

impl SamplerWithoutReplacement {
    /// In random order; the last batch of a pass may be short.
    #[must_use]
    pub fn new() -> Self {
        Self {
            drop_last: false,
            shuffle: true,
            pending: RowList::default(),
            cursor: 0,
        }
    }

    /// Whether a pass ends when the remaining frames do not fill a batch; otherwise that batch is
    /// short.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Whether the order is random; otherwise it is that of the rows.
    #[must_use]
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// Begins a pass over all frames.
    fn restart(&mut self, frames: &Frames<'_>) {
        self.cleared();
        if self.shuffle {
            (0..frames.len()).for_each(|at| self.pending.add(frames.row(at)));
        }
    }

    /// The next rows from the cursor on, and the cursor behind them.
    fn next_in_order(&self, batch_size: usize, frames: &Frames<'_>) -> (Vec<u32>, usize) {
        let mut cursor = self.cursor;
        let mut rows = Vec::with_capacity(batch_size.min(frames.len()));
        while rows.len() < batch_size && cursor < frames.end() {
            if frames.contains(cursor) {
                rows.push(cursor as u32);
            }
            cursor += 1;
        }
        (rows, cursor)
    }

    /// Whether this number of frames is too small for a batch.
    fn is_no_batch(&self, frames: usize, batch_size: usize) -> bool {
        frames == 0 || (self.drop_last && frames < batch_size)
    }

    fn draw_in_order(&mut self, batch_size: usize, frames: &Frames<'_>) -> Draw {
        let (mut rows, mut cursor) = self.next_in_order(batch_size, frames);
        if self.is_no_batch(rows.len(), batch_size) {
            self.cursor = 0;
            (rows, cursor) = self.next_in_order(batch_size, frames);
        }
        self.cursor = cursor;
        let left = self.next_in_order(batch_size, frames).0.len();
        let ends_pass = self.is_no_batch(left, batch_size);
        if ends_pass {
            self.cursor = 0;
        }
        Draw {
            ends_pass,
            ..Draw::of(rows)
        }
    }

    fn draw_shuffled(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        rng: &mut SampleRng,
    ) -> Draw {
        if self.is_no_batch(self.pending.len(), batch_size) {
            self.restart(frames);
        }
        let count = batch_size.min(self.pending.len());
        let rows = (0..count)
            .map(|_| self.pending.take(rng.below(self.pending.len())))
            .collect();
        let ends_pass = self.is_no_batch(self.pending.len(), batch_size);
        if ends_pass {
            self.restart(frames);
        }
        Draw {
            ends_pass,
            ..Draw::of(rows)
        }
    }
}

impl Sampler for SamplerWithoutReplacement {
    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        check_room::<u32>("the places in a pass", capacity)?;
        self.pending = RowList::new(capacity);
        Ok(())
    }

    fn written(&mut self, rows: RowSpan, _: &Frames<'_>) {
        if self.shuffle {
            rows.rows().for_each(|row| self.pending.add(row));
        }
    }

    fn evicted(&mut self, rows: RowSpan, _: &Frames<'_>) {
        if self.shuffle {
            rows.rows().for_each(|row| self.pending.remove(row));
        }
    }

    fn cleared(&mut self) {
        self.pending.clear();
        self.cursor = 0;
    }

    fn draw(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        rng: &mut SampleRng,
    ) -> Result<Draw, NoDraw> {
        if frames.is_empty() {
            return Err(Shortage::Empty.into());
        }
        if self.drop_last && frames.len() < batch_size {
            check_batch(batch_size, self.pending.capacity())?;
            return Err(Shortage::Frames { needed: batch_size }.into());
        }
        Ok(if self.shuffle {
            self.draw_shuffled(batch_size, frames, rng)
        } else {
            self.draw_in_order(batch_size, frames)
        })
    }

    fn state_dict(&self) -> Result<TensorDict, ReplayError> {
        let pending = self.pending.rows().iter();
        let pending: Vec<i64> = pending.map(|&row| i64::from(row)).collect();
        let mut state = TensorDict::new([]);
        let len = pending.len();
        state.set("pending", Tensor::from_vec(pending, [len])?)?;
        state.set("cursor", Tensor::scalar(self.cursor as i64))?;
        Ok(state)
    }

    fn load_state_dict(
        &mut self,
        state: &TensorDict,
        frames: &Frames<'_>,
    ) -> Result<(), ReplayError> {
        let pending = state.as_slice::<i64>("pending")?;
        let cursor = state.get("cursor")?.item::<i64>()?;
        let is_gone = |row: &&i64| **row < 0 || !frames.contains(**row as usize);
        if let Some(&row) = pending.iter().find(is_gone) {
            return Err(StateError::NoFrame { row }.into());
        }
        self.cleared();
        pending
            .iter()
            .for_each(|&row| self.pending.add(row as usize));
        self.cursor = cursor.max(0) as usize;
        Ok(())
    }
}
