use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use tensordict::{DType, Group, LeafSpec, NestedKey, Shape, TensorDict};
use windrow_store::Store;
use windrow_sync::unpoisoned;

use super::lazy::Lazy;
use super::run_file::{RunFile, RunOwner};
use super::{Recovered, RunMarks, Storage, StorageRead};
use crate::file::{Locked, io_error, replace};
use crate::{KeptRuns, ReplayError};

/// Names, types and shapes of the frames, and how many rows there are.
const LAYOUT: &str = "layout.json";
/// The rows.
const ROWS: &str = "rows.bin";
/// The same until there is a layout.
const UNFINISHED: &str = "rows.tmp";
/// Which of them follow each other.
const RUNS: &str = "runs.bin";
/// Locked by the storage that uses the directory.
const LOCK: &str = "lock";
/// The format that a layout names.
const FORMAT: &str = "windrow storage 3";

/// Frames in a file that is mapped into memory, laid out when the first come; all frames have their
/// keys, types and shapes, up to those that come first after the storage was cleared.
///
/// With a directory of its own ([`at`](LazyMemmapStorage::at)) it outlives its process, and finds
/// each row whole or empty, whichever way that ended. It is the operating system that writes
/// changes to the disk, some time later: what must survive the machine as well belongs into a
/// checkpoint.
///
/// Leave the files alone while a storage is open: when something else shortens `rows.bin`
/// meanwhile, the next access to a row that is gone ends the process with `SIGBUS`, which cannot be
/// turned into an error.
#[derive(Debug)]
pub struct LazyMemmapStorage {
    capacity: usize,
    lazy: Lazy,
    /// The directory of the files; without it, one file without a name.
    directory: Option<PathBuf>,
    /// There while the directory is in use.
    used: Mutex<Option<Used>>,
    recovered: Mutex<Option<Recovered>>,
}

/// A directory that no other storage can use.
#[derive(Debug)]
struct Used {
    lock: Locked,
    /// There once the rows are.
    runs: Option<Arc<RunFile>>,
}

