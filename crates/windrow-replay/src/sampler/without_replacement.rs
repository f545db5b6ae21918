use tensordict::{Tensor, TensorDict};

use super::{Draw, Frames, NoDraw, Sampler, check_batch};
use crate::{ReplayError, RowSpan, SampleRng, Shortage, StateError, check_room};

const NOWHERE: u32 = u32::MAX;

/// Draws every frame once in each pass over the buffer.
///
/// Frames that are written meanwhile take part in the pass, and those that are overwritten leave
/// it. The draw that leaves no frame ends the pass. No batch has a frame twice.
#[derive(Debug, Clone)]
pub struct SamplerWithoutReplacement {
    drop_last: bool,
    shuffle: bool,
    /// Shuffled: rows that this pass has still to draw, in any order.
    pending: Vec<u32>,
    /// By row: its index in `pending`, if it is there.
    place: Vec<u32>,
    /// In order: rows below this were drawn in this pass.
    cursor: usize,
    /// Whether the last draw was the last of its pass.
    over: bool,
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
            pending: Vec::new(),
            place: Vec::new(),
            cursor: 0,
            over: false,
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

    fn add(&mut self, row: usize) {
        if self.place[row] == NOWHERE {
            self.place[row] = self.pending.len() as u32;
            self.pending.push(row as u32);
        }
    }

    fn take(&mut self, at: usize) -> u32 {
        let row = self.pending.swap_remove(at);
        self.place[row as usize] = NOWHERE;
        if let Some(&moved) = self.pending.get(at) {
            self.place[moved as usize] = at as u32;
        }
        row
    }

    /// Begins a pass over all frames.
    fn restart(&mut self, frames: &Frames<'_>) {
        self.cleared();
        if self.shuffle {
            (0..frames.len()).for_each(|at| self.add(frames.row(at)));
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

    fn draw_in_order(&mut self, batch_size: usize, frames: &Frames<'_>) -> Vec<u32> {
        let (mut rows, mut cursor) = self.next_in_order(batch_size, frames);
        if self.is_no_batch(rows.len(), batch_size) {
            self.cursor = 0;
            (rows, cursor) = self.next_in_order(batch_size, frames);
        }
        self.cursor = cursor;
        let left = self.next_in_order(batch_size, frames).0.len();
        self.over = self.is_no_batch(left, batch_size);
        if self.over {
            self.cursor = 0;
        }
        rows
    }

    fn draw_shuffled(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        rng: &mut SampleRng,
    ) -> Vec<u32> {
        if self.is_no_batch(self.pending.len(), batch_size) {
            self.restart(frames);
        }
        let count = batch_size.min(self.pending.len());
        let rows = (0..count)
            .map(|_| self.take(rng.below(self.pending.len())))
            .collect();
        self.over = self.is_no_batch(self.pending.len(), batch_size);
        if self.over {
            self.restart(frames);
        }
        rows
    }
}

impl Sampler for SamplerWithoutReplacement {
    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        check_room::<u32>("the places in a pass", capacity)?;
        self.place = vec![NOWHERE; capacity];
        Ok(())
    }

    fn written(&mut self, rows: RowSpan, _: &Frames<'_>) {
        if self.shuffle {
            rows.rows().for_each(|row| self.add(row));
        }
    }

    fn evicted(&mut self, rows: RowSpan, _: &Frames<'_>) {
        if self.shuffle {
            for row in rows.rows() {
                if self.place[row] != NOWHERE {
                    self.take(self.place[row] as usize);
                }
            }
        }
    }

    fn cleared(&mut self) {
        for row in self.pending.drain(..) {
            self.place[row as usize] = NOWHERE;
        }
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
            check_batch(batch_size, self.place.len())?;
            return Err(Shortage::Frames { needed: batch_size }.into());
        }
        let rows = if self.shuffle {
            self.draw_shuffled(batch_size, frames, rng)
        } else {
            self.draw_in_order(batch_size, frames)
        };
        Ok(Draw {
            rows,
            ..Draw::default()
        })
    }

    fn ran_out(&self) -> bool {
        self.over
    }

    fn state_dict(&self) -> Result<TensorDict, ReplayError> {
        let pending: Vec<i64> = self.pending.iter().map(|&row| i64::from(row)).collect();
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
        pending.iter().for_each(|&row| self.add(row as usize));
        self.cursor = cursor.max(0) as usize;
        Ok(())
    }
}
