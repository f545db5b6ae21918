use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tensordict::{DType, Group, NestedKey, Shape, TensorDict};
use windrow_slab::{LeafSpec, Store};

use super::lazy::Lazy;
use super::{Recovered, Storage, StorageRead};
use crate::ReplayError;
use crate::file::{io_error, replace};

/// Names, types and shapes of the frames, and how many rows there are.
const LAYOUT: &str = "layout.json";
/// The rows.
const ROWS: &str = "rows.bin";
/// What a layout says of itself.
const FORMAT: &str = "windrow storage 1";

/// Frames in a file that is mapped into memory, laid out when the first come; all frames have their keys, types and
/// shapes, up to those that come first after the storage was cleared.
///
/// With a directory of its own ([`at`](LazyMemmapStorage::at)) it outlives its process, and finds each row whole or
/// empty, whichever way that ended. It is the operating system that writes changes to the disk, some time later: what
/// must survive the machine as well belongs into a checkpoint.
///
/// Leave the files alone while a storage is open: when something else shortens `rows.bin` meanwhile, the next access to a row
/// that is gone ends the process with `SIGBUS`, which cannot be turned into an error.
#[derive(Debug)]
pub struct LazyMemmapStorage {
    capacity: usize,
    lazy: Lazy,
    /// Where the files are to be; one without a name will do when nothing is said.
    directory: Option<PathBuf>,
    recovered: Option<Recovered>,
}

impl LazyMemmapStorage {
    /// Room for `capacity` frames, between 1 and 2³² - 1, in a file without a name, in the system's directory for such: it is gone
    /// with the storage, and with its process, whichever way that ends.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            lazy: Lazy::default(),
            directory: None,
            recovered: None,
        }
    }

    /// Keeps the files in `directory`, and goes on with what is there already.
    ///
    /// # Errors
    /// [`ReplayError::Misfit`] when another number of rows is there, [`ReplayError::Damaged`] and
    /// [`ReplayError::Store`] when the files cannot be used or are in use elsewhere, [`ReplayError::Io`].
    pub fn at(mut self, directory: impl AsRef<Path>) -> Result<Self, ReplayError> {
        let directory = directory.as_ref();
        std::fs::create_dir_all(directory).map_err(io_error("create", directory))?;
        let layout = directory.join(LAYOUT);
        if layout.exists() {
            let (leaves, groups) = read_layout(&layout, self.capacity)?;
            let store = Store::open(&directory.join(ROWS), leaves, self.capacity)?;
            let store = store.with_groups(groups);
            if store.written() > 0 {
                self.recovered = Some(Recovered {
                    rows: store.read().filled(),
                    cursor: store.cursor(),
                    written: store.written(),
                });
            }
            self.lazy = Lazy::of(store);
        }
        self.directory = Some(directory.to_path_buf());
        Ok(self)
    }

    fn make(&self, frames: &TensorDict) -> Result<Store, ReplayError> {
        let leaves = Store::leaves(frames)?;
        let Some(directory) = &self.directory else {
            let scratch = std::env::temp_dir();
            let file = tempfile::tempfile().map_err(io_error("create a file in", &scratch))?;
            return Ok(Store::in_file(file, &scratch, leaves, self.capacity)?);
        };
        let rows = directory.join(ROWS);
        // Empty ones that were laid out for other frames. Who still reads them keeps them.
        if rows.exists() {
            std::fs::remove_file(&rows).map_err(io_error("remove", &rows))?;
        }
        // The layout first: rows without one could not be opened again.
        let text = layout(&leaves, &frames.groups(), self.capacity).to_string();
        replace(&directory.join(LAYOUT), text.as_bytes())?;
        Ok(Store::open(&rows, leaves, self.capacity)?)
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
        self.lazy.write(first, frames, |frames| self.make(frames))
    }

    fn read(&self) -> Box<dyn StorageRead + '_> {
        self.lazy.read()
    }

    fn clear(&self) {
        self.lazy.clear();
    }

    fn recovered(&self) -> Option<Recovered> {
        self.recovered.clone()
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
