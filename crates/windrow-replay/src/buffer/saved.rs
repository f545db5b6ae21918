//! States of a buffer, in memory and on disk.

use std::ops::Range;
use std::path::Path;

use tensordict::{Tensor, TensorDict};

use super::{ReplayBuffer, Shared};
use crate::checkpoint::RowsToSave;
use crate::index::RunsState;
use crate::live::{Live, RowSpan};
use crate::state::State;
use crate::{Checkpoint, CheckpointWriter, ReplayError, SampleRng, Storage, Writer};

const FRAMES: &str = "frames";
/// Name of the file of a checkpoint that holds everything but frames.
const FILE: &str = "buffer";

impl ReplayBuffer {
    /// All that the next samples depend on, frames included, once nobody is writing. Collectors that are attached are not
    /// part of it.
    ///
    /// # Errors
    /// Those of the storage, when the frames cannot be put into one batch.
    pub fn state_dict(&self) -> Result<TensorDict, ReplayError> {
        let turn = self.shared.turn();
        let state = self.shared.lock();
        let mut saved = of_state(&state)?;
        let rows = in_order(&state.live);
        let reader = self.shared.storage.read();
        drop(state);
        drop(turn);
        if !rows.is_empty() {
            saved.set(FRAMES, reader.gather(&rows)?)?;
        }
        Ok(saved)
    }

    /// Goes on from a [state](Self::state_dict) of a buffer of the same parts: further samples are those that it would have
    /// given. Only the trajectory that was being written does not go on: who writes next may be another who uses the same ids.
    ///
    /// # Errors
    /// [`ReplayError::State`] when it is of another buffer, or those of the storage when the frames are of another kind.
    /// Nothing is changed when the state is refused.
    pub fn load_state_dict(&self, saved: &TensorDict) -> Result<(), ReplayError> {
        let rows = self.check(saved)?;
        let frames = match rows.is_empty() {
            true => None,
            false => Some(saved.get_dict(FRAMES)?),
        };
        if let Some(frames) = frames
            && frames.batch_size() != [rows.len()]
        {
            return Err(misfit("frames of size", rows.len(), &frames.batch_size()));
        }
        let prepare = |storage: &dyn Storage| frames.map_or(Ok(()), |it| storage.prepare(it));
        self.restore(saved, &rows, prepare, |storage, apart| match frames {
            Some(frames) => write(storage, &rows, frames, Some(apart)),
            None => Ok(()),
        })
    }

    /// Writes a checkpoint into `directory`: the frames in files of their own, with checksums, and last a manifest that
    /// names them. Killed anywhere, a process leaves the checkpoint before. Other things in the directory stay.
    ///
    /// The checkpoint is of the moment at which this begins. Samples and writers go on meanwhile; a writer waits only until frames
    /// that it would overwrite are copied, the oldest of which come first.
    ///
    /// # Errors
    /// [`ReplayError::Io`] naming the file, [`ReplayError::Misfit`] when a manifest of something else is in the way.
    pub fn save(&self, directory: impl AsRef<Path>) -> Result<(), ReplayError> {
        let mut checkpoint = CheckpointWriter::begin(directory)?;
        let turn = self.shared.turn_after_saving();
        let mut state = self.shared.lock();
        let saved = of_state(&state)?;
        let rows = match &state.live {
            live @ Live::Ring(_) => in_order(live),
            live @ Live::List { .. } => live.sorted(),
        };
        let mut uncopied = vec![false; self.shared.capacity];
        rows.iter().for_each(|&row| uncopied[row as usize] = true);
        state.saving = Some(uncopied);
        let saving = Saving(&self.shared);
        drop(state);
        drop(turn);
        checkpoint.dict(FILE, &saved)?;
        let ranges = rows.chunk_by(|a, b| a + 1 == *b);
        let ranges = ranges.map(|rows| rows[0]..rows[0] + rows.len() as u32);
        checkpoint.rows_in(self.shared.capacity, ranges.collect(), &saving)?;
        drop(saving);
        checkpoint.finish()
    }

