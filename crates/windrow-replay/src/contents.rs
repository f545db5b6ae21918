//! The rows that hold frames, and the runs that these form (ADR 0005).

use crate::episode_ends::EpisodeMarks;
use crate::runs::{KeptRuns, NewRuns, Open, Runs};
use crate::saved::SavedState;
use crate::{Frames, RowOrder, RowSet, RowSpan, Sampler};

/// The contents of a buffer, without the frames themselves.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) rows: RowSet,
    /// Present for a ring.
    pub(crate) runs: Option<Runs>,
}

impl Contents {
    pub(crate) fn new(order: RowOrder, capacity: usize) -> Self {
        Self {
            rows: RowSet::new(order, capacity),
            runs: (order == RowOrder::Ring).then(|| Runs::new(capacity)),
        }
    }

    /// The frames, as a sampler sees them.
    pub(crate) fn frames(&self) -> Frames<'_> {
        Frames::new(&self.rows, self.runs.as_ref())
    }

    /// Announces all rows that hold frames to a sampler.
    pub(crate) fn announce(&self, sampler: &mut dyn Sampler) {
        for span in self.rows.spans() {
            if !span.is_empty() {
                sampler.written(span, &self.frames());
            }
        }
    }

    /// Drops rows.
    pub(crate) fn evict(&mut self, rows: RowSpan) {
        self.rows.remove(rows);
        if let Some(runs) = &mut self.runs {
            runs.evict(rows.len());
        }
    }

    /// Adds rows. `new` are the runs of a ring's frames, `skipped` the frames before them that were
    /// overwritten at once.
    pub(crate) fn admit(&mut self, rows: RowSpan, new: Option<&NewRuns>, skipped: usize) {
        self.rows.add(rows);
        if let (Some(runs), Some(new)) = (&mut self.runs, new) {
            runs.skip(skipped);
            runs.push(new);
        }
    }

    /// Drops all rows.
    pub(crate) fn clear(&mut self) {
        self.rows = RowSet::new(self.rows.order(), self.rows.capacity());
        if let Some(runs) = &mut self.runs {
            runs.clear();
        }
    }

    /// Takes over the rows of a storage that held `rows`, those of a ring, when it was opened.
    /// `marks` are those of their frames; trajectories end before each of `breaks`, too.
    pub(crate) fn recover(&mut self, rows: RowSpan, marks: &EpisodeMarks, breaks: &[usize]) {
        self.rows = RowSet::ring_of(rows);
        self.renew(marks, breaks);
    }

    /// As [`recover`](Self::recover), where the storage has kept which frames follow each other.
    pub(crate) fn take_over(&mut self, rows: RowSpan, kept: &KeptRuns) {
        self.rows = RowSet::ring_of(rows);
        if let Some(runs) = &mut self.runs {
            runs.take_over(kept, rows.len());
        }
    }

    /// The runs as a storage keeps them, where frames are in order; they are found by `keys`.
    pub(crate) fn to_keep(&self, keys: u64) -> Option<KeptRuns> {
        self.runs.as_ref().map(|runs| runs.to_keep(keys))
    }

    /// Finds anew which frames follow each other, where frames are in order: `marks` are those of
    /// all of them, which stay apart where they were written apart.
    pub(crate) fn mark(&mut self, marks: &EpisodeMarks) {
        let breaks = self.runs.as_ref().map_or_else(Vec::new, Runs::all_breaks);
        self.renew(marks, &breaks);
    }

    fn renew(&mut self, marks: &EpisodeMarks, breaks: &[usize]) {
        if let Some(runs) = &mut self.runs {
            // Any number that gives the same rows will do.
            runs.renew(self.rows.row(0) as u64, marks, breaks);
        }
    }

    /// How the last run may continue, if frames are in order.
    pub(crate) fn open(&self) -> Option<Open> {
        self.runs.as_ref().map(Runs::open)
    }

    /// Sets how the last run may continue, unless it has ended.
    pub(crate) fn reopen(&mut self, open: Open) {
        if let Some(runs) = &mut self.runs {
            runs.reopen(open);
        }
    }

    /// The runs of the next frames, where frames are in order; `skipped` frames before them are
    /// overwritten at once.
    pub(crate) fn of_next(&self, marks: &EpisodeMarks, skipped: usize) -> Option<NewRuns> {
        let runs = self.runs.as_ref();
        runs.map(|runs| runs.of_next(marks, skipped))
    }

    /// The contents of a saved state of the same order, with runs numbered as if these contents had
    /// been cleared before.
    pub(crate) fn restored(&self, saved: &SavedState) -> Self {
        let runs = self.runs.as_ref().zip(saved.runs.clone());
        let runs = runs.map(|(runs, saved)| runs.restored(saved));
        let rows = match &runs {
            Some(_) => RowSet::ring_of(saved.span()),
            None => {
                let capacity = self.rows.capacity();
                let mut rows = RowSet::list(capacity);
                for &row in &saved.rows {
                    rows.add(RowSpan::new(row as usize, 1, capacity));
                }
                rows
            }
        };
        Self { rows, runs }
    }
}
