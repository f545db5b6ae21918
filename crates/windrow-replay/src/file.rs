//! Files that are there whole or not at all.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::ReplayError;

/// Makes what the operating system said into an error that names the operation and the file.
pub(crate) fn io_error(op: &'static str, path: &Path) -> impl Fn(io::Error) -> ReplayError {
    move |error| ReplayError::Io {
        op,
        path: path.to_path_buf(),
        error,
    }
}

/// Makes `path` a file of these bytes, on the disk when this returns; nobody ever sees a part of it.
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

/// Brings names that were made, renamed or removed in `directory` to the disk.
pub(crate) fn sync_directory(directory: &Path) -> Result<(), ReplayError> {
    // Elsewhere directories cannot be opened as files, and names need no such help.
    if cfg!(unix) {
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(io_error("sync", directory))?;
    }
    Ok(())
}
