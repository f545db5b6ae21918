//! The rows of a storage in a checkpoint.

use std::ops::Range;

use serde_json::{Value, json};
use tensordict::TensorDict;

use super::{Checkpoint, CheckpointWriter};
use crate::{ReplayError, Storage, StorageRead};

/// Name of the section that says which rows are in which file.
const SECTION: &str = "rows";

/// Bytes of one file, about.
const SEGMENT: usize = 64 << 20;

impl CheckpointWriter {
    /// Writes all rows that `reader` can read, of a storage of `capacity` rows.
    ///
    /// Writers of the storage wait until the reader is dropped, which can be done before
    /// [`finish`](CheckpointWriter::finish), the slower half.
    ///
    /// # Errors
    /// Those of [`StorageRead::gather`] and [`dict`](CheckpointWriter::dict).
    pub fn rows(&mut self, capacity: usize, reader: &dyn StorageRead) -> Result<(), ReplayError> {
        let mut segments = Vec::new();
        let mut step = None;
        for mut range in reader.filled() {
            let step = match step {
                Some(step) => step,
                None => *step.insert(frames_of_a_segment(&reader.gather(&[range.start])?)),
            };
            while !range.is_empty() {
                let end = range.end.min(range.start.saturating_add(step));
                self.segment(range.start..end, reader, &mut segments)?;
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
        reader: &dyn StorageRead,
        segments: &mut Vec<Value>,
    ) -> Result<(), ReplayError> {
        match reader.gather(&rows.clone().collect::<Vec<u32>>()) {
            Ok(frames) => {
                let name = format!("rows-{}", segments.len());
                self.dict(&name, &frames)?;
                segments.push(json!({ "file": name, "first": rows.start }));
                Ok(())
            }
            Err(ReplayError::Unlike { .. }) if rows.len() > 1 => {
                let middle = rows.start + (rows.end - rows.start) / 2;
                self.segment(rows.start..middle, reader, segments)?;
                self.segment(middle..rows.end, reader, segments)
            }
            Err(error) => Err(error),
        }
    }
}

/// Frames like `one` that make a file of the usual size.
fn frames_of_a_segment(one: &TensorDict) -> u32 {
    let bytes: usize = one.leaves().map(|(_, tensor)| tensor.byte_len()).sum();
    u32::try_from(SEGMENT / bytes.max(1))
        .unwrap_or(u32::MAX)
        .max(1)
}

impl Checkpoint {
    /// Puts the rows of this checkpoint into `storage`, in the place of what it holds.
    ///
    /// # Errors
    /// [`ReplayError::Misfit`] when the storage has another capacity, [`ReplayError::Store`] when it holds frames of
    /// other entries; and those of [`dict`](Checkpoint::dict).
    pub fn rows(&self, storage: &dyn Storage) -> Result<(), ReplayError> {
        let section = self.section(SECTION);
        let capacity = storage.capacity();
        if section["capacity"] != capacity {
            let got = format!("{} rows", section["capacity"]);
            return Err(self.misfit(format!("{capacity} rows"), got));
        }
        let segments = section["segments"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let mut cleared = false;
        for segment in segments {
            let (name, first) = (segment["file"].as_str(), segment["first"].as_u64());
            let (Some(name), Some(first)) = (name, first) else {
                let expected = "segments with a file and a first row".to_owned();
                return Err(self.misfit(expected, segment.to_string()));
            };
            let frames = self.dict(name)?;
            storage.prepare(&frames)?;
            if !cleared {
                storage.clear();
                cleared = true;
            }
            storage.write(usize::try_from(first).unwrap_or(usize::MAX), &frames)?;
        }
        if !cleared {
            storage.clear();
        }
        Ok(())
    }
}
