//! The buffer as a list of frames, searched from end to end at every question.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Stamp, id_of, is_last};
use crate::kinds::{ALPHA, BETA, Kind, Slice};

/// One frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) row: usize,
    pub(crate) stamp: Stamp,
    /// Frames with the same number follow each other.
    pub(crate) run: usize,
    pub(crate) priority: f32,
}

#[derive(Debug)]
pub(crate) struct List {
    kind: Kind,
    capacity: usize,
    with_ids: bool,
    /// Oldest first.
    pub(crate) cells: Vec<Cell>,
    pub(crate) written: usize,
    cursor: usize,
    runs: usize,
    /// The frame written last, and which collector wrote it, if none of the users did.
    last: Option<(Stamp, Option<usize>)>,
    highest: Option<f32>,
    /// By row, the frame that was drawn from it last.
    drawn_last: BTreeMap<usize, Stamp>,
    /// Without replacement: rows still to be drawn, and the next row when in order.
    pending: BTreeSet<usize>,
    next: usize,
    /// Without replacement: whether the last batch was the last of its pass.
    pub(crate) over: bool,
    /// Slices without replacement: runs that had their turn, and the frames that they needed for
    /// it.
    had_their_turn: BTreeSet<usize>,
    least: usize,
}

impl List {
    pub(crate) fn new(kind: Kind, capacity: usize, with_ids: bool) -> Self {
        Self {
            kind,
            capacity,
            with_ids,
            cells: Vec::new(),
            written: 0,
            cursor: 0,
            runs: 0,
            last: None,
            highest: None,
            drawn_last: BTreeMap::new(),
            pending: BTreeSet::new(),
            next: 0,
            over: false,
            had_their_turn: BTreeSet::new(),
            least: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        let drawn_last = std::mem::take(&mut self.drawn_last);
        *self = Self {
            drawn_last,
            ..Self::new(self.kind, self.capacity, self.with_ids)
        };
    }

    pub(crate) fn at(&self, row: usize) -> &Cell {
        let found = self.cells.iter().find(|cell| cell.row == row);
        found.unwrap_or_else(|| panic!("row {row} holds nothing"))
    }

    /// Writes rows of a batch; returns the rows that its frames are in.
    pub(crate) fn write(&mut self, batch: &[Vec<Stamp>], collector: Option<usize>) -> Vec<i64> {
        if self.kind.keeps_best() {
            return self.keep_best(&batch.concat());
        }
        // Nothing is left of a run whose every frame is overwritten: what goes on is another. Of
        // several rows none goes on.
        let several = batch.len() > 1;
        if several || batch[0].len() >= self.capacity {
            self.last = None;
        }
        let mut rows = Vec::new();
        for row in batch {
            for (at, &stamp) in row.iter().enumerate() {
                let follows = (at > 0 || !several) && self.goes_on(stamp, at == 0, collector);
                rows.push(self.push(stamp, follows, collector));
            }
        }
        if several {
            self.last = None;
        }
        // Of more frames than there are rows, the last are kept.
        rows.split_off(rows.len().saturating_sub(self.capacity))
    }

    /// Whoever writes next is another.
    pub(crate) fn reload(&mut self) {
        self.last = None;
    }

    fn push(&mut self, stamp: Stamp, follows: bool, collector: Option<usize>) -> i64 {
        self.runs += usize::from(!follows);
        self.last = Some((stamp, collector));
        self.written += 1;
        let row = self.cursor;
        self.cursor = (row + 1) % self.capacity;
        self.cells.retain(|cell| cell.row != row);
        self.insert(row, stamp);
        row as i64
    }

    fn goes_on(&self, stamp: Stamp, begins: bool, collector: Option<usize>) -> bool {
        self.last.is_some_and(|(last, author)| {
            let same = match self.with_ids {
                true => id_of(last) == id_of(stamp),
                // Rows of time that users write follow each other.
                false => !begins || collector.is_none(),
            };
            !is_last(last) && author == collector && same
        })
    }

    fn insert(&mut self, row: usize, stamp: Stamp) {
        self.cells.push(Cell {
            row,
            stamp,
            run: self.runs,
            priority: self.highest.unwrap_or(1.0),
        });
        self.pending.insert(row);
    }

    fn keep_best(&mut self, stamps: &[Stamp]) -> Vec<i64> {
        let mut kept: Vec<(usize, usize)> = Vec::new();
        for (at, &stamp) in stamps.iter().enumerate() {
            let row = if self.cells.len() < self.capacity {
                self.cells.len()
            } else {
                let least = self
                    .cells
                    .iter()
                    .min_by_key(|cell| (worth(cell.stamp), cell.row))
                    .copied()
                    .unwrap();
                if worth(stamp) <= worth(least.stamp) {
                    continue;
                }
                self.cells.retain(|cell| cell.row != least.row);
                least.row
            };
            kept.retain(|&(_, other)| other != row);
            kept.push((at, row));
            self.insert(row, stamp);
        }
        self.written += stamps.len();
        kept.into_iter().map(|(_, row)| row as i64).collect()
    }

    pub(crate) fn sampled(&mut self, rows: &[usize]) {
        for &row in rows {
            let stamp = self.at(row).stamp;
            self.drawn_last.insert(row, stamp);
        }
    }

    /// Sets the priority of the row's frame. Returns whether the row holds a frame that it may set.
    pub(crate) fn update(&mut self, row: usize, priority: f32) -> bool {
        let Some(cell) = self.cells.iter_mut().find(|cell| cell.row == row) else {
            return false;
        };
        if self
            .drawn_last
            .get(&row)
            .is_some_and(|&drawn| drawn != cell.stamp)
        {
            return false;
        }
        cell.priority = priority;
        self.highest = Some(self.highest.map_or(priority, |high| high.max(priority)));
        true
    }

    /// The runs, oldest first: their cells.
    fn runs(&self) -> Vec<Vec<Cell>> {
        self.cells
            .chunk_by(|a, b| a.run == b.run)
            .map(<[Cell]>::to_vec)
            .collect()
    }

    /// Every slice that may be drawn: its cells.
    pub(crate) fn slices(&self, slice: Slice, len: usize) -> Vec<Vec<Cell>> {
        let mut slices = Vec::new();
        for run in self.runs() {
            if slice.strict && run.len() < len {
                continue;
            }
            let len = len.min(run.len());
            let [left, right] = slice.span.map(|side| side.min(len - 1));
            for start in -(left as i64)..=(run.len() - len + right) as i64 {
                let end = (start + len as i64).min(run.len() as i64) as usize;
                slices.push(run[start.max(0) as usize..end].to_vec());
            }
        }
        slices
    }

    /// Importance weights of `rows`, when these could be drawn instead: `candidates`.
    pub(crate) fn weights(&self, rows: &[usize], candidates: &[usize]) -> Vec<f64> {
        let mass = |row: usize| (f64::from(self.at(row).priority) + 1e-8).powf(ALPHA);
        let masses = candidates.iter().map(|&row| mass(row));
        let least = masses.fold(f64::INFINITY, f64::min);
        rows.iter()
            .map(|&row| (mass(row) / least).powf(-BETA))
            .collect()
    }

    /// Takes a batch of `asked` out of the pass; `None` when there is none. What it must consist
    /// of, if that is certain, and what it may consist of.
    pub(crate) fn pass(
        &mut self,
        asked: usize,
        shuffle: bool,
        drop_last: bool,
    ) -> Option<Vec<usize>> {
        let all: BTreeSet<usize> = self.cells.iter().map(|cell| cell.row).collect();
        if all.is_empty() || (drop_last && all.len() < asked) {
            return None;
        }
        self.pending = self.pending.intersection(&all).copied().collect();
        if shuffle {
            if too_few(self.pending.len(), asked, drop_last) {
                self.pending = all;
            }
            return Some(self.pending.iter().copied().collect());
        }
        let ends = |next: usize| too_few(all.range(next..).take(asked).count(), asked, drop_last);
        if ends(self.next) {
            self.next = 0;
        }
        let rows: Vec<usize> = all.range(self.next..).take(asked).copied().collect();
        self.next = rows.last()? + 1;
        self.over = ends(self.next);
        if self.over {
            self.next = 0;
        }
        Some(rows)
    }

    /// Runs that the next batch of `num` slices of `len` may be of, oldest first; `None` when there
    /// is no such batch.
    pub(crate) fn runs_left(
        &mut self,
        slice: Slice,
        (num, len): (usize, usize),
        drop_last: bool,
    ) -> Option<Vec<usize>> {
        let least = if slice.strict { len } else { 1 };
        let runs = self.runs().into_iter();
        let all: Vec<usize> = runs
            .filter(|cells| cells.len() >= least)
            .map(|cells| cells[0].run)
            .collect();
        if too_few(all.len(), num, drop_last) {
            return None;
        }
        let fresh = |run: &&usize| self.least == least && !self.had_their_turn.contains(run);
        let left: Vec<usize> = all.iter().filter(fresh).copied().collect();
        if !too_few(left.len(), num, drop_last) {
            return Some(left);
        }
        self.had_their_turn.clear();
        self.least = least;
        Some(all)
    }

    /// Takes slices of `runs`, of a batch of `num`, out of a pass that has `left`.
    pub(crate) fn runs_drawn(
        &mut self,
        runs: &[usize],
        left: &[usize],
        num: usize,
        drop_last: bool,
    ) {
        for &run in runs {
            assert!(left.contains(&run) && self.had_their_turn.insert(run));
        }
        self.over = too_few(left.len() - runs.len(), num, drop_last);
        if self.over {
            self.had_their_turn.clear();
        }
    }

    /// Takes `rows`, a batch of `asked`, out of a pass.
    pub(crate) fn drawn(&mut self, rows: &[usize], asked: usize, drop_last: bool) {
        rows.iter()
            .for_each(|row| assert!(self.pending.remove(row)));
        self.over = too_few(self.pending.len(), asked, drop_last);
        if self.over {
            self.pending = self.cells.iter().map(|cell| cell.row).collect();
        }
    }
}

/// Whether so many make no batch.
fn too_few(left: usize, asked: usize, drop_last: bool) -> bool {
    left == 0 || (drop_last && left < asked)
}

/// What the frames that are kept are compared by: anything without order.
pub(crate) fn worth([stream, episode, t]: Stamp) -> i64 {
    (stream * 31 + episode * 17 + t * 7) % 23
}
