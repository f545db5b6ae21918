//! Runs: frames of one episode in successive rows.

use std::collections::VecDeque;
use std::thread::ThreadId;

use crate::episode_ends::EpisodeMarks;

/// Frames of one episode that lie in successive rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// Number of the first frame that is left of it, counted from the first frame ever written. It
    /// lies in row `first % capacity`.
    pub first: u64,
    /// Frames that are left of it; never 0.
    pub len: usize,
    /// Whether the episode ended with the last of them.
    pub ended: bool,
    /// Whether the first of them was written apart from the frame before: then they belong to
    /// different episodes, whatever their keys say.
    pub(crate) apart: bool,
}

/// The author of frames. Ids of trajectories are unique to one author, so only its own frames can
/// continue its last run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    /// A collector, by the number of its first attachment.
    Collector(u64),
    /// Users. Frames without ids, if they are one row of time, continue in the next frames of the
    /// same thread.
    User(Option<ThreadId>),
}

/// A place between two frames where one run ends, another begins, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Boundary {
    /// Index of the frame after it, among those that are written together; their number where the
    /// last run ends with the last of them.
    pub at: usize,
    /// Whether the episode of the frame before ended with it.
    pub ended: bool,
    /// Whether the frame after it was written apart from the one before: then they belong to
    /// different episodes, whatever their keys say.
    pub apart: bool,
}

/// The runs of frames that are written together, before they are.
#[derive(Debug)]
pub(crate) struct NewRuns {
    pub(crate) boundaries: Vec<Boundary>,
    frames: usize,
    /// How the last of them may continue.
    open: Open,
}

/// Which frame may continue the run written last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    No,
    /// With a frame of the same trajectory, of this collector or of users.
    Id(Option<u64>, i64),
    /// With a frame without id that a user writes in this thread.
    Chain(ThreadId),
}

/// A run in a word: number of its first frame, and two flags. It reaches to the next one, or to the
/// newest frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Packed(u64);

impl Packed {
    const ENDED: u64 = 1;
    const APART: u64 = 2;

    fn new(first: u64, ended: bool, apart: bool) -> Self {
        Self(first << 2 | u64::from(apart) << 1 | u64::from(ended))
    }

    fn first(self) -> u64 {
        self.0 >> 2
    }

    fn ended(self) -> bool {
        self.0 & Self::ENDED != 0
    }

    fn apart(self) -> bool {
        self.0 & Self::APART != 0
    }
}

/// Runs that lie end to end, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct PackedRuns {
    runs: VecDeque<Packed>,
    /// Number of the next frame.
    next: u64,
}

impl PackedRuns {
    fn len(&self) -> usize {
        self.runs.len()
    }

    fn end(&self, at: usize) -> u64 {
        self.runs.get(at + 1).map_or(self.next, |run| run.first())
    }

    fn get(&self, at: usize) -> Option<Run> {
        let run = *self.runs.get(at)?;
        Some(Run {
            first: run.first(),
            len: (self.end(at) - run.first()) as usize,
            ended: run.ended(),
            apart: run.apart(),
        })
    }

    fn iter(&self) -> impl ExactSizeIterator<Item = Run> {
        (0..self.len()).map(|at| self.get(at).expect("It is one of the runs."))
    }

    fn oldest(&self) -> u64 {
        self.runs.front().map_or(self.next, |run| run.first())
    }

    /// How many runs begin before or with this frame.
    fn up_to(&self, frame: u64) -> usize {
        self.runs.partition_point(|run| run.first() <= frame)
    }

    fn push(&mut self, run: Packed) {
        if self.runs.len() == self.runs.capacity() {
            // Not twice as many: most runs are those of a ring that is full.
            self.runs.reserve_exact((self.runs.len() / 8).max(16));
        }
        self.runs.push_back(run);
    }

    /// Marks the last run as ended.
    fn end_last(&mut self) {
        if let Some(last) = self.runs.back_mut() {
            last.0 |= Packed::ENDED;
        }
    }

    /// Which frames, counted from the oldest, were written apart from the one before.
    fn breaks(&self) -> impl Iterator<Item = usize> {
        let oldest = self.oldest();
        let apart = self.runs.iter().filter(|run| run.apart());
        apart.map(move |run| (run.first() - oldest) as usize)
    }
}