    /// Goes on from the last finished checkpoint in `directory`.
    ///
    /// # Errors
    /// [`ReplayError::Damaged`], [`ReplayError::Misfit`] and [`ReplayError::Io`] naming the file, and those of
    /// [`load_state_dict`](Self::load_state_dict). All is read before anything is changed, and nothing is when that fails; the
    /// buffer is empty afterwards only where files change between two readings, or there is no room for their frames.
    pub fn load(&self, directory: impl AsRef<Path>) -> Result<(), ReplayError> {
        let checkpoint = Checkpoint::open(directory)?;
        let saved = checkpoint.dict(FILE)?;
        let rows = self.check(&saved)?;
        self.restore(
            &saved,
            &rows,
            |storage| checkpoint.check_rows(storage),
            |storage, apart| checkpoint.rows_apart(storage, apart),
        )
    }

    /// The rows of a state, if it fits.
    fn check(&self, saved: &TensorDict) -> Result<Vec<u32>, ReplayError> {
        let capacity = self.shared.capacity;
        let [saved_capacity, cursor, ..] = counts(saved)?;
        if saved_capacity != capacity as i64 {
            return Err(misfit("a capacity of", capacity, &saved_capacity));
        }
        if !(0..saved_capacity).contains(&cursor) {
            return Err(misfit("a cursor below", capacity, &cursor));
        }
        let ring = matches!(self.shared.lock().writer, Writer::RoundRobin);
        if ring != saved.contains_key("runs") {
            return Err(ReplayError::State("it is of another writer".to_owned()));
        }
        let rows: Vec<u32> = saved
            .as_slice::<i64>("rows")?
            .iter()
            .filter_map(|&row| u32::try_from(row).ok())
            .filter(|&row| (row as usize) < capacity)
            .collect();
        let mut seen = vec![false; capacity];
        let again = |&row: &u32| std::mem::replace(&mut seen[row as usize], true);
        if rows.len() != saved.as_slice::<i64>("rows")?.len() || rows.iter().any(again) {
            return Err(ReplayError::State(
                "rows are beyond the capacity or named twice".to_owned(),
            ));
        }
        Ok(rows)
    }

    /// Gives up what there is, lets `write` fill the rows, and takes the state over; changes nothing when that makes no
    /// sense, or `prepare` fails.
    fn restore(
        &self,
        saved: &TensorDict,
        rows: &[u32],
        prepare: impl FnOnce(&dyn Storage) -> Result<(), ReplayError>,
        write: impl FnOnce(&dyn Storage, &[bool]) -> Result<(), ReplayError>,
    ) -> Result<(), ReplayError> {
        let turn = self.shared.turn_after_saving();
        rehearse(&mut self.shared.lock(), saved, rows, self.shared.capacity)?;
        prepare(&*self.shared.storage)?;
        self.shared.lock().clear();
        self.shared.storage.clear();
        write(
            &*self.shared.storage,
            &apart(saved, rows, self.shared.capacity)?,
        )?;
        let mut state = self.shared.lock();
        let loaded = take_over(&mut state, saved, rows, self.shared.capacity);
        if loaded.is_err() {
            state.clear();
        }
        drop(state);
        drop(turn);
        self.shared.readable.notify_all();
        self.shared.writable.notify_all();
        loaded
    }
}

/// A checkpoint that is being written, for which rows stay as they are until they are copied.
struct Saving<'a>(&'a Shared);

impl RowsToSave for Saving<'_> {
    fn gather(&self, rows: &[u32]) -> Result<TensorDict, ReplayError> {
        // Only for so long: a writer waits for readers that began before it.
        self.0.storage.read().gather(rows)
    }

    fn copied(&self, rows: Range<u32>) {
        if let Some(uncopied) = &mut self.0.lock().saving {
            uncopied[rows.start as usize..rows.end as usize].fill(false);
        }
        self.0.writable.notify_all();
    }
}

