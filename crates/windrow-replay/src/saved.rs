//! The state of a buffer as it is saved: everything but frames. It is loaded into copies of sampler
//! and writer, which then replace the buffer's own (ADR 0013).

use tensordict::{Tensor, TensorDict};

use crate::generations::Generations;
use crate::limiter::LimiterCounts;
use crate::runs::{RunColumns, SavedRuns};
use crate::state::BufferState;
use crate::{Boundary, ReplayError, RowSpan, SampleRng, StateError};

/// A state that is valid for a buffer of its capacity; only sampler and writer have still to check
/// their parts.
#[derive(Debug)]
pub(crate) struct SavedState {
    capacity: usize,
    /// The rows that hold frames, in the buffer's own order.
    pub(crate) rows: Vec<u32>,
    /// The row that the next frame of a ring goes to.
    cursor: usize,
    /// Present for a ring.
    pub(crate) runs: Option<SavedRuns>,
    pub(crate) write_count: u64,
    pub(crate) sampled: u64,
    pub(crate) limiter: LimiterCounts,
    pub(crate) rng: SampleRng,
    pub(crate) writer: TensorDict,
    pub(crate) sampler: TensorDict,
    /// Present if the sampler has priorities; old states lack it.
    pub(crate) generations: Option<Generations>,
}

impl SavedState {
    /// The present state of a buffer.
    ///
    /// # Errors
    /// When tensors cannot be made.
    pub(crate) fn of(state: &BufferState) -> Result<Self, ReplayError> {
        let rows = state.contents.rows.in_order();
        Ok(Self {
            capacity: state.contents.rows.capacity(),
            cursor: state.contents.rows.next(),
            runs: state.contents.runs.as_ref().map(|runs| runs.saved()),
            write_count: state.write_count,
            sampled: state.sampled,
            limiter: state
                .limiter
                .as_ref()
                .map(|it| it.counts())
                .unwrap_or_default(),
            rng: state.rng.clone(),
            writer: state.writer.state_dict(&rows)?,
            sampler: state.sampler.state_dict()?,
            generations: state.generations.clone(),
            rows,
        })
    }

    /// The rows of a ring as a span.
    pub(crate) fn span(&self) -> RowSpan {
        let first = (self.cursor + self.capacity - self.rows.len()) % self.capacity;
        RowSpan::new(first, self.rows.len(), self.capacity)
    }

    /// The runs of a ring, by rows.
    pub(crate) fn run_rows(&self) -> Option<RunRows> {
        let runs = self.runs.clone()?;
        let rows = self.span();
        Some(RunRows { runs, rows })
    }

    /// The tensors that a file keeps.
    ///
    /// # Errors
    /// When tensors cannot be made.
    pub(crate) fn to_dict(&self) -> Result<TensorDict, ReplayError> {
        let numbers = |numbers: &[i64]| Tensor::from_slice(numbers, [numbers.len()]);
        let rows: Vec<i64> = self.rows.iter().map(|&row| i64::from(row)).collect();
        let counts = [
            self.capacity as i64,
            self.cursor as i64,
            self.write_count as i64,
            self.sampled as i64,
            self.limiter.inserted as i64,
            self.limiter.sampled as i64,
        ];
        let (seed, drawn) = self.rng.state();
        let mut dict = TensorDict::new([]);
        dict.set("rows", numbers(&rows)?)?;
        dict.set("counts", numbers(&counts)?)?;
        dict.set("rng", numbers(&[seed as i64, drawn as i64])?)?;
        dict.set("sampler", self.sampler.clone())?;
        dict.set("writer", self.writer.clone())?;
        if let Some(generations) = &self.generations {
            dict.set("generations", generations.to_dict()?)?;
        }
        if let Some(runs) = &self.runs {
            let columns = runs.columns();
            let flags = |flags: &[bool]| Tensor::from_slice(flags, [flags.len()]);
            dict.set(("runs", "first"), numbers(&columns.firsts)?)?;
            dict.set(("runs", "len"), numbers(&columns.lens)?)?;
            dict.set(("runs", "ended"), flags(&columns.ended)?)?;
            dict.set(("runs", "apart"), flags(&columns.apart)?)?;
            dict.set(("runs", "next"), numbers(&[columns.next])?)?;
        }
        Ok(dict)
    }

