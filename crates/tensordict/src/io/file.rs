//! Saving and loading files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Result, TensorDict, TensorError};

/// Most temporary names to try; more in one directory means that something else is wrong.
const ATTEMPTS: usize = 1000;

/// Memory that gathers small tensors before they are written, in bytes.
const WRITE_BUFFER: usize = 1 << 20;

impl TensorDict {
    /// Saves the dict as a safetensors file at `path`, replacing an existing one.
    ///
    /// The file is written under another name in the same directory, flushed to the disk and
    /// renamed, so no reader ever sees half of it, and an old file stays intact when saving fails.
    ///
    /// # Errors
    /// [`TensorError::File`] around [`TensorError::Io`], or around those of
    /// [`to_bytes`](TensorDict::to_bytes).
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.save_beside(path).map_err(|error| error.in_file(path))
    }

    fn save_beside(&self, path: &Path) -> Result<()> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let (file, unfinished) =
            Unfinished::create(directory).map_err(io_error("create temporary file"))?;
        let mut out = BufWriter::with_capacity(WRITE_BUFFER, file);
        self.encoding()?.write(&mut out)?;
        out.flush().map_err(io_error("write"))?;
        out.get_ref().sync_all().map_err(io_error("sync"))?;
        // Closed before the rename, which some systems refuse for open files.
        drop(out);
        unfinished.publish(path).map_err(io_error("rename"))
    }

    /// Loads the safetensors file at `path`, as [`from_bytes`](TensorDict::from_bytes) reads it.
    ///
    /// # Errors
    /// [`TensorError::File`] around [`TensorError::Io`], or around those of
    /// [`from_bytes`](TensorDict::from_bytes).
    pub fn load(path: impl AsRef<Path>) -> Result<TensorDict> {
        let path = path.as_ref();
        let read = fs::read(path)
            .map_err(io_error("read"))
            .and_then(|bytes| Self::from_bytes(&bytes));
        read.map_err(|error| error.in_file(path))
    }
}

fn io_error(op: &'static str) -> impl Fn(io::Error) -> TensorError {
    move |error| TensorError::Io { op, error }
}

/// A temporary file that is removed again unless it is published.
struct Unfinished {
    path: PathBuf,
    published: bool,
}

impl Unfinished {
    fn create(directory: &Path) -> io::Result<(File, Unfinished)> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..ATTEMPTS {
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let path = directory.join(format!(".windrow-{}-{number}.tmp", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    return Ok((
                        file,
                        Unfinished {
                            path,
                            published: false,
                        },
                    ));
                }
                // Left behind by a process of the same id that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn publish(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.published {
            // Saving has failed already; a file that cannot be removed either adds nothing to that
            // error.
            let _ = fs::remove_file(&self.path);
        }
    }
}