impl Drop for Saving<'_> {
    fn drop(&mut self) {
        self.0.lock().saving = None;
        self.0.writable.notify_all();
    }
}

/// Writes frames into `rows`: those that follow each other together. `apart` says of every row of the storage whether its frame
/// was written apart from the one before; that stays as it is where nothing is said.
pub(super) fn write(
    storage: &dyn Storage,
    rows: &[u32],
    frames: &TensorDict,
    apart: Option<&[bool]>,
) -> Result<(), ReplayError> {
    let mut at = 0;
    for run in rows.chunk_by(|a, b| a + 1 == *b) {
        let (first, frames) = (run[0] as usize, frames.narrow(0, at, run.len())?);
        match apart {
            None => storage.write(first, &frames)?,
            Some(apart) => storage.write_apart(first, &frames, &breaks(apart, first, run.len()))?,
        }
        at += run.len();
    }
    Ok(())
}

/// Which of `len` rows from `first` on hold frames that were written apart from those before, where `apart` says so of every
/// row.
pub(crate) fn breaks(apart: &[bool], first: usize, len: usize) -> Vec<usize> {
    let is_apart = |&at: &usize| apart[(first + at) % apart.len()];
    (0..len).filter(is_apart).collect()
}

/// Of every row whether its frame was written apart from the one before, as a state says that has been rehearsed.
fn apart(saved: &TensorDict, rows: &[u32], capacity: usize) -> Result<Vec<bool>, ReplayError> {
    let mut apart = vec![false; capacity];
    if saved.contains_key("runs") {
        let runs = runs_of(saved)?;
        let oldest = runs.firsts.first().copied().unwrap_or(0);
        for (first, _) in runs
            .firsts
            .iter()
            .zip(&runs.apart)
            .filter(|(_, apart)| **apart)
        {
            apart[rows[(first - oldest) as usize] as usize] = true;
        }
    }
    Ok(apart)
}

/// What a state says of runs.
fn runs_of(saved: &TensorDict) -> Result<RunsState, ReplayError> {
    let damaged = || ReplayError::State("runs are damaged".to_owned());
    let numbers = |name: &str| saved.as_slice::<i64>(("runs", name)).map(<[i64]>::to_vec);
    let flags = |name: &str| saved.as_slice::<bool>(("runs", name)).map(<[bool]>::to_vec);
    let ended = flags("ended")?;
    Ok(RunsState {
        firsts: numbers("first")?,
        lens: numbers("len")?,
        // States that do not say it tell no more than that runs are apart.
        apart: match saved.contains_key(("runs", "apart")) {
            true => flags("apart")?,
            false => vec![true; ended.len()],
        },
        ended,
        next: *numbers("next")?.first().ok_or_else(damaged)?,
    })
}

fn misfit(what: &str, expected: usize, got: &impl std::fmt::Debug) -> ReplayError {
    ReplayError::State(format!("expected {what} {expected}, got {got:?}"))
}

/// The rows in the buffer's own order.
pub(super) fn in_order(live: &Live) -> Vec<u32> {
    (0..live.len()).map(|at| live.row(at) as u32).collect()
}