/// The runs of a ring, the oldest first. Runs are counted from the first ever written; the oldest
/// may have lost its first frames, and has lost all before it disappears.
///
/// Writing and overwriting cost O(1) a frame, amortised; finding a run by its number costs O(1). A
/// run takes 8 bytes.
#[derive(Debug, Clone)]
pub struct Runs {
    kept: PackedRuns,
    /// Number of the oldest run.
    base: u64,
    /// How many have ended.
    ended: usize,
    open: Open,
    capacity: usize,
}

impl Runs {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            kept: PackedRuns::default(),
            base: 0,
            ended: 0,
            open: Open::No,
            capacity,
        }
    }

    /// Number of runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether there are no runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.len() == 0
    }

    /// Number of runs that reach the end of their episode.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.ended
    }

    /// Numbers of the runs.
    #[must_use]
    pub fn numbers(&self) -> std::ops::Range<u64> {
        self.base..self.base + self.len() as u64
    }

    /// The run with this number, if it is there.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<Run> {
        self.kept.get(number.checked_sub(self.base)? as usize)
    }

    /// All of them, the oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Run> {
        self.kept.iter()
    }

    /// Capacity in frames.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The row of the frame with this number.
    #[inline]
    #[must_use]
    pub fn row(&self, frame: u64) -> usize {
        (frame % self.capacity as u64) as usize
    }

    /// The run that has a frame in `row`, and the number of that frame.
    #[must_use]
    pub fn at_row(&self, row: usize) -> Option<(Run, u64)> {
        if self.is_empty() {
            return None;
        }
        let oldest = self.kept.oldest();
        let ahead = (row + self.capacity - self.row(oldest)) % self.capacity;
        let frame = oldest + ahead as u64;
        let run = self.kept.get(self.kept.up_to(frame).checked_sub(1)?)?;
        (frame < run.first + run.len as u64).then_some((run, frame))
    }

    /// Frames of the longest run; 0 without runs. Looks at every run.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.iter().map(|run| run.len).max().unwrap_or(0)
    }

    /// Drops the oldest `frames` frames.
    pub(crate) fn evict(&mut self, frames: usize) {
        let kept = &mut self.kept;
        let oldest = (kept.oldest() + frames as u64).min(kept.next);
        while let Some(run) = kept.runs.front().copied()
            && run.first() < oldest
        {
            kept.runs.pop_front();
            let end = kept.oldest();
            if end > oldest {
                let left = Packed::new(oldest, run.ended(), run.apart());
                kept.runs.push_front(left);
                return;
            }
            self.ended -= usize::from(run.ended());
            self.base += 1;
        }
        if self.is_empty() {
            self.open = Open::No;
        }
    }

    /// Drops all runs, and counts frames from 0 again; the numbers of runs continue.
    pub(crate) fn clear(&mut self) {
        self.base += self.len() as u64;
        self.kept = PackedRuns::default();
        (self.ended, self.open) = (0, Open::No);
    }

    /// Skips frames that were overwritten in the same write.
    pub(crate) fn skip(&mut self, frames: usize) {
        if frames > 0 {
            debug_assert!(self.is_empty(), "runs lie end to end");
            self.kept.next += frames as u64;
            self.open = Open::No;
        }
    }

    /// The runs of the next frames; `skipped` frames before them are overwritten at once.
    pub(crate) fn of_next(&self, marks: &EpisodeMarks, skipped: usize) -> NewRuns {
        let goes_on = skipped == 0 && self.open != Open::No && marks.first_of() == self.open;
        let mut boundaries = Vec::new();
        let (mut at, mut ended) = (0, false);
        while at < marks.len() {
            if at > 0 || !goes_on {
                let apart = at == 0 || marks.begins_row(at);
                boundaries.push(Boundary { at, ended, apart });
            }
            (at, ended) = marks.run_end(at, marks.len());
        }
        if ended {
            let apart = false;
            boundaries.push(Boundary { at, ended, apart });
        }
        let open = if ended || marks.len() == 0 {
            Open::No
        } else {
            marks.open()
        };
        NewRuns {
            boundaries,
            frames: at,
            open,
        }
    }

    /// Adds frames that were written.
    pub(crate) fn push(&mut self, new: &NewRuns) {
        for boundary in &new.boundaries {
            if boundary.ended {
                self.kept.end_last();
                self.ended += 1;
            }
            if boundary.at < new.frames {
                let first = self.kept.next + boundary.at as u64;
                self.kept.push(Packed::new(first, false, boundary.apart));
            }
        }
        self.kept.next += new.frames as u64;
        self.open = new.open;
    }

    /// The frames, counted from the oldest, that do not follow the frame before, whatever their ids
    /// say.
    pub(crate) fn all_breaks(&self) -> Vec<usize> {
        self.kept.breaks().collect()
    }

    /// Finds all runs anew: `marks` are those of all frames, the oldest of which has the number
    /// `first`, and runs end before each of `breaks`, which ascend, too. The last run does not
    /// continue: the author of its frames is unknown.
    pub(crate) fn renew(&mut self, first: u64, marks: &EpisodeMarks, breaks: &[usize]) {
        self.clear();
        let mut at = 0;
        let mut breaks = breaks.iter().copied().filter(|&at| at > 0).peekable();
        let mut apart = true;
        while at < marks.len() {
            let limit = breaks.peek().map_or(marks.len(), |&at| at.min(marks.len()));
            let (end, ended) = marks.run_end(at, limit);
            self.kept.push(Packed::new(first + at as u64, ended, apart));
            self.ended += usize::from(ended);
            apart = breaks.next_if_eq(&end).is_some();
            at = end;
        }
        self.kept.next = first + at as u64;
    }

    /// Takes over the last `frames` frames of runs that a storage has kept. The last one does not
    /// continue.
    pub(crate) fn take_over(&mut self, kept: &KeptRuns, frames: usize) {
        self.clear();
        self.kept.next = kept.next;
        let oldest = kept.next - frames as u64;
        if frames > 0 {
            self.kept.push(Packed::new(oldest, false, true));
        }
        for boundary in kept.boundaries() {
            if boundary.first() <= oldest {
                continue;
            }
            if boundary.ended() {
                self.kept.end_last();
                self.ended += 1;
            }
            let last = self.kept.runs.back_mut();
            match last.filter(|last| last.first() == boundary.first()) {
                // Its end, and then its beginning.
                Some(last) => last.0 |= boundary.0 & Packed::APART,
                None if boundary.first() < kept.next => {
                    let run = Packed::new(boundary.first(), false, boundary.apart());
                    self.kept.push(run);
                }
                None => {}
            }
        }
    }

    /// The runs as a storage keeps them, found by `keys`.
    pub(crate) fn to_keep(&self, keys: u64) -> KeptRuns {
        let mut boundaries = Vec::with_capacity(self.len() + 1);
        let mut ended = false;
        for run in &self.kept.runs {
            boundaries.push(Packed::new(run.first(), ended, run.apart()).0);
            ended = run.ended();
        }
        if ended {
            boundaries.push(Packed::new(self.kept.next, true, false).0);
        }
        KeptRuns {
            keys,
            base: self.kept.oldest(),
            next: self.kept.next,
            boundaries,
        }
    }

    /// How the last run may continue.
    pub(crate) fn open(&self) -> Open {
        self.open
    }

    /// Sets how the last run may continue, unless it has ended.
    pub(crate) fn reopen(&mut self, open: Open) {
        if self.kept.runs.back().is_some_and(|last| !last.ended()) {
            self.open = open;
        }
    }

    /// The runs as a state keeps them.
    pub(crate) fn saved(&self) -> SavedRuns {
        SavedRuns(self.kept.clone())
    }

    /// The saved runs, of a ring of the same capacity, numbered as if these runs had been cleared
    /// before. The last run does not continue: another author may write next.
    pub(crate) fn restored(&self, saved: SavedRuns) -> Self {
        Self {
            base: self.numbers().end,
            ended: saved.0.runs.iter().filter(|run| run.ended()).count(),
            kept: saved.0,
            open: Open::No,
            capacity: self.capacity,
        }
    }
}

