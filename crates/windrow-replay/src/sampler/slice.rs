use std::collections::VecDeque;

use tensordict::NestedKey;

use super::{Draw, Frames, NoDraw, Sampler, Slices};
use crate::{ReplayError, Run, RunKeys, Runs, SampleRng, Shortage};

/// Draws slices of trajectories, with replacement: first a trajectory, then the place in it where
/// the slice begins, both uniform.
///
/// A batch is flat: `num_slices` slices of `slice_len` frames, end to end; with slices of equal
/// length it can be seen as `[num_slices, slice_len]`. No slice crosses the end of an episode, a
/// change of the trajectory's id, a writer's row, or the place where the ring is being overwritten.
/// Writes update the list of trajectories that are long enough, so that a draw costs O(1).
///
/// ```
/// use windrow_replay::SliceSampler;
///
/// let sampler = SliceSampler::slice_len(32)
///     .end_key(("next", "done"))
///     .strict_length(false)
///     .pad_output(true);
/// ```
#[derive(Debug, Clone)]
pub struct SliceSampler {
    pub(super) rules: SliceRules,
    eligible: Eligible,
}

/// The properties of slices.
#[derive(Debug, Clone)]
pub(super) struct SliceRules {
    cut: Cut,
    pub(super) keys: RunKeys,
    strict_length: bool,
    pad_output: bool,
    span: [usize; 2],
    stride: usize,
    burn_in: usize,
    truncated_key: Option<NestedKey>,
}

/// A slice of a trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Number of its first frame.
    pub(super) first: u64,
    pub(super) frames: usize,
    /// Frames that it lacks because it would begin before its trajectory.
    pub(super) missing: usize,
}

/// How a batch is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Len(usize),
    Num(usize),
}

impl SliceSampler {
    /// As [`span`](Self::span): all frames of a slice but one.
    pub const WHOLE: usize = usize::MAX;

    /// Slices of `slice_len` frames each, as many as fill the batch.
    #[must_use]
    pub fn slice_len(slice_len: usize) -> Self {
        Self::cut(Cut::Len(slice_len))
    }

    /// `num_slices` slices, as long as fills the batch.
    #[must_use]
    pub fn num_slices(num_slices: usize) -> Self {
        Self::cut(Cut::Num(num_slices))
    }

    fn cut(cut: Cut) -> Self {
        let rules = SliceRules {
            cut,
            keys: RunKeys::default(),
            strict_length: true,
            pad_output: false,
            span: [0, 0],
            stride: 1,
            burn_in: 0,
            truncated_key: Some(("next", "truncated").into()),
        };
        Self {
            rules,
            eligible: Eligible::default(),
        }
    }

    /// The flag that is set with the last frame of an episode. When not given: `("next", "done")`.
    #[must_use]
    pub fn end_key(mut self, key: impl Into<NestedKey>) -> Self {
        self.rules.keys.end_key = Some(key.into());
        self
    }

    /// The id that is the same in all frames of a trajectory. When not given:
    /// `("collector", "traj_ids")` or, where that is missing, `"episode"`. Where frames have ends
    /// and ids, either separates trajectories.
    #[must_use]
    pub fn traj_key(mut self, key: impl Into<NestedKey>) -> Self {
        self.rules.keys.traj_key = Some(key.into());
        self
    }

    /// Whether only trajectories as long as a slice are drawn from; otherwise shorter ones come
    /// whole, and the batch is shorter. `true` when not set.
    #[must_use]
    pub fn strict_length(mut self, strict_length: bool) -> Self {
        self.rules.strict_length = strict_length;
        self
    }

    /// Whether short slices are filled up by repeating their last frame; `("collector", "mask")` is
    /// then false for the repetitions. Needs `strict_length(false)`.
    #[must_use]
    pub fn pad_output(mut self, pad_output: bool) -> Self {
        self.rules.pad_output = pad_output;
        self
    }

    /// How many steps a slice may begin before its trajectory, and end behind it: such slices are
    /// shorter by what lies outside. Fewer than a slice has, or [`WHOLE`](Self::WHOLE).
    #[must_use]
    pub fn span(mut self, left: usize, right: usize) -> Self {
        self.rules.span = [left, right];
        self
    }