fn of_state(state: &State) -> Result<TensorDict, ReplayError> {
    let numbers = |numbers: &[i64]| Tensor::from_slice(numbers, [numbers.len()]);
    let rows: Vec<i64> = in_order(&state.live).into_iter().map(i64::from).collect();
    let [inserted, sampled] = state.limiter.as_ref().map_or([0, 0], |it| it.counts());
    let counts = [
        state.live.capacity() as i64,
        state.cursor as i64,
        state.write_count as i64,
        state.sampled as i64,
        inserted as i64,
        sampled as i64,
    ];
    let (seed, drawn) = state.rng.state();
    let mut saved = TensorDict::new([]);
    saved.set("rows", numbers(&rows)?)?;
    saved.set("counts", numbers(&counts)?)?;
    saved.set("rng", numbers(&[seed as i64, drawn as i64])?)?;
    saved.set("sampler", state.sampler.state_dict()?)?;
    if let Some(runs) = &state.runs {
        let runs = runs.state();
        let flags = |flags: &[bool]| Tensor::from_slice(flags, [flags.len()]);
        saved.set(("runs", "first"), numbers(&runs.firsts)?)?;
        saved.set(("runs", "len"), numbers(&runs.lens)?)?;
        saved.set(("runs", "ended"), flags(&runs.ended)?)?;
        saved.set(("runs", "apart"), flags(&runs.apart)?)?;
        saved.set(("runs", "next"), numbers(&[runs.next])?)?;
    }
    if let Writer::MaxReward(writer) = &state.writer {
        let values = writer.values_of(&rows);
        saved.set("values", Tensor::from_slice(&values, [values.len()])?)?;
    }
    Ok(saved)
}

/// Capacity, cursor, frames written, frames sampled, and the two counts of the limiter.
fn counts(saved: &TensorDict) -> Result<[i64; 6], ReplayError> {
    // Higher ones leave no room for what is counted from there on.
    const MOST: i64 = i64::MAX / 2;
    let counts = saved.as_slice::<i64>("counts")?;
    if let Some(count) = counts.iter().find(|count| !(0..=MOST).contains(*count)) {
        return Err(ReplayError::State(format!(
            "expected counts from 0 to {MOST}, got {count}"
        )));
    }
    counts
        .try_into()
        .map_err(|_| misfit("counts:", 6, &counts.len()))
}

/// Whether a state can be taken over; leaves `state` as it was.
fn rehearse(
    state: &mut State,
    saved: &TensorDict,
    rows: &[u32],
    capacity: usize,
) -> Result<(), ReplayError> {
    let (before, live, open) = (of_state(state)?, in_order(&state.live), state.open());
    state.clear();
    let taken = take_over(state, saved, rows, capacity);
    state.clear();
    take_over(state, &before, &live, capacity)?;
    if let Some(open) = open {
        state.reopen(open);
    }
    taken
}

fn take_over(
    state: &mut State,
    saved: &TensorDict,
    rows: &[u32],
    capacity: usize,
) -> Result<(), ReplayError> {
    let [_, cursor, write_count, sampled, inserted, taken] = counts(saved)?;
    let rng = saved.as_slice::<i64>("rng")?;
    let [seed, drawn] = rng
        .try_into()
        .map_err(|_| misfit("random numbers:", 2, &rng.len()))?;
    state.cursor = cursor as usize;
    if let Some(runs) = &mut state.runs {
        let first = (state.cursor + capacity - rows.len()) % capacity;
        let ring = Live::ring(first, rows.len(), capacity);
        let saved = runs_of(saved)?;
        let fits = in_order(&ring) == rows
            && saved.next.rem_euclid(capacity as i64) == cursor
            && runs.load(&saved, rows.len());
        if !fits {
            return Err(ReplayError::State(
                "runs and rows do not make a ring".to_owned(),
            ));
        }
        state.live = ring;
        let span = RowSpan::new(first, rows.len(), capacity);
        state.announce(span);
    } else {
        for &row in rows {
            state.admit(RowSpan::new(row as usize, 1, capacity), None, 0);
        }
    }
    if let Writer::MaxReward(writer) = &mut state.writer {
        let values = saved.as_slice("values")?;
        if values.len() != rows.len() {
            return Err(misfit("values:", rows.len(), &values.len()));
        }
        writer.restore(rows, values);
    }
    state.load_sampler(saved.get_dict("sampler")?)?;
    (state.write_count, state.sampled) = (write_count as u64, sampled as u64);
    if let Some(limiter) = &mut state.limiter {
        limiter.set_counts([inserted as u64, taken as u64]);
    }
    state.rng = SampleRng::resume(seed as u64, drawn as u64);
    Ok(())
}
