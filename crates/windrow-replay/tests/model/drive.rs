//! The same operations on a buffer and on a list.

use tensordict::{Tensor, TensorDict};
use windrow_replay::{LazyTensorStorage, ListStorage, MaxRewardWriter, ReplayBuffer, ReplayError};
use windrow_slab::{Sink, WriterId};

use crate::common::{ALIKE, Stamp, Stream, batch, flags, id_of, index, is_last, stamps};
use crate::kinds::{Kind, Slice};
use crate::list::{Cell, List, worth};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Op {
    Extend {
        streams: usize,
        steps: usize,
    },
    Add,
    /// One of two collectors writes a batch; both number their trajectories from 0.
    Collect {
        who: usize,
        steps: usize,
    },
    /// A batch of so many frames, or slices, or frames a slice.
    Sample(usize),
    /// Priorities from this seed.
    Update(u64),
    All,
    /// Goes on with a buffer that took the state over.
    Reload,
    Empty,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) capacity: usize,
    pub(crate) with_ids: bool,
    pub(crate) memory: bool,
    pub(crate) seed: u64,
}

struct Pair {
    kind: Kind,
    setting: Setting,
    buffer: ReplayBuffer,
    list: List,
    streams: Vec<Stream>,
    /// Frames of both collectors, and what each was given when it was first attached.
    collectors: [(Stream, Option<WriterId>); 2],
}

/// How many operations were compared.
pub(crate) fn run(kind: Kind, setting: &Setting, ops: &[Op]) -> usize {
    let mut pair = Pair {
        kind,
        setting: *setting,
        buffer: build(kind, setting),
        list: List::new(kind, setting.capacity, setting.with_ids),
        streams: (0..3).map(Stream::new).collect(),
        collectors: [0, 1].map(|who| (Stream::new(ALIKE + who), None)),
    };
    for &op in ops {
        pair.step(op);
        assert_eq!(pair.buffer.len(), pair.list.cells.len());
        assert_eq!(pair.buffer.write_count(), pair.list.written as u64);
    }
    pair.all();
    ops.len()
}

fn build(kind: Kind, setting: &Setting) -> ReplayBuffer {
    let builder = ReplayBuffer::builder().seed(setting.seed);
    let builder = match setting.memory {
        true => builder.storage(LazyTensorStorage::new(setting.capacity)),
        false => builder.storage(ListStorage::new(setting.capacity)),
    };
    let builder = match kind.keeps_best() {
        true => builder.writer(MaxRewardWriter::new("worth")),
        false => builder,
    };
    kind.install(builder).build().unwrap()
}

impl Pair {
    fn step(&mut self, op: Op) {
        match op {
            Op::Extend { streams, steps } => {
                let frames: Vec<Vec<Stamp>> = (0..streams)
                    .map(|at| (0..steps).map(|_| self.streams[at].step()).collect())
                    .collect();
                let rows = self.buffer.extend(&self.batch(&frames)).unwrap();
                assert_eq!(rows, self.list.write(&frames, None));
            }
            Op::Add => {
                let stamp = self.streams[0].step();
                let frames = [vec![stamp]];
                let frame = self.batch(&frames).index(0).unwrap();
                let row = self.buffer.add(&frame).unwrap();
                assert_eq!(row, self.list.write(&frames, None).first().copied());
            }
            Op::Collect { who, steps } => self.collect(who, steps),
            Op::Sample(n) => self.sample(n),
            Op::Update(seed) => self.update(seed),
            Op::All => self.all(),
            Op::Reload => self.reload(),
            Op::Empty => {
                self.buffer.empty();
                self.list.clear();
            }
        }
    }

    fn collect(&mut self, who: usize, steps: usize) {
        let (stream, first) = &mut self.collectors[who];
        let frames = [(0..steps).map(|_| stream.step()).collect()];
        let writer = match *first {
            Some(first) => self.buffer.attach_again(first),
            None => *first.insert(self.buffer.attach()),
        };
        let batch = self.batch(&frames);
        Sink::extend(&self.buffer, writer, &batch).unwrap();
        self.buffer.detach(writer, None);
        self.list.write(&frames, Some(who));
    }

    fn batch(&self, rows: &[Vec<Stamp>]) -> TensorDict {
        let mut frames = batch(rows, self.setting.with_ids);
        if self.kind.keeps_best() {
            let worths: Vec<i64> = rows.concat().into_iter().map(worth).collect();
            let worths = Tensor::from_vec(worths, frames.batch_size()).unwrap();
            frames.set("worth", worths).unwrap();
        }
        frames
    }