/// Runs as a storage keeps them for the process that opens it next: only storages of this crate
/// can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRuns {
    /// The [fingerprint](RunKeys::fingerprint) of the keys by which they were found; 0 where they
    /// are those of several, or of none.
    pub(crate) keys: u64,
    /// Number of the first frame whose runs they are.
    pub(crate) base: u64,
    /// Number of the next frame, which goes into row `next % capacity`.
    pub(crate) next: u64,
    /// The boundaries in order, a word each: the number of the frame after it, and two flags.
    pub(crate) boundaries: Vec<u64>,
}

impl KeptRuns {
    fn boundaries(&self) -> impl Iterator<Item = Packed> {
        self.boundaries.iter().copied().map(Packed)
    }

    /// The word of a boundary, where frames are counted from `first`.
    pub(crate) fn word(boundary: Boundary, first: u64) -> u64 {
        Packed::new(first + boundary.at as u64, boundary.ended, boundary.apart).0
    }

    /// The frame after the boundary of a word.
    pub(crate) fn frame(word: u64) -> u64 {
        Packed(word).first()
    }

    /// Which of the last `frames` frames, counted from the first of these, were written apart from
    /// the one before.
    pub(crate) fn breaks(&self, frames: usize) -> Vec<usize> {
        let oldest = self.next - frames as u64;
        let apart = self.boundaries().filter(|boundary| boundary.apart());
        let frames = apart.map(|boundary| boundary.first());
        let held = frames.filter(|frame| (oldest..self.next).contains(frame));
        held.map(|frame| (frame - oldest) as usize).collect()
    }
}

