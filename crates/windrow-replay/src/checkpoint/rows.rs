//! The rows of a storage in a checkpoint.

use std::ops::Range;

use serde_json::{Value, json};
use tensordict::{DType, TensorDict};
use windrow_store::Store;

use super::{Checkpoint, CheckpointWriter};
use crate::buffer::KnownRuns;
use crate::{ReplayError, Storage, StorageRead};

/// Name of the section that says which rows are in which file.
const SECTION: &str = "rows";

/// Bytes of one file, about: a writer may wait for as many to be copied.
const SEGMENT: usize = 16 << 20;

impl CheckpointWriter {
    /// Writes all rows that `reader` can read, of a storage of `capacity` rows.
    ///
    /// Writers of the storage wait until the reader is dropped, which can be done before
    /// [`finish`](CheckpointWriter::finish), the slower half.
    ///
    /// # Errors
    /// The errors of [`StorageRead::gather`] and [`dict`](CheckpointWriter::dict).
    pub fn rows(&mut self, capacity: usize, reader: &dyn StorageRead) -> Result<(), ReplayError> {
        self.rows_in(capacity, reader.filled(), &reader)
    }

    /// Writes the rows in `ranges`, in this order.
    pub(crate) fn rows_in(
        &mut self,
        capacity: usize,
        ranges: Vec<Range<u32>>,
        source: &dyn RowsToSave,
    ) -> Result<(), ReplayError> {
        let mut segments = Vec::new();
        let mut step = None;
        for mut range in ranges {
            let step = match step {
                Some(step) => step,
                None => *step.insert(frames_of_a_segment(&source.gather(&[range.start])?)),
            };
            while !range.is_empty() {
                let end = range.end.min(range.start.saturating_add(step));
                self.segment(range.start..end, source, &mut segments)?;
                range.start = end;
            }
        }
        self.section(
            SECTION,
            json!({ "capacity": capacity, "segments": segments }),
        );
        Ok(())
    }

    /// Writes some rows as one file, or as several when they do not stack.
    fn segment(
        &mut self,
        rows: Range<u32>,
        source: &dyn RowsToSave,
        segments: &mut Vec<Value>,
    ) -> Result<(), ReplayError> {
        match source.gather(&rows.clone().collect::<Vec<u32>>()) {
            Ok(frames) => {
                let first = rows.start;
                source.copied(rows);
                let name = format!("rows-{}", segments.len());
                self.dict(&name, &frames)?;
                segments.push(json!({ "file": name, "first": first }));
                Ok(())
            }
            Err(ReplayError::Unlike { .. }) if rows.len() > 1 => {
                let middle = rows.start + (rows.end - rows.start) / 2;
                self.segment(rows.start..middle, source, segments)?;
                self.segment(middle..rows.end, source, segments)
            }
            Err(error) => Err(error),
        }
    }
}

/// Where the rows of a checkpoint come from.
pub(crate) trait RowsToSave {
    /// As [`StorageRead::gather`].
    fn gather(&self, rows: &[u32]) -> Result<TensorDict, ReplayError>;

    /// These rows are copied: they may be overwritten.
    fn copied(&self, rows: Range<u32>) {
        let _ = rows;
    }
}

impl RowsToSave for &dyn StorageRead {
    fn gather(&self, rows: &[u32]) -> Result<TensorDict, ReplayError> {
        (**self).gather(rows)
    }
}

/// Frames like `one` that make a file of the usual size.
fn frames_of_a_segment(one: &TensorDict) -> u32 {
    let sizes = one.leaves().map(|(_, tensor)| match tensor.dtype() {
        DType::Bytes => tensor.encoded_len(),
        _ => tensor.byte_len(),
    });
    let bytes: usize = sizes.sum();
    u32::try_from(SEGMENT / bytes.max(1))
        .unwrap_or(u32::MAX)
        .max(1)
}

impl Checkpoint {
    /// Puts the rows of this checkpoint into `storage`, replacing its frames.
    ///
    /// # Errors
    /// [`ReplayError::Misfit`] when the storage has another capacity, [`ReplayError::Store`] when
    /// it holds frames of other entries; and those of [`dict`](Checkpoint::dict).
    pub fn rows(&self, storage: &dyn Storage) -> Result<(), ReplayError> {
        self.rows_of(storage, None)
    }

    /// As [`rows`](Checkpoint::rows), of these runs.
    pub(crate) fn rows_of(
        &self,
        storage: &dyn Storage,
        runs: Option<&KnownRuns>,
    ) -> Result<(), ReplayError> {
        let mut cleared = false;
        for (name, first) in self.segments(storage.capacity())? {
            let frames = self.dict(name)?;
            storage.prepare(&frames)?;
            if !cleared {
                storage.clear();
                cleared = true;
            }
            KnownRuns::write(runs, storage, first, &frames)?;
        }
        if !cleared {
            storage.clear();
        }
        Ok(())
    }

    /// Reads the rows of this checkpoint without putting them anywhere: whether
    /// [`rows`](Checkpoint::rows) can put them into `storage` once that is empty.
    ///
    /// # Errors
    /// [`ReplayError::Misfit`] when the storage has another capacity, or its frames are all alike
    /// and those of the checkpoint are not; and those of [`dict`](Checkpoint::dict).
    pub fn check_rows(&self, storage: &dyn Storage) -> Result<(), ReplayError> {
        let capacity = storage.capacity();
        let mut alike = None;
        for (name, first) in self.segments(capacity)? {
            let frames = self.dict(name)?;
            let leaves = Store::leaves(&frames)?;
            let rows = frames.numel();
            if first >= capacity || rows > capacity {
                let got = format!("{rows} from row {first} on in {name}");
                return Err(self.misfit(format!("up to {capacity} rows"), got));
            }
            let expected = alike.get_or_insert_with(|| leaves.clone());
            if storage.frames_are_alike() && *expected != leaves {
                let expected = format!("frames that are all alike: {expected:?}");
                return Err(self.misfit(expected, format!("{leaves:?} in {name}")));
            }
        }
        Ok(())
    }

    /// The files with rows, each with the row that it begins with.
    fn segments(&self, capacity: usize) -> Result<Vec<(&str, usize)>, ReplayError> {
        let section = self.section(SECTION);
        if section["capacity"] != capacity {
            let got = format!("{} rows", section["capacity"]);
            return Err(self.misfit(format!("{capacity} rows"), got));
        }
        let segments = section["segments"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let found: Option<Vec<_>> = segments.iter().map(of_segment).collect();
        found.ok_or_else(|| {
            let expected = "segments with a file and a first row".to_owned();
            self.misfit(expected, section["segments"].to_string())
        })
    }
}

/// File and first row.
fn of_segment(segment: &Value) -> Option<(&str, usize)> {
    let first = segment["first"].as_u64()?;
    Some((segment["file"].as_str()?, usize::try_from(first).ok()?))
}
