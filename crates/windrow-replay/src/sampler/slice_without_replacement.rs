use std::collections::VecDeque;

use tensordict::{Tensor, TensorDict};

use super::slice::Piece;
use super::{Draw, Frames, NoDraw, Sampler, SliceSampler, check_batch};
use crate::saved::sizes;
use crate::{ReplayError, RowSpan, RunKeys, Runs, SampleRng, Shortage, StateError};

/// Pieces of trajectories, one of every trajectory in each pass over the buffer.
///
/// Slices are those of a [`SliceSampler`]: where in its trajectory a slice begins is random, and
/// with `strict_length` only trajectories as long as a slice take part. Frames written meanwhile
/// take part in a pass, and overwritten ones leave it; the draw that leaves no trajectory ends it
/// and begins the next, as does a draw of slices of another length. No batch has two slices of one
/// trajectory: where there are fewer trajectories than slices in a batch, it is shorter.
///
/// ```
/// use windrow_replay::{SliceSampler, SliceSamplerWithoutReplacement};
///
/// let sampler = SliceSamplerWithoutReplacement::new(SliceSampler::slice_len(32)).drop_last(true);
/// ```
#[derive(Debug, Clone)]
pub struct SliceSamplerWithoutReplacement {
    slices: SliceSampler,
    drop_last: bool,
    shuffle: bool,
    pass: Pass,
}

impl SliceSamplerWithoutReplacement {
    /// Slices as `slices` cuts them, of trajectories in random order; the last batch of a pass may
    /// be short.
    #[must_use]
    pub fn new(slices: SliceSampler) -> Self {
        Self {
            slices,
            drop_last: false,
            shuffle: true,
            pass: Pass::default(),
        }
    }

    /// Whether a pass ends when the trajectories that are left do not fill a batch; otherwise that
    /// batch is short.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Whether the order of trajectories is random; otherwise it is that in which they were
    /// written.
    #[must_use]
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    fn sync(&mut self, frames: &Frames<'_>) {
        if let Some(runs) = frames.runs() {
            self.pass.sync(runs);
        }
    }
}

impl Sampler for SliceSamplerWithoutReplacement {
    fn begin(&mut self, capacity: usize) -> Result<(), ReplayError> {
        self.slices.begin(capacity)
    }

    fn run_keys(&self) -> Option<&RunKeys> {
        self.slices.run_keys()
    }

    fn written(&mut self, _: RowSpan, frames: &Frames<'_>) {
        self.sync(frames);
    }

    fn evicted(&mut self, _: RowSpan, frames: &Frames<'_>) {
        self.sync(frames);
    }

    fn cleared(&mut self) {
        self.pass = Pass {
            least: self.pass.least,
            ..Pass::default()
        };
    }

    fn draw(
        &mut self,
        batch_size: usize,
        frames: &Frames<'_>,
        rng: &mut SampleRng,
    ) -> Result<Draw, NoDraw> {
        let rules = &self.slices.rules;
        let (num, len) = rules.of_batch(batch_size)?;
        let Some(runs) = frames.runs() else {
            return Err(Shortage::Empty.into());
        };
        let least = rules.least(len);
        let needed = if self.drop_last { num } else { 1 };
        if self.pass.least != least || self.pass.pending.len() < needed {
            let next = Pass::over(runs, least);
            match next.pending.len() {
                0 => return Err(rules.shortage(len, runs)),
                held if held < needed => {
                    // Each has at least one frame.
                    check_batch(num, runs.capacity())?;
                    let (needed, len) = (num, least);
                    return Err(Shortage::Trajectories { needed, len, held }.into());
                }
                _ => self.pass = next,
            }
        }
        let pass = &mut self.pass;
        let pieces: Vec<Piece> = (0..num.min(pass.pending.len()))
            .filter_map(|_| {
                let run = if self.shuffle {
                    pass.take(rng.below(pass.pending.len()))
                } else {
                    pass.take_first()?
                };
                Some(rules.piece(runs.get(run)?, len, rng))
            })
            .collect();
        let ends_pass = pass.pending.len() < needed;
        if ends_pass {
            *pass = Pass::over(runs, least);
        }
        Ok(Draw {
            ends_pass,
            ..rules.draw(len, runs, &pieces)
        })
    }

    fn state_dict(&self) -> Result<TensorDict, ReplayError> {
        self.pass.state_dict()
    }

    fn load_state_dict(
        &mut self,
        state: &TensorDict,
        frames: &Frames<'_>,
    ) -> Result<(), ReplayError> {
        match frames.runs() {
            Some(runs) => self.pass.load(state, runs),
            None => Ok(()),
        }
    }
}

