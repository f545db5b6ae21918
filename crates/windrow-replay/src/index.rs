//! Which rows follow each other in one episode.

use std::collections::VecDeque;

use crate::marks::Marks;

/// Frames of one episode that lie in successive rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Number of the first frame that is left of it, counted from the first frame ever written. It lies in row
    /// `first % capacity`.
    pub first: u64,
    /// Frames that are left of it; never 0.
    pub len: usize,
    /// Whether the episode ended with the last of them.
    pub ended: bool,
}

/// Whether the run written last may go on with the next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    No,
    /// With a frame of the same trajectory.
    Id(i64),
    /// With a frame without id that is added singly.
    Single,
}

/// The runs of a ring, the oldest first. Runs are counted from the first ever written; the oldest may have lost its first
/// frames, and has lost all before it disappears.
///
/// Writing and overwriting cost O(1) a frame, amortised; finding a run by its number costs O(1).
#[derive(Debug)]
pub struct Runs {
    runs: VecDeque<Run>,
    /// Number of the oldest run.
    base: u64,
    /// How many have ended.
    ended: usize,
    /// Number of the next frame.
    next: u64,
    open: Open,
    capacity: usize,
}

impl Runs {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            runs: VecDeque::new(),
            base: 0,
            ended: 0,
            next: 0,
            open: Open::No,
            capacity,
        }
    }

    /// Number of runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many of them reach the end of their episode.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.ended
    }

    /// Numbers of the runs that there are.
    #[must_use]
    pub fn numbers(&self) -> std::ops::Range<u64> {
        self.base..self.base + self.runs.len() as u64
    }

    /// The run with this number, if it is there.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&Run> {
        self.runs.get(number.checked_sub(self.base)? as usize)
    }

    /// All of them, the oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Run> {
        self.runs.iter()
    }

    /// The row of the frame with this number.
    #[inline]
    #[must_use]
    pub fn row(&self, frame: u64) -> usize {
        (frame % self.capacity as u64) as usize
    }

    /// The run that has a frame in `row`, and the number of that frame.
    #[must_use]
    pub fn at_row(&self, row: usize) -> Option<(&Run, u64)> {
        let oldest = self.runs.front()?.first;
        let ahead = (row + self.capacity - self.row(oldest)) % self.capacity;
        let frame = oldest + ahead as u64;
        let after = self.runs.partition_point(|run| run.first <= frame);
        let run = self.runs.get(after.checked_sub(1)?)?;
        (frame < run.first + run.len as u64).then_some((run, frame))
    }

    /// Frames of the longest run, 0 when there is none. Looks at every run.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.iter().map(|run| run.len).max().unwrap_or(0)
    }

    /// Forgets the oldest `frames` frames.
    pub(crate) fn evict(&mut self, mut frames: usize) {
        while frames > 0
            && let Some(oldest) = self.runs.front_mut()
        {
            if oldest.len > frames {
                oldest.first += frames as u64;
                oldest.len -= frames;
                return;
            }
            frames -= oldest.len;
            self.ended -= usize::from(oldest.ended);
            self.runs.pop_front();
            self.base += 1;
        }
        if self.runs.is_empty() {
            self.open = Open::No;
        }
    }

    /// Forgets all, and counts frames from 0 again; runs are counted on.
    pub(crate) fn clear(&mut self) {
        self.base += self.runs.len() as u64;
        self.runs.clear();
        (self.ended, self.next, self.open) = (0, 0, Open::No);
    }

    /// Passes over frames that were written and overwritten at once.
    pub(crate) fn skip(&mut self, frames: usize) {
        if frames > 0 {
            self.next += frames as u64;
            self.open = Open::No;
        }
    }

    /// Takes in frames that were written.
    pub(crate) fn push(&mut self, marks: &Marks) {
        let mut at = 0;
        while at < marks.len() {
            let (end, ended) = marks.run_end(at);
            let goes_on = at == 0 && self.goes_on(marks);
            match self.runs.back_mut() {
                Some(run) if goes_on => {
                    run.len += end - at;
                    run.ended = ended;
                }
                _ => self.runs.push_back(Run {
                    first: self.next,
                    len: end - at,
                    ended,
                }),
            }
            self.ended += usize::from(ended);
            self.next += (end - at) as u64;
            at = end;
            self.open = match (ended, marks.id(end - 1)) {
                (true, _) => Open::No,
                (false, Some(id)) => Open::Id(id),
                (false, None) if marks.single() => Open::Single,
                (false, None) => Open::No,
            };
        }
    }

    fn goes_on(&self, marks: &Marks) -> bool {
        match self.open {
            Open::No => false,
            Open::Id(id) => marks.id(0) == Some(id),
            Open::Single => marks.single() && marks.id(0).is_none(),
        }
    }

    /// What a state is made of: first frame, length and ending of every run, the number of the next frame, and the id
    /// with which the last run may go on.
    pub(crate) fn state(&self) -> (Vec<i64>, Vec<i64>, Vec<bool>, [i64; 3]) {
        let open = match self.open {
            Open::No => [0, 0],
            Open::Id(id) => [1, id],
            Open::Single => [2, 0],
        };
        (
            self.iter().map(|run| run.first as i64).collect(),
            self.iter().map(|run| run.len as i64).collect(),
            self.iter().map(|run| run.ended).collect(),
            [self.next as i64, open[0], open[1]],
        )
    }

    /// Goes on from a state; `false` when it is none of a ring of this capacity, which holds `frames` frames.
    pub(crate) fn load(
        &mut self,
        (firsts, lens, ended): (&[i64], &[i64], &[bool]),
        [next, open, id]: [i64; 3],
        frames: usize,
    ) -> bool {
        let runs: VecDeque<Run> = firsts
            .iter()
            .zip(lens)
            .zip(ended)
            .map(|((&first, &len), &ended)| Run {
                first: first as u64,
                len: len as usize,
                ended,
            })
            .collect();
        let mut behind = next - frames as i64;
        let follow = firsts.iter().zip(lens).all(|(&first, &len)| {
            let fits = first == behind && len > 0;
            behind += len;
            fits
        });
        let sizes = [firsts.len(), lens.len(), ended.len()];
        if !follow || behind != next || next < 0 || sizes != [runs.len(); 3] {
            return false;
        }
        self.clear();
        self.ended = runs.iter().filter(|run| run.ended).count();
        self.runs = runs;
        self.next = next as u64;
        self.open = match open {
            1 => Open::Id(id),
            2 => Open::Single,
            _ => Open::No,
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Runs;
    use crate::marks::Marks;

    /// Rows of the first and last frame of every run, and its length, in the order of their first rows.
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
        // Rows 5 to 9 hold the first frames that are left, 0 to 4 the newest: episodes end in rows 7 and 2.
        let mut runs = Runs::new(10);
        runs.skip(5);
        runs.push(&Marks::of(Some(&flags(10, &[2, 7])), None));
        assert_eq!(found(&runs), [[3, 4, 2], [5, 7, 3], [8, 2, 5]]);

        let mut runs = Runs::new(10);
        runs.skip(5);
        runs.push(&Marks::of(None, Some(&[1, 1, 1, 5, 5, 5, 5, 5, 0, 0])));
        assert_eq!(found(&runs), [[3, 4, 2], [5, 7, 3], [8, 2, 5]]);
    }

    #[test]
    fn the_last_row_of_a_ring_that_is_not_full_is_an_end() {
        let mut runs = Runs::new(100);
        runs.push(&Marks::of(Some(&flags(6, &[2])), None));
        assert_eq!(found(&runs), [[0, 2, 3], [3, 5, 3]]);
        assert_eq!((runs.len(), runs.ended()), (2, 1));
    }

    #[test]
    fn a_ring_without_ends_is_one_trajectory() {
        let mut runs = Runs::new(4);
        runs.push(&Marks::of(Some(&[false; 4]), None));
        assert_eq!(found(&runs), [[0, 3, 4]]);
    }

    #[test]
    fn environments_do_not_follow_each_other() {
        // Two environments of five steps: ids 0 0 1 1 1 and 3 3 3 4 4, and then ids that are the same in both.
        let mut runs = Runs::new(20);
        runs.push(&Marks::of(None, Some(&[0, 0, 1, 1, 1, 3, 3, 3, 4, 4])).rows_of(5));
        assert_eq!(
            runs.iter().map(|run| run.len).collect::<Vec<_>>(),
            [2, 3, 3, 2]
        );
        runs.push(&Marks::of(None, Some(&[4; 10])).rows_of(5));
        assert_eq!(
            runs.iter().map(|run| run.len).collect::<Vec<_>>(),
            [2, 3, 3, 7, 5]
        );
    }

    #[test]
    fn a_run_goes_on_with_the_same_id_only() {
        let mut runs = Runs::new(20);
        runs.push(&Marks::of(Some(&[false; 2]), Some(&[1, 1])));
        runs.push(&Marks::of(Some(&[false, true]), Some(&[1, 1])));
        runs.push(&Marks::of(Some(&[false; 2]), Some(&[1, 1])));
        runs.push(&Marks::of(Some(&[false; 2]), None));
        runs.push(&Marks::of(Some(&[false; 1]), None));
        runs.push(&Marks::of(Some(&[false; 1]), None).singly());
        runs.push(&Marks::of(Some(&[true; 1]), None).singly());
        runs.push(&Marks::of(Some(&[true; 1]), None).singly());
        let lens: Vec<usize> = runs.iter().map(|run| run.len).collect();
        assert_eq!(lens, [4, 2, 2, 1, 2, 1]);
        assert_eq!(runs.ended(), 3);
    }

    #[test]
    fn what_is_overwritten_leaves_the_oldest_runs_first() {
        let mut runs = Runs::new(10);
        runs.push(&Marks::of(Some(&flags(10, &[2, 7])), None));
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
        runs.push(&Marks::of(Some(&[false, true, false]), Some(&[7, 7, 8])));
        let (firsts, lens, ended, next) = runs.state();
        let mut loaded = Runs::new(10);
        assert!(!loaded.load((&firsts, &lens[1..], &ended), next, 3));
        assert!(!loaded.load((&firsts, &lens, &ended), next, 4));
        assert!(!loaded.load((&firsts, &[1, 2], &ended), next, 3));
        assert!(loaded.load((&firsts, &lens, &ended), next, 3));
        assert_eq!(found(&loaded), found(&runs));
        for runs in [&mut runs, &mut loaded] {
            runs.push(&Marks::of(Some(&[false]), Some(&[8])));
        }
        assert_eq!(loaded.state(), runs.state());
    }
}