/// Highest accepted number of a frame: it leaves room for more frames than can ever be written.
const LAST_FRAME: i64 = i64::MAX / 2;

/// The runs of a saved state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedRuns(PackedRuns);

impl SavedRuns {
    /// The runs of these columns, if they lie end to end and hold `frames` frames in all.
    pub(crate) fn parse(columns: &RunColumns, frames: usize) -> Option<Self> {
        let RunColumns {
            firsts,
            lens,
            ended,
            apart,
            next,
        } = columns;
        let sizes = [lens.len(), ended.len(), apart.len()];
        if !(0..=LAST_FRAME).contains(next) || sizes != [firsts.len(); 3] {
            return None;
        }
        let mut behind = next - frames as i64;
        let mut runs = VecDeque::with_capacity(firsts.len());
        for (at, (&first, &len)) in firsts.iter().zip(lens).enumerate() {
            if first != behind || first < 0 || !(1..=next - first).contains(&len) {
                return None;
            }
            behind += len;
            runs.push_back(Packed::new(first as u64, ended[at], apart[at]));
        }
        let next = *next as u64;
        (behind as u64 == next).then_some(Self(PackedRuns { runs, next }))
    }

    /// Number of the next frame.
    pub(crate) fn next(&self) -> u64 {
        self.0.next
    }

    pub(crate) fn columns(&self) -> RunColumns {
        let runs = &self.0;
        RunColumns {
            firsts: runs.iter().map(|run| run.first as i64).collect(),
            lens: runs.iter().map(|run| run.len as i64).collect(),
            ended: runs.iter().map(|run| run.ended).collect(),
            apart: runs.iter().map(|run| run.apart).collect(),
            next: runs.next as i64,
        }
    }

    /// The boundaries of `len` frames, the first of which is `at`, counted from the oldest.
    pub(crate) fn boundaries(&self, at: usize, len: usize) -> Vec<Boundary> {
        let runs = &self.0;
        let first = runs.oldest() + at as u64;
        let end = first + len as u64;
        let ends_before = |at: usize| at > 0 && runs.runs[at - 1].ended();
        let begins =
            first.checked_sub(1).map_or(0, |before| runs.up_to(before))..runs.up_to(end - 1);
        let behind = begins.end;
        let boundary = |at: usize| Boundary {
            at: (runs.runs[at].first() - first) as usize,
            ended: runs.runs[at].first() > first && ends_before(at),
            apart: runs.runs[at].apart(),
        };
        let mut found: Vec<Boundary> = begins.map(boundary).collect();
        if behind > 0 && runs.end(behind - 1) == end && ends_before(behind) {
            found.push(Boundary {
                at: len,
                ended: true,
                apart: false,
            });
        }
        found
    }
}

/// Saved runs as a file has them: a list for each property, one item a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunColumns {
    pub(crate) firsts: Vec<i64>,
    pub(crate) lens: Vec<i64>,
    pub(crate) ended: Vec<bool>,
    pub(crate) apart: Vec<bool>,
    pub(crate) next: i64,
}

#[cfg(test)]
mod tests {
    use super::{Author, RunColumns, Runs, SavedRuns};
    use crate::episode_ends::EpisodeMarks;