/// Marks a run that is too short for a slice, in place of an index into [`Pass::pending`].
const SHORT: u32 = u32::MAX;
/// Marks a run from which this pass has drawn.
const DRAWN: u32 = u32::MAX - 1;

/// The runs from which a pass has still to draw.
///
/// Updated with every write at O(1) a run, since only the newest run can grow and only the oldest
/// can shrink.
#[derive(Debug, Clone, Default)]
struct Pass {
    /// Frames that a run must have; 0 before the first draw.
    least: usize,
    /// Numbers of the runs that this pass has still to draw from, in any order.
    pending: Vec<u64>,
    /// Where in `pending` each run is, from the oldest on; or that it is [`SHORT`] or was
    /// [`DRAWN`].
    places: VecDeque<u32>,
    /// Number of the run that `places` begins with.
    base: u64,
    /// The first run that may be longer than it was when it was last looked at.
    next: u64,
    /// No run before this one is pending.
    cursor: u64,
}

impl Pass {
    /// A pass that begins, over all runs of at least `least` frames.
    fn over(runs: &Runs, least: usize) -> Self {
        let base = runs.numbers().start;
        let mut pass = Self {
            least,
            base,
            next: base,
            cursor: base,
            ..Self::default()
        };
        pass.sync(runs);
        pass
    }

    /// Adds runs that were written, and drops those that were overwritten.
    fn sync(&mut self, runs: &Runs) {
        if self.least == 0 {
            return;
        }
        let present = runs.numbers();
        while self.base < present.start
            && let Some(place) = self.places.pop_front()
        {
            self.base += 1;
            self.remove(place);
        }
        self.base = present.start;
        let count = (present.end - present.start) as usize;
        self.places.resize(count, SHORT);
        if !present.is_empty() {
            self.look(present.start, runs);
        }
        for run in self.next.max(present.start)..present.end {
            self.look(run, runs);
        }
        self.next = present.end.saturating_sub(1);
    }

    /// Records whether the run with number `run` is long enough.
    fn look(&mut self, run: u64, runs: &Runs) {
        let at = (run - self.base) as usize;
        let enough = runs.get(run).is_some_and(|run| run.len >= self.least);
        match self.places[at] {
            DRAWN => {}
            SHORT if enough => {
                self.places[at] = self.pending.len() as u32;
                self.pending.push(run);
                self.cursor = self.cursor.min(run);
            }
            place if !enough => {
                self.remove(place);
                self.places[at] = SHORT;
            }
            _ => {}
        }
    }

    /// Removes a run that is gone or too short by now from `pending`, if it is in.
    fn remove(&mut self, place: u32) {
        if place != SHORT && place != DRAWN {
            self.swap_remove(place as usize);
        }
    }

    fn swap_remove(&mut self, place: usize) -> u64 {
        let run = self.pending.swap_remove(place);
        if let Some(&moved) = self.pending.get(place) {
            self.places[(moved - self.base) as usize] = place as u32;
        }
        run
    }

    /// Takes the run at index `place` of `pending`.
    fn take(&mut self, place: usize) -> u64 {
        let run = self.swap_remove(place);
        self.places[(run - self.base) as usize] = DRAWN;
        run
    }

    /// Takes the oldest pending run.
    fn take_first(&mut self) -> Option<u64> {
        self.cursor = self.cursor.max(self.base);
        loop {
            match *self.places.get((self.cursor - self.base) as usize)? {
                SHORT | DRAWN => self.cursor += 1,
                place => return Some(self.take(place as usize)),
            }
        }
    }

    /// Runs are identified by their position from the oldest on, since their numbers are not saved.
    fn state_dict(&self) -> Result<TensorDict, ReplayError> {
        let pending: Vec<i64> = self
            .pending
            .iter()
            .map(|run| (run - self.base) as i64)
            .collect();
        let drawn: Vec<bool> = self.places.iter().map(|&place| place == DRAWN).collect();
        let (left, runs) = (pending.len(), drawn.len());
        let mut state = TensorDict::new([]);
        state.set("least", Tensor::scalar(self.least as i64))?;
        state.set("pending", Tensor::from_vec(pending, [left])?)?;
        state.set("drawn", Tensor::from_vec(drawn, [runs])?)?;
        Ok(state)
    }

