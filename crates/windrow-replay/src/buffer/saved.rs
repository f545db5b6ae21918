//! States of a buffer, in memory and on disk.

use std::ops::Range;
use std::path::Path;

use tensordict::TensorDict;

use super::{BufferInner, ReplayBuffer};
use crate::checkpoint::RowsToSave;
use crate::saved::{RunRows, SavedState, sizes};
use crate::{Checkpoint, CheckpointWriter, ReplayError, RowOrder, RunMarks, Storage};

const FRAMES: &str = "frames";
/// Name of the file of a checkpoint that holds everything but frames.
const FILE: &str = "buffer";

impl ReplayBuffer {
    /// All that the next samples depend on, frames included, as soon as no thread is writing.
    /// Attached collectors are not part of it.
    ///
    /// # Errors
    /// Errors of the storage, if the frames cannot be put into one batch.
    pub fn state_dict(&self) -> Result<TensorDict, ReplayError> {
        let turn = self.shared.turn();
        let state = self.shared.lock();
        let saved = SavedState::of(&state)?;
        let reader = self.shared.storage.read();
        drop(state);
        drop(turn);
        let mut dict = saved.to_dict()?;
        if !saved.rows.is_empty() {
            dict.set(FRAMES, reader.gather(&saved.rows)?)?;
        }
        Ok(dict)
    }

    /// Continues from a [state](Self::state_dict) of a buffer of the same parts: further samples
    /// are those of that buffer. The trajectory that was being written does not continue: another
    /// author may use the same ids.
    ///
    /// # Errors
    /// [`ReplayError::State`] when it is of another buffer, or errors of the storage if the frames
    /// are of another kind. Nothing is changed when the state is refused.
    pub fn load_state_dict(&self, saved: &TensorDict) -> Result<(), ReplayError> {
        let state = SavedState::parse(saved, self.shared.capacity)?;
        let has_frames = !state.rows.is_empty();
        let frames = (has_frames.then(|| saved.get_dict(FRAMES))).transpose()?;
        if let Some(frames) = frames
            && frames.batch_size() != [state.rows.len()]
        {
            return Err(sizes("frames", state.rows.len(), frames.numel()).into());
        }
        let rows = state.rows.clone();
        let prepare = |storage: &dyn Storage| frames.map_or(Ok(()), |it| storage.prepare(it));
        self.restore(state, prepare, |storage, runs| match frames {
            Some(frames) => write(storage, &rows, frames, runs),
            None => Ok(()),
        })
    }

    /// Writes a checkpoint into `directory`: the frames in files of their own, with checksums, and
    /// last a manifest that names them. A process that is killed meanwhile leaves the previous
    /// checkpoint. Other files in the directory stay.
    ///
    /// The checkpoint is of the moment at which this begins. Samples and writers go on meanwhile; a
    /// writer waits only until frames that it would overwrite are copied, the oldest of which come
    /// first.
    ///
    /// # Errors
    /// [`ReplayError::Io`] naming the file, [`ReplayError::Misfit`] when a manifest of something
    /// else is in the way.
    pub fn save(&self, directory: impl AsRef<Path>) -> Result<(), ReplayError> {
        let mut checkpoint = CheckpointWriter::begin(directory)?;
        let turn = self.shared.turn_after_saving();
        let mut state = self.shared.lock();
        let saved = SavedState::of(&state)?.to_dict()?;
        let rows = match state.contents.rows.order() {
            RowOrder::Ring => state.contents.rows.in_order(),
            RowOrder::Any => state.contents.rows.sorted(),
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

    /// Continues from the last finished checkpoint in `directory`.
    ///
    /// # Errors
    /// [`ReplayError::Damaged`], [`ReplayError::Misfit`] and [`ReplayError::Io`] naming the file,
    /// and the errors of [`load_state_dict`](Self::load_state_dict). Everything is checked before
    /// anything changes; the buffer is empty afterwards only where files change between two
    /// readings, or there is no room for their frames.
    pub fn load(&self, directory: impl AsRef<Path>) -> Result<(), ReplayError> {
        let checkpoint = Checkpoint::open(directory)?;
        let state = SavedState::parse(&checkpoint.dict(FILE)?, self.shared.capacity)?;
        self.restore(
            state,
            |storage| checkpoint.check_rows(storage),
            |storage, runs| checkpoint.rows_of(storage, runs),
        )
    }

    /// Drops the frames of the buffer, fills the rows by `write`, and continues from the saved
    /// state. Changes nothing if the state is of another sampler or writer, or `prepare` fails.
    fn restore(
        &self,
        saved: SavedState,
        prepare: impl FnOnce(&dyn Storage) -> Result<(), ReplayError>,
        write: impl FnOnce(&dyn Storage, Option<&KnownRuns>) -> Result<(), ReplayError>,
    ) -> Result<(), ReplayError> {
        let turn = self.shared.turn_after_saving();
        let keys = self.shared.lock().keys.fingerprint;
        let runs = KnownRuns::of(&saved, keys);
        let restored = self.shared.lock().restored(saved)?;
        prepare(&*self.shared.storage)?;
        // Held to the end, so that no other thread finds the buffer empty meanwhile.
        let mut state = self.shared.lock();
        state.clear();
        self.shared.storage.clear();
        let written = write(&*self.shared.storage, runs.as_ref());
        if written.is_ok() {
            state.apply(restored);
        }
        drop(state);
        drop(turn);
        self.shared.readable.notify_all();
        self.shared.writable.notify_all();
        written
    }
}

/// A checkpoint that is being written, for which rows stay as they are until they are copied.
struct Saving<'a>(&'a BufferInner);

impl RowsToSave for Saving<'_> {
    fn gather(&self, rows: &[u32]) -> Result<TensorDict, ReplayError> {
        // A reader for each piece: a writer waits for readers that began before it.
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

/// The runs of frames that are put back into their rows.
#[derive(Debug)]
pub(crate) struct KnownRuns {
    runs: RunRows,
    keys: u64,
}

impl KnownRuns {
    /// Those of a saved state, found by `keys`, where its frames are in order.
    pub(super) fn of(saved: &SavedState, keys: u64) -> Option<Self> {
        let runs = saved.run_rows()?;
        Some(Self { runs, keys })
    }

    /// Writes frames into rows from `first` on; without `runs`, those that the storage keeps stay
    /// as they are.
    ///
    /// # Errors
    /// Those of the storage.
    pub(crate) fn write(
        runs: Option<&Self>,
        storage: &dyn Storage,
        first: usize,
        frames: &TensorDict,
    ) -> Result<(), ReplayError> {
        let known = runs.and_then(|known| {
            let boundaries = known.runs.boundaries(first, frames.numel())?;
            Some((boundaries, known.keys))
        });
        match known {
            None => storage.write(first, frames),
            Some((boundaries, keys)) => {
                let boundaries = &boundaries;
                storage.write_runs(first, frames, &RunMarks { boundaries, keys })
            }
        }
    }
}

/// Writes frames into `rows`: those that follow each other together.
pub(super) fn write(
    storage: &dyn Storage,
    rows: &[u32],
    frames: &TensorDict,
    runs: Option<&KnownRuns>,
) -> Result<(), ReplayError> {
    let mut at = 0;
    for run in rows.chunk_by(|a, b| a + 1 == *b) {
        let frames = frames.narrow(0, at, run.len())?;
        KnownRuns::write(runs, storage, run[0] as usize, &frames)?;
        at += run.len();
    }
    Ok(())
}