    impl Runs {
        /// Adds frames with these marks.
        pub(crate) fn push_marked(&mut self, marks: &EpisodeMarks) {
            let new = self.of_next(marks, 0);
            self.push(&new);
        }

        /// Counts runs from `number` on.
        pub(crate) fn begin_at(&mut self, number: u64) {
            self.base = number;
        }
    }

    /// Rows of the first and last frame of every run, and its length, in the order of their first
    /// rows.
    fn found(runs: &Runs) -> Vec<[usize; 3]> {
        let mut found: Vec<_> = runs
            .iter()
            .map(|run| {
                let last = run.first + run.len as u64 - 1;
                [runs.row(run.first), runs.row(last), run.len]
            })
            .collect();
        found.sort_unstable();
        found
    }

    fn flags(count: usize, set: &[usize]) -> Vec<bool> {
        (0..count).map(|at| set.contains(&at)).collect()
    }

    #[test]
    fn a_full_ring_ends_at_its_cursor_and_episodes_wrap_around_it() {
        // Rows 5 to 9 hold the first frames that are left, 0 to 4 the newest: episodes end in rows
        // 7 and 2.
        let mut runs = Runs::new(10);
        runs.skip(5);
        runs.push_marked(&EpisodeMarks::of(Some(&flags(10, &[2, 7])), None));
        assert_eq!(found(&runs), [[3, 4, 2], [5, 7, 3], [8, 2, 5]]);

        let mut runs = Runs::new(10);
        runs.skip(5);
        runs.push_marked(&EpisodeMarks::of(
            None,
            Some(&[1, 1, 1, 5, 5, 5, 5, 5, 0, 0]),
        ));
        assert_eq!(found(&runs), [[3, 4, 2], [5, 7, 3], [8, 2, 5]]);
    }

    #[test]
    fn the_last_row_of_a_ring_that_is_not_full_is_an_end() {
        let mut runs = Runs::new(100);
        runs.push_marked(&EpisodeMarks::of(Some(&flags(6, &[2])), None));
        assert_eq!(found(&runs), [[0, 2, 3], [3, 5, 3]]);
        assert_eq!((runs.len(), runs.ended()), (2, 1));
    }

    #[test]
    fn a_ring_without_ends_is_one_trajectory() {
        let mut runs = Runs::new(4);
        runs.push_marked(&EpisodeMarks::of(Some(&[false; 4]), None));
        assert_eq!(found(&runs), [[0, 3, 4]]);
    }

    #[test]
    fn environments_do_not_follow_each_other() {
        // Two environments of five steps: ids 0 0 1 1 1 and 3 3 3 4 4, and then ids that are the
        // same in both.
        let mut runs = Runs::new(20);
        runs.push_marked(&EpisodeMarks::of(None, Some(&[0, 0, 1, 1, 1, 3, 3, 3, 4, 4])).rows_of(5));
        assert_eq!(
            runs.iter().map(|run| run.len).collect::<Vec<_>>(),
            [2, 3, 3, 2]
        );
        runs.push_marked(&EpisodeMarks::of(None, Some(&[4; 10])).rows_of(5));
        assert_eq!(
            runs.iter().map(|run| run.len).collect::<Vec<_>>(),
            [2, 3, 3, 2, 5, 5]
        );
    }

    fn lens(runs: &Runs) -> Vec<usize> {
        runs.iter().map(|run| run.len).collect()
    }

    #[test]
    fn a_run_goes_on_with_the_same_id_only() {
        let mut runs = Runs::new(20);
        runs.push_marked(&EpisodeMarks::of(Some(&[false; 2]), Some(&[1, 1])));
        runs.push_marked(&EpisodeMarks::of(Some(&[false, true]), Some(&[1, 1])));
        runs.push_marked(&EpisodeMarks::of(Some(&[false; 2]), Some(&[1, 1])));
        runs.push_marked(&EpisodeMarks::of(Some(&[false; 1]), None));
        runs.push_marked(&EpisodeMarks::of(Some(&[false; 1]), Some(&[1])));
        assert_eq!(lens(&runs), [4, 2, 1, 1]);
        assert_eq!(runs.ended(), 1);
    }