    fn load(&mut self, state: &TensorDict, runs: &Runs) -> Result<(), ReplayError> {
        let least = state.get("least")?.item::<i64>()?.max(0) as usize;
        let pending = state.as_slice::<i64>("pending")?;
        let drawn = state.as_slice::<bool>("drawn")?;
        if least == 0 {
            *self = Self::default();
            return Ok(());
        }
        let base = runs.numbers().start;
        let mut places: VecDeque<u32> = drawn
            .iter()
            .map(|&drawn| if drawn { DRAWN } else { SHORT })
            .collect();
        for (place, &run) in pending.iter().enumerate() {
            match usize::try_from(run)
                .ok()
                .and_then(|run| places.get_mut(run))
            {
                Some(free) if *free == SHORT => *free = place as u32,
                _ => return Err(StateError::NoTrajectory { number: run }.into()),
            }
        }
        if places.len() != runs.len() {
            return Err(sizes("trajectories in a pass", runs.len(), places.len()).into());
        }
        *self = Self {
            least,
            pending: pending.iter().map(|&run| base + run as u64).collect(),
            places,
            base,
            next: runs.numbers().end.saturating_sub(1),
            cursor: base,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Pass;
    use crate::episode_ends::EpisodeMarks;
    use crate::runs::Runs;

    /// A ring of 20 rows with trajectories of these ids.
    fn runs(ids: &[i64]) -> Runs {
        let mut runs = Runs::new(20);
        runs.push_marked(&EpisodeMarks::of(None, Some(ids)));
        runs
    }

    fn pending(pass: &Pass) -> Vec<u64> {
        let mut pending = pass.pending.clone();
        pending.sort_unstable();
        pending
    }

    #[test]
    fn only_runs_that_are_long_enough_take_part() {
        let runs = runs(&[1, 1, 1, 2, 2, 3, 3, 3, 3]);
        for (least, expected) in [(3, vec![0, 2]), (1, vec![0, 1, 2]), (5, vec![])] {
            assert_eq!(pending(&Pass::over(&runs, least)), expected);
        }
    }

    #[test]
    fn runs_have_their_turn_once_in_the_order_in_which_they_were_written() {
        let mut runs = runs(&[1, 1, 2, 2, 3, 3]);
        let mut pass = Pass::over(&runs, 2);
        assert_eq!(pass.take_first(), Some(0));
        runs.push_marked(&EpisodeMarks::of(None, Some(&[4, 4, 5])));
        pass.sync(&runs);
        let rest: Vec<u64> = std::iter::from_fn(|| pass.take_first()).collect();
        assert_eq!(rest, [1, 2, 3]);
        // The newest trajectory becomes long enough.
        runs.push_marked(&EpisodeMarks::of(None, Some(&[5])));
        pass.sync(&runs);
        assert_eq!((pass.take_first(), pass.take_first()), (Some(4), None));
    }

    #[test]
    fn what_is_overwritten_is_left_out() {
        let mut runs = runs(&[1, 1, 2, 2, 2, 3, 3]);
        let mut pass = Pass::over(&runs, 2);
        // The first is gone, and too little is left of the second.
        runs.evict(4);
        pass.sync(&runs);
        assert_eq!(pending(&pass), [2]);
        assert_eq!(pass.take(0), 2);
        runs.evict(3);
        pass.sync(&runs);
        assert!(pass.pending.is_empty() && pass.places.is_empty());
    }

    #[test]
    fn a_run_that_grows_does_not_have_its_turn_again_in_the_same_pass() {
        let mut runs = runs(&[1, 1, 1]);
        let mut pass = Pass::over(&runs, 2);
        assert_eq!(pass.take(0), 0);
        runs.push_marked(&EpisodeMarks::of(None, Some(&[1, 2, 2])));
        pass.sync(&runs);
        assert_eq!(pending(&pass), [1]);
        // It is the only one, is overwritten but for one frame while it waits, and grows again.
        runs.evict(4);
        let mut pass = Pass::over(&runs, 2);
        runs.evict(1);
        pass.sync(&runs);
        assert!(pass.pending.is_empty());
        runs.push_marked(&EpisodeMarks::of(None, Some(&[2, 3, 3])));
        pass.sync(&runs);
        assert_eq!(pending(&pass), [1, 2]);
    }

    #[test]
    fn a_state_is_that_of_as_many_trajectories() {
        let all = runs(&[1, 1, 2, 2, 3, 3]);
        let mut pass = Pass::over(&all, 2);
        pass.take(1);
        let state = pass.state_dict().unwrap();
        let mut other = Pass::default();
        assert!(other.load(&state, &runs(&[1, 1])).is_err());
        other.load(&state, &all).unwrap();
        assert_eq!(other.pending, pass.pending);
        assert_eq!(other.places, pass.places);
    }
}
