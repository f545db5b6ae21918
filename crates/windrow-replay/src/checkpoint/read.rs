use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tensordict::TensorDict;

use super::{FileEntry, MANIFEST, Manifest};
use crate::ReplayError;
use crate::file::io_error;

/// Bytes that are read at a time.
const BLOCK: usize = 1 << 20;

/// A checkpoint whose files match their checksums.
#[derive(Debug)]
pub struct Checkpoint {
    directory: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    /// Opens the last finished checkpoint in `directory`, and reads all of it once to compare the
    /// checksums.
    ///
    /// # Errors
    /// [`ReplayError::Damaged`] and [`ReplayError::Io`], naming the file.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, ReplayError> {
        let directory = directory.as_ref().to_path_buf();
        let manifest = Manifest::load(&directory)?;
        let checkpoint = Self {
            directory,
            manifest,
        };
        for file in &checkpoint.manifest.files {
            checkpoint.compare(file)?;
        }
        Ok(checkpoint)
    }

    fn compare(&self, file: &FileEntry) -> Result<(), ReplayError> {
        let path = self.manifest.file(&self.directory, &file.name);
        let (bytes, crc32) = checksum(&path).map_err(io_error("read", &path))?;
        if (bytes, crc32) == (file.bytes, file.crc32) {
            return Ok(());
        }
        let tell = |bytes: u64, crc32: u32| format!("{bytes} bytes of checksum {crc32:08x}");
        Err(ReplayError::Damaged {
            path,
            expected: tell(file.bytes, file.crc32),
            got: tell(bytes, crc32),
        })
    }

    /// The section of the manifest of this name; null without one.
    #[must_use]
    pub fn section(&self, name: &str) -> &Value {
        self.manifest.sections.get(name).unwrap_or(&Value::Null)
    }

    /// Whether there is a file `name`.
    #[must_use]
    pub fn has_dict(&self, name: &str) -> bool {
        self.manifest.files.iter().any(|file| file.name == name)
    }

    /// Reads the file `name`.
    ///
    /// # Errors
    /// [`ReplayError::Tensor`] when it holds no dict, [`ReplayError::Io`]; both name the file.
    pub fn dict(&self, name: &str) -> Result<TensorDict, ReplayError> {
        let path = self.manifest.file(&self.directory, name);
        let bytes = fs::read(&path).map_err(io_error("read", &path))?;
        Ok(TensorDict::from_bytes(&bytes).map_err(|error| error.in_file(path))?)
    }

    /// The error that this checkpoint was made for another storage.
    pub(super) fn misfit(&self, expected: String, got: String) -> ReplayError {
        ReplayError::Misfit {
            path: self.directory.join(MANIFEST),
            expected,
            got,
        }
    }
}

/// Length and CRC-32 of a file.
fn checksum(path: &Path) -> io::Result<(u64, u32)> {
    let mut file = File::open(path)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut block = vec![0; BLOCK];
    let mut bytes = 0;
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok((bytes, hasher.finalize())),
            Ok(read) => {
                hasher.update(&block[..read]);
                bytes += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
