use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tensordict::TensorDict;

use super::{FileEntry, MANIFEST, Manifest};
use crate::ReplayError;
use crate::file::{io_error, replace, sync_directory};

/// A checkpoint that is being written; nobody sees it before [`finish`](CheckpointWriter::finish), and dropping it
/// instead leaves what was there.
///
/// ```
/// use serde_json::json;
/// use tensordict::{Tensor, TensorDict};
/// use windrow_replay::{Checkpoint, CheckpointWriter, LazyTensorStorage, Storage};
///
/// let directory = tempfile::tempdir().expect("a scratch directory");
/// let mut frames = TensorDict::new([3]);
/// frames.set("action", Tensor::arange(0..3)?)?;
/// let storage = LazyTensorStorage::new(10);
/// storage.write(0, &frames)?;
///
/// let mut writer = CheckpointWriter::begin(directory.path())?;
/// writer.section("buffer", json!({ "cursor": 3 }));
/// writer.rows(storage.capacity(), &*storage.read())?;
/// writer.finish()?;
///
/// let restored = LazyTensorStorage::new(10);
/// let checkpoint = Checkpoint::open(directory.path())?;
/// checkpoint.rows(&restored)?;
/// assert_eq!(checkpoint.section("buffer")["cursor"], 3);
/// assert_eq!(restored.read().gather(&[2])?.get("action")?.get_at::<i64>(&[0])?, 2);
/// # Ok::<(), windrow_replay::ReplayError>(())
/// ```
#[derive(Debug)]
pub struct CheckpointWriter {
    directory: PathBuf,
    manifest: Manifest,
    finished: bool,
}

impl CheckpointWriter {
    /// Begins a checkpoint in `directory`, which is made when it is not there.
    ///
    /// One at a time: a second one in the same directory takes the first for the remains of a process that died.
    ///
    /// # Errors
    /// [`ReplayError::Io`].
    pub fn begin(directory: impl AsRef<Path>) -> Result<Self, ReplayError> {
        let directory = directory.as_ref().to_path_buf();
        fs::create_dir_all(&directory).map_err(io_error("create", &directory))?;
        // A manifest that cannot be read has nothing to lose but its place.
        let last = Manifest::load(&directory).ok();
        let folders = folders(&directory)?;
        let newest = folders.iter().map(|(generation, _)| *generation).max();
        for (generation, path) in &folders {
            if last
                .as_ref()
                .is_some_and(|last| last.generation != *generation)
            {
                fs::remove_dir_all(path).map_err(io_error("remove", path))?;
            }
        }
        let manifest = Manifest {
            generation: newest.map_or(0, |newest| newest + 1),
            ..Manifest::default()
        };
        let folder = manifest.folder(&directory);
        fs::create_dir(&folder).map_err(io_error("create", &folder))?;
        Ok(Self {
            directory,
            manifest,
            finished: false,
        })
    }

    /// Puts a small thing into the manifest, under a name.
    pub fn section(&mut self, name: &str, value: Value) {
        self.manifest.sections.insert(name.to_owned(), value);
    }

    /// Writes a dict as the file `name`, which may hold letters, digits and `-`.
    ///
    /// # Errors
    /// [`ReplayError::Tensor`] when it cannot be encoded, [`ReplayError::Io`].
    pub fn dict(&mut self, name: &str, dict: &TensorDict) -> Result<(), ReplayError> {
        let bytes = dict.to_bytes()?;
        let path = self.manifest.file(&self.directory, name);
        fs::write(&path, &bytes).map_err(io_error("write", &path))?;
        self.manifest.files.push(FileEntry {
            name: name.to_owned(),
            bytes: bytes.len() as u64,
            crc32: crc32fast::hash(&bytes),
        });
        Ok(())
    }

    /// Brings everything to the disk and puts this checkpoint in the place of the one before.
    ///
    /// # Errors
    /// [`ReplayError::Io`]; the checkpoint before is still there then.
    pub fn finish(mut self) -> Result<(), ReplayError> {
        for file in &self.manifest.files {
            let path = self.manifest.file(&self.directory, &file.name);
            let synced = OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|file| file.sync_all());
            synced.map_err(io_error("sync", &path))?;
        }
        sync_directory(&self.manifest.folder(&self.directory))?;
        sync_directory(&self.directory)?;
        let text = self.manifest.to_text();
        replace(&self.directory.join(MANIFEST), text.as_bytes())?;
        self.finished = true;
        for (generation, path) in folders(&self.directory)? {
            if generation != self.manifest.generation {
                fs::remove_dir_all(&path).map_err(io_error("remove", &path))?;
            }
        }
        Ok(())
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed now is removed by the next checkpoint.
            let _ = fs::remove_dir_all(self.manifest.folder(&self.directory));
        }
    }
}

/// Folders of checkpoints in `directory`, by generation.
fn folders(directory: &Path) -> Result<Vec<(u64, PathBuf)>, ReplayError> {
    let listed = fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = listed.map_err(io_error("list", directory))?;
    let folders = entries.iter().filter_map(|entry| {
        let name = entry.file_name();
        let name = name.to_str().filter(|name| name.len() == 8)?;
        Some((name.parse().ok()?, entry.path()))
    });
    Ok(folders.collect())
}
