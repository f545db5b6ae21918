//! Running statistics that environments share, also those in other processes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::columns::Column;
use crate::{EnvError, SpecError};

/// A place for running statistics that several environments share: a file, which the environments of other threads and processes open
/// by its path. It needs no name in any folder.
///
/// Each environment takes the statistics, changes them and puts them back at each of its steps, under the file's lock, which the
/// system releases where a process dies. How workers take turns decides what each finds there.
///
/// ```
/// use windrow_env::{Pendulum, Serial, Statistics, VecEnv, VecNorm};
///
/// let shared = Statistics::new()?;
/// let norm = VecNorm::new(["observation"]).sharing(&shared);
/// let one = Serial::from_fn(4, Pendulum::v1)?.transformed(norm.clone())?;
/// let other = Serial::from_fn(4, Pendulum::v1)?.transformed(norm)?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statistics {
    /// The file, which others can open by this path for as long as this value, or a clone of it, lives.
    path: PathBuf,
    /// The first bytes, which tell the file from any other.
    token: String,
    /// Where in the file the statistics begin.
    #[serde(default)]
    begin: u64,
    #[serde(skip)]
    _file: Option<Arc<File>>,
}

impl PartialEq for Statistics {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, &self.token, self.begin) == (&other.path, &other.token, other.begin)
    }
}

/// At the start: the token, whether nothing changes the statistics, and the length of the description that follows.
const TOKEN: usize = 16;
const HEAD: usize = TOKEN + 16;

impl Statistics {
    /// A place of its own, in memory.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where the system gives none.
    #[cfg(target_os = "linux")]
    pub fn new() -> Result<Self, EnvError> {
        use std::os::fd::AsRawFd;
        use std::sync::atomic::{AtomicU64, Ordering};

        static MADE: AtomicU64 = AtomicU64::new(0);
        let process = std::process::id();
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let memory = PathBuf::from("/dev/shm");
        let folder = if memory.is_dir() {
            memory
        } else {
            std::env::temp_dir()
        };
        let path = folder.join(format!("windrow-statistics-{process}-{number}"));
        let token = format!("{:08x}{:08x}", process, number as u32);
        let made = (|| {
            let file = File::create_new(&path)?;
            // It lives on without its name.
            std::fs::remove_file(&path)?;
            file.write_all_at(token.as_bytes(), 0)?;
            Ok(file)
        })();
        let file = made.map_err(|error: io::Error| refused("cannot be made", &error))?;
        Ok(Self {
            path: format!("/proc/{process}/fd/{}", file.as_raw_fd()).into(),
            token,
            begin: 0,
            _file: Some(Arc::new(file)),
        })
    }
}

fn refused(what: &str, error: &dyn std::fmt::Display) -> EnvError {
    EnvError::failed(format!("shared statistics {what}: {error}"))
}

/// What the statistics are of, which the first of the environments settles.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Description {
    rule: String,
    columns: Vec<(Vec<String>, String, Vec<usize>)>,
}

impl Description {
    /// Of `columns`, with as many values of each as it has elements, where not as many as `each` environments have together.
    pub(super) fn new(rule: &str, columns: &[Column], each: Option<usize>) -> Self {
        let described = |column: &Column| {
            let names = column.key.components().iter().map(ToString::to_string);
            let shape = each.into_iter().chain(column.shape.iter().copied());
            (
                names.collect(),
                column.dtype.name().to_owned(),
                shape.collect(),
            )
        };
        Self {
            rule: rule.to_owned(),
            columns: columns.iter().map(described).collect(),
        }
    }
}

/// Statistics as one of the environments sees them.
#[derive(Debug)]
pub(super) struct Exchange {
    file: File,
    begin: u64,
    /// The whole place, as it was read last.
    bytes: Vec<u8>,
    /// Where in `bytes` the numbers begin.
    numbers: usize,
}