    #[test]
    fn a_run_goes_on_with_frames_of_its_author_only() {
        let thread = std::thread::current().id();
        let users = Author::User(Some(thread));
        let authors = [users, Author::Collector(0), Author::Collector(1)];
        for (first, second) in authors.iter().flat_map(|a| authors.map(|b| (*a, b))) {
            let mut runs = Runs::new(20);
            runs.push_marked(&EpisodeMarks::of(None, Some(&[5, 5])).by(first));
            runs.push_marked(&EpisodeMarks::of(None, Some(&[5])).by(second));
            let expected = if first == second { vec![3] } else { vec![2, 1] };
            assert_eq!(lens(&runs), expected, "{first:?} {second:?}");
        }
    }

    #[test]
    fn frames_without_ids_go_on_in_rows_of_time_of_one_thread_up_to_an_end() {
        let here = std::thread::current().id();
        let there = std::thread::spawn(|| std::thread::current().id()).join();
        let row = |end| EpisodeMarks::of(Some(&[false, end]), None).by(Author::User(Some(here)));
        let mut runs = Runs::new(40);
        runs.push_marked(&row(false));
        runs.push_marked(&row(true));
        runs.push_marked(&row(false));
        runs.push_marked(&row(false).by(Author::User(there.ok())));
        runs.push_marked(&row(false).by(Author::User(None)));
        runs.push_marked(&row(false).by(Author::Collector(0)));
        runs.push_marked(&row(false).by(Author::Collector(0)));
        assert_eq!(lens(&runs), [4, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn runs_that_were_written_apart_stay_apart_under_other_keys() {
        let mut runs = Runs::new(20);
        runs.skip(7);
        runs.push_marked(&EpisodeMarks::of(Some(&flags(6, &[1])), None).rows_of(3));
        runs.push_marked(&EpisodeMarks::of(Some(&flags(3, &[])), None));
        assert_eq!(lens(&runs), [2, 1, 3, 3]);
        // These find no end.
        let breaks = runs.all_breaks();
        runs.renew(7, &EpisodeMarks::of(Some(&[false; 9]), None), &breaks);
        assert_eq!(lens(&runs), [3, 3, 3]);
        assert_eq!(found(&runs)[0], [7, 9, 3]);
        assert_eq!(runs.all_breaks(), [0, 3, 6]);
    }

    #[test]
    fn what_is_overwritten_leaves_the_oldest_runs_first() {
        let mut runs = Runs::new(10);
        runs.push_marked(&EpisodeMarks::of(Some(&flags(10, &[2, 7])), None));
        runs.evict(4);
        assert_eq!(runs.numbers(), 1..3);
        assert_eq!(runs.get(0), None);
        assert_eq!(runs.get(1).map(|run| (run.first, run.len)), Some((4, 4)));
        assert_eq!(runs.at_row(3), None);
        assert_eq!(
            runs.at_row(9).map(|(run, frame)| (run.len, frame)),
            Some((2, 9))
        );
        runs.evict(6);
        assert!(runs.is_empty() && runs.ended() == 0 && runs.at_row(0).is_none());
    }

    #[test]
    fn a_state_is_taken_over_only_if_it_fits() {
        let mut runs = Runs::new(10);
        runs.skip(3);
        runs.push_marked(&EpisodeMarks::of(
            Some(&[false, true, false]),
            Some(&[7, 7, 8]),
        ));
        let columns = runs.saved().columns();
        assert_eq!(SavedRuns::parse(&columns, 4), None);
        let damages: [fn(&mut RunColumns); 8] = [
            |state| state.lens.truncate(1),
            |state| state.ended.truncate(1),
            |state| state.apart.truncate(1),
            |state| state.lens = vec![1, 2],
            |state| state.lens = vec![i64::MAX, 2],
            |state| state.lens = vec![-1, 4],
            |state| state.next = i64::MAX,
            |state| state.next = i64::MIN,
        ];
        for damage in damages {
            let mut damaged = columns.clone();
            damage(&mut damaged);
            assert_eq!(SavedRuns::parse(&damaged, 3), None, "{damaged:?}");
        }
        let mut loaded = Runs::new(10).restored(SavedRuns::parse(&columns, 3).unwrap());
        assert_eq!(loaded.saved(), runs.saved());
        // Another may write the same id next.
        loaded.push_marked(&EpisodeMarks::of(Some(&[false]), Some(&[8])));
        assert_eq!(lens(&loaded), [2, 1, 1]);
    }
}