    /// Steps from one place where a slice may begin to the next, counted from the oldest frame that
    /// is left of the trajectory or, with a [`span`](Self::span), from as many steps before it. 1
    /// when not set.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Self {
        self.rules.stride = stride;
        self
    }

    /// How many frames each slice begins with that only warm up the state of a recurrent policy:
    /// `("collector", "burn_in")` is then true for them. Where a slice begins before its
    /// trajectory, those count that lie before. So a span of as many steps to the left lets the
    /// first frames of trajectories be learned from, too.
    #[must_use]
    pub fn burn_in(mut self, burn_in: usize) -> Self {
        self.rules.burn_in = burn_in;
        self
    }

    /// The flag that is set with the last frame of every slice, `("next", "truncated")` when not
    /// given; its neighbour `"done"` is set too. With `None`, flags stay as they are.
    #[must_use]
    pub fn truncated_key(mut self, key: Option<NestedKey>) -> Self {
        self.rules.truncated_key = key;
        self
    }
}

impl SliceRules {
    pub(super) fn check(&self, capacity: usize) -> Result<(), ReplayError> {
        if let Cut::Len(len) = self.cut {
            self.check_room(len, capacity)?;
        }
        let argument = |name, expected: &str, got: String| {
            let expected = expected.to_owned();
            Err(ReplayError::Argument {
                name,
                expected,
                got,
            })
        };
        if self.pad_output && self.strict_length {
            let expected = "strict_length(false) with it: strict slices are never short";
            return argument("pad_output", expected, "true".to_owned());
        }
        match self.cut {
            Cut::Len(0) => argument("slice_len", "at least 1", "0".to_owned()),
            Cut::Num(0) => argument("num_slices", "at least 1", "0".to_owned()),
            _ if self.stride == 0 => argument("stride", "at least 1", "0".to_owned()),
            Cut::Len(len) => self.check_len(len),
            Cut::Num(_) => Ok(()),
        }
    }

    /// Checks that a buffer of `capacity` frames can hold a trajectory that slices of `len` are
    /// drawn from.
    fn check_room(&self, len: usize, capacity: usize) -> Result<(), ReplayError> {
        if self.least(len) <= capacity {
            return Ok(());
        }
        Err(ReplayError::Argument {
            name: "slice_len",
            expected: format!("at most {capacity} frames, which the buffer has room for"),
            got: len.to_string(),
        })
    }