impl Exchange {
    /// Opens `shared` for `count` numbers, all 0 at first.
    ///
    /// # Errors
    /// [`EnvError::Failed`] where the file is gone, [`SpecError::Argument`] where others share statistics of something else there.
    pub(super) fn open(
        shared: &Statistics,
        of: &Description,
        count: usize,
    ) -> Result<Self, EnvError> {
        let file = OpenOptions::new().read(true).write(true).open(&shared.path);
        let file = file.map_err(|error| refused("cannot be opened", &error))?;
        let mut token = [0; TOKEN];
        let read = file.read_exact_at(&mut token, 0);
        if read.is_err() || token != shared.token.as_bytes() {
            return Err(refused("are gone", &shared.path.display()));
        }
        let own = serde_json::to_vec(of).map_err(EnvError::failed)?;
        file.lock()
            .map_err(|error| refused("cannot be locked", &error))?;
        let settled = Self::settle(&file, shared.begin, of, &own, count);
        file.unlock()
            .map_err(|error| refused("cannot be locked", &error))?;
        let numbers = settled?;
        Ok(Self {
            begin: shared.begin,
            bytes: vec![0; numbers + count * 8],
            numbers,
            file,
        })
    }

    /// Where the numbers begin, after the description of the first or one that is the same.
    fn settle(
        file: &File,
        begin: u64,
        of: &Description,
        own: &[u8],
        count: usize,
    ) -> Result<usize, EnvError> {
        let failed = |error: io::Error| refused("cannot be used", &error);
        let mut length = [0; 8];
        // Where the file ends before, there is nothing yet.
        let known = match file.read_exact_at(&mut length, begin + (HEAD - 8) as u64) {
            Ok(()) => u64::from_le_bytes(length) as usize,
            Err(_) => 0,
        };
        let of_length = |length: usize| (HEAD + length).next_multiple_of(8);
        if known == 0 {
            let numbers = of_length(own.len());
            let zeros = vec![0; count * 8];
            file.write_all_at(&zeros, begin + numbers as u64)
                .map_err(failed)?;
            file.write_all_at(own, begin + HEAD as u64)
                .map_err(failed)?;
            let length = (own.len() as u64).to_le_bytes();
            file.write_all_at(&length, begin + (HEAD - 8) as u64)
                .map_err(failed)?;
            return Ok(numbers);
        }
        let mut first = vec![0; known];
        file.read_exact_at(&mut first, begin + HEAD as u64)
            .map_err(failed)?;
        match serde_json::from_slice::<Description>(&first) {
            Ok(first) if first == *of => Ok(of_length(known)),
            _ => Err(SpecError::Argument {
                argument: "statistics",
                of: of.rule.clone(),
                expected: String::from_utf8_lossy(&first).into_owned(),
                got: String::from_utf8_lossy(own).into_owned(),
            }
            .into()),
        }
    }

    /// Locks the file and reads `numbers`; returns whether they are not to be changed.
    pub(super) fn take(&mut self, numbers: &mut [f64]) -> Result<bool, EnvError> {
        self.file
            .lock()
            .map_err(|error| refused("cannot be locked", &error))?;
        let read = self.file.read_exact_at(&mut self.bytes, self.begin);
        if let Err(error) = read {
            let _ = self.file.unlock();
            return Err(refused("cannot be read", &error));
        }
        let words = self.bytes[self.numbers..].as_chunks::<8>().0;
        for (number, word) in numbers.iter_mut().zip(words) {
            *number = f64::from_le_bytes(*word);
        }
        Ok(self.bytes[TOKEN] != 0)
    }

    /// Writes `numbers` where they have changed, and unlocks the file.
    pub(super) fn put(&mut self, numbers: Option<&[f64]>) -> Result<(), EnvError> {
        let mut written = Ok(());
        if let Some(numbers) = numbers {
            let words = self.bytes[self.numbers..].as_chunks_mut::<8>().0;
            for (number, word) in numbers.iter().zip(words) {
                *word = number.to_le_bytes();
            }
            let place = self.begin + self.numbers as u64;
            written = self.file.write_all_at(&self.bytes[self.numbers..], place);
        }
        written
            .and(self.file.unlock())
            .map_err(|error| refused("cannot be written", &error))
    }
}
