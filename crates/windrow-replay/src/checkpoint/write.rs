use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tensordict::TensorDict;

use super::{EXTENSION, FileEntry, HEAD, MANIFEST, Manifest};
use crate::ReplayError;
use crate::file::{io_error, replace, sync_directory};

/// A checkpoint that is being written. It replaces the one before with
/// [`finish`](CheckpointWriter::finish); dropped instead, it leaves that in place.
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
    /// Keeps other processes from removing the folder as that of a dead process.
    _lock: Option<File>,
}

impl CheckpointWriter {
    /// Begins a checkpoint in `directory`, which is made if necessary, and removes unfinished
    /// checkpoints of dead processes from it. All other files stay.
    ///
    /// # Errors
    /// [`ReplayError::Misfit`] when there is a manifest of something else, which would be lost;
    /// [`ReplayError::Io`].
    pub fn begin(directory: impl AsRef<Path>) -> Result<Self, ReplayError> {
        let directory = directory.as_ref().to_path_buf();
        fs::create_dir_all(&directory).map_err(io_error("create", &directory))?;
        check_manifest(&directory)?;
        let last = Manifest::load(&directory).ok();
        let folders = folders(&directory)?;
        // Only where it is known which of them is the last that was finished.
        if let Some(last) = &last {
            for (_, path) in &folders {
                if *path != last.folder(&directory) && (lock(path).is_some() || !cfg!(unix)) {
                    remove(path);
                }
            }
        }
        let newest = folders.iter().map(|(generation, _)| *generation).max();
        let newest = newest.max(last.map(|last| last.generation));
        let mut generation = newest.map_or(0, |newest| newest.saturating_add(1));
        loop {
            let manifest = Manifest {
                generation,
                folder: format!("{FOLDER}{generation:08}"),
                ..Manifest::default()
            };
            let folder = manifest.folder(&directory);
            match fs::create_dir(&folder) {
                Ok(()) => {
                    return Ok(Self {
                        directory,
                        manifest,
                        finished: false,
                        _lock: lock(&folder),
                    });
                }
                // Another process has just begun one.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    generation = generation.saturating_add(1);
                }
                Err(error) => return Err(io_error("create", &folder)(error)),
            }
        }
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

    /// Writes everything to the disk, then replaces the previous checkpoint by this one.
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
        // Whichever it is by now.
        let last = Manifest::load(&self.directory).ok();
        replace(&self.directory.join(MANIFEST), text.as_bytes())?;
        self.finished = true;
        if let Some(last) = last.filter(|last| last.folder != self.manifest.folder) {
            for file in &last.files {
                // What cannot be removed is in nobody's way.
                let _ = fs::remove_file(last.file(&self.directory, &file.name));
            }
            remove_if_empty(&last.folder(&self.directory));
        }
        Ok(())
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed now is removed by the next checkpoint.
            remove(&self.manifest.folder(&self.directory));
        }
    }
}

/// Prefix of the names of folders; the number of the checkpoint follows.
const FOLDER: &str = "windrow-";

/// Checks that the file of a manifest's name is a manifest, damaged or not.
fn check_manifest(directory: &Path) -> Result<(), ReplayError> {
    let path = directory.join(MANIFEST);
    match fs::read(&path) {
        Ok(text) if text.starts_with(HEAD.as_bytes()) => Ok(()),
        Ok(_) => Err(ReplayError::Misfit {
            path,
            expected: "the manifest of a checkpoint, or nothing: save elsewhere".to_owned(),
            got: "text that does not begin like one".to_owned(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("read", &path)(error)),
    }
}

/// Folders of checkpoints in `directory`, by generation.
fn folders(directory: &Path) -> Result<Vec<(u64, PathBuf)>, ReplayError> {
    let listed = fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = listed.map_err(io_error("list", directory))?;
    let folders = entries.iter().filter_map(|entry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix(FOLDER)?;
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let is_number = number.len() == 8 && number.bytes().all(|digit| digit.is_ascii_digit());
        (is_folder && is_number).then_some((number.parse().ok()?, entry.path()))
    });
    Ok(folders.collect())
}

/// A lock on a folder, which the system releases when the process ends; `None` if another process
/// has it, or the file system has no locks.
fn lock(folder: &Path) -> Option<File> {
    let folder = File::open(folder).ok()?;
    folder.try_lock().is_ok().then_some(folder)
}

/// Removes files of checkpoints from `folder`, and the folder if that was all that it held. What
/// cannot be removed now is removed by the next checkpoint.
fn remove(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_some_and(|it| it == EXTENSION) {
            let _ = fs::remove_file(path);
        }
    }
    remove_if_empty(folder);
}

fn remove_if_empty(folder: &Path) {
    let _ = fs::remove_dir(folder);
}