impl LazyMemmapStorage {
    /// Room for `capacity` frames, between 1 and 2³² - 1, in a file without a name, in the system's
    /// directory for such: it is gone with the storage, and with its process, whichever way that
    /// ends. It grows as frames are written; one that the disk has no room for is an error.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            lazy: Lazy::default(),
            directory: None,
            used: Mutex::new(None),
            recovered: Mutex::default(),
        }
    }

    /// Keeps the files in `directory`, and continues with the frames that are there already. No
    /// other storage can use the directory until this one is dropped, or its process ends. A
    /// directory that is removed before the first write is made again.
    ///
    /// # Errors
    /// [`ReplayError::Misfit`] when another number of rows is there, [`ReplayError::Damaged`] and
    /// [`ReplayError::Store`] when the files cannot be used or are in use elsewhere,
    /// [`ReplayError::Io`].
    pub fn at(mut self, directory: impl AsRef<Path>) -> Result<Self, ReplayError> {
        let directory = directory.as_ref();
        let lock = Locked::new(directory, LOCK)?;
        let mut runs = None;
        let layout = directory.join(LAYOUT);
        // Without rows, its maker died before they had their name.
        if layout.exists() && directory.join(ROWS).exists() {
            let (leaves, groups) = read_layout(&layout, self.capacity)?;
            let store = Store::open(&directory.join(ROWS), leaves, self.capacity)?;
            let store = store.with_groups(groups);
            let path = directory.join(RUNS);
            let owner = RunOwner::of(&store);
            let (file, kept) = match store.written() {
                // Its maker may have died before it made them.
                0 => (RunFile::make(&path, owner)?, None),
                written => RunFile::open(&path, owner, written)?,
            };
            if store.written() > 0 {
                self.recovered = Mutex::new(Some(Recovered {
                    rows: store.read().filled(),
                    cursor: store.cursor(),
                    written: store.written(),
                    runs: kept,
                }));
            }
            self.lazy = Lazy::of(store);
            runs = Some(Arc::new(file));
        }
        self.directory = Some(directory.to_path_buf());
        self.used = Mutex::new(Some(Used { lock, runs }));
        Ok(self)
    }

    /// The file of runs, once there are rows.
    fn runs(&self) -> Option<Arc<RunFile>> {
        self.used().as_ref().and_then(|used| used.runs.clone())
    }

    fn used(&self) -> MutexGuard<'_, Option<Used>> {
        unpoisoned(self.used.lock())
    }

    fn make(&self, frames: &TensorDict) -> Result<Store, ReplayError> {
        let leaves = Store::leaves(frames)?;
        let Some(directory) = &self.directory else {
            let scratch = std::env::temp_dir();
            std::fs::create_dir_all(&scratch).map_err(io_error("create", &scratch))?;
            let file = tempfile::tempfile().map_err(io_error("create a file in", &scratch))?;
            return Ok(Store::in_file(file, &scratch, leaves, self.capacity)?);
        };
        let mut used = self.used();
        let lock = match used.take() {
            Some(Used { lock, .. }) if lock.is_there() => lock,
            // The directory was removed, and so is not ours any more.
            _ => Locked::new(directory, LOCK)?,
        };
        let used = used.insert(Used { lock, runs: None });
        let rows = directory.join(ROWS);
        if rows.exists() {
            // Only rows that a layout is there for are a storage's: those were laid out for other
            // frames, and are empty. Who still reads them keeps them.
            if !directory.join(LAYOUT).exists() {
                return Err(ReplayError::Misfit {
                    path: rows,
                    expected: format!("the rows of a storage, with {LAYOUT} beside it"),
                    got: format!("data without {LAYOUT} beside it"),
                });
            }
            std::fs::remove_file(&rows).map_err(io_error("remove", &rows))?;
            let layout = directory.join(LAYOUT);
            std::fs::remove_file(&layout).map_err(io_error("remove", &layout))?;
        }
        // The rows first, under another name: where the disk is full, nothing says for what frames
        // the directory is. Then the layout, since rows without one could not be opened again.
        let unfinished = directory.join(UNFINISHED);
        let laid_out = self.lay_out(directory, (&unfinished, &rows), (leaves, frames));
        match laid_out {
            Ok((store, runs)) => {
                used.runs = Some(Arc::new(runs));
                Ok(store)
            }
            Err(error) => {
                // It may not be there, and is nobody's.
                let _ = std::fs::remove_file(&unfinished);
                Err(error)
            }
        }
    }

    /// Whether a write of `len` rows from `first` on can succeed; where it cannot, the store says
    /// why.
    fn has_rows(&self, first: usize, len: usize) -> bool {
        first < self.capacity && (1..=self.capacity).contains(&len)
    }

    /// Makes the files of a directory that has none: rows as `unfinished` until all else is there,
    /// then as `rows`.
    fn lay_out(
        &self,
        directory: &Path,
        (unfinished, rows): (&Path, &Path),
        (leaves, frames): (Vec<LeafSpec>, &TensorDict),
    ) -> Result<(Store, RunFile), ReplayError> {
        if unfinished.exists() {
            // Of a process that died meanwhile.
            std::fs::remove_file(unfinished).map_err(io_error("remove", unfinished))?;
        }
        let text = layout(&leaves, &frames.groups(), self.capacity).to_string();
        let store = Store::open(unfinished, leaves, self.capacity)?;
        let runs = RunFile::make(&directory.join(RUNS), RunOwner::of(&store))?;
        replace(&directory.join(LAYOUT), text.as_bytes())?;
        std::fs::rename(unfinished, rows).map_err(io_error("rename", unfinished))?;
        Ok((store, runs))
    }
}

impl Storage for LazyMemmapStorage {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn prepare(&self, frames: &TensorDict) -> Result<(), ReplayError> {
        self.lazy.prepare(frames, |frames| self.make(frames))
    }

    fn write(&self, first: usize, frames: &TensorDict) -> Result<(), ReplayError> {
        // So that there is a file to keep runs in.
        self.prepare(frames)?;
        let write = || self.lazy.write(first, frames, |frames| self.make(frames));
        let len = frames.numel();
        match self.runs().filter(|_| self.has_rows(first, len)) {
            None => write(),
            Some(runs) => {
                let are_filled = || self.lazy.are_filled(first, len);
                runs.around_unknown((first, len), are_filled, || self.lazy.written(), write)
            }
        }
    }

