//! Files that are replaced in one step, and directories that one storage locks.

use std::fs::File;
#[cfg(not(loom))]
use std::fs::{OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::Path;
#[cfg(not(loom))]
use std::path::PathBuf;

#[cfg(not(loom))]
use windrow_store::StoreError;

use crate::ReplayError;

/// Adds operation and file to an error of the operating system.
pub(crate) fn io_error(op: &'static str, path: &Path) -> impl Fn(io::Error) -> ReplayError {
    move |error| ReplayError::Io {
        op,
        path: path.to_path_buf(),
        error,
    }
}

/// Replaces `path` by a file of these bytes, which is on the disk when this returns. No reader ever
/// sees a part of it.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), ReplayError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let unfinished = tempfile::Builder::new()
        .prefix(".windrow-")
        .suffix(".tmp")
        .tempfile_in(directory);
    let mut unfinished = unfinished.map_err(io_error("create a file in", directory))?;
    let written = unfinished
        .write_all(bytes)
        .and_then(|()| unfinished.as_file().sync_all());
    written.map_err(io_error("write", path))?;
    let published = unfinished.persist(path).map_err(|error| error.error);
    published.map_err(io_error("replace", path))?;
    sync_directory(directory)
}

/// Syncs names that were made, renamed or removed in `directory` to the disk.
pub(crate) fn sync_directory(directory: &Path) -> Result<(), ReplayError> {
    // Elsewhere directories cannot be opened as files, and names need no such help.
    if cfg!(unix) {
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(io_error("sync", directory))?;
    }
    Ok(())
}

/// A lock on a directory, held until this is dropped or its process ends in any way.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Locked {
    path: PathBuf,
    file: File,
}

#[cfg(not(loom))]
impl Locked {
    /// Locks `directory` by the file `name` in it; creates both if they are missing.
    ///
    /// # Errors
    /// [`StoreError::InUse`] naming the directory when it is locked; [`ReplayError::Io`].
    pub(crate) fn new(directory: &Path, name: &str) -> Result<Self, ReplayError> {
        std::fs::create_dir_all(directory).map_err(io_error("create", directory))?;
        let path = directory.join(name);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(io_error("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { path, file }),
            Err(TryLockError::WouldBlock) => Err(ReplayError::Store(StoreError::InUse {
                path: directory.to_path_buf(),
            })),
            Err(TryLockError::Error(error)) => Err(io_error("lock", &path)(error)),
        }
    }

    /// Whether the file that is locked is still the one at its path.
    #[cfg(unix)]
    pub(crate) fn is_there(&self) -> bool {
        use std::os::unix::fs::MetadataExt;

        let known = |of: std::fs::Metadata| (of.dev(), of.ino());
        let mine = self.file.metadata().map(known).ok();
        mine.is_some() && mine == std::fs::metadata(&self.path).map(known).ok()
    }

    /// Whether the locked file still exists: it cannot be removed.
    #[cfg(not(unix))]
    pub(crate) fn is_there(&self) -> bool {
        let _ = &self.file;
        self.path.exists()
    }
}