    /// Checks what must be shorter than a slice.
    fn check_len(&self, len: usize) -> Result<(), ReplayError> {
        if self.burn_in >= len {
            return Err(ReplayError::Argument {
                name: "burn_in",
                expected: format!("fewer frames than the {len} of a slice"),
                got: self.burn_in.to_string(),
            });
        }
        for side in self.span {
            if side >= len && side != SliceSampler::WHOLE {
                return Err(ReplayError::Argument {
                    name: "span",
                    expected: format!("fewer steps than the {len} of a slice"),
                    got: side.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Number and length of the slices of a batch.
    pub(super) fn of_batch(&self, batch_size: usize) -> Result<(usize, usize), ReplayError> {
        let (name, divisor) = match self.cut {
            Cut::Len(len) => ("slice_len", len),
            Cut::Num(num) => ("num_slices", num),
        };
        if batch_size == 0 || !batch_size.is_multiple_of(divisor) {
            let below = (batch_size / divisor).max(1) * divisor;
            return Err(ReplayError::BatchSize {
                name,
                divisor,
                got: batch_size,
                below,
                above: (batch_size / divisor + 1) * divisor,
            });
        }
        let other = batch_size / divisor;
        match self.cut {
            Cut::Len(len) => Ok((other, len)),
            Cut::Num(num) => {
                self.check_len(other)?;
                Ok((num, other))
            }
        }
    }

    /// Frames that a trajectory must have to be drawn from, for slices of `len`.
    pub(super) fn least(&self, len: usize) -> usize {
        if self.strict_length { len } else { 1 }
    }

    /// Steps that a slice of `len` may begin before and end behind its trajectory.
    pub(super) fn reach(&self, len: usize) -> [usize; 2] {
        self.span.map(|side| side.min(len - 1))
    }

    /// How many steps a slice may begin before its trajectory, if any.
    pub(super) fn left_span(&self) -> Option<String> {
        match self.span[0] {
            0 => None,
            SliceSampler::WHOLE => Some("all but one".to_owned()),
            steps => Some(steps.to_string()),
        }
    }

    /// Steps from one place where a slice may begin to the next.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// A slice of `len` frames of `run`.
    pub(super) fn piece(&self, run: Run, len: usize, rng: &mut SampleRng) -> Piece {
        let [left, right] = self.reach(len);
        let len = len.min(run.len);
        let (left, right) = (left.min(len - 1), right.min(len - 1));
        // Counted from the first possible start, which lies `left` steps before the trajectory.
        let last = left + run.len - len + right;
        let start = self.stride * rng.below(last / self.stride + 1);
        let end = (start + len - left).min(run.len);
        let (missing, start) = (left.saturating_sub(start), start.saturating_sub(left));
        Piece {
            first: run.first + start as u64,
            frames: end - start,
            missing,
        }
    }

    pub(super) fn shortage(&self, len: usize, runs: &Runs) -> NoDraw {
        if let Err(error) = self.check_room(len, runs.capacity()) {
            return error.into();
        }
        if runs.is_empty() {
            return Shortage::Empty.into();
        }
        let (needed, longest) = (self.least(len), runs.longest());
        Shortage::SliceLen { needed, longest }.into()
    }

    /// The batch of the slices `pieces`.
    pub(super) fn draw(&self, len: usize, runs: &Runs, pieces: &[Piece]) -> Draw {
        let padded = self.pad_output.then_some(len);
        let mut rows = Vec::with_capacity(pieces.len() * len);
        for &Piece { first, frames, .. } in pieces {
            let start = rows.len();
            rows.extend((first..first + frames as u64).map(|frame| runs.row(frame) as u32));
            if let Some(padded) = padded
                && let Some(&last) = rows.last()
            {
                rows.resize(start + padded, last);
            }
        }
        let burn_in = |piece: &Piece| {
            let left = self.burn_in.saturating_sub(piece.missing);
            left.min(piece.frames)
        };
        let with_burn_in = if self.burn_in > 0 { pieces } else { &[] };
        Draw {
            slices: Some(Slices {
                lens: pieces.iter().map(|piece| piece.frames).collect(),
                padded,
                burn_in: with_burn_in.iter().map(burn_in).collect(),
                truncated_key: self.truncated_key.clone(),
            }),
            ..Draw::of(rows)
        }
    }
}

impl Sampler for SliceSampler {
    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        self.rules.check(capacity)
    }

    fn run_keys(&self) -> Option<&RunKeys> {
        Some(&self.rules.keys)
    }

    fn draw(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        rng: &mut SampleRng,
    ) -> Result<Draw, NoDraw> {
        let (num, len) = self.rules.of_batch(batch_size)?;
        let Some(runs) = frames.runs() else {
            return Err(Shortage::Empty.into());
        };
        self.eligible.update(self.rules.least(len), runs);
        let count = self.eligible.low.len();
        if count == 0 {
            return Err(self.rules.shortage(len, runs));
        }
        let pieces: Vec<Piece> = (0..num)
            .filter_map(|_| {
                let run = runs.get(self.eligible.number(rng.below(count)))?;
                Some(self.rules.piece(run, len, rng))
            })
            .collect();
        Ok(self.rules.draw(len, runs, &pieces))
    }
}

/// Numbers of the runs of at least `least` frames, in order.
///
/// Each run is classified once: only the newest can still grow, and only the oldest can shrink.
#[derive(Debug, Clone, Default)]
struct Eligible {
    least: usize,
    /// The low 32 bits of their numbers. These identify them, since there are at most as many runs
    /// as rows.
    low: VecDeque<u32>,
    /// The whole number of the first of them.
    first: u64,
    /// The first run that may still become long enough.
    next: u64,
}

impl Eligible {
    /// The number at place `at`.
    fn number(&self, at: usize) -> u64 {
        self.first + u64::from(self.low[at].wrapping_sub(self.first as u32))
    }

    fn update(&mut self, least: usize, runs: &Runs) {
        let present = runs.numbers();
        if self.least != least {
            *self = Self {
                least,
                next: present.start,
                ..Self::default()
            };
        }
        while !self.low.is_empty() && runs.get(self.first).is_none_or(|run| run.len < least) {
            // The only run there is can shrink and grow again.
            if self.first + 1 == present.end {
                self.next = self.first;
            }
            if self.low.len() > 1 {
                self.first = self.number(1);
            }
            self.low.pop_front();
        }
        self.next = self.next.max(present.start);
        while let Some(run) = runs.get(self.next) {
            if run.len >= least {
                if self.low.is_empty() {
                    self.first = self.next;
                }
                if self.low.len() == self.low.capacity() {
                    // By an eighth, as the list of runs grows: doubling would waste memory.
                    self.low.reserve_exact((self.low.len() / 8).max(16));
                }
                self.low.push_back(self.next as u32);
            } else if self.next + 1 == present.end {
                break;
            }
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Eligible, SliceSampler};
    use crate::SampleRng;
    use crate::episode_ends::EpisodeMarks;
    use crate::runs::Runs;

    fn numbers(eligible: &Eligible) -> Vec<u64> {
        let places = 0..eligible.low.len();
        places.map(|at| eligible.number(at)).collect()
    }

    #[test]
    fn slices_begin_a_stride_apart_and_those_before_their_trajectory_warm_up_less() {
        let mut runs = Runs::new(20);
        runs.push_marked(&EpisodeMarks::of(None, Some(&[3; 11])));
        let run = runs.get(0).expect("a run");
        let rules = SliceSampler::slice_len(4)
            .stride(3)
            .span(2, 0)
            .burn_in(2)
            .rules;
        let mut rng = SampleRng::new(0);
        let mut drawn: Vec<_> = (0..100).map(|_| rules.piece(run, 4, &mut rng)).collect();
        drawn.sort_by_key(|piece| piece.first);
        drawn.dedup();
        let found: Vec<_> = drawn
            .iter()
            .map(|piece| (piece.first, piece.frames))
            .collect();
        // From two steps before the first frame on.
        assert_eq!(found, [(0, 2), (1, 4), (4, 4), (7, 4)]);
        let slices = rules.draw(4, &runs, &drawn).slices.expect("slices");
        assert_eq!(slices.burn_in, [0, 2, 2, 2]);
    }

    #[test]
    fn the_only_run_can_shrink_and_grow_again() {
        let frames =
            |count: usize| EpisodeMarks::of(Some(&vec![false; count]), Some(&vec![1; count]));
        let mut runs = Runs::new(10);
        let mut eligible = Eligible::default();
        runs.push_marked(&frames(10));
        eligible.update(8, &runs);
        assert_eq!(numbers(&eligible), [0]);
        // Six frames are being overwritten, and somebody draws meanwhile.
        runs.evict(6);
        eligible.update(8, &runs);
        assert!(numbers(&eligible).is_empty());
        runs.push_marked(&frames(6));
        eligible.update(8, &runs);
        assert_eq!(numbers(&eligible), [0]);
    }

    #[test]
    fn another_length_is_looked_for_from_the_start() {
        let mut runs = Runs::new(20);
        runs.push_marked(&EpisodeMarks::of(None, Some(&[1, 1, 1, 2, 2, 3, 3, 3, 3])));
        let mut eligible = Eligible::default();
        for (least, expected) in [(3, vec![0, 2]), (1, vec![0, 1, 2]), (5, vec![])] {
            eligible.update(least, &runs);
            assert_eq!(numbers(&eligible), expected);
        }
        runs.clear();
        runs.push_marked(&EpisodeMarks::of(None, Some(&[7, 7, 7, 7, 7])));
        eligible.update(5, &runs);
        assert_eq!(numbers(&eligible), [3]);
    }

    #[test]
    fn numbers_of_more_than_32_bits_are_told_apart() {
        let mut runs = Runs::new(6);
        runs.begin_at((1 << 32) - 3);
        let mut eligible = Eligible::default();
        for id in 0..50 {
            runs.evict(usize::from(id >= 3) * 2);
            runs.push_marked(&EpisodeMarks::of(None, Some(&[id, id])));
            if id % 7 == 0 {
                eligible.update(2, &runs);
                assert_eq!(numbers(&eligible), runs.numbers().collect::<Vec<_>>());
            }
        }
        assert!(runs.numbers().start > 1 << 32);
    }
}
