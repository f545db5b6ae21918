use std::collections::HashMap;

use tensordict::{Tensor, TensorDict};

use super::{Draw, Frames, NoDraw, Sampler};
use crate::saved::sizes;
use crate::{ReplayError, RowOrder, RowSpan, SampleRng, Shortage, check_room};

/// Draws every frame with the same probability and a limited number of times: the buffer then drops
/// the frame, and its row is free. No batch has a frame twice, and one that is larger than the
/// buffer is short. Needs a [`ReuseWriter`](crate::ReuseWriter).
///
/// ```
/// use tensordict::{Tensor, TensorDict};
/// use windrow_replay::{ConsumingSampler, ReplayBuffer, ReuseWriter};
///
/// let buffer = ReplayBuffer::builder()
///     .sampler(ConsumingSampler::new(1))
///     .writer(ReuseWriter::new())
///     .build()?;
/// let mut frames = TensorDict::new([5]);
/// frames.set("t", Tensor::arange(0..5)?)?;
/// buffer.extend(&frames)?;
/// assert_eq!(buffer.sample(3)?.numel(), 3);
/// assert_eq!(buffer.len(), 2);
/// # Ok::<(), windrow_replay::ReplayError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ConsumingSampler {
    times: u32,
    /// How often the frame in each row was drawn.
    drawn: Vec<u32>,
}

impl ConsumingSampler {
    /// Each frame is drawn `times` times.
    #[must_use]
    pub fn new(times: u32) -> Self {
        Self {
            times,
            drawn: Vec::new(),
        }
    }
}

impl Sampler for ConsumingSampler {
    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        if self.times == 0 {
            return Err(ReplayError::Argument {
                name: "times",
                expected: "at least 1".to_owned(),
                got: "0".to_owned(),
            });
        }
        check_room::<u32>("the counts of draws", capacity)?;
        self.drawn = vec![0; capacity];
        Ok(())
    }

    fn order(&self) -> Option<RowOrder> {
        Some(RowOrder::Any)
    }

    fn written(&mut self, rows: RowSpan, _: &Frames<'_>) {
        rows.rows().for_each(|row| self.drawn[row] = 0);
    }

    fn draw(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        rng: &mut SampleRng,
    ) -> Result<Draw, NoDraw> {
        let len = frames.len();
        if len == 0 {
            return Err(Shortage::Empty.into());
        }
        // The first places of a shuffled list of all. Only places that have moved are stored.
        let mut moved: HashMap<usize, usize> = HashMap::new();
        let mut draw = Draw::of(Vec::with_capacity(batch_size.min(len)));
        for first in 0..batch_size.min(len) {
            let other = first + rng.below(len - first);
            let place = moved.get(&other).copied().unwrap_or(other);
            moved.insert(other, moved.get(&first).copied().unwrap_or(first));
            draw.rows.push(frames.row(place) as u32);
        }
        for &row in &draw.rows {
            let drawn = &mut self.drawn[row as usize];
            *drawn += 1;
            if *drawn >= self.times {
                draw.spent.push(row);
            }
        }
        draw.ends_pass = draw.spent.len() == len;
        Ok(draw)
    }

    fn state_dict(&self) -> Result<TensorDict, ReplayError> {
        let drawn: Vec<i64> = self.drawn.iter().map(|&count| i64::from(count)).collect();
        let mut state = TensorDict::new([]);
        let len = drawn.len();
        state.set("drawn", Tensor::from_vec(drawn, [len])?)?;
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &TensorDict, _: &Frames<'_>) -> Result<(), ReplayError> {
        let drawn = state.as_slice::<i64>("drawn")?;
        if drawn.len() != self.drawn.len() {
            return Err(sizes("counts of draws", self.drawn.len(), drawn.len()).into());
        }
        let least = i64::from(self.times) - 1;
        self.drawn = (drawn.iter())
            .map(|&count| count.clamp(0, least) as u32)
            .collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RandomSampler, ReplayBuffer, ReuseWriter};

    fn buffer(times: u32, capacity: usize) -> ReplayBuffer {
        ReplayBuffer::builder()
            .storage(crate::LazyTensorStorage::new(capacity))
            .sampler(ConsumingSampler::new(times))
            .writer(ReuseWriter::new())
            .seed(1)
            .build()
            .unwrap()
    }

    fn frames(numbers: std::ops::Range<i64>) -> TensorDict {
        let mut frames = TensorDict::new([(numbers.end - numbers.start) as usize]);
        frames.set("t", Tensor::arange(numbers).unwrap()).unwrap();
        frames
    }

    fn drawn(buffer: &ReplayBuffer, count: usize) -> Vec<i64> {
        buffer
            .sample(count)
            .unwrap()
            .as_slice("t")
            .unwrap()
            .to_vec()
    }

    #[test]
    fn every_frame_is_drawn_as_often_as_asked_and_then_dropped() {
        let buffer = buffer(2, 10);
        buffer.extend(&frames(0..6)).unwrap();
        let mut all = Vec::new();
        while !buffer.ran_out() {
            all.extend(drawn(&buffer, 3));
        }
        assert!(buffer.is_empty());
        all.sort_unstable();
        assert_eq!(all, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
        assert!(buffer.sample(1).is_err());
    }

    #[test]
    fn rows_that_were_used_up_are_written_before_others_lose_their_frames() {
        let buffer = buffer(1, 4);
        buffer.extend(&frames(0..4)).unwrap();
        let gone = drawn(&buffer, 2);
        buffer.extend(&frames(4..6)).unwrap();
        let mut left = drawn(&buffer, 9);
        left.sort_unstable();
        let mut expected: Vec<i64> = (0..6).filter(|t| !gone.contains(t)).collect();
        expected.sort_unstable();
        assert_eq!(left, expected);
    }

    #[test]
    fn without_free_rows_the_oldest_frames_go() {
        let buffer = buffer(1, 3);
        for first in 0..3 {
            buffer.extend(&frames(2 * first..2 * first + 2)).unwrap();
        }
        let mut left = buffer.all().unwrap().as_slice::<i64>("t").unwrap().to_vec();
        left.sort_unstable();
        assert_eq!(left, [3, 4, 5]);
        buffer.extend(&frames(10..17)).unwrap();
        let mut left = drawn(&buffer, 3);
        left.sort_unstable();
        assert_eq!(left, [14, 15, 16]);
    }

    #[test]
    fn a_saved_state_goes_on_with_the_same_counts_and_order() {
        let (first, second) = (buffer(2, 4), buffer(2, 4));
        first.extend(&frames(0..4)).unwrap();
        drawn(&first, 3);
        second
            .load_state_dict(&first.state_dict().unwrap())
            .unwrap();
        for buffer in [&first, &second] {
            buffer.extend(&frames(4..5)).unwrap();
        }
        assert_eq!(drawn(&first, 4), drawn(&second, 4));
        assert_eq!(first.len(), second.len());
    }

    #[test]
    fn a_writer_in_a_ring_does_not_suit() {
        let build = |writer: Box<dyn crate::Writer>| {
            let builder = ReplayBuffer::builder().sampler(ConsumingSampler::new(1));
            builder.writer(writer).build()
        };
        let error = build(crate::RoundRobinWriter::new().into()).unwrap_err();
        assert!(error.to_string().contains("writer"), "{error}");
        build(ReuseWriter::new().into()).unwrap();
        let buffer = ReplayBuffer::builder()
            .sampler(RandomSampler::new())
            .build();
        assert!(
            buffer
                .unwrap()
                .set_sampler(ConsumingSampler::new(1))
                .is_err()
        );
    }
}
