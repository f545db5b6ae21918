//! Checkpoints: directories that hold the rows of a storage and the state of its buffer (ADR 0005).
//!
//! ```text
//! checkpoint/
//!   manifest.json          names the folder, and length and CRC-32 of each file in it
//!   windrow-00000007/
//!     rows-0.safetensors   frames, some thousands each
//!     …
//! ```
//!
//! A new checkpoint is written into a folder of its own and synced to the disk; then the manifest
//! is replaced in one step; then the previous folder is removed. A process that is killed at any
//! time leaves the last finished checkpoint.
//!
//! The directory may hold other things. A checkpoint removes files of its own kind from folders of
//! its own name and from the folder that the manifest before named, then the folder if it is empty,
//! and nothing else.

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::ReplayError;
use crate::file::io_error;

mod read;
mod rows;
mod write;

pub use read::Checkpoint;
pub(crate) use rows::RowsToSave;
pub use write::CheckpointWriter;

const MANIFEST: &str = "manifest.json";
/// The extension of the files of a checkpoint.
const EXTENSION: &str = "safetensors";
/// The format that a manifest names.
const FORMAT: &str = "windrow checkpoint 1";

/// The list of the files of a checkpoint.
#[derive(Debug, Default)]
struct Manifest {
    generation: u64,
    /// Name of the folder that the files are in.
    folder: String,
    files: Vec<FileEntry>,
    sections: Map<String, Value>,
}

#[derive(Debug, Clone)]
struct FileEntry {
    name: String,
    bytes: u64,
    crc32: u32,
}

impl Manifest {
    /// The text of the manifest: a checksum, and the body that it belongs to.
    fn to_text(&self) -> String {
        let files: Vec<Value> = self
            .files
            .iter()
            .map(|file| json!({ "name": file.name, "bytes": file.bytes, "crc32": file.crc32 }))
            .collect();
        let body = json!({
            "format": FORMAT,
            "generation": self.generation,
            "folder": self.folder,
            "files": files,
            "sections": self.sections,
        });
        let body = body.to_string();
        let crc32 = crc32fast::hash(body.as_bytes());
        format!("{HEAD}{crc32:08x}{MIDDLE}{body}{TAIL}")
    }

    fn load(directory: &Path) -> Result<Self, ReplayError> {
        let path = directory.join(MANIFEST);
        let text = std::fs::read(&path).map_err(io_error("read", &path))?;
        let damaged = |expected: &str, got: &str| ReplayError::Damaged {
            path: path.clone(),
            expected: expected.to_owned(),
            got: got.to_owned(),
        };
        let Some((crc32, body)) = split(&text) else {
            return Err(damaged("a checksum and a manifest", "text without them"));
        };
        let found = format!("{:08x}", crc32fast::hash(body));
        if crc32 != found.as_bytes() {
            let expected = String::from_utf8_lossy(crc32);
            return Err(damaged(&format!("checksum {expected}"), &found));
        }
        let json: Value =
            serde_json::from_slice(body).map_err(|error| damaged("JSON", &error.to_string()))?;
        if json["format"] != FORMAT {
            return Err(damaged(FORMAT, &json["format"].to_string()));
        }
        Self::of_json(&json).ok_or_else(|| damaged("a generation, files and sections", "others"))
    }

    fn of_json(json: &Value) -> Option<Self> {
        let file = |file: &Value| {
            Some(FileEntry {
                name: file["name"]
                    .as_str()
                    .filter(|name| is_plain(name))?
                    .to_owned(),
                bytes: file["bytes"].as_u64()?,
                crc32: u32::try_from(file["crc32"].as_u64()?).ok()?,
            })
        };
        let generation = json["generation"].as_u64()?;
        let folder = match &json["folder"] {
            // Before folders were named, they had the number alone.
            Value::Null => format!("{generation:08}"),
            name => name.as_str().filter(|name| is_plain(name))?.to_owned(),
        };
        Some(Self {
            generation,
            folder,
            files: json["files"]
                .as_array()?
                .iter()
                .map(file)
                .collect::<Option<_>>()?,
            sections: json["sections"].as_object()?.clone(),
        })
    }

    fn folder(&self, directory: &Path) -> PathBuf {
        directory.join(&self.folder)
    }

    fn file(&self, directory: &Path, name: &str) -> PathBuf {
        self.folder(directory).join(format!("{name}.{EXTENSION}"))
    }
}

/// Whether a name names an entry of a directory and is no path.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none()
}

const HEAD: &str = "{\"crc32\":\"";
const MIDDLE: &str = "\",\n\"manifest\":";
const TAIL: &str = "}\n";

/// Checksum and body of a manifest's text.
fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = text.strip_prefix(HEAD.as_bytes())?;
    let (crc32, rest) = rest.split_at_checked(8)?;
    let rest = rest.strip_prefix(MIDDLE.as_bytes())?;
    Some((crc32, rest.strip_suffix(TAIL.as_bytes())?))
}