    fn write_runs(
        &self,
        first: usize,
        frames: &TensorDict,
        marks: &RunMarks<'_>,
    ) -> Result<(), ReplayError> {
        self.prepare(frames)?;
        let write = || self.lazy.write(first, frames, |frames| self.make(frames));
        let len = frames.numel();
        match self.runs().filter(|_| self.has_rows(first, len)) {
            None => write(),
            Some(runs) => runs.around((first, len), marks, || self.lazy.written(), write),
        }
    }

    fn keep_runs(&self, runs: &KeptRuns) -> Result<(), ReplayError> {
        match self.runs() {
            None => Ok(()),
            Some(file) => file.replace(runs, || self.lazy.written()),
        }
    }

    fn read(&self) -> Box<dyn StorageRead + '_> {
        self.lazy.read()
    }

    fn clear(&self) {
        match self.runs() {
            None => self.lazy.clear(),
            Some(runs) => runs.clear(|| self.lazy.written(), || self.lazy.clear()),
        }
    }

    fn recovered(&self) -> Option<Recovered> {
        unpoisoned(self.recovered.lock()).take()
    }
}

fn layout(leaves: &[LeafSpec], groups: &[Group], capacity: usize) -> Value {
    let names = |key: &NestedKey| -> Vec<String> {
        let names = key.components().iter();
        names.map(ToString::to_string).collect()
    };
    let leaf = |leaf: &LeafSpec| {
        let key = names(&leaf.key);
        json!({ "key": key, "dtype": leaf.dtype.name(), "shape": &leaf.shape[..] })
    };
    let group = |(key, own): &Group| json!({ "key": names(key), "shape": &own[..] });
    let leaves: Vec<Value> = leaves.iter().map(leaf).collect();
    let groups: Vec<Value> = groups.iter().map(group).collect();
    json!({ "format": FORMAT, "capacity": capacity, "leaves": leaves, "groups": groups })
}

fn read_layout(path: &Path, capacity: usize) -> Result<(Vec<LeafSpec>, Vec<Group>), ReplayError> {
    let bytes = std::fs::read(path).map_err(io_error("read", path))?;
    let damaged = |expected: &str, got: String| ReplayError::Damaged {
        path: path.to_path_buf(),
        expected: expected.to_owned(),
        got,
    };
    let json: Value =
        serde_json::from_slice(&bytes).map_err(|error| damaged("JSON", error.to_string()))?;
    if json["format"] != FORMAT {
        return Err(damaged(FORMAT, json["format"].to_string()));
    }
    if json["capacity"] != capacity {
        return Err(ReplayError::Misfit {
            path: path.to_path_buf(),
            expected: format!("{capacity} rows"),
            got: format!("{} rows", json["capacity"]),
        });
    }
    let leaves = json["leaves"].as_array().map_or(&[][..], Vec::as_slice);
    let leaves: Option<Vec<LeafSpec>> = leaves.iter().map(read_leaf).collect();
    let leaves = leaves.ok_or_else(|| {
        damaged(
            "leaves with a key, dtype and shape",
            json["leaves"].to_string(),
        )
    })?;
    let groups = json["groups"].as_array().map_or(&[][..], Vec::as_slice);
    let groups: Option<Vec<Group>> = groups.iter().map(read_place).collect();
    let damaged = || damaged("groups with a key and shape", json["groups"].to_string());
    Ok((leaves, groups.ok_or_else(damaged)?))
}

fn read_leaf(json: &Value) -> Option<LeafSpec> {
    let (key, shape) = read_place(json)?;
    let dtype = DType::ALL
        .into_iter()
        .find(|dtype| json["dtype"] == dtype.name())?;
    Some(LeafSpec::new(key, dtype, shape))
}

/// A key and a shape.
fn read_place(json: &Value) -> Option<(NestedKey, Shape)> {
    let names = json["key"].as_array()?.iter().map(Value::as_str);
    let names = names.collect::<Option<Vec<&str>>>()?;
    let shape = json["shape"].as_array()?.iter();
    let shape = shape
        .map(|size| size.as_u64().and_then(|size| usize::try_from(size).ok()))
        .collect::<Option<Shape>>()?;
    Some((NestedKey::from(names.as_slice()), shape))
}