    /// The state of a buffer of `capacity` rows that a file keeps.
    ///
    /// # Errors
    /// [`ReplayError::State`] when it is of another buffer or damaged, [`ReplayError::Tensor`] when
    /// an entry is missing or of another kind.
    pub(crate) fn parse(dict: &TensorDict, capacity: usize) -> Result<Self, ReplayError> {
        let counts = Counts::parse(dict)?;
        if counts.capacity != capacity as i64 {
            return Err(StateError::Capacity {
                expected: capacity,
                got: counts.capacity,
            }
            .into());
        }
        number("cursor", counts.cursor, 0, capacity as i64 - 1)?;
        let rng = dict.as_slice::<i64>("rng")?;
        let &[seed, drawn] = rng else {
            return Err(sizes("random numbers", 2, rng.len()).into());
        };
        let rows = rows_of(dict, capacity)?;
        let saved = Self {
            capacity,
            cursor: counts.cursor as usize,
            runs: (dict.contains_key("runs").then(|| runs_of(dict, rows.len()))).transpose()?,
            rows,
            write_count: counts.write_count as u64,
            sampled: counts.sampled as u64,
            limiter: counts.limiter,
            rng: SampleRng::resume(seed as u64, drawn as u64),
            writer: writer_of(dict)?,
            sampler: dict.get_dict("sampler")?.clone(),
            generations: if dict.contains_key("generations") {
                Some(Generations::parse(dict.get_dict("generations")?, capacity)?)
            } else {
                None
            },
        };
        if let Some(runs) = &saved.runs {
            let in_order = saved.span().rows().map(|row| row as u32);
            if !in_order.eq(saved.rows.iter().copied())
                || runs.next() % capacity as u64 != saved.cursor as u64
            {
                return Err(StateError::Ring.into());
            }
        }
        Ok(saved)
    }
}

/// The runs of a saved ring, by the rows of their frames.
#[derive(Debug)]
pub(crate) struct RunRows {
    runs: SavedRuns,
    rows: RowSpan,
}

impl RunRows {
    /// The boundaries of the frames in `len` rows from `first` on; `None` where these are not among
    /// the saved.
    pub(crate) fn boundaries(&self, first: usize, len: usize) -> Option<Vec<Boundary>> {
        let at = self.rows.place(first)?;
        let are_there = at + len <= self.rows.len();
        are_there.then(|| self.runs.boundaries(at, len))
    }
}

/// The entry `"counts"` of a state.
struct Counts {
    capacity: i64,
    cursor: i64,
    write_count: i64,
    sampled: i64,
    limiter: LimiterCounts,
}

impl Counts {
    fn parse(dict: &TensorDict) -> Result<Self, ReplayError> {
        // Higher ones leave no room for further counts.
        const MOST: i64 = i64::MAX / 2;
        let counts = dict.as_slice::<i64>("counts")?;
        for &count in counts {
            number("count", count, 0, MOST)?;
        }
        let &[capacity, cursor, write_count, sampled, inserted, drawn] = counts else {
            return Err(sizes("counts", 6, counts.len()).into());
        };
        Ok(Self {
            capacity,
            cursor,
            write_count,
            sampled,
            limiter: LimiterCounts {
                inserted: inserted as u64,
                sampled: drawn as u64,
            },
        })
    }
}

/// The rows of a state, each once.
fn rows_of(dict: &TensorDict, capacity: usize) -> Result<Vec<u32>, ReplayError> {
    let mut seen = vec![false; capacity];
    let row = |&row: &i64| {
        let seen = seen.get_mut(usize::try_from(row).ok()?)?;
        (!std::mem::replace(seen, true)).then_some(row as u32)
    };
    let rows: Option<Vec<u32>> = dict.as_slice::<i64>("rows")?.iter().map(row).collect();
    Ok(rows.ok_or(StateError::Rows)?)
}

fn runs_of(dict: &TensorDict, frames: usize) -> Result<SavedRuns, ReplayError> {
    let numbers = |name: &str| dict.as_slice::<i64>(("runs", name)).map(<[i64]>::to_vec);
    let flags = |name: &str| dict.as_slice::<bool>(("runs", name)).map(<[bool]>::to_vec);
    let ended = flags("ended")?;
    let next = numbers("next")?;
    let columns = RunColumns {
        firsts: numbers("first")?,
        lens: numbers("len")?,
        // Old states do not have it: their runs are all apart.
        apart: if dict.contains_key(("runs", "apart")) {
            flags("apart")?
        } else {
            vec![true; ended.len()]
        },
        ended,
        next: *next.first().ok_or(StateError::Ring)?,
    };
    Ok(SavedRuns::parse(&columns, frames).ok_or(StateError::Ring)?)
}

fn writer_of(dict: &TensorDict) -> Result<TensorDict, ReplayError> {
    if dict.contains_key("writer") {
        return Ok(dict.get_dict("writer")?.clone());
    }
    // Old states have the values that frames were compared by beside the rows, and nothing of other
    // writers.
    let mut writer = TensorDict::new([]);
    if dict.contains_key("values") {
        writer.set("values", dict.get("values")?.clone())?;
    }
    Ok(writer)
}

pub(crate) fn number(
    what: &'static str,
    got: i64,
    least: i64,
    most: i64,
) -> Result<(), StateError> {
    if (least..=most).contains(&got) {
        return Ok(());
    }
    Err(StateError::Number {
        what,
        least,
        most,
        got,
    })
}

pub(crate) fn sizes(what: &'static str, expected: usize, got: usize) -> StateError {
    StateError::Sizes {
        what,
        expected,
        got,
    }
}
