//! What the program holds of the system.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// How long the system may take to clear away what has ended.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts of what has to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    pub(crate) descriptors: usize,
    /// Mapped files of shared memory, and files in /dev/shm that were left there.
    pub(crate) segments: usize,
}

impl Room {
    pub(crate) fn now() -> Self {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mapped = maps.lines().filter(|line| line.contains("/memfd:"));
        Self {
            processes: children(),
            threads: entries("/proc/self/task"),
            descriptors: entries("/proc/self/fd"),
            segments: mapped.count() + segments(),
        }
    }

    /// What is held once it is no more than `before`, or after a while.
    pub(crate) fn back_to(before: Self) -> Self {
        let start = Instant::now();
        loop {
            let now = Self::now();
            if now == before || start.elapsed() > PATIENCE {
                return now;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Files of shared memory that have a name, but for those of Python and PyTorch, which this program
/// has not: others that run beside it come and go.
pub(crate) fn segments() -> usize {
    const OTHERS: [&str; 3] = ["sem.mp-", "psm_", "torch_"];
    let files = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| !OTHERS.iter().any(|other| name.starts_with(other)))
        .count()
}

fn entries(directory: &str) -> usize {
    fs::read_dir(directory).map_or(0, Iterator::count)
}

/// Processes that this one has started, also those that have ended and that nobody has waited for.
pub(crate) fn children() -> usize {
    let own = std::process::id().to_string();
    let folders = fs::read_dir("/proc").unwrap().flatten();
    let parents = folders.filter_map(|folder| {
        let stat = fs::read_to_string(folder.path().join("stat")).ok()?;
        let (_, behind_name) = stat.rsplit_once(')')?;
        behind_name.split_whitespace().nth(1).map(str::to_owned)
    });
    parents.filter(|parent| *parent == own).count()
}