    fn all(&self) {
        if self.list.cells.is_empty() {
            return;
        }
        let mut expected: Vec<Cell> = self.list.cells.clone();
        expected.sort_by_key(|cell| cell.row);
        let expected: Vec<Stamp> = expected.iter().map(|cell| cell.stamp).collect();
        assert_eq!(stamps(&self.buffer.all().unwrap()), expected);
    }

    fn update(&mut self, seed: u64) {
        let rows: Vec<i64> = (0..6)
            .map(|at| (seed.rotate_left(at * 9) % self.setting.capacity as u64) as i64)
            .collect();
        let priority = |at: usize| ((seed >> at) % 16) as f32 * 0.25;
        let priorities: Vec<f32> = (0..rows.len()).map(priority).collect();
        let updated = self.buffer.update_priority(&rows, &priorities);
        if !self.kind.prioritized() {
            assert!(matches!(updated, Err(ReplayError::NoPriorities)));
            return;
        }
        let each = rows.iter().zip(priorities);
        let applied = each.filter(|&(&row, priority)| self.list.update(row as usize, priority));
        assert_eq!(updated.unwrap(), applied.count());
    }

    /// A buffer that took the state over draws what this one draws.
    fn reload(&mut self) {
        let saved = self.buffer.state_dict().unwrap();
        let other = build(
            self.kind,
            &Setting {
                seed: 1,
                ..self.setting
            },
        );
        other.load_state_dict(&saved).unwrap();
        let n = self.asked(2);
        match (self.buffer.sample(n), other.sample(n)) {
            (Ok(a), Ok(b)) => {
                assert_eq!(a, b);
                self.check(n, 2, &b);
            }
            (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
            (a, b) => panic!("{a:?} here, {b:?} after a reload"),
        }
        self.buffer = other;
        self.list.reload();
        self.collectors = self.collectors.map(|(stream, _)| (stream, None));
    }

    /// The batch size for `n` frames, slices, or frames a slice.
    fn asked(&self, n: usize) -> usize {
        match self.kind {
            Kind::Slice(slice)
            | Kind::SliceWithoutReplacement { slice, .. }
            | Kind::PrioritizedSlice(slice) => {
                let (num, len) = slice.of(n);
                num * len
            }
            _ => n * 3,
        }
    }

    fn sample(&mut self, n: usize) {
        let asked = self.asked(n);
        match self.buffer.sample(asked) {
            Ok(batch) => self.check(asked, n, &batch),
            // More than there is, or than there can ever be.
            Err(ReplayError::NotEnough { .. } | ReplayError::Argument { .. }) => {
                let possible = match self.kind {
                    Kind::Slice(slice) | Kind::PrioritizedSlice(slice) => {
                        !self.list.slices(slice, slice.of(n).1).is_empty()
                    }
                    Kind::SliceWithoutReplacement {
                        slice, drop_last, ..
                    } => self.list.runs_left(slice, slice.of(n), drop_last).is_some(),
                    Kind::WithoutReplacement { shuffle, drop_last } => {
                        self.list.pass(asked, shuffle, drop_last).is_some()
                    }
                    _ => !self.list.cells.is_empty(),
                };
                assert!(!possible);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Looks at a batch of size `asked`.
    fn check(&mut self, asked: usize, n: usize, batch: &TensorDict) {
        let rows: Vec<usize> = index(batch).into_iter().map(|row| row as usize).collect();
        let expected: Vec<Stamp> = rows.iter().map(|&row| self.list.at(row).stamp).collect();
        assert_eq!(stamps(batch), expected);
        self.list.sampled(&rows);
        match self.kind {
            Kind::Random | Kind::Best => assert_eq!(rows.len(), asked),
            Kind::WithoutReplacement { shuffle, drop_last } => {
                self.check_pass(asked, &rows, shuffle, drop_last);
            }
            Kind::BestWithoutReplacement => self.check_pass(asked, &rows, true, false),
            Kind::Slice(slice) => {
                self.check_slices(slice, slice.of(n), batch, &rows);
            }
            Kind::SliceWithoutReplacement {
                slice,
                shuffle,
                drop_last,
            } => {
                let (num, len) = slice.of(n);
                let left = self.list.runs_left(slice, (num, len), drop_last).unwrap();
                let num = num.min(left.len());
                let mut firsts = self.check_slices(slice, (num, len), batch, &rows);
                firsts.dedup();
                let drawn: Vec<usize> = firsts.iter().map(|&row| self.list.at(row).run).collect();
                if !shuffle {
                    assert_eq!(drawn, left[..num]);
                }
                // No trajectory twice, and each of them still to be drawn from.
                self.list
                    .runs_drawn(&drawn, &left, slice.of(n).0, drop_last);
            }
            Kind::Prioritized => {
                assert_eq!(rows.len(), asked);
                let all: Vec<usize> = self.list.cells.iter().map(|cell| cell.row).collect();
                self.check_weights(batch, &rows, &all);
            }
            Kind::PrioritizedSlice(slice) => {
                let firsts = self.check_slices(slice, slice.of(n), batch, &rows);
                let slices = self.list.slices(slice, slice.of(n).1);
                let starts: Vec<usize> = slices.iter().map(|slice| slice[0].row).collect();
                self.check_weights(batch, &firsts, &starts);
            }
        }
        assert_eq!(self.buffer.ran_out(), self.list.over);
    }

    fn check_pass(&mut self, asked: usize, rows: &[usize], shuffle: bool, drop_last: bool) {
        let expected = self.list.pass(asked, shuffle, drop_last).unwrap();
        if shuffle {
            assert_eq!(rows.len(), asked.min(expected.len()));
            // No row twice, and each of them still to be drawn.
            self.list.drawn(rows, asked, drop_last);
        } else {
            assert_eq!(rows, expected);
        }
    }

    fn check_weights(&self, batch: &TensorDict, rows: &[usize], candidates: &[usize]) {
        let found = batch.as_slice::<f32>("priority_weight").unwrap();
        let expected = self.list.weights(rows, candidates);
        assert_eq!(found.len(), expected.len());
        for (&found, &expected) in found.iter().zip(&expected) {
            let difference = (f64::from(found) - expected).abs();
            assert!(difference <= 1e-4 * expected, "{found} for {expected}");
        }
    }

    /// Returns the first row of the slice of every frame.
    fn check_slices(
        &self,
        slice: Slice,
        (num, len): (usize, usize),
        batch: &TensorDict,
        rows: &[usize],
    ) -> Vec<usize> {
        let possible: Vec<Vec<usize>> = self
            .list
            .slices(slice, len)
            .iter()
            .map(|cells| cells.iter().map(|cell| cell.row).collect())
            .collect();
        let truncated = flags(batch, &["next", "truncated"]);
        let mask = match slice.pad {
            true => flags(batch, &["collector", "mask"]),
            false => vec![true; rows.len()],
        };
        let (mut found, mut firsts, mut at) = (0, Vec::new(), 0);
        let mut begins = vec![false; rows.len()];
        while at < rows.len() {
            let last = at + truncated[at..].iter().position(|&flag| flag).unwrap();
            let piece = &rows[at..=last];
            assert!(possible.contains(&piece.to_vec()), "{piece:?}");
            let end = match slice.pad {
                true => at + len,
                false => last + 1,
            };
            assert!(mask[at..=last].iter().all(|&real| real));
            assert!(mask[last + 1..end].iter().all(|&real| !real));
            assert!(rows[last + 1..end].iter().all(|&row| row == rows[last]));
            assert!(!truncated[last + 1..end].iter().any(|&flag| flag));
            begins[at] = true;
            firsts.resize(end, rows[at]);
            (found, at) = (found + 1, end);
        }
        assert_eq!(found, num);
        self.check_flags(batch, &truncated, &begins, rows);
        firsts
    }

    /// `done` and `is_init` are those of the frames, and those of the slices.
    fn check_flags(&self, batch: &TensorDict, truncated: &[bool], begins: &[bool], rows: &[usize]) {
        let done = flags(batch, &["next", "done"]);
        let first = flags(batch, &["is_init"]);
        for at in 0..rows.len() {
            let stamp = self.list.at(rows[at]).stamp;
            assert_eq!(done[at], truncated[at] || is_last(stamp));
            assert_eq!(first[at], begins[at] || stamp[2] == 0);
        }
        if self.setting.with_ids {
            let ids = batch.get(("collector", "traj_ids")).unwrap();
            let ids = ids.to_vec::<i64>().unwrap();
            for (&id, &row) in ids.iter().zip(rows) {
                assert_eq!(id, id_of(self.list.at(row).stamp));
            }
        }
    }
}
