//! Numbers of frames, which distinguish the frames that a row has held: the priority of one frame
//! must not go to another.

use tensordict::{Tensor, TensorDict};

use crate::saved::{number, sizes};
use crate::{ReplayError, RowSpan};

/// Numbers the frames of a buffer whose sampler has priorities.
///
/// A learner sets priorities of frames that it has sampled before, and a collector may have
/// overwritten these frames since. So a sample carries the numbers of its frames
/// (`"index_generation"`). If a caller passes only rows, each stands for the frame that was drawn
/// from it last.
#[derive(Debug, Clone)]
pub(crate) struct Generations {
    /// The number of the next frame. It never decreases, so that no two frames share a number.
    next: i64,
    /// By row: the number of its frame, or of the last frame that it held.
    of: Vec<i64>,
    drawn: Vec<LastDraw>,
}

/// The frame that was drawn last from a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastDraw {
    /// No frame was drawn: a priority can only mean the present one.
    Never,
    /// The frame that the row holds.
    Present,
    /// A frame that was overwritten or removed.
    Earlier,
}

impl Generations {
    /// The numbers of `capacity` rows without frames.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            next: 0,
            of: vec![0; capacity],
            drawn: vec![LastDraw::Never; capacity],
        }
    }

    /// Notes that a new frame was written to each row of `rows`.
    pub(crate) fn written(&mut self, rows: RowSpan) {
        for row in rows.rows() {
            self.of[row] = self.next;
            self.next += 1;
            if self.drawn[row] == LastDraw::Present {
                self.drawn[row] = LastDraw::Earlier;
            }
        }
    }

    /// The numbers of the frames in `rows`.
    pub(crate) fn of(&self, rows: &[u32]) -> Vec<i64> {
        rows.iter().map(|&row| self.of[row as usize]).collect()
    }

    /// Notes that the frames `numbers` are passed to a caller. They were in `rows` when they were
    /// drawn.
    pub(crate) fn hand_out(&mut self, rows: impl IntoIterator<Item = usize>, numbers: &[i64]) {
        for (row, &number) in rows.into_iter().zip(numbers) {
            if let Some(drawn) = self.drawn.get_mut(row) {
                *drawn = if self.of[row] == number {
                    LastDraw::Present
                } else {
                    LastDraw::Earlier
                };
            }
        }
    }

    /// `rows`, with -1 in place of each row that no longer holds its frame: that of `numbers` or,
    /// without these, the frame that was drawn last.
    pub(crate) fn rows_still_held(&self, rows: &[i64], numbers: Option<&[i64]>) -> Vec<i64> {
        let holds = |at: usize, row: usize| match numbers {
            Some(numbers) => self.of.get(row) == Some(&numbers[at]),
            None => self.drawn.get(row) != Some(&LastDraw::Earlier),
        };
        let checked = |(at, &row): (usize, &i64)| match usize::try_from(row) {
            Ok(index) if holds(at, index) => row,
            _ => -1,
        };
        rows.iter().enumerate().map(checked).collect()
    }

    /// These numbers, of a state, for a buffer that has had `earlier` until now. If that buffer has
    /// held frames, all rows get new numbers: a sample from before the load may mean other frames,
    /// and the state may be that of another buffer, which has counted from 0 as well.
    pub(crate) fn after(mut self, earlier: &Self) -> Self {
        if earlier.next == 0 {
            return self;
        }
        self.next = self.next.max(earlier.next);
        for (row, number) in self.of.iter_mut().enumerate() {
            *number = self.next;
            self.next += 1;
            if earlier.drawn[row] != LastDraw::Never {
                self.drawn[row] = LastDraw::Earlier;
            }
        }
        self
    }

    /// The numbers as tensors, for a file.
    ///
    /// # Errors
    /// When tensors cannot be made.
    pub(crate) fn to_dict(&self) -> Result<TensorDict, ReplayError> {
        let len = self.of.len();
        let drawn = self.drawn.iter().map(|&drawn| drawn as u8).collect();
        let mut dict = TensorDict::new([]);
        dict.set("next", Tensor::scalar(self.next))?;
        dict.set("of", Tensor::from_slice(&self.of, [len])?)?;
        dict.set("drawn", Tensor::from_vec::<u8>(drawn, [len])?)?;
        Ok(dict)
    }

    /// Reads the numbers of `capacity` rows from the tensors of a file.
    ///
    /// # Errors
    /// [`ReplayError::State`] when the tensors are another buffer's or damaged,
    /// [`ReplayError::Tensor`] when an entry is missing or of another kind.
    pub(crate) fn parse(dict: &TensorDict, capacity: usize) -> Result<Self, ReplayError> {
        let next = dict.get("next")?.item::<i64>()?;
        number("number of a frame", next, 0, i64::MAX / 2)?;
        let of = dict.as_slice::<i64>("of")?.to_vec();
        let drawn = dict.as_slice::<u8>("drawn")?;
        if let Some(got) = [of.len(), drawn.len()]
            .into_iter()
            .find(|&got| got != capacity)
        {
            return Err(sizes("numbers of frames", capacity, got).into());
        }
        let drawn = drawn.iter().map(|drawn| match drawn {
            0 => LastDraw::Never,
            1 => LastDraw::Present,
            _ => LastDraw::Earlier,
        });
        let drawn = drawn.collect();
        Ok(Self { next, of, drawn })
    }
}

#[cfg(test)]
mod tests {
    use super::Generations;
    use crate::RowSpan;

    #[test]
    fn a_row_stands_for_the_frame_that_was_drawn_last() {
        let mut frames = Generations::new(3);
        frames.written(RowSpan::new(0, 3, 3));
        let first = frames.of(&[0, 1]);
        frames.hand_out([0, 1], &first);
        frames.written(RowSpan::new(0, 1, 3));
        assert_eq!(
            frames.rows_still_held(&[0, 1, 2, -1, 9], None)[..3],
            [-1, 1, 2]
        );
        let second = frames.of(&[0]);
        frames.hand_out([0], &second);
        assert_eq!(frames.rows_still_held(&[0], None), [0]);
    }

    #[test]
    fn a_number_stands_for_one_frame_alone() {
        let mut frames = Generations::new(2);
        frames.written(RowSpan::new(0, 2, 2));
        let first = frames.of(&[0, 1]);
        frames.written(RowSpan::new(0, 1, 2));
        assert_eq!(
            frames.rows_still_held(&[0, 1, 1], Some(&[first[0], first[1], first[0]])),
            [-1, 1, -1]
        );
        assert_eq!(frames.rows_still_held(&[0], Some(&frames.of(&[0]))), [0]);
    }

    #[test]
    fn frames_that_are_handed_out_late_count_as_overwritten() {
        let mut frames = Generations::new(1);
        frames.written(RowSpan::new(0, 1, 1));
        let ahead = frames.of(&[0]);
        frames.written(RowSpan::new(0, 1, 1));
        frames.hand_out([0], &ahead);
        assert_eq!(frames.rows_still_held(&[0], None), [-1]);
    }
}
